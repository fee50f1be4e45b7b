/*
 * What happens where something is used up or missing: places for messages, room for eager
 * ones, the queue of a listener, memory behind a buffer.
 */
#include "ipc_echo.h"
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/un.h>

/* ---- more threads and messages than places ----------------------------------------------- */

enum { SMALL = 20000, LARGE = 500, SMALL_THREADS = 4, LARGE_THREADS = 2 };

static int crowd_connection;

static void *write_many(void *large)
{
	size_t size = large ? 100000 : 10;
	unsigned char *data = calloc(1, size);

	for (int i = 0; i < (large ? LARGE : SMALL); i++)
		EXPECT(adma_write(crowd_connection, data, size), size);
	free(data);
	return NULL;
}

static void *read_many(void *count)
{
	unsigned char *data = malloc(100000);

	for (long i = 0; i < (long)count; i++) {
		long got = adma_read(crowd_connection, data, 100000);

		if (got != 10 && got != 100000)
			fail("a message of %ld bytes", got);
	}
	free(data);
	return NULL;
}

static int read_in_threads(int connection)
{
	enum { ALL = SMALL_THREADS * SMALL + LARGE_THREADS * LARGE, READERS = 3 };
	pthread_t threads[READERS];

	crowd_connection = connection;
	for (long i = 0; i < READERS; i++) {
		long count = ALL / READERS + (i < ALL % READERS);

		pthread_create(&threads[i], NULL, read_many, (void *)count);
	}
	for (int i = 0; i < READERS; i++)
		pthread_join(threads[i], NULL);
	return 0;
}

/* Threads that only write, or only read, never hear of a table that is full. */
static void crowd(void)
{
	pthread_t threads[SMALL_THREADS + LARGE_THREADS];
	pid_t child;

	crowd_connection = with_child(read_in_threads, &child);
	for (long i = 0; i < SMALL_THREADS + LARGE_THREADS; i++)
		pthread_create(&threads[i], NULL, write_many, (void *)(long)(i < LARGE_THREADS));
	for (int i = 0; i < SMALL_THREADS + LARGE_THREADS; i++)
		pthread_join(threads[i], NULL);
	expect_good_end(child);
	EXPECT(adma_close(crowd_connection), 0);
}

static void *read_one(void *connection)
{
	char data[10];

	EXPECT(adma_read((int)(long)connection, data, 10), 10);
	return NULL;
}

static int write_slowly(int connection)
{
	usleep(300000);
	for (int i = 0; i < 300; i++)
		EXPECT(adma_write(connection, (void *)room, 10), 10);
	return 0;
}

/* 300 threads read, which is more than there are places: the last ones wait for those. */
static void many_readers(void)
{
	pthread_t threads[300];
	pid_t child;
	int connection = with_child(write_slowly, &child);

	for (int i = 0; i < 300; i++)
		if (pthread_create(&threads[i], NULL, read_one, (void *)(long)connection))
			fail("pthread_create");
	for (int i = 0; i < 300; i++)
		pthread_join(threads[i], NULL);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
}

/* A cookie that nobody waits for holds up the 256th message after it. */
static void late_cookie(void)
{
	pid_t child;
	int connection = with_child(echo, &child);
	adma_cookie_t late = adma_iread(connection, (void *)room, 10);

	EXPECT(adma_write(connection, (void *)room, 10), 10);
	for (int i = 0; i < 255; i++) {
		EXPECT(adma_write(connection, (void *)room, 10), 10);
		EXPECT(adma_read(connection, (void *)room, 10), 10);
	}
	EXPECT(adma_read(connection, (void *)room, 10), -EAGAIN);
	EXPECT(adma_iread(connection, (void *)room, 10), -EAGAIN);
	EXPECT(adma_wait(late), 10);
	ask_echo(connection, 10);
	EXPECT(adma_close(connection), 0);
	expect_good_end(child);
}

/* ---- eager messages that nobody reads ------------------------------------------------------ */

static int write_first(int connection)
{
	/* As many as the header says, first by bytes and then by number; at odd places. */
	for (int round = 0; round < 100; round++) {
		for (int i = 0; i < 16; i++)
			EXPECT(adma_write(connection, (void *)room, 4096), 4096);
		for (int i = 0; i < 16; i++)
			EXPECT(adma_read(connection, (void *)room, 4096), 4096);
		for (int i = 0; i < 256; i++)
			EXPECT(adma_write(connection, (void *)room, 150 + round), 150 + round);
		for (int i = 0; i < 256; i++)
			EXPECT(adma_read(connection, (void *)room, 4096), 150 + round);
	}
	return 0;
}

static int read_late(int connection)
{
	usleep(200000);
	for (int i = 0; i < 1000; i++)
		EXPECT(adma_read(connection, (void *)room, 4096), 4096);
	return 0;
}

static void unread(void)
{
	pid_t child;
	int connection = with_child(write_first, &child);

	write_first(connection);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
	/* Beyond that the writer waits, and nothing is lost. */
	connection = with_child(read_late, &child);
	for (int i = 0; i < 1000; i++)
		EXPECT(adma_write(connection, (void *)room, 4096), 4096);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
}

/* ---- a listener that accepts nobody -------------------------------------------------------- */

/* Run with ADMA_IPC_TIMEOUT=1. */
static void queue(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	char folder[] = "/tmp/adma-test-XXXXXX";
	int listener, left = 1000;

	if (!mkdtemp(folder))
		fail("mkdtemp");
	snprintf(address.sun_path, sizeof(address.sun_path), "%s/socket", folder);
	listener = adma_listen(address.sun_path);
	/* The queue gets full of those who wait to be accepted. */
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

/* ---- descriptors ---------------------------------------------------------------------------- */

static int attach_only(int socket_fd)
{
	int connection = adma_attach(socket_fd);

	return connection < 0 ? connection : adma_close(connection);
}

/* However few are left: it works, or says that they are too few. */
static void descriptors(void)
{
	int worked = 0;

	for (unsigned limit = 3; limit < 20; limit++) {
		int pair[2], result, status;

		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
			fail("socketpair");
		pid_t other = fork();

		if (other == 0) {
			close(pair[0]);
			attach_only(pair[1]);
			_exit(0);
		}
		pid_t limited = fork();

		if (limited == 0) {
			struct rlimit files = { limit, limit };

			close(pair[1]);
			setrlimit(RLIMIT_NOFILE, &files);
			result = attach_only(pair[0]);
			if (result && result != -EMFILE)
				fail("with %u descriptors: %s", limit, strerror(-result));
			_exit(result ? 2 : 3);
		}
		close(pair[0]);
		close(pair[1]);
		if (waitpid(limited, &status, 0) != limited || !WIFEXITED(status) ||
		    WEXITSTATUS(status) < 2)
			fail("with %u descriptors: status %#x", limit, status);
		worked += WEXITSTATUS(status) == 3;
		waitpid(other, &status, 0);
	}
	if (worked == 0 || worked == 17)
		fail("%d of 17 limits are enough", worked);
}

/* ---- time ------------------------------------------------------------------------------------ */

enum { LONG = 2 * 1024 };

/* Much to copy, in little memory: the same pages again and again. */
static char *long_buffer(void)
{
	int memory = memfd_create("long", 0);
	char *at = mmap(NULL, LONG * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
			-1, 0);

	if (ftruncate(memory, 16 * MIB))
		fail("ftruncate");
	for (size_t from = 0; from < LONG * MIB; from += 16 * MIB)
		if (mmap(at + from, 16 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory,
			 0) == MAP_FAILED)
			fail("mmap");
	close(memory);
	return at;
}

static int post_and_sleep(int connection)
{
	EXPECT(adma_iread(connection, long_buffer(), LONG * MIB) > 0, 1);
	EXPECT(adma_write(connection, "posted", 6), 6);
	sleep_ms(100000);
	return 0;
}

/* A limit holds also for who copies all the time, but for the piece it is at. */
static void limit(void)
{
	int status, waits = 0;
	pid_t child;
	int connection = with_child(post_and_sleep, &child);
	adma_cookie_t cookie = adma_iwrite(connection, long_buffer(), LONG * MIB);
	long got;

	EXPECT(adma_read(connection, (void *)room, 6), 6);
	while ((got = adma_wait_for(cookie, 2)) == -ETIMEDOUT)
		waits++;
	EXPECT(got, LONG * MIB);
	/* A piece is a 64th. */
	if (waits < 10)
		fail("2 GiB were copied in %d waits of 2 ms", waits);
	kill(child, SIGKILL);
	waitpid(child, &status, 0);
	EXPECT(adma_close(connection), 0);
}

/* ---- memory that is not there -------------------------------------------------------------- */

static int offer_good(int connection)
{
	/* One page is missing in the middle of the other's buffers. */
	EXPECT(adma_write(connection, (void *)room, 4 * MIB), -EFAULT);
	EXPECT(adma_read(connection, (void *)room, 4 * MIB), -EFAULT);
	EXPECT(adma_read(connection, (void *)room, 4 * MIB), 4 * MIB);
	return 0;
}

static void missing(void)
{
	pid_t child;
	int connection = with_child(offer_good, &child);

	mprotect((void *)(room + 2 * MIB), PAGE, PROT_NONE);
	EXPECT(adma_read(connection, (void *)room, 4 * MIB), -EFAULT);
	EXPECT(adma_write(connection, (void *)room, 4 * MIB), -EFAULT);
	mprotect((void *)(room + 2 * MIB), PAGE, PROT_READ | PROT_WRITE);
	/* The connection goes on. */
	EXPECT(adma_write(connection, (void *)room, 4 * MIB), 4 * MIB);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
}

static int write_missing(int connection)
{
	mprotect((void *)(room + 2 * MIB), PAGE, PROT_NONE);
	return adma_write(connection, (void *)room, 4 * MIB) != 0;
}

/* Run with ADMA_IPC_ENGINE=shm: such a process dies as of memcpy, and the other hears of it. */
static void missing_shared(void)
{
	int status;
	pid_t child;
	int connection = with_child(write_missing, &child);

	EXPECT(adma_read(connection, (void *)room, 4 * MIB), -ECONNRESET);
	if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) ||
	    WTERMSIG(status) != SIGSEGV)
		fail("the other process ended with status %#x", status);
	EXPECT(adma_close(connection), 0);
}

/* ---- what a result means -------------------------------------------------------------------- */

/* Every error that the header and what it refers to name has words of its own. */
static void words(void)
{
	static const int errors[] = { EINVAL, EAGAIN, EPIPE, ECONNRESET, EPROTO, EBADF, EPERM,
		EFAULT, ETIMEDOUT, EINPROGRESS, EMFILE, EAFNOSUPPORT, ENOTSOCK, ENOTCONN, ENOENT,
		ECONNREFUSED, EADDRINUSE, ENAMETOOLONG, EACCES, EINTR, ENOMEM, EBUSY, EOPNOTSUPP };

	for (unsigned i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (!strcmp(adma_strerror(-errors[i]), adma_strerror(-12345)))
			fail("no words for %s", strerror(errors[i]));
}

/* ---- pages that do not come ------------------------------------------------------------ */

static int go_on[2], posted[2];

/* Its buffer has pages only when somebody brings them, and nobody does until it is told so. */
static int without_pages(int connection)
{
	byte *data = pages_between_guards(MIB);
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .range = { (uintptr_t)data, MIB },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };
	char byte;

	if (faults < 0 || ioctl(faults, UFFDIO_API, &api) ||
	    ioctl(faults, UFFDIO_REGISTER, &range))
		cannot_be_shown("no userfaultfd here");
	adma_cookie_t cookie = adma_iwrite(connection, (void *)data, MIB);

	EXPECT(write(posted[1], "x", 1), 1);
	if (read(go_on[0], &byte, 1) != 1)
		fail("read");
	close(faults);
	EXPECT(adma_wait(cookie), MIB);
	return 0;
}

static void pages(void)
{
	byte *data = pages_between_guards(MIB);
	char word;
	pid_t child;
	int status;

	if (pipe(go_on) || pipe(posted))
		fail("pipe");
	int connection = with_child(without_pages, &child);

	close(posted[1]);
	if (read(posted[0], &word, 1) != 1 && waitpid(child, &status, 0) == child)
		exit(WEXITSTATUS(status));
	adma_cookie_t cookie = adma_iread(connection, (void *)data, MIB);

	for (int i = 0; i < 3; i++) {
		double begun = seconds();

		EXPECT(adma_wait_for(cookie, 100), -ETIMEDOUT);
		if (seconds() - begun > 20)
			fail("a tenth of a second took %.1f s", seconds() - begun);
		EXPECT(adma_check(cookie), -EINPROGRESS);
		if (seconds() - begun > 30)
			fail("looking took %.1f s", seconds() - begun);
	}
	EXPECT(write(go_on[1], "x", 1), 1);
	EXPECT(adma_wait_for(cookie, 20000), MIB);
	expect_only(data, MIB, 0, "what was never written");
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
}

/* ---- no memory left for the library --------------------------------------------------------- */

static int write_later(int connection)
{
	sleep_ms(200);
	EXPECT(adma_write(connection, (void *)room, 100), 100);
	EXPECT(adma_read(connection, (void *)room, 4 * MIB), 4 * MIB);
	EXPECT(adma_write(connection, (void *)room, 4 * MIB), 4 * MIB);
	EXPECT(adma_read(connection, (void *)room, 1), 1);
	return 0;
}

static void *wait_too(void *connection)
{
	EXPECT(adma_read((int)(long)connection, (void *)(room + 8 * MIB), 100), 100);
	return NULL;
}

/* Whoever waits goes on: long sleeps, with threads and with other connections. */
static void no_heap(void)
{
	struct rlimit none = { 0, 0 };
	pid_t children[3];
	int connections[3];
	pthread_t thread;

	for (int i = 0; i < 3; i++)
		connections[i] = with_child(write_later, &children[i]);
	/* What another thread waits with, and a connection that nobody waits on. */
	pthread_create(&thread, NULL, wait_too, (void *)(long)connections[1]);
	adma_cookie_t later = adma_iread(connections[2], (void *)(room + 9 * MIB), 100);
	char name[40];
	int pair[2];

	snprintf(name, sizeof(name), "@adma-no-heap-%d", getpid());
	int listener = adma_listen(name);

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || plain_client(name) < 0)
		fail("socketpair");
	sleep_ms(50);
	setrlimit(RLIMIT_DATA, &none);
	setrlimit(RLIMIT_AS, &none);
	for (size_t size = MIB; size >= 8; size /= 2)
		while (malloc(size))
			;
	/* Nothing new is begun. */
	EXPECT(adma_attach(pair[0]), -ENOMEM);
	EXPECT(adma_connect(name), -ENOMEM);
	EXPECT(adma_accept(listener), -ENOMEM);
	if (adma_alloc(100))
		fail("there is memory");
	EXPECT(adma_read(connections[0], (void *)room, 100), 100);
	EXPECT(adma_wait_for(later, 20000), 100);
	pthread_join(thread, NULL);
	for (int i = 0; i < 3; i++) {
		adma_cookie_t cookie = adma_iwrite(connections[i], (void *)room, 4 * MIB);

		EXPECT(adma_wait_for(cookie, 20000), 4 * MIB);
		cookie = adma_iread(connections[i], (void *)room, 4 * MIB);
		while (adma_check(cookie) == -EINPROGRESS)
			;
		EXPECT(adma_write(connections[i], (void *)room, 1), 1);
	}
	for (int i = 0; i < 3; i++) {
		expect_good_end(children[i]);
		EXPECT(adma_close(connections[i]), 0);
	}
}

int main(int argc, char **argv)
{
	struct { const char *name; void (*run)(void); } all[] = {
		{ "crowd", crowd }, { "many_readers", many_readers }, { "late_cookie", late_cookie },
		{ "unread", unread }, { "queue", queue }, { "descriptors", descriptors },
		{ "limit", limit }, { "missing", missing },
		{ "missing_shared", missing_shared }, { "words", words },
		{ "pages", pages }, { "no_heap", no_heap },
	};

	make_room();
	alarm(200);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (argc > 1 && !strcmp(argv[1], all[i].name)) {
			all[i].run();
			return 0;
		}
	fail("no test is called %s", argc > 1 ? argv[1] : "");
}
