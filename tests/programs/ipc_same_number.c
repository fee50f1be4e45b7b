/*
 * A stranger that has the number of our user, for it comes from another user namespace. Its files
 * take long to close, and more of them wait for that than may: nothing more is taken in from it. But
 * connections between equals of that number go on, and new blocks are sent over them.
 */
#include "ipc_lingering.h"
#include <sys/resource.h>

/* What two more have sent is more than 256 files. */
enum { OTHERS = 2, CLIENTS = HOLDERS + OTHERS };

static char name[60];

static pid_t stranger(void)
{
	int done[2];
	char byte;

	make_pipe(done);
	pid_t child = fork();

	if (child == 0) {
		if (unshare(CLONE_NEWUSER))
			cannot_be_shown("no user namespaces here");
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* which has gone with the namespace */
		send_files_that_wait(name, OTHERS);
		send_byte(done[1]);
		for (;;)
			pause();
	}
	close(done[1]);
	if (read(done[0], &byte, 1) != 1)
		end_like(child);
	return child;
}

/* Sends everything back, each time from a block that the other side has not seen. */
static int answer(int connection)
{
	for (;;) {
		void *block = adma_alloc(MIB);
		long got = adma_read(connection, block, MIB);

		if (got == 0)
			return 0;
		EXPECT(got, MIB);
		EXPECT(adma_write(connection, block, MIB), MIB);
		EXPECT(adma_free(block), 0);
	}
}

static void ask(int connection, unsigned message)
{
	byte *there = adma_alloc(MIB), *back = adma_alloc(MIB);

	if (!there || !back)
		fail("no block");
	fill(there, MIB, message);
	EXPECT(adma_write(connection, (void *)there, MIB), MIB);
	EXPECT(adma_read(connection, (void *)back, MIB), MIB);
	expect_content(back, MIB, message, "answer");
	EXPECT(adma_free((void *)there), 0);
	EXPECT(adma_free((void *)back), 0);
}

int main(void)
{
	struct rlimit enough = { 4096, 4096 };
	int error = 0;
	pid_t equal;

	alarm(200);
	setrlimit(RLIMIT_NOFILE, &enough);
	snprintf(name, sizeof(name), "@adma-same-number-%d", getpid());
	int connection = with_child(answer, &equal), listener = adma_listen(name);

	expect_engine(connection, "process_vm");
	ask(connection, 0);
	pid_t other = stranger();

	for (int i = 0; i < CLIENTS; i++) {
		error = adma_accept(listener);
		if (error >= 0)
			fail("a client that sends files is accepted");
	}
	EXPECT(error, -EMFILE); /* or there are not enough of them */
	for (unsigned message = 1; message < 5; message++)
		ask(connection, message);
	EXPECT(adma_close(connection), 0);
	expect_good_end(equal);
	kill_child(other);
	return 0;
}
