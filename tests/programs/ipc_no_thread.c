/*
 * A process that can make no threads closes a listener that has a client in its queue: it is closed
 * all the same. The client hears of it, and the name can be listened at again.
 */
#include "ipc_filter.h"

static void *nothing(void *unused)
{
	return unused;
}

static void refuse_threads(void)
{
	pthread_t thread;

	filter_call(SYS_clone3, SECCOMP_RET_ERRNO | EAGAIN);
	filter_call(SYS_clone, SECCOMP_RET_ERRNO | EAGAIN);
	if (pthread_create(&thread, NULL, nothing, NULL) == 0)
		fail("threads can still be made");
}

int main(void)
{
	char name[60];

	alarm(100);
	snprintf(name, sizeof(name), "@adma-no-thread-%d", getpid());
	int listener = adma_listen(name);
	struct pollfd queue = { .fd = listener, .events = POLLIN };
	pid_t client = fork_child();

	if (client == 0) {
		close(listener);
		int connection = adma_connect(name);

		/* It may just have begun to greet. */
		if (connection != -ECONNRESET && connection != -EPIPE)
			fail("connect to a listener that is closed is %s", strerror(-connection));
		exit(0);
	}
	EXPECT(poll(&queue, 1, 60000), 1);
	refuse_threads();
	EXPECT(adma_close(listener), 0);
	listener = made(adma_listen(name));
	expect_good_end(client);
	EXPECT(adma_close(listener), 0);
	return 0;
}
