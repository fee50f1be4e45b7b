/* A file that takes long to close, for who wants somebody else to close it. */
#ifndef IPC_LINGERING_H
#define IPC_LINGERING_H
#include "ipc.h"
#include <netinet/in.h>

/* In seconds: longer than anything may take, on a busy machine too. */
enum { LINGER = 60 };

/* A socket that is not closed before its time is over, for what it has to send. */
static int lingering(void)
{
	static char bytes[1 << 16];
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(address);
	int little = 4096, listener = socket(AF_INET, SOCK_STREAM, 0);
	int sender = socket(AF_INET, SOCK_STREAM, 0);
	struct linger linger = { 1, LINGER };

	setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
	if (bind(listener, (void *)&address, len) || listen(listener, 1) ||
	    getsockname(listener, (void *)&address, &len) ||
	    connect(sender, (void *)&address, len) || accept(listener, NULL, NULL) < 0)
		cannot_be_shown("no network here");
	while (send(sender, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	setsockopt(sender, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	return sender;
}

/*
 * Sends one in the queue of another socket, where nobody can keep it from lingering. It is not to be
 * taken in before this has returned: we would close it last, and wait.
 */
static void send_lingering(int to)
{
	int fd = lingering(), pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		fail("socketpair: %s", strerror(errno));
	send_with(pair[0], "", 0, &fd, 1, MSG_DONTWAIT);
	send_with(to, "x", 1, &pair[1], 1, MSG_DONTWAIT);
	close(fd);
	close(pair[1]);
}
#endif
