/*
 * The ends of a connection, and what can go wrong with it; one test by name, see main.
 */
#include "ipc_echo.h"
#include "ipc_filter.h"
#include <fcntl.h>
#include <stddef.h>
#include <sys/resource.h>
#include <ucontext.h>

/* ---- the other process is stopped --------------------------------------------------- */

static int post_and_stop(int connection)
{
	adma_cookie_t read, written;

	fill(room, 8 * MIB, 7);
	written = adma_iwrite(connection, (void *)room, 8 * MIB);
	read = adma_iread(connection, (void *)(room + 8 * MIB), 8 * MIB);
	raise(SIGSTOP);
	EXPECT(adma_wait(written), 8 * MIB);
	EXPECT(adma_wait(read), 8 * MIB);
	expect_content(room + 8 * MIB, 8 * MIB, 9, "read by who was stopped");
	return 0;
}

/* Both have posted, so we need nothing of it: we pull its message and push ours. */
static void stopped(void)
{
	pid_t child;
	int status, connection = with_child(post_and_stop, &child);

	expect_engine(connection, getenv("ENGINE") ?: "process_vm");
	waitpid(child, &status, WUNTRACED);
	if (!WIFSTOPPED(status))
		fail("it did not stop: %#x", status);
	fill(room + 8 * MIB, 8 * MIB, 9);
	EXPECT(adma_read(connection, (void *)room, 8 * MIB), 8 * MIB);
	expect_content(room, 8 * MIB, 7, "written by who is stopped");
	EXPECT(adma_write(connection, (void *)(room + 8 * MIB), 8 * MIB), 8 * MIB);
	/* It may be asked for small things too. */
	EXPECT(adma_write(connection, (void *)room, 10), 10);
	kill(child, SIGCONT);
	expect_good_end(child);
}

/* In the middle of a piece: it is claimed, and not copied yet. */
static void stop_in_call(int signal, siginfo_t *about, void *context)
{
	(void)signal;
	(void)about;
	raise(SIGSTOP);
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
}

static int stop_in_piece(int connection)
{
	trap_call(SYS_process_vm_readv, stop_in_call);
	long got = adma_read(connection, (void *)room, 8 * MIB);

	if (got == 8 * MIB)
		expect_content(room, 8 * MIB, 4, "read by who was stopped in a piece");
	_exit(got == 8 * MIB ? 8 : got == 0 ? 0 : 1);
}

static void expect_end(pid_t child, int want)
{
	int status;

	if (waitpid(child, &status, 0) != child || !WIFEXITED(status) ||
	    WEXITSTATUS(status) != want)
		fail("the other process ended with status %#x, want %d", status, want);
}

static volatile pid_t waiter;

static void *wait_and_expect_ebadf(void *cookie)
{
	waiter = gettid();
	EXPECT(adma_wait(*(adma_cookie_t *)cookie), -EBADF);
	return NULL;
}

/* Until that thread sleeps, which it does only inside adma_wait. */
static void expect_waiter(void)
{
	char path[60], text[200] = "";

	while (!waiter)
		sched_yield();
	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", waiter);
	while (!strstr(text, ") S ")) {
		int fd = open(path, O_RDONLY);
		long got = read(fd, text, sizeof(text) - 1);

		close(fd);
		if (got <= 0)
			cannot_be_shown("no /proc");
		text[got] = 0;
	}
	waiter = 0;
}

/* What can be done with a peer that is stopped in a piece; ADMA_IPC_TIMEOUT is 1. */
static void stopped_in_piece(int signal, bool closes, bool threaded)
{
	pid_t child;
	pthread_t thread;
	int status, connection = with_child(stop_in_piece, &child);

	expect_engine(connection, "process_vm");
	fill(room, 8 * MIB, 4);
	adma_cookie_t cookie = adma_iwrite(connection, (void *)room, 8 * MIB);

	waitpid(child, &status, WUNTRACED);
	if (!WIFSTOPPED(status))
		fail("it did not stop: %#x", status);
	double begun = seconds();

	EXPECT(adma_wait_for(cookie, 200), -ETIMEDOUT);
	if (seconds() - begun < 0.199 || seconds() - begun > 20)
		fail("200 ms took %.3f s", seconds() - begun);
	EXPECT(adma_wait_for(cookie, 0), -ETIMEDOUT);
	EXPECT(adma_check(cookie), -EINPROGRESS);
	if (threaded) {
		pthread_create(&thread, NULL, wait_and_expect_ebadf, &cookie);
		expect_waiter();
	}
	if (closes) {
		begun = seconds();
		EXPECT(adma_close(connection), -ETIMEDOUT);
		if (seconds() - begun < 0.99 || seconds() - begun > 9)
			fail("closing took %.3f s", seconds() - begun);
		EXPECT(adma_write(connection, (void *)room, 10), -EBADF);
		EXPECT(adma_read(connection, (void *)room, 10), -EBADF);
		EXPECT(adma_iread(connection, (void *)room, 10), -EBADF);
	}
	kill(child, signal);
	if (threaded)
		pthread_join(thread, NULL);
	if (!closes)
		EXPECT(adma_wait_for(cookie, 20000), signal == SIGCONT ? 8 * (long)MIB : -ECONNRESET);
	EXPECT(adma_close(connection), 0);
	EXPECT(adma_close(connection), -EBADF);
	if (signal == SIGCONT)
		expect_end(child, closes ? 0 : 8);
	else
		waitpid(child, &status, 0);
}

static void frozen(void)
{
	stopped_in_piece(SIGCONT, false, false);
	stopped_in_piece(SIGKILL, false, false);
	stopped_in_piece(SIGCONT, true, false);
	stopped_in_piece(SIGKILL, true, false);
	stopped_in_piece(SIGCONT, true, true);
	stopped_in_piece(SIGKILL, true, true);
}

/* ---- both close ------------------------------------------------------------------------ */

/* Seen by both processes: the other is in the middle of a piece, and has left it. */
static volatile struct { int inside, closing, left; } *piece;

static void linger_in_call(int signal, siginfo_t *about, void *context)
{
	(void)signal;
	(void)about;
	piece->inside = 1;
	while (!piece->closing)
		sleep_ms(1);
	sleep_ms(600);
	piece->left = 1;
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
}

static void *close_meanwhile(void *connection)
{
	while (!piece->inside)
		sleep_ms(1);
	piece->closing = 1;
	EXPECT(adma_close((int)(long)connection), 0);
	return NULL;
}

static int linger_in_piece(int connection)
{
	pthread_t thread;

	pthread_create(&thread, NULL, close_meanwhile, (void *)(long)connection);
	trap_call(SYS_process_vm_writev, linger_in_call);
	EXPECT(adma_write(connection, (void *)room, 8 * MIB), -EBADF);
	pthread_join(thread, NULL);
	return 0;
}

/* The buffer is ours again when closing returns, also if the other side closes just then. */
static void both_close(void)
{
	pid_t child;

	piece = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int connection = with_child(linger_in_piece, &child);

	expect_engine(connection, "process_vm");
	if (adma_iread(connection, (void *)room, 8 * MIB) < 0)
		fail("iread");
	while (!piece->closing)
		sleep_ms(1);
	sleep_ms(100); /* now it is closing, too */
	EXPECT(adma_close(connection), 0);
	if (!piece->left)
		fail("closed while the other process was about to write into the buffer");
	expect_good_end(child);
}

/* ---- the first thread leaves ------------------------------------------------------------- */

static void *echo_in_thread(void *connection)
{
	if (echo((int)(long)connection))
		fail("echo without the first thread");
	return NULL;
}

static int leave_thread(int connection)
{
	pthread_t thread;

	pthread_create(&thread, NULL, echo_in_thread, (void *)(long)connection);
	pthread_exit(NULL);
}

/* The system finds no memory by such a process's number, but it lives. */
static void first_thread(void)
{
	pid_t child;
	int connection = with_child(leave_thread, &child);

	sleep_ms(50);
	for (int i = 0; i < 5; i++) {
		ask_echo(connection, 100);
		ask_echo(connection, 10000);
		ask_echo(connection, 4 * MIB);
	}
	EXPECT(adma_close(connection), 0);
	expect_good_end(child);
}

/* ---- fork, exec ---------------------------------------------------------------------- */

static void forked(void)
{
	pid_t child;
	int connection = with_child(echo, &child);
	adma_cookie_t cookie = adma_iread(connection, (void *)room, 100);
	pid_t mine = fork();

	if (mine == 0) {
		EXPECT(adma_write(connection, (void *)room, 10), -EPERM);
		EXPECT(adma_read(connection, (void *)room, 10 * MIB), -EPERM);
		EXPECT(adma_iwrite(connection, (void *)room, 10), -EPERM);
		EXPECT(adma_wait(cookie), -EPERM);
		EXPECT(adma_close(connection), -EPERM);
		/* Its own connections work. */
		pid_t grandchild;
		int own = with_child(echo, &grandchild);

		ask_echo(own, 100);
		ask_echo(own, 3 * MIB);
		EXPECT(adma_write(connection, (void *)room, 10), -EPERM);
		EXPECT(adma_close(own), 0);
		expect_good_end(grandchild);
		exit(0);
	}
	expect_good_end(mine);
	EXPECT(adma_write(connection, (void *)(room + MIB), 10), 10);
	EXPECT(adma_wait(cookie), 10);
	ask_echo(connection, 100);
	ask_echo(connection, 3 * MIB);
	/* A raw fork runs no handlers. */
	cookie = adma_iread(connection, (void *)(room + MIB), 3 * MIB);
	mine = syscall(SYS_fork);
	if (mine == 0) {
		alarm(200);
		EXPECT(adma_write(connection, (void *)room, 10), -EPERM);
		EXPECT(adma_wait(cookie), -EPERM);
		EXPECT(adma_wait_for(cookie, 10), -EPERM);
		EXPECT(adma_check(cookie), -EPERM);
		_exit(0);
	}
	expect_good_end(mine);
	EXPECT(adma_write(connection, (void *)room, 3 * MIB), 3 * MIB);
	EXPECT(adma_wait(cookie), 3 * MIB);
	ask_echo(connection, 3 * MIB);
	EXPECT(adma_close(connection), 0);
	expect_good_end(child);
}

static int orphan_lives[2], orphan_may_end[2]; /* pipes; it has the other ends */

/* A child that outlives its parent must not hide the parent's end. */
static int fork_and_die(int connection)
{
	char byte;

	(void)connection;
	close(orphan_lives[0]);
	close(orphan_may_end[1]);
	if (fork() == 0)
		_exit(read(orphan_may_end[0], &byte, 1) < 0);
	_exit(0);
}

static void orphaned(void)
{
	pid_t child;

	if (pipe(orphan_lives) || pipe(orphan_may_end))
		fail("pipe");
	int connection = with_child(fork_and_die, &child);
	struct pollfd end = { .fd = orphan_lives[0] };

	close(orphan_lives[1]);
	close(orphan_may_end[0]);
	/* However long that takes: it was not the orphan's end that was seen. */
	EXPECT(adma_read(connection, (void *)room, 10), -ECONNRESET);
	EXPECT(poll(&end, 1, 0), 0);
	close(orphan_may_end[1]);
	expect_good_end(child);
}

static int exec_another(int connection)
{
	(void)connection;
	execlp("sleep", "sleep", "3", NULL);
	return 1;
}

static void executed(void)
{
	pid_t child;
	int connection = with_child(exec_another, &child);

	EXPECT(adma_read(connection, (void *)room, 10), -ECONNRESET);
	EXPECT(adma_write(connection, (void *)room, 10), -ECONNRESET);
	kill(child, SIGKILL);
}

/* ---- closing ------------------------------------------------------------------------- */

static int close_at_once(int connection)
{
	EXPECT(adma_write(connection, (void *)room, 100), 100);
	adma_iwrite(connection, (void *)room, MIB);
	return adma_close(connection);
}

static void closed(void)
{
	pid_t child;
	int connection = with_child(close_at_once, &child);

	expect_good_end(child);
	EXPECT(adma_read(connection, (void *)room, 1000), 100);
	EXPECT(adma_read(connection, (void *)room, MIB), 0);
	EXPECT(adma_read(connection, (void *)room, 10), 0);
	EXPECT(adma_write(connection, (void *)room, 10), -EPIPE);
	EXPECT(adma_write(connection, (void *)room, MIB), -EPIPE);
	EXPECT(adma_iwrite(connection, (void *)room, MIB), -EPIPE);
	EXPECT(adma_close(connection), 0);
	EXPECT(adma_close(connection), -EBADF);
	EXPECT(adma_close(0), -EBADF);
	EXPECT(adma_close(-1), -EBADF);
}

/* ---- by path ------------------------------------------------------------------------- */

static void at(const char *path)
{
	int listener = adma_listen(path);
	pid_t child;

	if (listener < 0)
		fail("%s: %s", path, strerror(-listener));
	for (int round = 0; round < 3; round++) {
		child = fork();
		if (child == 0) {
			int connection = adma_connect(path);

			exit(connection < 0 ? 1 : echo(connection));
		}
		struct pollfd ready = { .fd = listener, .events = POLLIN };

		if (poll(&ready, 1, 60000) != 1)
			fail("a listener can be polled");
		int connection = adma_accept(listener);

		if (connection < 0)
			fail("accept: %s", strerror(-connection));
		ask_echo(connection, 1000);
		ask_echo(connection, MIB);
		EXPECT(adma_close(connection), 0);
		expect_good_end(child);
	}
	EXPECT(adma_close(listener), 0);
}

static void listened(void)
{
	char path[] = "/tmp/adma-test-XXXXXX", name[60], longest[300];

	if (!mkdtemp(path))
		fail("mkdtemp");
	snprintf(name, sizeof(name), "%s/socket", path);
	EXPECT(adma_connect(name), -ENOENT);
	at(name);
	EXPECT(adma_connect(name), -ECONNREFUSED);
	at(name); /* the left-over file is replaced */
	unlink(name);
	/* But no other file, not even an empty one, and no link. */
	close(open(name, O_CREAT | O_WRONLY, 0600));
	EXPECT(adma_listen(name), -EADDRINUSE);
	EXPECT(access(name, W_OK), 0);
	unlink(name);
	EXPECT(symlink("nowhere", name), 0);
	EXPECT(adma_listen(name), -EADDRINUSE);
	unlink(name);
	rmdir(path);
	snprintf(name, sizeof(name), "@adma-test-%d", getpid());
	at(name);
	memset(longest, 'x', sizeof(longest));
	longest[sizeof(longest) - 1] = 0;
	EXPECT(adma_listen(longest), -ENAMETOOLONG);
	EXPECT(adma_listen(""), -ENOENT);
	EXPECT(adma_accept(0), -ENOTSOCK);
	EXPECT(adma_attach(-1), -EBADF);
	EXPECT(adma_attach(1000000), -EBADF);
	/* Somebody who speaks another language. */
	int pair[2];

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair");
	if (write(pair[1], longest, 200) != 200)
		fail("write");
	EXPECT(adma_attach(pair[0]), -EPROTO);
	close(pair[1]);
	int gone = adma_attach(pair[0]);
	if (gone != -ECONNRESET && gone != -EPIPE && gone != -EPROTO)
		fail("attach to nobody: %d", gone);
}

/* ---- waiting costs nothing ------------------------------------------------------------ */

static int late(int connection)
{
	sleep_ms(400);
	EXPECT(adma_write(connection, (void *)room, MIB), MIB);
	EXPECT(adma_read(connection, (void *)room, MIB), MIB);
	sleep_ms(400);
	EXPECT(adma_write(connection, (void *)room, 1), 1);
	return 0;
}

static int sleep_on(int connection)
{
	(void)connection;
	pause();
	return 0;
}

/* `beside`: there is another connection, with a message that nobody reads. */
static void quiet(bool beside)
{
	struct rusage before, after;
	pid_t child, other = 0;

	if (beside) {
		int connection = with_child(sleep_on, &other);

		if (adma_iwrite(connection, (void *)room, 8 * MIB) <= 0)
			fail("iwrite");
	}
	int connection = with_child(late, &child);

	fill(room, MIB, 1);
	getrusage(RUSAGE_SELF, &before);
	EXPECT(adma_read(connection, (void *)room, MIB), MIB);
	EXPECT(adma_write(connection, (void *)room, MIB), MIB);
	EXPECT(adma_read(connection, (void *)room, 1), 1);
	getrusage(RUSAGE_SELF, &after);
	long switches = after.ru_nvcsw - before.ru_nvcsw;
	double used = after.ru_utime.tv_sec - before.ru_utime.tv_sec +
		      (after.ru_utime.tv_usec - before.ru_utime.tv_usec) * 1e-6;

	/*
	 * Two waits of 400 ms: one short sleep and one long one each; and the copies' own, which
	 * are at most one for each chunk of two MiB.
	 */
	if (switches > 100 || used > 0.1)
		fail("waiting took %ld switches and %.3f s", switches, used);
	expect_good_end(child);
	if (other)
		kill(other, SIGKILL);
}

/* ---- hostile ------------------------------------------------------------------------- */

/* Our mapping of the region, by its name in the list of mappings. */
static byte *region(size_t *size)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[400];

	while (fgets(line, sizeof(line), maps)) {
		unsigned long from, to;

		if (!strstr(line, "memfd:adma ")) /* a block has another name */
			continue;
		if (sscanf(line, "%lx-%lx", &from, &to) == 2) {
			fclose(maps);
			*size = to - from;
			return (byte *)from;
		}
	}
	fail("no region found");
}

static unsigned hostile_seed;

static int scribble(int connection)
{
	size_t size;
	byte *all = region(&size);
	unsigned state = hostile_seed;
	adma_cookie_t cookie;

	if (state % 2 == 0)
		room = adma_alloc(MIB);
	/* Some honest posts first, so that the other side has something to work with. */
	for (int i = 0; i < 8; i++) {
		cookie = adma_iwrite(connection, (void *)room, i % 2 ? 100 : MIB);
		cookie = adma_iread(connection, (void *)room, MIB);
	}
	(void)cookie;
	for (int i = 0; i < 400000; i++) {
		state = state * 1664525 + 1013904223;
		/* Mostly where the words are, and values that are nearly right. */
		size_t where = state % 4 ? (state >> 5) % (256 * 1024) : (state >> 3) % size;
		size_t at = where & ~3ul;

		if (state & 1)
			*(volatile uint32_t *)(all + at) = state >> 16;
		else if (state & 2)
			*(volatile uint32_t *)(all + at) += (state >> 20) % 3;
		else
			*(volatile uint64_t *)(all + (at & ~7ul)) = (uint64_t)state << 32 | state;
	}
	_exit(0);
}

/* Buffers between guard pages, and patterns before and after: nothing else is written. */
static void hostile(void)
{
	for (unsigned round = 0; round < 60; round++) {
		pid_t child;
		int status;

		hostile_seed = round * 7919 + 1;
		int connection = with_child(scribble, &child);
		/* In every second round both have blocks. */
		byte *mine = round % 2 ? adma_alloc(3 * MIB) : pages_between_guards(3 * MIB);

		memset((void *)mine, 0xee, 3 * MIB);
		alarm(200);
		for (int i = 0; i < 400; i++) {
			size_t size = i % 3 == 0 ? 1000 : i % 3 == 1 ? 10000 : MIB;
			long got = i % 2 ? adma_read(connection, (void *)(mine + MIB), size)
					 : adma_write(connection, (void *)(mine + MIB), size);

			if (got > (long)size)
				fail("%ld bytes of %zu", got, size);
			if (got == -ECONNRESET || got == -EPROTO || got == -EPIPE)
				break;
		}
		expect_only(mine, MIB, 0xee, "hostile");
		expect_only(mine + 2 * MIB, MIB, 0xee, "hostile");
		long closed = adma_close(connection);
		if (closed)
			fail("close: %ld", closed);
		waitpid(child, &status, 0);
		if (round % 2)
			EXPECT(adma_free((void *)mine), 0);
		else
			release_pages_between_guards(mine, 3 * MIB);
	}
}

/* ---- threads ------------------------------------------------------------------------- */

static int threads_connection;

static void *thread_writes(void *number)
{
	unsigned char *data = malloc(200000);

	memset(data, (int)(long)number, 200000);
	for (int i = 0; i < 200; i++) {
		size_t size = i % 3 == 0 ? 10 : i % 3 == 1 ? 5000 : 200000;

		EXPECT(adma_write(threads_connection, data, size), size);
	}
	free(data);
	return NULL;
}

static void *thread_reads(void *unused)
{
	unsigned char *data = malloc(200000);

	for (int i = 0; i < 200; i++) {
		long got = adma_read(threads_connection, data, 200000);

		if (got != 10 && got != 5000 && got != 200000)
			fail("a message of %ld bytes", got);
		for (long at = 0; at < got; at++)
			if (data[at] != data[0])
				fail("a message of two");
	}
	free(data);
	return unused;
}

static int eight_threads(int connection)
{
	pthread_t threads[8];

	threads_connection = connection;
	for (long i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, i % 2 ? thread_writes : thread_reads, (void *)i);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

static void threaded(void)
{
	pid_t child;
	int connection = with_child(eight_threads, &child);

	eight_threads(connection);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
}

/* ---- lengths that differ -------------------------------------------------------------- */

static const struct { size_t sent, wanted; } lengths[] = {
	{ 10, 4 }, { 4, 10 }, { MIB, 70000 }, { 70000, MIB }, { MIB, 0 }, { 0, MIB },
	{ MIB, 1 }, { 100001, 100000 }, { 99999, 100000 }, { 3 * MIB + 5, 2 * MIB + 3 },
	{ 40000, 33000 }, { 33000, 40000 }, { MIB, 20 * KIB },
};
enum { LENGTHS = sizeof(lengths) / sizeof(lengths[0]) };

static int write_lengths(int connection)
{
	for (unsigned i = 0; i < 2 * LENGTHS; i++) {
		size_t sent = lengths[i / 2].sent, wanted = lengths[i / 2].wanted;
		size_t count = sent < wanted ? sent : wanted;
		long got;

		fill(room, sent, i);
		if (i % 2) {
			adma_cookie_t cookie = adma_iwrite(connection, (void *)room, sent);

			got = adma_wait(cookie);
		} else {
			got = adma_write(connection, (void *)room, sent);
		}
		/* A small one need not have met its read. */
		if (sent > 4096)
			EXPECT(got, count);
	}
	return 0;
}

static void unequal(void)
{
	pid_t child;
	int connection = with_child(write_lengths, &child);

	for (unsigned i = 0; i < 2 * LENGTHS; i++) {
		size_t sent = lengths[i / 2].sent, wanted = lengths[i / 2].wanted;
		size_t count = sent < wanted ? sent : wanted;

		memset((void *)room, 0xee, wanted + 8192);
		if (i % 2) {
			EXPECT(adma_read(connection, (void *)(room + 4096), wanted), count);
		} else {
			adma_cookie_t cookie =
				adma_iread(connection, (void *)(room + 4096), wanted);

			EXPECT(adma_wait(cookie), count);
		}
		expect_content(room + 4096, count, i, "the shorter length");
		expect_only(room, 4096, 0xee, "before");
		expect_only(room + 4096 + count, wanted - count + 4096, 0xee, "behind");
	}
	EXPECT(adma_close(connection), 0);
	expect_good_end(child);
}

/* ---- the rest ------------------------------------------------------------------------- */

static void full(void)
{
	pid_t child;
	int connection = with_child(echo, &child);
	static adma_cookie_t cookies[256];
	int good = 0;

	/* More reads than fit: the table is full, and nothing crashes. */
	for (int i = 0; i < 1000000; i++) {
		adma_cookie_t cookie = adma_iread(connection, (void *)room, 10);

		if (cookie > 0 && good < 256)
			cookies[good++] = cookie;
		else if (cookie != -EAGAIN)
			fail("iread %d is %ld", i, (long)cookie);
	}
	EXPECT(good, 256);
	EXPECT(adma_read(connection, (void *)room, 10), -EAGAIN);
	for (int i = 0; i < 256; i++)
		EXPECT(adma_write(connection, (void *)(room + MIB), 10), 10);
	for (int i = 255; i >= 0; i--)
		EXPECT(adma_wait(cookies[i]), 10);
	ask_echo(connection, MIB);
	EXPECT(adma_close(connection), 0);
	expect_good_end(child);
}

static void *attach_end(void *socket)
{
	return (void *)(long)adma_attach((int)(long)socket);
}

/* Both ends here: so two places of the table. */
static void attach_pair(long ends[2])
{
	int pair[2];
	pthread_t thread;
	void *other;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair: %s", strerror(errno));
	if (pthread_create(&thread, NULL, attach_end, (void *)(long)pair[1]))
		fail("pthread_create");
	ends[0] = adma_attach(pair[0]);
	pthread_join(thread, &other);
	ends[1] = (long)other;
	close(pair[0]);
	close(pair[1]);
}

static void table(void)
{
	enum { PAIRS = 2048 };
	static long ends[PAIRS][2];
	struct rlimit files;
	long refused[2];

	getrlimit(RLIMIT_NOFILE, &files);
	files.rlim_cur = files.rlim_max;
	setrlimit(RLIMIT_NOFILE, &files);
	if (files.rlim_cur < 4 * PAIRS + 100)
		cannot_be_shown("too few descriptors for 4096 connections");
	for (int i = 0; i < PAIRS; i++) {
		attach_pair(ends[i]);
		if (ends[i][0] < 0 || ends[i][1] < 0)
			fail("pair %d: %ld, %ld", i, ends[i][0], ends[i][1]);
	}
	long files_open = entries_of("/proc/self/fd");

	for (int i = 0; i < 3; i++) {
		attach_pair(refused);
		EXPECT(refused[0], -EMFILE);
		EXPECT(refused[1], -EMFILE);
	}
	expect_descriptors(files_open);
	/* The others work, the last ones and those that get the places of closed ones. */
	for (int i = 0; i < PAIRS; i += 500) {
		EXPECT(adma_close(ends[i][0]), 0);
		EXPECT(adma_close(ends[i][1]), 0);
		EXPECT(adma_write(ends[i][0], (void *)room, 10), -EBADF);
		attach_pair(ends[i]);
	}
	for (int i = 0; i < PAIRS; i += 100) {
		EXPECT(adma_write(ends[i][0], (void *)room, 10), 10);
		EXPECT(adma_read(ends[i][1], (void *)room, 10), 10);
	}
}

/* Descriptors and memory come back. */
static void again(void)
{
	pid_t child;
	long before = 0;

	for (int round = 0; round < 200; round++) {
		int connection = with_child(echo, &child);

		ask_echo(connection, round % 2 ? 10 : 100000);
		EXPECT(adma_close(connection), 0);
		expect_good_end(child);
		if (round == 0)
			before = entries_of("/proc/self/fd");
	}
	expect_descriptors(before);
}

static void expect_open(const int files[30])
{
	for (int i = 0; i < 30; i++)
		if (fcntl(files[i], F_GETFD) < 0)
			fail("a file of the program was closed: %d", files[i]);
}

/* Daemons close what they find; what they open then is theirs, and their children's. */
static void all_closed(void)
{
	pid_t child, mine;
	int connection = with_child(echo, &child), files[30];
	void *block = adma_alloc(100000);

	ask_echo(connection, 100000);
	if (close_range(3, ~0u, 0))
		cannot_be_shown("no close_range in this kernel");
	for (int i = 0; i < 30; i++)
		files[i] = open("/dev/null", O_RDONLY);
	mine = fork();
	if (mine == 0) {
		expect_open(files);
		_exit(0);
	}
	expect_good_end(mine);
	EXPECT(adma_close(connection), 0);
	EXPECT(adma_free(block), 0);
	expect_open(files);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	make_room();
	struct { const char *name; void (*run)(void); } all[] = {
		{ "stopped", stopped }, { "frozen", frozen }, { "both_close", both_close },
		{ "first_thread", first_thread },
		{ "fork", forked }, { "orphan", orphaned },
		{ "exec", executed }, { "close", closed }, { "listen", listened },
		{ "hostile", hostile }, { "threads", threaded },
		{ "full", full }, { "table", table }, { "again", again }, { "unequal", unequal },
		{ "all_closed", all_closed },
	};
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (!strcmp(what, all[i].name)) {
			all[i].run();
			return 0;
		}
	if (!strcmp(what, "quiet"))
		quiet(argc > 2);
	else
		fail("no test is called %s", what);
	return 0;
}
