/*
 * Tests the sockets that a connection can be made over, and that they are left as they were.
 *
 * usage: ipc_sockets kinds|other_sockets|forked|noexec
 */
#include "ipc.h"
#include <fcntl.h>

static void pass(int from, int to, const char *text)
{
	char got[20] = "";

	EXPECT(adma_write(from, text, strlen(text)), strlen(text));
	EXPECT(adma_read(to, got, sizeof(got)), strlen(text));
	if (strcmp(got, text))
		fail("%s instead of %s", got, text);
}

/* Every kind of unix socket, which is the program's again afterwards. */
static void kinds(void)
{
	static const int kinds[] = { SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM,
		SOCK_STREAM | SOCK_NONBLOCK, SOCK_SEQPACKET | SOCK_NONBLOCK };

	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		int pair[2], one[2], two[2], credentials = 1;
		socklen_t size = sizeof(credentials);
		char got[20];

		make_pair(kinds[i], pair);
		attach_both(pair, one);
		EXPECT(write(pair[0], "ours", 4), 4);
		EXPECT(read(pair[1], got, sizeof(got)), 4);
		getsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, &credentials, &size);
		EXPECT(credentials, 0);
		/* Another one over the same socket, and then without it. */
		attach_both(pair, two);
		close(pair[0]);
		close(pair[1]);
		pass(one[0], one[1], "one");
		pass(two[1], two[0], "two");
		EXPECT(adma_close(one[0]), 0);
		EXPECT(adma_read(one[1], got, sizeof(got)), -EPIPE);
		EXPECT(adma_close(one[1]), 0);
		EXPECT(adma_close(two[0]), 0);
		EXPECT(adma_close(two[1]), 0);
	}
}

static void other_sockets(void)
{
	int pair[2];

	EXPECT(adma_attach(socket(AF_INET, SOCK_STREAM, 0)), -EAFNOSUPPORT);
	EXPECT(adma_attach(socket(AF_UNIX, SOCK_STREAM, 0)), -ENOTCONN);
	make_pipe(pair);
	EXPECT(adma_attach(pair[0]), -ENOTSOCK);
	EXPECT(adma_attach(-1), -EBADF);
}

static void *accept_for_a_while(void *listener)
{
	return (void *)(long)adma_accept_for((int)(long)listener, 2000);
}

/* A child that is made during the greetings has none of the sockets. */
static void forked(void)
{
	char name[60];
	pthread_t thread;
	void *got;

	snprintf(name, sizeof(name), "@adma-forked-%d", getpid());
	int listener = adma_listen(name), client = plain_client(name);

	pthread_create(&thread, NULL, accept_for_a_while, (void *)(long)listener);
	while (sockets() < 3)
		sleep_ms(1);
	sleep_ms(20);
	pid_t child = fork_child();

	if (child == 0) {
		if (sockets() != 2)
			fail("the child has %d sockets, of which 2 are the program's", sockets());
		exit(0);
	}
	expect_good_end(child);
	pthread_join(thread, &got);
	EXPECT((long)got, -ETIMEDOUT);
	close(client);
	EXPECT(adma_close(listener), 0);
}

/* ---- a system that demands memory which is not executed --------------------------------- */

static void noexec(void)
{
	static const char path[] = "/proc/sys/vm/memfd_noexec";
	pid_t child;

	if (unshare(CLONE_NEWPID))
		cannot_be_shown("no process namespaces here");
	child = fork_child();
	if (child == 0) {
		int file = open(path, O_WRONLY), pair[2], ends[2];

		if (file < 0 || write(file, "2", 1) != 1)
			cannot_be_shown("no vm.memfd_noexec here");
		if (memfd_create("adma-test", 0x10 /* MFD_EXEC */) >= 0)
			fail("vm.memfd_noexec is not heeded");
		if (!adma_alloc(100000))
			fail("no block");
		make_pair(SOCK_STREAM, pair);
		attach_both(pair, ends);
		pass(ends[0], ends[1], "words");
		exit(0);
	}
	end_like(child);
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "kinds", kinds }, { "other_sockets", other_sockets }, { "forked", forked },
		{ "noexec", noexec }, { 0 }
	};

	return run_mode(argc, argv, all);
}
