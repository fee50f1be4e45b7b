/* A socket that takes long to close: whoever closes it waits for what it has to send. */
#ifndef IPC_LINGERING_H
#define IPC_LINGERING_H
#include "ipc.h"
#include <fcntl.h>
#include <netinet/in.h>

/* A socket that others of this machine can connect to. */
static inline int reachable_socket(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(listener, (void *)&address, sizeof(address)))
		cannot_be_shown("no network here");
	return listener;
}

/* For who wants to know before others need it. */
static inline void expect_network(void)
{
	close(reachable_socket());
}

/* It is closed when a minute is over. */
static inline int lingering(void)
{
	static char bytes[1 << 16];
	struct sockaddr_in address;
	socklen_t len = sizeof(address);
	int little = 4096, listener = reachable_socket(), sender = socket(AF_INET, SOCK_STREAM, 0);
	struct linger linger = { 1, 60 };

	setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
	if (listen(listener, 1) || getsockname(listener, (void *)&address, &len) ||
	    connect(sender, (void *)&address, len) || accept(listener, NULL, NULL) < 0)
		fail("no network: %s", strerror(errno));
	while (send(sender, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	setsockopt(sender, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	return sender;
}

/* As many as a message can bring, and the last is such a one. */
static inline void send_many_of_which_one_lingers(int to, const void *bytes, size_t len)
{
	int fds[253];

	for (int i = 0; i < 252; i++)
		fds[i] = STDIN_FILENO;
	fds[252] = lingering();
	send_with(to, bytes, len, fds, 253, MSG_DONTWAIT);
	close(fds[252]);
}

static inline void send_one_that_lingers(int to, const void *bytes, size_t len, int flags)
{
	int fd = lingering();

	send_with(to, bytes, len, &fd, 1, MSG_DONTWAIT | flags);
	close(fd);
}

/* Sends one in the queue of another socket, where nobody can keep it from lingering. */
static inline void send_lingering(int to)
{
	int pair[2];

	make_pair(SOCK_SEQPACKET, pair);
	send_one_that_lingers(pair[0], "", 0, 0);
	send_with(to, "x", 1, &pair[1], 1, MSG_DONTWAIT);
	close(pair[1]);
}

/* As many as a message can bring. */
enum { MOST_FDS = 253 };

/* More clients than there are threads to close the files of one user. */
enum { HOLDERS = 8 };

/* They hold up the threads; and so many others, whose files wait to be closed then. */
static inline void send_files_that_wait(const char *listener, int others)
{
	int file = open("/dev/null", O_RDONLY), many[MOST_FDS];

	for (int i = 0; i < MOST_FDS; i++)
		many[i] = file;
	for (int i = 0; i < HOLDERS; i++)
		send_lingering(plain_client(listener));
	for (int i = 0; i < others; i++)
		if (send_with(plain_client(listener), "x", 1, many, MOST_FDS, 0) != 1)
			fail("sendmsg: %s", strerror(errno));
}
#endif
