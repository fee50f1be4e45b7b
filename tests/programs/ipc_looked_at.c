/*
 * A stranger lends a block and holds its lock for ever, by a write to it that never ends. Who reads a
 * message out of it waits a second for the thread that looks at the block, and gets it another way.
 *
 * Run with ADMA_IPC_TIMEOUT=3: so long the stranger waits in vain for its block to be taken.
 */
#include "ipc_faults.h"

/* Who were not woken then would sleep four seconds, for each of them. */
enum { STRANGERS = 3, TOO_LONG = 9 };

static void *block;

/* Its faults are never answered. */
static void *page_that_never_comes(void)
{
	byte *page = pages_between_guards(PAGE);

	withhold_pages(page, PAGE);
	return (void *)page;
}

/* The memory of the block, which is the only one here. */
static int memory_of_block(void)
{
	char path[40], file[100] = "";

	for (int fd = 3; fd < 100; fd++) {
		snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
		if (readlink(path, file, sizeof(file) - 1) > 0 && strstr(file, "adma-block"))
			return fd;
	}
	fail("no memory of a block is open");
}

static void *hold(void *page)
{
	(void)!pwrite(memory_of_block(), page, 1, 0);
	fail("a write that never ends has ended: %s", strerror(errno));
}

static void *lend(void *connection)
{
	adma_lend((int)(long)connection, block);
	return NULL;
}

static void lend_and_write(int pair, int told)
{
	void *page = page_that_never_comes(); /* which not every user can have */
	pthread_t lender, holder;

	if (unshare(CLONE_NEWUSER))
		cannot_be_shown("no user namespaces here");
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* which has gone with the namespace */
	int connection = adma_attach(pair);

	block = adma_alloc(MIB);
	fill(block, MIB, 7);
	pthread_create(&lender, NULL, lend, (void *)(long)connection);
	sleep_ms(200); /* it has sent the block, and waits until that is sealed */
	pthread_create(&holder, NULL, hold, page);
	pthread_join(lender, NULL);
	adma_cookie_t cookie = adma_iwrite(connection, block, MIB);

	send_byte(told);
	EXPECT(adma_wait(cookie), MIB);
	_exit(0); /* the write ends with the process */
}

int main(void)
{
	byte *got = adma_alloc(MIB); /* blocks are used only between blocks */
	int pair[2], told[STRANGERS][2], connections[STRANGERS];
	pid_t children[STRANGERS];

	alarm(100);
	for (int i = 0; i < STRANGERS; i++) {
		make_pipe(told[i]);
		make_pair(SOCK_STREAM, pair);
		children[i] = fork_child();
		if (children[i] == 0)
			lend_and_write(pair[1], told[i][1]);
		close(pair[1]);
		close(told[i][1]);
		connections[i] = adma_attach(pair[0]);
	}
	double took = 0;

	for (int i = 0; i < STRANGERS; i++) {
		if (read(told[i][0], (void *)got, 1) != 1)
			end_like(children[i]);
		took -= seconds();
		EXPECT(adma_read(connections[i], (void *)got, MIB), MIB);
		took += seconds();
		expect_content(got, MIB, 7, "message");
		expect_good_end(children[i]);
	}
	if (took < STRANGERS * 0.5)
		fail("nobody has held a lock");
	if (took > TOO_LONG)
		fail("%d messages took %.1f s", STRANGERS, took);
	return 0;
}
