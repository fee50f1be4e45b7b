/*
 * Tests clients that say nothing and listeners that do not accept: other clients are served, limits
 * hold, and no descriptor is left.
 *
 * usage: ipc_silent crowd|stalled|closed|limit|queue|socket, with ADMA_IPC_TIMEOUT=2;
 * but 12 for stalled, and 1 for queue and socket
 */
#include "ipc_hostile.h"
#include <sys/resource.h>

/* ---- clients ----------------------------------------------------------------------------- */

/* As many as it can, again and again. */
static void come_again(void)
{
	enum { MANY = 300 };
	struct pollfd all[MANY];

	for (int i = 0; i < MANY; i++)
		all[i].fd = -1;
	for (;;) {
		for (int i = 0; i < MANY; i++) {
			all[i].events = 0;
			if (all[i].fd < 0)
				all[i].fd = try_client(name, SOCK_NONBLOCK);
		}
		poll(all, MANY, 1);
		for (int i = 0; i < MANY; i++)
			if (all[i].fd >= 0 && all[i].revents & (POLLHUP | POLLERR)) {
				close(all[i].fd);
				all[i].fd = -1;
			}
	}
}

static void crowd(void)
{
	struct rlimit limit = { 4096, 4096 };
	int listener = adma_listen(name);

	setrlimit(RLIMIT_NOFILE, &limit);
	pid_t child = hostile(come_again);

	sleep_ms(500);
	for (int i = 0; i < 3; i++)
		expect_honest(listener, "a crowd is there");
	kill_child(child);
}

static void closed_listeners(void)
{
	int first = adma_listen(name);

	EXPECT(adma_accept_for(first, 0), -ETIMEDOUT); /* makes what stays */
	EXPECT(adma_close(first), 0);
	long before = entries_of("/proc/self/fd");

	for (int round = 0; round < 4; round++) {
		int listener = adma_listen(name);

		for (int i = 0; i < 10; i++)
			EXPECT(write(plain_client(name), "adma-ipc", 8), 8);
		expect_honest(listener, "silence");
		close(listener);
		for (int fd = 3; fd < 200; fd++) { /* the clients' ends */
			struct sockaddr_un address;
			socklen_t len = sizeof(address);

			if (getpeername(fd, (void *)&address, &len) == 0 && len > 10)
				close(fd);
		}
		sprintf(strrchr(name, '-'), "-%d", round);
	}
	sleep_ms(2100); /* more than ADMA_IPC_TIMEOUT */
	int listener = adma_listen(name);

	expect_honest(listener, "others are closed");
	EXPECT(adma_close(listener), 0);
	expect_descriptors(before);
}

/* A client that says nothing, or not enough, keeps no other from being accepted. */
static void stalled(void)
{
	double begun = seconds();
	int listener = adma_listen(name), silent[3];

	for (int i = 0; i < 3; i++) {
		silent[i] = plain_client(name);
		EXPECT(write(plain_client(name), "adma-ipc", 8), 8);
	}
	for (int i = 0; i < 2; i++)
		EXPECT(expect_honest(listener, "others are silent"), 0);
	if (seconds() - begun > 10)
		fail("accepted after %.1f s", seconds() - begun);
	/* Clients that do not greet are dropped, and never told of. */
	EXPECT(adma_accept_for(listener, 13000), -ETIMEDOUT);
	for (int i = 0; i < 3; i++) {
		char hello[200];

		while (recv(silent[i], hello, sizeof(hello), 0) > 0)
			;
		close(silent[i]);
	}
	EXPECT(adma_close(listener), 0);
}

/* ---- listeners ---------------------------------------------------------------------------- */

static void *accept_late(void *listener)
{
	sleep_ms(1800);
	for (int i = 0; i < 2; i++)
		accept((int)(long)listener, NULL, NULL);
	return NULL;
}

/* It accepts late, and does not greet. */
static void limit(void)
{
	struct sockaddr_un address;
	socklen_t len = abstract_address(name, &address);
	int listener = socket(AF_UNIX, SOCK_STREAM, 0);
	pthread_t thread;

	if (bind(listener, (void *)&address, len) || listen(listener, 0))
		fail("listen");
	plain_client(name);
	pthread_create(&thread, NULL, accept_late, (void *)(long)listener);
	double begun = seconds();

	EXPECT(adma_connect(name), -ETIMEDOUT);
	/* A limit of its own for each part would end after 3.8 s at the earliest. */
	if (seconds() - begun < 1.9 || seconds() - begun > 3.7)
		fail("two seconds took %.2f s", seconds() - begun);
}

/* It is not accepted at all. */
static void queue(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char folder[] = "/tmp/adma-test-XXXXXX";
	int listener, left = 1000;

	if (!mkdtemp(folder))
		fail("mkdtemp");
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", folder);
	listener = adma_listen(address.sun_path);
	/* The queue gets full. */
	for (; left > 0; left--) {
		int socket_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);

		if (connect(socket_fd, (struct sockaddr *)&address, sizeof(address)))
			break;
	}
	if (left == 0)
		cannot_be_shown("the queue of a listener has no end");
	double begun = seconds();

	EXPECT(adma_connect(address.sun_path), -ETIMEDOUT);
	if (seconds() - begun > 9)
		fail("connecting took %.1f s", seconds() - begun);
	/* It is not taken for a file that was left over. */
	EXPECT(adma_listen(address.sun_path), -EADDRINUSE);
	EXPECT(adma_close(listener), 0);
	unlink(address.sun_path);
	rmdir(folder);
}

/* ---- the other end -------------------------------------------------------------------------- */

static void silent_socket(void)
{
	double begun = seconds();
	int pair[2];

	make_pair(SOCK_STREAM, pair);
	EXPECT(adma_attach(pair[0]), -ETIMEDOUT);
	if (seconds() - begun < 0.9 || seconds() - begun > 9)
		fail("a second took %.3f s", seconds() - begun);
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "crowd", crowd }, { "stalled", stalled },
		{ "closed", closed_listeners }, { "limit", limit }, { "queue", queue },
		{ "socket", silent_socket }, { 0 }
	};

	return run_hostile(argc, argv, all);
}
