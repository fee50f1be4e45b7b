/* Greetings as in src/ipc/setup/handshake.rs, for tests that send their own. */
#ifndef IPC_GREETING_H
#define IPC_GREETING_H
#include "ipc.h"

struct greeting {
	char magic[8];
	uint32_t version, step;
	uint64_t nonce, page, secret[2], pin;
	uint32_t region, side, flags, reserved;
};

enum { HELLO = 1, PAGE_AT, PROOF, DONE };
enum { EITHER, GUEST, HOST };

/* What the library says first. */
static inline struct greeting overheard_hello(void)
{
	struct greeting hello;
	pthread_t thread;
	int pair[2];

	make_pair(SOCK_STREAM, pair);
	pthread_create(&thread, NULL, attach_in_thread, (void *)(long)pair[1]);
	EXPECT(recv(pair[0], &hello, sizeof(hello), MSG_WAITALL), sizeof(hello));
	close(pair[0]);
	pthread_join(thread, NULL);
	close(pair[1]);
	return hello;
}
#endif
