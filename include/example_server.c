/*
 * A server in an event loop: receives messages of any length from many clients, answers each with
 * its bytes in reverse, and ends when a client sends an empty message. No call in the loop waits: a
 * client that is slow, or computes, holds up no other.
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

struct client {
	int c;
	adma_cookie_t cookie;	/* of the message under way; 0: none */
	int answers;		/* it is the answer */
	char *data;
};

static int loop;

static void watch(int c, struct client *client)
{
	/* EPOLLET would do as well: adma_arm() returns 0 before every wait. */
	struct epoll_event event = { .events = EPOLLIN, .data.ptr = client };
	int fd = adma_event_fd(c);

	if (fd < 0 || epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event)) {
		fprintf(stderr, "adma_event_fd: %s\n", adma_strerror(fd));
		exit(1);
	}
}

static void end(struct client *client)
{
	adma_close(client->c);	/* ends the message, and makes its buffer free */
	free(client->data);
	free(client);
}

static void reverse(char *data, ssize_t len)
{
	for (ssize_t at = 0; at < len / 2; at++) {
		char byte = data[at];

		data[at] = data[len - 1 - at];
		data[len - 1 - at] = byte;
	}
}

/* Begins to read the next message. Returns 1, 0: there is none yet, or an error. */
static ssize_t begin(struct client *client)
{
	ssize_t len = adma_next(client->c);

	if (len < 0)
		return len == -EAGAIN ? 0 : len;
	client->data = malloc(len + 1);
	client->cookie = client->data ? adma_iread(client->c, client->data, len) : -ENOMEM;
	client->answers = 0;
	return client->cookie < 0 ? client->cookie : 1;
}

/* Goes on after a message has ended with this result. Returns 1, 0: the server is to end, or an error. */
static ssize_t go_on(struct client *client, ssize_t len)
{
	client->cookie = 0;
	if (len < 0)
		return len;
	if (client->answers) {
		free(client->data);
		client->data = NULL;
		return 1;
	}
	if (len == 0)
		return 0;
	reverse(client->data, len);
	client->answers = 1;
	client->cookie = adma_iwrite(client->c, client->data, len);
	return client->cookie < 0 ? client->cookie : 1;
}

/* Does what can be done for a client. Returns 1: the server is to end. */
static int serve(struct client *client)
{
	for (;;) {
		ssize_t result = 0;

		if (client->cookie) {
			ssize_t len = adma_check(client->cookie);

			if (len != -EINPROGRESS && (result = go_on(client, len)) == 0)
				return 1;
		} else {
			result = begin(client);
		}
		if (result > 0)
			continue;
		/* Armed after every look, and looked again if it says so. -EPIPE: it has closed. */
		if (result == 0 && (result = adma_arm(client->c)) == 1)
			continue;
		if (result < 0)
			end(client);
		return 0;
	}
}

static void accept_clients(int listener)
{
	do {
		int c;

		while ((c = adma_accept(listener)) >= 0) {
			struct client *client = calloc(1, sizeof(*client));

			if (!client)
				exit(1);
			client->c = c;
			watch(c, client); /* readable at once, for it was not armed yet */
		}
		if (c != -EAGAIN)
			fprintf(stderr, "adma_accept: %s\n", adma_strerror(c));
	} while (adma_arm(listener) == 1);
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
	watch(listener, NULL);
	while (!over) {
		struct epoll_event events[16];
		int count = epoll_wait(loop, events, 16, -1);

		for (int i = 0; i < count && !over; i++) {
			if (events[i].data.ptr)
				over = serve(events[i].data.ptr);
			else
				accept_clients(listener);
		}
	}
	adma_close(listener);
	return 0;
}
