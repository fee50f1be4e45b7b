/*
 * Forks while a thread waits in adma_connect for a listener whose queue is full: the child does not
 * inherit the socket, which would keep its place in the queue.
 */
#include "ipc.h"

static char name[60];

static void *connect_to_name(void *unused)
{
	(void)unused;
	return (void *)(long)adma_connect(name);
}

/* One client fills its queue. */
static int full_listener(void)
{
	struct sockaddr_un address;
	socklen_t len = abstract_address(name, &address);
	int listener = socket(AF_UNIX, SOCK_STREAM, 0);

	if (bind(listener, (void *)&address, len) || listen(listener, 0))
		fail("listen: %s", strerror(errno));
	plain_client(name);
	return listener;
}

int main(void)
{
	pthread_t thread;
	int status;
	void *got;

	alarm(100);
	snprintf(name, sizeof(name), "@adma-waiting-%d", getpid());
	int listener = full_listener(), before = sockets();

	pthread_create(&thread, NULL, connect_to_name, NULL);
	while (sockets() == before)
		sleep_ms(1);
	sleep_ms(100); /* it was just made; now it waits */
	pid_t child = fork();

	if (child == 0) {
		if (sockets() != before)
			fail("the child has %d sockets, of which %d are the program's", sockets(),
			     before);
		exit(0);
	}
	waitpid(child, &status, 0);
	close(listener);
	pthread_join(thread, &got);
	EXPECT((long)got, -ECONNREFUSED);
	EXPECT(status, 0);
	return 0;
}
