/*
 * Tests which clients are refused, what a peer has to prove, and that a client that does neither
 * holds up no other.
 *
 * usage: ipc_trust refused|refused_by_server|private|silent|stuck_page [proven]|emfile|idle|
 *        not_dumpable|lazy
 */
#include "ipc_faults.h"
#include "ipc_greeting.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char name[60];

/* A server that polls: what O_NONBLOCK promises. */
static int nonblocking_listener(void)
{
	int listener = adma_listen(name);

	if (listener < 0 || fcntl(listener, F_SETFL, O_NONBLOCK))
		fail("no listener: %d", listener);
	return listener;
}

/* ---- other users ------------------------------------------------------------------------- */

/* Refused by either side's look, and nothing is kept for it: descriptor, thread or place. */
static void refused(void)
{
	root_only();
	int listener = nonblocking_listener();
	long descriptors = 0, threads = entries_of("/proc/self/task");

	EXPECT(adma_accept(listener), -EAGAIN);
	descriptors = entries_of("/proc/self/fd");
	for (int round = 0; round < 200; round++) {
		pid_t child = fork_child();

		if (child == 0) {
			become_user(STRANGER);
			EXPECT(adma_connect(name), -EACCES);
			/* One that does not look itself is closed, whatever it has sent. */
			int client = plain_client(name);
			char byte;

			say(client, "adma-ipc", 8, &client, 0);
			if (recv(client, &byte, 1, 0) > 0)
				fail("the server has said something to another user");
			_exit(0);
		}
		int status;

		while (waitpid(child, &status, WNOHANG) == 0) {
			EXPECT(adma_accept(listener), -EAGAIN);
			EXPECT(entries_of("/proc/self/task"), threads);
		}
		EXPECT(status, 0);
	}
	EXPECT(adma_accept(listener), -EAGAIN);
	EXPECT(entries_of("/proc/self/fd"), descriptors);
}

/* A listener of one user that another one accepts from: the client's look cannot tell. */
static void refused_by_server(void)
{
	root_only();
	int listener = nonblocking_listener();
	pid_t child = fork_child();

	if (child == 0) {
		become_user(STRANGER);
		for (int i = 0; i < 3000; i++, sleep_ms(10))
			EXPECT(adma_accept(listener), -EAGAIN);
		_exit(0);
	}
	EXPECT(adma_connect(name), -EACCES);
	kill_child(child);
}

/* A socket file is its user's only, whatever the umask. */
static void private_file(void)
{
	char folder[] = "/tmp/adma-test-XXXXXX", path[60];
	struct stat stat_of;

	umask(0);
	if (!mkdtemp(folder))
		fail("mkdtemp");
	snprintf(path, sizeof(path), "%s/socket", folder);
	int listener = adma_listen(path);

	EXPECT(stat(path, &stat_of), 0);
	EXPECT(stat_of.st_mode & 07777, 0600);
	EXPECT(adma_close(listener), 0);
	unlink(path);
	rmdir(folder);
}

/* ---- clients that hold up no other ---------------------------------------------------------- */

static int honest(void)
{
	pid_t child = fork_child();

	if (child == 0) {
		int connection = connect_patiently(name);

		EXPECT(adma_write(connection, "good", 4), 4);
		_exit(adma_close(connection));
	}
	return child;
}

/* Serves one honest client, and no call takes long meanwhile. */
static void serve_honest(int listener, const char *meanwhile)
{
	int child = honest(), connection;
	double begun = seconds(), worst = 0;
	char got[10];

	do {
		double before = seconds();

		connection = adma_accept(listener);
		worst = seconds() - before > worst ? seconds() - before : worst;
		sched_yield();
	} while (connection == -EAGAIN && seconds() - begun < 60);
	made(connection);
	if (worst > 5) /* a limit of 10 s is that of the silent ones */
		fail("%s: adma_accept took %.1f s", meanwhile, worst);
	EXPECT(adma_read(connection, got, sizeof(got)), 4);
	EXPECT(adma_close(connection), 0);
	expect_good_end(child);
}

/* Clients that say nothing, or not enough. */
static void silent(void)
{
	int listener = nonblocking_listener();

	for (int i = 0; i < 20; i++)
		if (write(plain_client(name), "adma-ipc", i % 9) != i % 9)
			fail("write");
	serve_honest(listener, "others are silent");
	EXPECT(adma_accept(listener), -EAGAIN);
}

/* Greets by hand up to its page, which never comes, and says this secret. */
static int greet_with_page(byte *page)
{
	int client = plain_client(name);
	struct greeting theirs, mine;

	EXPECT(setsockopt(client, SOL_SOCKET, SO_PASSCRED, (int[]){ 1 }, sizeof(int)), 0);
	EXPECT(recv(client, &theirs, sizeof(theirs), MSG_WAITALL), sizeof(theirs));
	mine = theirs;
	mine.nonce ^= 1;
	mine.side = GUEST;
	EXPECT(send(client, &mine, sizeof(mine), 0), sizeof(mine));
	EXPECT(recv(client, &theirs, sizeof(theirs), MSG_WAITALL), sizeof(theirs));
	mine.step = PAGE_AT;
	mine.page = (uintptr_t)page;
	EXPECT(send(client, &mine, sizeof(mine), 0), sizeof(mine));
	mine.step = PROOF;
	if (variant) { /* the right secret: it may read the server */
		uint64_t words[6];
		struct iovec here = { words, sizeof(words) };
		struct iovec there = { (void *)theirs.page, sizeof(words) };
		struct ucred server;
		socklen_t len = sizeof(server);

		EXPECT(getsockopt(client, SOL_SOCKET, SO_PEERCRED, &server, &len), 0);
		EXPECT(process_vm_readv(server.pid, &here, 1, &there, 1, 0), sizeof(words));
		memcpy(mine.secret, words + 4, sizeof(mine.secret));
	}
	EXPECT(send(client, &mine, sizeof(mine), 0), sizeof(mine));
	return client;
}

/* Memory that blocks its reader: nothing of a client without proof is read at all. */
static void stuck_page(void)
{
	int listener, tell[2];
	long threads = entries_of("/proc/self/task");

	expect_pages_can_be_withheld();
	make_pipe(tell);
	listener = nonblocking_listener();
	pid_t child = fork_child();

	if (child == 0) {
		byte *page = mmap((void *)0x200000000000, PAGE, PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

		if (page == MAP_FAILED)
			cannot_be_shown("no such address");
		withhold_pages(page, PAGE);
		for (int i = 0; i < 3; i++)
			greet_with_page(page);
		send_byte(tell[1]);
		for (;;)
			pause();
	}
	struct pollfd told = { .fd = tell[0], .events = POLLIN };

	while (poll(&told, 1, 1) == 0)
		EXPECT(adma_accept(listener), -EAGAIN);
	for (int i = 0; i < 50; i++, sleep_ms(1))
		EXPECT(adma_accept(listener), -EAGAIN);
	if (!variant)
		EXPECT(entries_of("/proc/self/task"), threads);
	serve_honest(listener, "a page does not come");
	kill_child(child);
}

/* ---- descriptors -------------------------------------------------------------------------- */

/* A server that polls its listener and has no descriptor left does not spin. */
static void emfile(void)
{
	struct rlimit limit;
	int listener = nonblocking_listener(), calls = 0;

	EXPECT(adma_accept(listener), -EAGAIN);
	plain_client(name);
	getrlimit(RLIMIT_NOFILE, &limit);
	limit.rlim_cur = entries_of("/proc/self/fd"); /* all are in use, nearly */
	setrlimit(RLIMIT_NOFILE, &limit);
	while (dup(0) >= 0)
		;
	for (double begun = seconds(); seconds() - begun < 0.5; calls++)
		EXPECT(adma_accept(listener), -EMFILE);
	if (calls > 60)
		fail("%d calls in half a second", calls);
}

/* ---- many connections ----------------------------------------------------------------------- */

/* A look at one cookie costs the same however many streamed connections are idle. */
static void idle(void)
{
	enum { MANY = 1000, LOOKS = 1000 };
	struct rlimit limit = { 20000, 20000 };
	double best = 1;
	char byte;

	if (setrlimit(RLIMIT_NOFILE, &limit))
		cannot_be_shown("too few descriptors");
	int listener = adma_listen(name), last = 0;
	pid_t child = fork_child();

	if (child == 0) {
		for (int i = 0; i < MANY; i++)
			connect_patiently(name);
		for (;;)
			pause();
	}
	for (int i = 0; i < MANY; i++)
		last = made(adma_accept(listener));
	adma_cookie_t cookie = adma_iread(last, &byte, 1);

	for (int round = 0; round < 50; round++) {
		double begun = seconds();

		for (int i = 0; i < LOOKS; i++)
			EXPECT(adma_check(cookie), -EINPROGRESS);
		double each = (seconds() - begun) / LOOKS;

		best = each < best ? each : best;
	}
	printf("adma_check with %d idle connections: %.2f us\n", MANY, best * 1e6);
	if (best > 2e-6)
		fail("a look takes %.2f us", best * 1e6);
	kill_child(child);
}

/* ---- proofs that do not hold any more -------------------------------------------------------- */

/* Becomes not dumpable: it is not reached any more, and gets nothing more. */
static int hide(int connection)
{
	byte *block = adma_alloc(MIB);
	struct adma_peer peer;

	EXPECT(adma_peer(connection, &peer), 0);
	EXPECT(peer.proven, 1);
	EXPECT(peer.pid, getppid());
	EXPECT(peer.uid, getuid());
	EXPECT(adma_read(connection, (void *)block, MIB), MIB);
	prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
	sleep_ms(50); /* a look is good for some milliseconds */
	EXPECT(adma_read(connection, (void *)block, MIB), -ECONNRESET);
	EXPECT(adma_write(connection, (void *)block, MIB), -ECONNRESET);
	return 0;
}

static void not_dumpable(void)
{
	int connection = with_child(hide);
	byte *data = adma_alloc(MIB), *more = adma_alloc(MIB);
	long got;

	EXPECT(adma_write(connection, (void *)data, MIB), MIB);
	sleep_ms(20);
	/* Its end is noticed by the first message at the latest. */
	got = adma_write(connection, (void *)more, MIB);
	EXPECT(got, -ECONNRESET);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
}

/* Blocks are mapped by the first message that needs one: not where the reader has none. */
static int read_without_blocks(int connection)
{
	byte *data = pages_between_guards(MIB);

	for (int i = 0; i < 20; i++)
		EXPECT(adma_read(connection, (void *)data, MIB), MIB);
	EXPECT(mappings("rw-s", "adma-block"), 0);
	byte *block = adma_alloc(MIB);

	EXPECT(adma_read(connection, (void *)block, MIB), MIB);
	EXPECT(mappings("rw-s", "adma-block"), 2); /* its own, and one more */
	return 0;
}

static void lazy(void)
{
	int connection = with_child(read_without_blocks);

	for (int i = 0; i < 20; i++) {
		byte *block = adma_alloc(MIB);

		EXPECT(adma_write(connection, (void *)block, MIB), MIB);
		EXPECT(adma_free((void *)block), 0);
	}
	/* Not waited for: the reader copies all of it. */
	EXPECT(adma_iwrite(connection, adma_alloc(MIB), MIB) > 0, 1);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
}

PROGRAM(snprintf(name, sizeof(name), "@adma-trust-%d", getpid()),
	{ "refused", refused }, { "refused_by_server", refused_by_server },
	{ "private", private_file }, { "silent", silent }, { "stuck_page", stuck_page },
	{ "emfile", emfile }, { "idle", idle }, { "not_dumpable", not_dumpable },
	{ "lazy", lazy })
