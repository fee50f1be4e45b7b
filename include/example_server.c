/*
 * A server in an event loop: receives messages of any length from many clients, answers each with
 * its bytes in reverse, and ends when a client sends an empty message.
 *
 * cc example_server.c $(pkg-config --cflags --libs adma) -o example_server
 */
#define _GNU_SOURCE
#include <adma.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>

static int loop;

static void watch(int c)
{
	struct epoll_event event = { .events = EPOLLIN, .data.fd = c };
	int fd = adma_event_fd(c);

	if (fd < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event)) {
		fprintf(stderr, "adma_event_fd: %s\n", adma_strerror(fd));
		exit(1);
	}
}

static int accept_clients(int listener)
{
	int c;

	while ((c = adma_accept(listener)) >= 0)
		watch(c);
	if (c != -EAGAIN)
		fprintf(stderr, "adma_accept: %s\n", adma_strerror(c));
	return 0;
}

/* All messages that are there. Returns 1: the client wants the server to end. */
static int serve(int c)
{
	ssize_t len;

	while ((len = adma_next(c)) >= 0) {
		char *data = malloc(len + 1);

		/* The message is there, so this does not wait for its writer to call. */
		len = data ? adma_read(c, data, len) : -ENOMEM;
		for (ssize_t at = 0; at < len / 2; at++) {
			char byte = data[at];

			data[at] = data[len - 1 - at];
			data[len - 1 - at] = byte;
		}
		if (len > 0)
			len = adma_write_for(c, data, len, 10000);
		free(data);
		if (len == 0)
			return 1;
		if (len < 0)
			break;
	}
	if (len != -EAGAIN) /* -EPIPE: the client has closed */
		adma_close(c);
	return 0;
}

int main(int argc, char **argv)
{
	int listener = adma_listen(argc > 1 ? argv[1] : "/tmp/adma-example");
	int over = 0;

	if (listener < 0 || fcntl(listener, F_SETFL, O_NONBLOCK)) {
		fprintf(stderr, "adma_listen: %s\n", adma_strerror(listener));
		return 1;
	}
	loop = epoll_create1(EPOLL_CLOEXEC);
	watch(listener);
	while (!over) {
		struct epoll_event events[16];
		int count = epoll_wait(loop, events, 16, -1);

		for (int i = 0; i < count && !over; i++) {
			int c = events[i].data.fd;

			/* Until the next change will be told; negative: serve() has closed it. */
			do {
				over = c == listener ? accept_clients(c) : serve(c);
			} while (!over && adma_arm(c) == 1);
		}
	}
	adma_close(listener);
	return 0;
}
