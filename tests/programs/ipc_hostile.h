/*
 * Hostile clients that make a server wait or run out of descriptors, and an honest client that must
 * be served meanwhile. Run with ADMA_IPC_TIMEOUT=2.
 */
#ifndef IPC_HOSTILE_H
#define IPC_HOSTILE_H
#include "ipc.h"

/* Longer than anything here may take, on a busy machine too. */
enum { SOON = 40 };

static char name[60];
static int left_to_parent; /* a listener */
static int done[2]; /* a pipe: the hostile process has done all that it wants */

static inline void expect_soon(double begun, const char *what)
{
	if (seconds() - begun > SOON)
		fail("%s took %.1f s", what, seconds() - begun);
}

/* Runs `scene` in a process that stays until it is killed. */
static inline pid_t hostile(void (*scene)(void))
{
	pid_t child = fork_child();

	if (child == 0) {
		if (left_to_parent)
			close(left_to_parent);
		scene();
		send_byte(done[1]);
		for (;;)
			pause();
	}
	return child;
}

/* Comes again if it was too slow for its place in a crowd, as on a busy machine. */
static inline void honest_client(void)
{
	int connection = -ECONNRESET;

	for (int tries = 0; tries < 20 && (connection == -ECONNRESET || connection == -ETIMEDOUT); tries++)
		connection = adma_connect(name);
	made(connection);
	EXPECT(adma_write(connection, "good", 4), 4);
	EXPECT(adma_close(connection), 0);
	_exit(0);
}

/* Accepts until an honest one has come; answers the last error before. */
static inline int expect_honest(int listener, const char *while_there_is)
{
	char got[10];
	double begun = seconds();
	pid_t child = hostile(honest_client);
	int error = 0;

	for (;;) {
		int connection = adma_accept(listener);

		expect_soon(begun, while_there_is);
		if (connection < 0) {
			error = connection;
			continue;
		}
		EXPECT(adma_read(connection, got, 10), 4);
		EXPECT(adma_close(connection), 0);
		expect_good_end(child);
		return error;
	}
}

/* One scene of them. */
static inline int run_hostile(int argc, char **argv, const struct mode *all)
{
	alarm(200);
	make_pipe(done);
	snprintf(name, sizeof(name), "@adma-hostile-%d-x", getpid());
	return run_mode(argc, argv, all);
}
#endif
