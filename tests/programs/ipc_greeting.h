/* What two processes say when a connection is made, as in src/ipc/handshake.rs. */
#ifndef IPC_GREETING_H
#define IPC_GREETING_H
#include "ipc.h"

enum { HELLO = 1, READY, VERDICT }; /* steps */
enum { MEMORY, BELL }; /* what comes with the first */

struct greeting {
	uint64_t magic;
	uint32_t version, step;
	uint64_t nonce, seed, word, token, pin;
	uint32_t region, chosen, equal, pull, push, helper, blocks, workers;
};

/* A socket on which an honest process begins to greet. */
static inline int honest_greeter(void)
{
	int pair[2];

	make_pair(SOCK_STREAM, pair);
	if (fork_child() == 0) {
		close(pair[0]);
		adma_attach(pair[1]);
		_exit(0);
	}
	close(pair[1]);
	return pair[0];
}

/* What it says first. */
static inline struct greeting take_hello(int from, int fds[2])
{
	struct greeting hello;

	if (take_with(from, &hello, sizeof(hello), fds) != sizeof(hello) || fds[BELL] < 0)
		fail("greetings are not what they were");
	return hello;
}
#endif
