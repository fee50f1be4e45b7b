/*
 * A stranger that has the number of our user, for it comes from another user namespace. Its files
 * take long to close, and more of them wait for that than may: nothing more is taken in from it. But
 * connections between equals of that number go on, and new blocks are sent over them.
 */
#include "ipc_lingering.h"
#include <fcntl.h>
#include <sys/resource.h>

/* More than there are threads to close the files of one user; and as many as a message can bring. */
enum { STUCK = 8, MOST_FDS = 253, CLIENTS = STUCK + 2 };

static char name[60];

/* What every client has sent waits to be accepted, and more than 256 files to be closed then. */
static void send_too_much(int done)
{
	int file = open("/dev/null", O_RDONLY), many[MOST_FDS];

	for (int i = 0; i < MOST_FDS; i++)
		many[i] = file;
	for (int i = 0; i < STUCK; i++)
		send_lingering(plain_client(name));
	for (int i = STUCK; i < CLIENTS; i++)
		if (send_with(plain_client(name), "x", 1, many, MOST_FDS, 0) != 1)
			fail("sendmsg: %s", strerror(errno));
	send_byte(done);
}

static pid_t stranger(void)
{
	int done[2], status;
	char byte;

	make_pipe(done);
	pid_t child = fork();

	if (child == 0) {
		if (unshare(CLONE_NEWUSER))
			cannot_be_shown("no user namespaces here");
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* which has gone with the namespace */
		send_too_much(done[1]);
		for (;;)
			pause();
	}
	close(done[1]);
	if (read(done[0], &byte, 1) != 1) {
		waitpid(child, &status, 0);
		exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	}
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
