/*
 * Tests listeners: paths and abstract names, two at one path, closed or interrupted in adma_accept.
 *
 * usage: ipc_listen listen|together|beside|interrupted [silent]|closed_meanwhile; the last
 * with ADMA_IPC_TIMEOUT=1
 */
#include "ipc_echo.h"
#include <fcntl.h>

static char name[60];

static void at(const char *path)
{
	int listener = adma_listen(path);
	pid_t child;

	if (listener < 0)
		fail("%s: %s", path, strerror(-listener));
	for (int round = 0; round < 3; round++) {
		child = fork_child();
		if (child == 0)
			exit(echo(made(adma_connect(path))));
		struct pollfd ready = { .fd = listener, .events = POLLIN };

		if (poll(&ready, 1, 60000) != 1)
			fail("a listener can be polled");
		int connection = made(adma_accept(listener));

		ask_echo(connection, 1000);
		ask_echo(connection, MIB);
		finish(connection, child);
	}
	EXPECT(adma_close(listener), 0);
}

static void listened(void)
{
	char folder[] = "/tmp/adma-test-XXXXXX", path[60], longest[300];

	if (!mkdtemp(folder))
		fail("mkdtemp");
	snprintf(path, sizeof(path), "%s/socket", folder);
	EXPECT(adma_connect(path), -ENOENT);
	at(path);
	EXPECT(adma_connect(path), -ECONNREFUSED);
	at(path); /* the left-over file is replaced */
	unlink(path);
	/* But no other file, not even an empty one, and no link. */
	close(open(path, O_CREAT | O_WRONLY, 0600));
	EXPECT(adma_listen(path), -EADDRINUSE);
	EXPECT(access(path, W_OK), 0);
	unlink(path);
	EXPECT(symlink("nowhere", path), 0);
	EXPECT(adma_listen(path), -EADDRINUSE);
	unlink(path);
	rmdir(folder);
	at(name);
	memset(longest, 'x', sizeof(longest));
	longest[sizeof(longest) - 1] = 0;
	EXPECT(adma_listen(longest), -ENAMETOOLONG);
	EXPECT(adma_listen(""), -ENOENT);
	EXPECT(adma_accept(0), -ENOTSOCK);
	EXPECT(adma_attach(-1), -EBADF);
	EXPECT(adma_attach(1000000), -EBADF);
	/* A client of another protocol. */
	int pair[2];

	make_pair(SOCK_STREAM, pair);
	if (write(pair[1], longest, 200) != 200)
		fail("write");
	EXPECT(adma_attach(pair[0]), -EPROTO);
	close(pair[1]);
	int gone = adma_attach(pair[0]);
	if (gone != -ECONNRESET && gone != -EPIPE && gone != -EPROTO)
		fail("attach to a closed end: %d", gone);
}

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

/* Of two processes that listen at one path one does; also where a file was left over. */
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

static void nothing(int signal)
{
	(void)signal;
}

/* Without a client, or with one that says nothing. */
static void interrupted(void)
{
	struct sigaction action = { .sa_handler = nothing };
	int listener = adma_listen(name), client = variant ? plain_client(name) : -1;

	sigaction(SIGALRM, &action, NULL);
	ualarm(50000, 50000); /* the first may come too early */
	for (int i = 0; i < 3; i++)
		EXPECT(adma_accept(listener), -EINTR);
	ualarm(0, 0);
	close(client);
	EXPECT(adma_close(listener), 0);
}

static void *accept_one(void *listener)
{
	return (void *)(long)adma_accept((int)(long)listener);
}

/* Accepting does not go on with another file of that number. */
static void closed_meanwhile(void)
{
	char other_name[70];
	pthread_t thread;
	void *got;

	snprintf(other_name, sizeof(other_name), "%s-other", name);
	int listener = adma_listen(name), other = adma_listen(other_name);
	struct pollfd queue = { .fd = listener, .events = POLLIN };

	plain_client(name);
	plain_client(other_name);
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

static volatile bool served;

static void *arm_all_the_time(void *connection)
{
	while (!served)
		EXPECT(adma_arm((int)(long)connection), 0);
	return NULL;
}

/* A thread that serves another connection ends greetings: the one that accepts hears of it. */
static void beside(void)
{
	int listener = adma_listen(name), pair[2], ends[2];
	pthread_t thread;

	make_pair(SOCK_STREAM, pair);
	attach_both(pair, ends);
	pthread_create(&thread, NULL, arm_all_the_time, (void *)(long)ends[0]);
	for (int round = 0; round < 50; round++) {
		pid_t client = fork_child();
		double begun = seconds();

		if (client == 0)
			_exit(adma_close(connect_patiently(name)));
		EXPECT(adma_close(made(adma_accept_for(listener, 40000))), 0);
		if (seconds() - begun > 30)
			fail("round %d: accepted after %.0f s", round, seconds() - begun);
		expect_good_end(client);
	}
	served = true;
	pthread_join(thread, NULL);
}

PROGRAM(make_room(); snprintf(name, sizeof(name), "@adma-listen-%d", getpid()),
	{ "listen", listened }, { "together", together }, { "interrupted", interrupted },
	{ "closed_meanwhile", closed_meanwhile }, { "beside", beside })
