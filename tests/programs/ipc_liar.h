/* One who makes a connection without the library, and says what it likes. */
#ifndef IPC_LIAR_H
#define IPC_LIAR_H
#include "ipc_greeting.h"
#include <fcntl.h>

struct liar {
	int socket, memory, bell[2];
	byte *region;
	struct greeting mine, theirs;
	bool leaves_open; /* does not seal the region */
};

/* What is known of the protocol without having heard anything. */
static struct greeting overheard;

static inline void overhear(void)
{
	int fds[2], from = honest_greeter();

	overheard = take_hello(from, fds);
	close(from);
	close(fds[MEMORY]);
	close(fds[BELL]);
}

/* The server's next greeting. */
static inline bool hear(struct liar *liar)
{
	size_t got = 0;

	while (got < sizeof(liar->theirs)) {
		char *at = (char *)&liar->theirs + got;
		ssize_t count = recv(liar->socket, at, sizeof(liar->theirs) - got, 0);

		if (count <= 0)
			return false;
		got += count;
	}
	return true;
}

static inline void prepare(struct liar *liar, int socket)
{
	liar->socket = socket;
	liar->mine = (struct greeting){ .magic = overheard.magic, .version = overheard.version,
		.step = HELLO, .nonce = ~0ull, .seed = 1, .word = 2, .region = overheard.region };
	liar->memory = memfd_create("adma", MFD_ALLOW_SEALING);
	if (ftruncate(liar->memory, overheard.region) ||
	    fcntl(liar->memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
		fail("memfd: %s", strerror(errno));
	make_pair(SOCK_SEQPACKET, liar->bell);
	liar->region = mmap(NULL, overheard.region, PROT_READ | PROT_WRITE, MAP_SHARED,
			    liar->memory, 0);
}

static inline void say_hello(struct liar *liar, int bell, size_t len)
{
	say(liar->socket, &liar->mine, len, (int[]){ liar->memory, bell }, 2);
}

static inline void say_step(struct liar *liar, uint32_t step)
{
	liar->mine.step = step;
	say(liar->socket, &liar->mine, sizeof(liar->mine), NULL, 0);
}

/* READY and VERDICT, as of an equal who says that it has laid the page. */
static inline bool say_rest(struct liar *liar)
{
	liar->mine.equal = liar->mine.chosen = 1;
	say_step(liar, READY);
	if (!hear(liar)) /* READY of the server */
		return false;
	if (liar->theirs.equal)
		fail("process %d of user %d is taken for an equal", getpid(), getuid());
	if (!liar->leaves_open)
		fcntl(liar->memory, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
	liar->mine.token = liar->theirs.token;
	liar->mine.pull = liar->mine.push = liar->mine.blocks = 1;
	say_step(liar, VERDICT);
	return hear(liar);
}

/* An honest one, that waits for the end. */
static inline int read_one(int connection)
{
	char byte;

	return adma_read(connection, &byte, 1);
}

/* One test by name, of those that need to know the protocol. */
static inline int run_liar(int argc, char **argv, const struct mode *all)
{
	alarm(200);
	signal(SIGPIPE, SIG_IGN);
	overhear();
	return run_mode(argc, argv, all);
}
#endif
