/*
 * What a connection can be made over, and who may be at the other end.
 */
#include "ipc_echo.h"
#include <fcntl.h>
#include <netinet/in.h>

static void *attach_end(void *socket_fd)
{
	return (void *)(long)adma_attach((int)(long)socket_fd);
}

/* Both ends of a pair of sockets, here. */
static void attach_both(const int pair[2], int ends[2])
{
	pthread_t thread;
	void *other;

	if (pthread_create(&thread, NULL, attach_end, (void *)(long)pair[1]))
		fail("pthread_create");
	ends[0] = adma_attach(pair[0]);
	pthread_join(thread, &other);
	ends[1] = (int)(long)other;
	if (ends[0] < 0 || ends[1] < 0)
		fail("attach: %d and %d", ends[0], ends[1]);
}

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

		if (socketpair(AF_UNIX, kinds[i], 0, pair))
			fail("socketpair");
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
		EXPECT(adma_read(one[1], got, sizeof(got)), 0);
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
	if (pipe(pair))
		fail("pipe");
	EXPECT(adma_attach(pair[0]), -ENOTSOCK);
	EXPECT(adma_attach(-1), -EBADF);
}

/* Run with ADMA_IPC_TIMEOUT=1. */
static void silence(void)
{
	double begun = seconds();
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair");
	EXPECT(adma_attach(pair[0]), -ETIMEDOUT);
	if (seconds() - begun < 0.9 || seconds() - begun > 9)
		fail("a second took %.3f s", seconds() - begun);
}

static void nothing(int signal)
{
	(void)signal;
}

static void interrupted(void)
{
	struct sigaction action = { .sa_handler = nothing };
	char name[60];

	snprintf(name, sizeof(name), "@adma-test-%d", getpid());
	int listener = adma_listen(name);

	sigaction(SIGALRM, &action, NULL);
	ualarm(50000, 50000); /* the first may come too early */
	EXPECT(adma_accept(listener), -EINTR);
	ualarm(0, 0);
	EXPECT(adma_close(listener), 0);
}

/* As snprintf. */
static void about(void)
{
	char whole[300], part[300];
	pid_t child;
	int connection = with_child(echo, &child);
	int len = adma_connection_info(connection, whole, sizeof(whole));

	EXPECT(len, strlen(whole));
	EXPECT(adma_connection_info(connection, NULL, 0), len);
	for (int size = 1; size < len + 5; size++) {
		memset(part, 'x', sizeof(part));
		EXPECT(adma_connection_info(connection, part, size), len);
		EXPECT(strlen(part), size <= len ? size - 1 : len);
		if (strncmp(part, whole, size - 1) || part[size] != 'x')
			fail("%d bytes of it are %s", size, part);
	}
	EXPECT(adma_close(connection), 0);
	expect_good_end(child);
}

/* ---- strangers --------------------------------------------------------------------------- */

/*
 * Takes a message and whatever comes with it, changes a byte, and sends it back; with a bell of its
 * own, for that of another process is refused.
 */
static bool mirror(int socket_fd, int bell, unsigned *state)
{
	char bytes[200], room_beside[256];
	struct iovec piece = { bytes, sizeof(bytes) };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1,
		.msg_control = room_beside, .msg_controllen = sizeof(room_beside) };
	ssize_t got = recvmsg(socket_fd, &message, 0);

	if (got <= 0)
		return false;
	*state = *state * 1664525 + 1013904223;
	unsigned choice = *state >> 8;

	/* Another nonce and demand, and no page, or it would not go on; and nonsense in one byte. */
	if (got > 64) {
		bytes[16 + choice % 8] ^= 1;
		bytes[24] ^= 1;
		bytes[60] = 0;
	}
	if (choice & 0x100)
		bytes[(choice >> 9) % got] ^= 1 << (choice >> 20) % 8;
	piece.iov_len = got;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
		if (c->cmsg_type == SCM_RIGHTS && c->cmsg_len >= CMSG_LEN(2 * sizeof(int)))
			memcpy(CMSG_DATA(c) + sizeof(int), &bell, sizeof(int));
		else
			message.msg_controllen = 0; /* credentials go by themselves */
	/* Descriptors: those that came, or none. */
	if (choice % 5 == 0)
		message.msg_controllen = 0;
	return sendmsg(socket_fd, &message, MSG_NOSIGNAL) == got;
}

/*
 * Run with ADMA_IPC_TIMEOUT=1. Whatever a stranger says, making a connection ends, and so does
 * using it; nothing is left behind.
 */
static void strangers(void)
{
	long before = 0;
	int met = 0;

	for (unsigned round = 0; round < 400; round++) {
		int pair[2];

		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
			fail("socketpair");
		pid_t child = fork();

		if (child == 0) {
			unsigned state = round * 7919 + 1;
			int bell[2];

			close(pair[0]);
			if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, bell))
				fail("socketpair");
			for (unsigned step = 0; step < 1 + round % 4; step++)
				if (!mirror(pair[1], bell[1], &state))
					break;
			_exit(0);
		}
		close(pair[1]);
		int connection = adma_attach(pair[0]);

		close(pair[0]);
		if (connection > 0) {
			met++;
			adma_write(connection, (void *)room, 10);
			long got = adma_read(connection, (void *)room, 10);

			if (got > 10 || got == 0)
				fail("read %ld of a stranger", got);
			EXPECT(adma_close(connection), 0);
		} else if (connection == 0 || connection == -EINVAL) {
			fail("attach is %d", connection);
		}
		waitpid(child, NULL, 0);
		if (round == 0)
			before = entries_of("/proc/self/fd");
	}
	expect_descriptors(before);
	if (met == 0)
		fail("no stranger came through: nothing was shown");
}

/* ---- listeners ------------------------------------------------------------------------- */

struct contest {
	char path[60];
	pthread_barrier_t start, end;
	int listeners[2];
};

static void *compete(void *argument)
{
	struct contest *contest = argument;

	for (int round = 0; round < 1000; round++) {
		pthread_barrier_wait(&contest->start);
		contest->listeners[1] = adma_listen(contest->path);
		pthread_barrier_wait(&contest->end);
	}
	return NULL;
}

/* Of two who listen at one path at the same time one does; also where a file was left over. */
static void together(void)
{
	static struct contest contest = { "/tmp/adma-together-XXXXXX", .listeners = { 0 } };
	pthread_t thread;

	if (!mkdtemp(contest.path))
		fail("mkdtemp");
	strcat(contest.path, "/socket");
	pthread_barrier_init(&contest.start, NULL, 2);
	pthread_barrier_init(&contest.end, NULL, 2);
	pthread_create(&thread, NULL, compete, &contest);
	for (int round = 0; round < 1000; round++) {
		int *both = contest.listeners;

		pthread_barrier_wait(&contest.start);
		both[0] = adma_listen(contest.path);
		pthread_barrier_wait(&contest.end);
		int one = both[0] > 0 ? 0 : 1;

		if (both[one] <= 0 || both[1 - one] != -EADDRINUSE)
			fail("round %d: %d and %d", round, both[0], both[1]);
		close(both[one]);
		if (round % 2)
			unlink(contest.path);
	}
	pthread_join(thread, NULL);
	unlink(contest.path);
	*strrchr(contest.path, '/') = 0;
	rmdir(contest.path);
}

/* A client that says nothing, or not enough, keeps nobody else from being accepted. */
static void stalled(void)
{
	char name[60];
	double begun = seconds();
	int silent[3], half[3];
	pid_t children[2];

	snprintf(name, sizeof(name), "@adma-stalled-%d", getpid());
	int listener = adma_listen(name);

	for (int i = 0; i < 3; i++) {
		silent[i] = plain_client(name);
		half[i] = plain_client(name);
		EXPECT(write(half[i], "adma-ipc", 8), 8);
	}
	for (int i = 0; i < 2; i++) {
		children[i] = fork();
		if (children[i] == 0) {
			int connection = adma_connect(name);

			exit(connection < 0 ? 1 : echo(connection));
		}
	}
	for (int i = 0; i < 2; i++) {
		int connection = adma_accept(listener);

		if (connection < 0)
			fail("accept: %s", strerror(-connection));
		if (seconds() - begun > 10) /* with ADMA_IPC_TIMEOUT=12 */
			fail("accepted after %.1f s", seconds() - begun);
		ask_echo(connection, 100);
		EXPECT(adma_close(connection), 0);
	}
	for (int i = 0; i < 2; i++)
		expect_good_end(children[i]);
	/* Who has not greeted in time is heard of. */
	EXPECT(adma_accept(listener), -ETIMEDOUT);
	/* And who has gone. */
	close(silent[1]);
	EXPECT(adma_close(listener), 0);
}

static void *accept_one(void *listener)
{
	return (void *)(long)adma_accept((int)(long)listener);
}

/* Run with ADMA_IPC_TIMEOUT=1. Who accepts does not go on with another file of the same number. */
static void closed_meanwhile(void)
{
	char names[2][60];
	pthread_t thread;
	void *got;

	for (int i = 0; i < 2; i++)
		snprintf(names[i], sizeof(names[i]), "@adma-closed-%d-%d", getpid(), i);
	int listener = adma_listen(names[0]), other = adma_listen(names[1]);
	struct pollfd queue = { .fd = listener, .events = POLLIN };

	plain_client(names[0]);
	plain_client(names[1]);
	pthread_create(&thread, NULL, accept_one, (void *)(long)listener);
	while (poll(&queue, 1, 0)) /* until it is taken out */
		sleep_ms(1);
	EXPECT(adma_close(listener), 0);
	EXPECT(dup2(other, listener), listener);
	pthread_join(thread, &got);
	EXPECT((long)got, -EBADF);
	EXPECT(poll(&queue, 1, 0), 1);
	EXPECT(adma_close(other), 0);
}

/*
 * A client of another user, neither of them root. Asked for credentials, its socket gets a name
 * when it connects.
 */
static void named(void)
{
	int on = 1, status, connection;
	char name[60];

	if (getuid())
		cannot_be_shown("only root can become others");
	snprintf(name, sizeof(name), "@adma-named-%d", getpid());
	pid_t child = fork();

	if (child == 0) {
		struct sockaddr_un address = { .sun_family = AF_UNIX };
		int client = socket(AF_UNIX, SOCK_STREAM, 0);

		if (setresuid(1001, 1001, 1001))
			fail("setresuid");
		strcpy(address.sun_path + 1, name + 1);
		setsockopt(client, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on));
		while (connect(client, (void *)&address,
			       offsetof(struct sockaddr_un, sun_path) + strlen(name)))
			sleep_ms(1);
		connection = adma_attach(client);
		if (connection < 0)
			fail("attach: %s", strerror(-connection));
		EXPECT(adma_write(connection, "good", 4), 4);
		exit(adma_close(connection));
	}
	if (setresuid(1002, 1002, 1002))
		fail("setresuid");
	int listener = adma_listen(name);

	connection = adma_accept(listener);
	if (connection < 0)
		fail("accept: %s", strerror(-connection));
	EXPECT(adma_read(connection, name, 10), 4);
	EXPECT(adma_close(connection), 0);
	EXPECT(adma_close(listener), 0);
	waitpid(child, &status, 0);
	EXPECT(status, 0);
}

/* A child that is made during the greetings has none of what the connection will have. */
static void forked(void)
{
	int pair[2], status;
	pthread_t thread;
	void *got;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair");
	pthread_create(&thread, NULL, attach_end, (void *)(long)pair[1]);
	while (sockets() < 4)
		sleep_ms(1);
	sleep_ms(20);
	pid_t child = fork();

	if (child == 0) {
		if (sockets() != 2)
			fail("the child has %d sockets, of which 2 are the program's", sockets());
		exit(0);
	}
	waitpid(child, &status, 0);
	close(pair[0]);
	pthread_join(thread, &got);
	EXPECT((long)got, -ECONNRESET);
	while (sockets() > 1) /* some are closed by a thread */
		sleep_ms(1);
	EXPECT(status, 0);
}

/* ---- a system that demands memory which is not executed --------------------------------- */

static void noexec(void)
{
	static const char path[] = "/proc/sys/vm/memfd_noexec";
	pid_t child;
	int status;

	if (unshare(CLONE_NEWPID))
		cannot_be_shown("no process namespaces here");
	child = fork();
	if (child == 0) {
		int file = open(path, O_WRONLY), pair[2], ends[2];

		if (file < 0 || write(file, "2", 1) != 1)
			cannot_be_shown("no vm.memfd_noexec here");
		if (memfd_create("adma-test", 0x10 /* MFD_EXEC */) >= 0)
			fail("vm.memfd_noexec is not heeded");
		if (!adma_alloc(100000))
			fail("no block");
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
			fail("socketpair");
		attach_both(pair, ends);
		pass(ends[0], ends[1], "words");
		exit(0);
	}
	waitpid(child, &status, 0);
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

int main(int argc, char **argv)
{
	struct { const char *name; void (*run)(void); } all[] = {
		{ "kinds", kinds }, { "other_sockets", other_sockets }, { "silence", silence },
		{ "interrupted", interrupted }, { "about", about }, { "strangers", strangers },
		{ "together", together }, { "stalled", stalled }, { "noexec", noexec },
		{ "forked", forked }, { "named", named }, { "closed_meanwhile", closed_meanwhile },
	};

	make_room();
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (argc > 1 && !strcmp(argv[1], all[i].name)) {
			all[i].run();
			return 0;
		}
	fail("no test is called %s", argc > 1 ? argv[1] : "");
}
