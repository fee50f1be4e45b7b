/*
 * Every promise of include/adma.h that a program can see. Usage: api SUBJECT.
 *
 * Ends with 0 when all went right, with 1 and a reason on stderr when not, and with 77 when
 * the subject cannot be shown on this machine.
 */
#include "pattern.h"
#include <adma.h>
#include <errno.h>
#include <pthread.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

enum { MIB = 1024 * 1024 };

/* Not linked: found where it was preloaded, or opened. */
#ifdef LOOKED_UP
#include <dlfcn.h>
static void *looked_up(const char *name)
{
	void *found = dlsym(RTLD_DEFAULT, name);
	const char *path = getenv("LIBRARY");
	void *library = found || !path ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);

	if (library)
		found = dlsym(library, name);
	if (!found)
		fail("%s: %s", name, dlerror());
	return found;
}
/* Once at each place: a signal handler had better not ask the loader. */
#define LOOK_UP(name)                                                                        \
	({                                                                                   \
		static __typeof__(&name) found;                                              \
		if (!found)                                                                  \
			found = looked_up(#name);                                            \
		found;                                                                       \
	})
#define adma_copy LOOK_UP(adma_copy)
#define adma_icopy LOOK_UP(adma_icopy)
#define adma_icopy_batch LOOK_UP(adma_icopy_batch)
#define adma_icopy_notif LOOK_UP(adma_icopy_notif)
#define adma_check_copy LOOK_UP(adma_check_copy)
#define adma_wait_copy LOOK_UP(adma_wait_copy)
#define adma_poll_fd LOOK_UP(adma_poll_fd)
#define adma_strerror LOOK_UP(adma_strerror)
#endif

static void expect(bool good, const char *what)
{
	if (!good)
		fail("%s", what);
}
#define EXPECT(condition) expect(condition, #condition)

/* A pair of buffers with a copy of `len` bytes in the middle, not aligned alike. */
struct pair {
	struct side src, dst;
};

static struct pair new_pair(size_t len, size_t src_at, size_t dst_at)
{
	struct pair pair = { { NULL, len + 2 * PAGE, PAGE / 2 + src_at, len },
			     { NULL, len + 2 * PAGE, PAGE / 2 + dst_at, len } };

	pair.src.base = pages_between_guards(pair.src.size);
	pair.dst.base = pages_between_guards(pair.dst.size);
	lay_down(&pair.src, SOURCE);
	lay_down(&pair.dst, DESTINATION);
	return pair;
}

static void free_pair(struct pair *pair)
{
	release_pages_between_guards(pair->src.base, pair->src.size);
	release_pages_between_guards(pair->dst.base, pair->dst.size);
}

static const void *from(const struct pair *pair)
{
	return (const void *)(pair->src.base + pair->src.from);
}

static void *to(const struct pair *pair)
{
	return (void *)(pair->dst.base + pair->dst.from);
}

static adma_cookie_t start(const struct pair *pair)
{
	adma_cookie_t cookie = adma_icopy(from(pair), to(pair), pair->src.len);

	if (cookie <= 0)
		fail("adma_icopy: %lld, %s", (long long)cookie, adma_strerror((int)cookie));
	return cookie;
}

static void finish_by_wait(adma_cookie_t cookie)
{
	int result = adma_wait_copy(cookie);

	if (result)
		fail("adma_wait_copy: %d, %s", result, adma_strerror(result));
}

static void finish_by_check(adma_cookie_t cookie)
{
	int result;

	while ((result = adma_check_copy(cookie)) == 0)
		sched_yield();
	if (result != 1)
		fail("adma_check_copy: %d, %s", result, adma_strerror(result));
}

static void copied(struct pair *pair, const char *what)
{
	expect_copied(&pair->dst, &pair->src, what);
}

/* ---- right bytes ---------------------------------------------------------------------- */

static void by_notif(struct pair *pair)
{
	static uint64_t value;
	_Alignas(8) uint64_t word = 0;
	int result = adma_icopy_notif(from(pair), to(pair), pair->src.len, &word, ++value);

	if (result)
		fail("adma_icopy_notif: %d", result);
	while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != value)
		sched_yield();
}

static void by_batch(struct pair *pair)
{
	/* In three copies that meet: large, small, the rest. */
	size_t len = pair->src.len, a = len / 2, b = a + (len - a > 100 ? 100 : len - a);
	const char *src = from(pair);
	char *dst = to(pair);
	struct adma_op ops[] = { { src, dst, a }, { src + a, dst + a, b - a },
				 { src + b, dst + b, len - b } };
	adma_cookie_t cookie = adma_icopy_batch(ops, 3);

	memset(ops, 0xff, sizeof ops); /* the array is ours again */
	if (cookie <= 0)
		fail("adma_icopy_batch: %lld", (long long)cookie);
	finish_by_wait(cookie);
}

static void by_copy(struct pair *pair)
{
	EXPECT(adma_copy(from(pair), to(pair), pair->src.len) == 0);
}

static void by_waiting(struct pair *pair)
{
	finish_by_wait(start(pair));
}

static void by_checking(struct pair *pair)
{
	finish_by_check(start(pair));
}

static void subject_oracle(void)
{
	static const struct {
		const char *name;
		void (*copy)(struct pair *);
	} ways[] = { { "adma_copy", by_copy },
		     { "adma_icopy, adma_wait_copy", by_waiting },
		     { "adma_icopy, adma_check_copy", by_checking },
		     { "adma_icopy_batch", by_batch },
		     { "adma_icopy_notif", by_notif } };
	static const size_t sizes[] = { 0, 1, 63, 4096, 16383, 16384, 16385, 65536, 65537,
					262144, 300001, MIB, 3 * MIB + 7 };
	static const size_t offsets[][2] = { { 0, 0 }, { 1, 0 }, { 0, 63 }, { 2047, 17 } };

	for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++)
		for (size_t at = 0; at < 4; at++) {
			struct pair pair = new_pair(sizes[size], offsets[at][0], offsets[at][1]);

			for (size_t way = 0; way < 5; way++) {
				lay_down(&pair.dst, DESTINATION);
				ways[way].copy(&pair);
				copied(&pair, ways[way].name);
			}
			free_pair(&pair);
		}
	struct pair large = new_pair(40 * MIB + 5, 3, 5);

	by_waiting(&large);
	copied(&large, "40 MiB");
	free_pair(&large);
}

static void subject_overlap(void)
{
	enum { LEN = 400000 };
	static unsigned char bytes[3 * LEN], want[3 * LEN];
	static const ptrdiff_t distances[] = { -100000, -1, 0, 1, 4096, 399999 };

	for (int way = 0; way < 3; way++)
		for (size_t i = 0; i < sizeof distances / sizeof *distances; i++) {
			unsigned char *src = bytes + LEN / 2, *dst = src + distances[i];

			for (size_t at = 0; at < sizeof bytes; at++)
				want[at] = bytes[at] = stamp(0, at);
			for (size_t at = 0; at < LEN; at++)
				want[dst - bytes + at] = stamp(0, src - bytes + at);
			struct adma_op op = { src, dst, LEN };

			if (way == 0)
				EXPECT(adma_copy(src, dst, LEN) == 0);
			else if (way == 1)
				finish_by_wait(adma_icopy(src, dst, LEN));
			else
				finish_by_check(adma_icopy_batch(&op, 1));
			for (size_t at = 0; at < sizeof bytes; at++)
				if (bytes[at] != want[at])
					fail("distance %td: byte %zu", distances[i], at);
		}
}

/* ---- cookies -------------------------------------------------------------------------- */

static void is_unknown(adma_cookie_t cookie)
{
	EXPECT(adma_check_copy(cookie) == -EINVAL);
	EXPECT(adma_wait_copy(cookie) == -EINVAL);
}

static void subject_cookies(void)
{
	static const adma_cookie_t never[] = { 0, 1, 42, -1, -EAGAIN, INT64_MAX, INT64_MIN,
					       1LL << 44, 1LL << 62 };
	struct pair small = new_pair(100, 1, 2), large = new_pair(300000, 1, 2);

	for (size_t i = 0; i < sizeof never / sizeof *never; i++)
		is_unknown(never[i]);
	for (int round = 0; round < 1000; round++) {
		struct pair *pair = round % 2 ? &small : &large;
		adma_cookie_t cookie = start(pair);

		is_unknown(cookie + 1);
		is_unknown(-cookie);
		is_unknown(cookie ^ 1LL << 12);
		is_unknown(cookie ^ 1LL << 50);
		(round % 3 ? finish_by_wait : finish_by_check)(cookie);
		is_unknown(cookie);
		adma_cookie_t next = start(pair);

		EXPECT(next != cookie);
		is_unknown(cookie);
		finish_by_wait(next);
	}
	EXPECT(adma_icopy_batch(NULL, 1) == -EINVAL);
	EXPECT(adma_icopy_batch((void *)1, 1) == -EINVAL);
	EXPECT(adma_icopy_batch((void *)8, SIZE_MAX) == -EINVAL);
	finish_by_check(adma_icopy_batch(NULL, 0));
	uint64_t words[2];

	EXPECT(adma_icopy_notif("a", words, 1, NULL, 1) == -EINVAL);
	EXPECT(adma_icopy_notif("a", words, 1, (uint64_t *)((char *)words + 4), 1) == -EINVAL);
	EXPECT(strlen(adma_strerror(0)) && strlen(adma_strerror(-EINVAL)));
	EXPECT(adma_strerror(INT32_MIN) && adma_strerror(-12345) && adma_strerror(7));
	EXPECT(strcmp(adma_strerror(-EAGAIN), adma_strerror(-EINVAL)));
}

/* A million outstanding copies: ADMA_COOKIES of them are taken, and none of the others. */
static void subject_full(void)
{
	static adma_cookie_t cookies[ADMA_COOKIES];
	struct pair small = new_pair(64, 0, 0), large = new_pair(20000, 0, 0);
	uint64_t word = 0;

	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < ADMA_COOKIES; i++)
			cookies[i] = start(i % 8 ? &small : &large);
		for (int i = 0; i < 1000000; i++)
			EXPECT(adma_icopy(from(&small), to(&small), 64) == -EAGAIN);
		EXPECT(adma_icopy_batch(NULL, 0) == -EAGAIN);
		EXPECT(adma_icopy_notif(from(&small), to(&small), 64, &word, 1) == -EAGAIN);
		EXPECT(word == 0);
		finish_by_wait(cookies[7]);
		cookies[7] = start(&large);
		for (int i = 0; i < ADMA_COOKIES; i++)
			finish_by_wait(cookies[(i * 1237) % ADMA_COOKIES]);
	}
	/* Words need nobody to ask for them. */
	for (uint64_t i = 1; i <= 3 * ADMA_COOKIES; i++) {
		while (adma_icopy_notif(from(&large), to(&large), 20000, &word, i) == -EAGAIN)
			sched_yield();
		while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != i)
			sched_yield();
	}
}

static void subject_thousand(void)
{
	enum { COPIES = 1000 };
	static struct pair pairs[COPIES];
	static struct adma_op ops[COPIES];
	static adma_cookie_t cookies[COPIES];

	for (int i = 0; i < COPIES; i++)
		pairs[i] = new_pair(20000 + 97 * i, i % 64, i % 31);
	for (int i = 0; i < COPIES; i++)
		cookies[i] = start(&pairs[i]);
	for (int i = COPIES - 1; i >= 0; i--)
		(i % 2 ? finish_by_wait : finish_by_check)(cookies[i]);
	for (int i = 0; i < COPIES; i++) {
		copied(&pairs[i], "one of a thousand");
		lay_down(&pairs[i].dst, DESTINATION);
		ops[i] = (struct adma_op){ from(&pairs[i]), to(&pairs[i]), pairs[i].src.len };
	}
	finish_by_wait(adma_icopy_batch(ops, COPIES));
	for (int i = 0; i < COPIES; i++)
		copied(&pairs[i], "one of a batch of a thousand");
}

/* ---- threads, fork, signals, exit ------------------------------------------------------ */

enum { THREADS = 6, ROUNDS = 60 };
static adma_cookie_t shared_cookie;
static pthread_barrier_t barrier;
static int told;

static void *share_waiting(void *number)
{
	struct pair pair = new_pair(200000 + 1000 * (size_t)(uintptr_t)number, 1, 9);

	for (int round = 0; round < ROUNDS; round++) {
		/* Its own ... */
		lay_down(&pair.dst, DESTINATION);
		adma_cookie_t own = start(&pair);

		/* ... and one that all of them wait for. */
		pthread_barrier_wait(&barrier);
		int result = round % 2 ? adma_wait_copy(shared_cookie) : 0;

		while (round % 2 == 0 && (result = adma_check_copy(shared_cookie)) == 0)
			sched_yield();
		if (result >= 0)
			__atomic_fetch_add(&told, 1, __ATOMIC_RELAXED);
		else
			EXPECT(result == -EINVAL);
		finish_by_wait(own);
		copied(&pair, "thread");
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
	}
	return NULL;
}

static void *start_and_leave(void *pair)
{
	return (void *)(intptr_t)start(pair);
}

static void subject_threads(void)
{
	pthread_t threads[THREADS];
	struct pair pair = new_pair(MIB, 0, 0);

	pthread_barrier_init(&barrier, NULL, THREADS + 1);
	for (int i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, share_waiting, (void *)(uintptr_t)i);
	for (int round = 0; round < ROUNDS; round++) {
		told = 0;
		shared_cookie = start(&pair);
		pthread_barrier_wait(&barrier);
		pthread_barrier_wait(&barrier);
		EXPECT(told == 1);
		pthread_barrier_wait(&barrier);
	}
	for (int i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (int round = 0; round < 50; round++) {
		void *cookie;

		lay_down(&pair.dst, DESTINATION);
		pthread_create(&threads[0], NULL, start_and_leave, &pair);
		pthread_join(threads[0], &cookie);
		finish_by_wait((intptr_t)cookie);
		copied(&pair, "started by a thread that has left");
	}
}

static void child_succeeds(pid_t pid)
{
	int status;

	EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		fail("child: status %#x", status);
}

static void subject_fork(void)
{
	enum { COPIES = 16 };
	struct pair pairs[COPIES];
	adma_cookie_t cookies[COPIES];
	int fd = adma_poll_fd();

	for (int i = 0; i < COPIES; i++)
		pairs[i] = new_pair(500000, i, 2 * i);
	for (int round = 0; round < 10; round++) {
		uint64_t word = 0;
		struct pair noted = new_pair(300000, 5, 6);

		for (int i = 0; i < COPIES; i++) {
			lay_down(&pairs[i].dst, DESTINATION);
			cookies[i] = start(&pairs[i]);
		}
		EXPECT(!adma_icopy_notif(from(&noted), to(&noted), 300000, &word, 1));
		pid_t pid = fork();

		if (pid == 0) {
			alarm(30);
			for (int i = 0; i < COPIES; i++)
				is_unknown(cookies[i]);
			struct pair own = new_pair(MIB, 1, 2);
			adma_cookie_t cookie = start(&own);

			is_unknown(cookies[0]);
			finish_by_wait(cookie);
			copied(&own, "child");
			lay_down(&own.dst, DESTINATION);
			by_notif(&own);
			copied(&own, "child's word");
			EXPECT(adma_poll_fd() != fd);
			_exit(0);
		}
		while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != 1)
			sched_yield();
		copied(&noted, "parent's word");
		for (int i = 0; i < COPIES; i++) {
			finish_by_wait(cookies[i]);
			copied(&pairs[i], "parent");
		}
		child_succeeds(pid);
		free_pair(&noted);
	}
	/*
	 * A fork that runs no handlers has no workers: all is done at once, and nobody would
	 * ever end what the parent has started.
	 */
	for (int round = 0; round < 10; round++) {
		for (int i = 0; i < COPIES; i++) {
			lay_down(&pairs[i].dst, DESTINATION);
			cookies[i] = start(&pairs[i]);
		}
		pid_t pid = round % 2 ? syscall(SYS_fork)
				      : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);

		if (pid == 0) {
			alarm(30);
			for (int i = 0; i < COPIES; i++)
				is_unknown(cookies[i]);
			EXPECT(adma_poll_fd() != fd);
			for (int i = 0; i < 5; i++) {
				lay_down(&pairs[i].dst, DESTINATION);
				by_notif(&pairs[i]);
				copied(&pairs[i], "child of a bare fork");
				lay_down(&pairs[i].dst, DESTINATION);
				finish_by_wait(start(&pairs[i]));
				copied(&pairs[i], "cookie of a bare fork's child");
				is_unknown(cookies[i]);
			}
			_exit(0);
		}
		for (int i = 0; i < COPIES; i++) {
			finish_by_wait(cookies[i]);
			copied(&pairs[i], "parent of a bare fork");
		}
		child_succeeds(pid);
	}
}

static volatile adma_cookie_t current;
static volatile sig_atomic_t by_handler, alarms;
static struct pair handlers_own;

static void ring_soon(void)
{
	struct itimerval once = { .it_value = { 0, 700 } };

	setitimer(ITIMER_REAL, &once, NULL);
}

static void on_alarm(int signal)
{
	(void)signal;
	int before = errno;

	errno = 4321;
	alarms++;
	if (current && adma_check_copy(current) == 1)
		by_handler = 1;
	adma_cookie_t cookie = adma_icopy(from(&handlers_own), to(&handlers_own), 200000);

	if (cookie <= 0 || adma_wait_copy(cookie) || adma_check_copy(cookie) != -EINVAL)
		_exit(3);
	if (current && !by_handler && alarms % 2 == 0) {
		/* Whatever was interrupted, waiting for it must not hang. */
		int result = adma_wait_copy(current);

		if (result == 0)
			by_handler = 1;
		else if (result != -EINVAL)
			_exit(4);
	}
	if (errno != 4321)
		_exit(5);
	errno = before;
	ring_soon(); /* not before: on a busy machine there would be nothing but alarms */
}

static void subject_signals(void)
{
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct pair pair = new_pair(2 * MIB, 1, 3);

	handlers_own = new_pair(200000, 0, 0);
	sigaction(SIGALRM, &action, NULL);
	ring_soon();
	for (int round = 0; round < 100 || alarms < 100; round++) {
		lay_down(&pair.dst, DESTINATION);
		by_handler = 0;
		current = start(&pair);
		int result = round % 2 ? adma_wait_copy(current) : 0;

		while (round % 2 == 0 && (result = adma_check_copy(current)) == 0)
			;
		EXPECT(result >= 0 || (result == -EINVAL && by_handler));
		current = 0;
		copied(&pair, "interrupted");
	}
}

static struct pair at_exit;

static void exit_handler(void)
{
	lay_down(&at_exit.dst, DESTINATION);
	by_waiting(&at_exit);
	copied(&at_exit, "exit handler");
}

__attribute__((destructor)) static void destructor(void)
{
	if (!at_exit.src.base)
		return;
	lay_down(&at_exit.dst, DESTINATION);
	by_waiting(&at_exit);
	by_notif(&at_exit);
	copied(&at_exit, "destructor");
	if (write(1, "destructor\n", 11) != 11)
		_exit(6);
}

/* Leaves with copies under way. */
static void subject_exit(void)
{
	struct pair pairs[64];
	static uint64_t words[64];

	at_exit = new_pair(300000, 1, 2);
	atexit(exit_handler);
	for (int i = 0; i < 64; i++)
		pairs[i] = new_pair(MIB, i, 0);
	for (int i = 0; i < 64; i++) {
		start(&pairs[i]);
		EXPECT(!adma_icopy_notif(from(&pairs[i]), to(&pairs[i]), MIB, &words[i], 1));
	}
	exit(0);
}

/* ---- ends without asking --------------------------------------------------------------- */

static void subject_notif(void)
{
	/* Rounds are told apart by the bytes themselves: no barrier, no second look. */
	enum { LEN = 400000 };
	unsigned char *src = (unsigned char *)pages_between_guards(LEN);
	volatile unsigned char *dst = pages_between_guards(LEN);
	_Alignas(8) static uint64_t words[4];

	for (uint64_t round = 1; round < 400; round++) {
		for (size_t at = 0; at < LEN; at += 64)
			src[at] = round;
		uint64_t *word = &words[round % 4], value = round << 32 | round;

		EXPECT(!adma_icopy_notif(src, (void *)dst, LEN, word, value));
		while (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value)
			;
		for (size_t at = 0; at < LEN; at += 64)
			if (dst[at] != (unsigned char)round)
				fail("round %d: byte %zu came after the word", (int)round, at);
		EXPECT(words[(round + 1) % 4] < value && words[(round + 2) % 4] < value);
	}
}

static void subject_poll(void)
{
	enum { COPIES = 200 };
	struct pair pairs[COPIES];
	adma_cookie_t cookies[COPIES];
	int fd = adma_poll_fd(), loop = epoll_create1(0), left = 0, rounds = 0;
	struct epoll_event event = { .events = EPOLLIN };
	uint64_t count;

	EXPECT(fd >= 0 && adma_poll_fd() == fd);
	EXPECT(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	EXPECT(epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event) == 0);
	EXPECT(epoll_wait(loop, &event, 1, 0) == 0);
	EXPECT(read(fd, &count, 8) == -1 && errno == EAGAIN);
	for (int i = 0; i < COPIES; i++)
		pairs[i] = new_pair(i % 5 ? 100000 + i : 50, i % 64, 0);
	for (int i = 0; i < COPIES; i++, left++)
		cookies[i] = start(&pairs[i]);
	while (left > 0) {
		if (epoll_wait(loop, &event, 1, 10000) != 1)
			fail("%d copies are left and nothing has come for 10 s", left);
		EXPECT(read(fd, &count, 8) == 8 && count > 0);
		rounds++;
		for (int i = 0; i < COPIES; i++)
			if (cookies[i] && adma_check_copy(cookies[i]) == 1) {
				copied(&pairs[i], "polled");
				cookies[i] = 0;
				left--;
			}
	}
	EXPECT(rounds <= COPIES);
	/* A word's end is told as well. */
	while (epoll_wait(loop, &event, 1, 0) == 1)
		EXPECT(read(fd, &count, 8) == 8);
	by_notif(&pairs[1]);
	EXPECT(epoll_wait(loop, &event, 1, 10000) == 1);
	/* Closed all the same, and the number used for something else: nothing gets into it. */
	close(fd);
	int file = memfd_create("mine", 0);

	EXPECT(dup2(file, fd) == fd);
	by_waiting(&pairs[1]);
	by_notif(&pairs[1]);
	EXPECT(lseek(file, 0, SEEK_END) == 0);
	EXPECT(adma_poll_fd() != fd);
	/* A program without standard input: the lowest free number is 0. */
	pid_t pid = fork();

	if (pid == 0) {
		alarm(30);
		close(0);
		struct pollfd poll_fd = { .fd = adma_poll_fd(), .events = POLLIN };

		EXPECT(poll_fd.fd == 0 && adma_poll_fd() == 0);
		finish_by_wait(start(&pairs[1]));
		EXPECT(poll(&poll_fd, 1, 10000) == 1);
		_exit(0);
	}
	child_succeeds(pid);
}

/* ---- faults ---------------------------------------------------------------------------- */

static sigjmp_buf back;
static volatile sig_atomic_t faults;
static void *volatile bad_page;
static volatile bool repair;

static void on_fault(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	faults++;
	if (!repair)
		siglongjmp(back, 1);
	mprotect((void *)((uintptr_t)info->si_addr / PAGE * PAGE), PAGE, PROT_READ | PROT_WRITE);
}

static void spoil(struct pair *pair, bool source)
{
	byte *base = source ? pair->src.base : pair->dst.base;

	bad_page = (void *)(base + pair->src.size / PAGE / 2 * PAGE);
	EXPECT(mprotect(bad_page, PAGE, PROT_NONE) == 0);
	faults = 0;
}

static void dies_without_handler(bool notif)
{
	pid_t pid = fork();
	int status;

	if (pid == 0) {
		struct pair pair = new_pair(MIB, 0, 0);
		uint64_t word = 0;

		signal(SIGSEGV, SIG_DFL);
		alarm(20);
		spoil(&pair, true);
		if (notif) {
			if (adma_icopy_notif(from(&pair), to(&pair), MIB, &word, 1) == 0)
				while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) == 0)
					;
		} else {
			adma_wait_copy(start(&pair));
		}
		_exit(0);
	}
	EXPECT(waitpid(pid, &status, 0) == pid);
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
		fail("a bad page without handler: status %#x", status);
}

static void batches_with_bad_pages(void)
{
	enum { BAD = 3 };

	for (volatile int round = 0; round < 10; round++) {
		struct pair good = new_pair(8 * MIB, 1, 2), bad[BAD];
		struct adma_op ops[1 + BAD] = { { from(&good), to(&good), good.src.len } };
		volatile adma_cookie_t cookie = 0;

		for (int i = 0; i < BAD; i++) {
			bad[i] = new_pair(round % 2 ? MIB : 10000, 0, 0);
			ops[1 + i] = (struct adma_op){ from(&bad[i]), to(&bad[i]), bad[i].src.len };
			spoil(&bad[i], i % 2);
		}
		repair = false;
		if (sigsetjmp(back, 1) == 0) {
			cookie = adma_icopy_batch(ops, 1 + BAD);
			adma_wait_copy(cookie);
			fail("no fault came");
		}
		EXPECT(faults == 1);
		if (cookie)
			is_unknown(cookie);
		/* The call was left: nothing of it goes on. Workers come to the front last. */
		struct side front = { good.dst.base, 2 * PAGE, good.dst.from, good.dst.len };

		lay_down(&front, DESTINATION);
		sleep_ms(20);
		for (size_t at = 0; at < front.size; at++)
			if (front.base[at] != laid_down(&front, DESTINATION, at))
				fail("byte %zu was written after a handler had left", at);
		repair = true;
		finish_by_wait(adma_icopy_batch(ops, 1 + BAD));
		EXPECT(faults == 1 + BAD);
		copied(&good, "good one of a batch");
		for (int i = 0; i < BAD; i++) {
			copied(&bad[i], "repaired one of a batch");
			free_pair(&bad[i]);
		}
		free_pair(&good);
	}
}

static void subject_faults(void)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO };
	uint64_t word = 0;

	dies_without_handler(false);
	dies_without_handler(true);
	sigaction(SIGSEGV, &action, NULL);
	for (int round = 0; round < 40; round++) {
		struct pair pair = new_pair(round % 4 < 2 ? MIB : 15000, 0, 0);
		volatile adma_cookie_t cookie = 0;

		/* The handler jumps: out of the start, or out of the call that tells the end. */
		repair = false;
		spoil(&pair, round % 2);
		if (sigsetjmp(back, 1) == 0) {
			cookie = start(&pair);
			if (round % 8 < 4)
				adma_wait_copy(cookie);
			else
				while (adma_check_copy(cookie) == 0)
					sched_yield();
			fail("no fault came");
		}
		EXPECT(faults == 1);
		if (cookie)
			is_unknown(cookie);
		/* The word's call faults itself. */
		if (sigsetjmp(back, 1) == 0) {
			adma_icopy_notif(from(&pair), to(&pair), pair.src.len, &word, 1);
			fail("no fault came");
		}
		EXPECT(faults == 2 && word == 0);
		/* The handler repairs. */
		repair = true;
		mprotect(bad_page, PAGE, PROT_NONE);
		by_waiting(&pair);
		EXPECT(faults == 3);
		mprotect(bad_page, PAGE, PROT_NONE);
		by_notif(&pair);
		EXPECT(faults == 4);
		mprotect(bad_page, PAGE, PROT_READ | PROT_WRITE);
		copied(&pair, "repaired");
		free_pair(&pair);
	}
	batches_with_bad_pages();
	/* Nothing is left of all that: the table is as empty as it was. */
	static adma_cookie_t cookies[ADMA_COOKIES];
	struct pair small = new_pair(10, 0, 0);

	for (int i = 0; i < ADMA_COOKIES; i++)
		cookies[i] = start(&small);
	for (int i = 0; i < ADMA_COOKIES; i++)
		finish_by_wait(cookies[i]);
}

/* ---- the rest -------------------------------------------------------------------------- */

static void subject_errno(void)
{
	struct pair pair = new_pair(300000, 0, 0);

	for (int i = 0; i < 100; i++) {
		errno = 1234;
		by_copy(&pair);
		EXPECT(errno == 1234);
		by_batch(&pair);
		EXPECT(errno == 1234);
		adma_check_copy(5);
		adma_poll_fd();
		adma_strerror(-5);
		adma_icopy_batch(NULL, 3);
		EXPECT(errno == 1234);
		finish_by_wait(start(&pair));
		EXPECT(errno == 1234);
	}
}

/* Between two calls of getppid there is nothing but looking: for strace. */
static void subject_looking(void)
{
	struct pair pair = new_pair(32 * MIB, 0, 0);
	adma_cookie_t cookie = start(&pair);
	int result, looks = 0;

	syscall(SYS_getppid);
	while ((result = adma_check_copy(cookie)) == 0)
		looks++;
	syscall(SYS_getppid);
	EXPECT(result == 1);
	copied(&pair, "looked at");
	printf("%d looks\n", looks);
}

/* No thread is to be had: everything is done by its caller. */
static void subject_refused(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EAGAIN),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof filter / sizeof *filter, filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program))
		cannot_be_shown("no seccomp here");
	struct pair pair = new_pair(MIB, 1, 2);

	for (int i = 0; i < 50; i++) {
		lay_down(&pair.dst, DESTINATION);
		(i % 2 ? by_waiting : by_notif)(&pair);
		copied(&pair, "refused");
	}
}

static void *note_at_once(void *argument)
{
	struct pair *pair = argument;
	_Alignas(8) uint64_t word = 0;

	pthread_barrier_wait(&barrier);
	EXPECT(!adma_icopy_notif(from(pair), to(pair), pair->src.len, &word, 1));
	while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != 1)
		sched_yield();
	return NULL;
}

/*
 * Workers have ended, and there is a limit now: whoever starts a copy while another thread
 * tries to make one in vain must not rely on it.
 */
static void subject_limited(void)
{
	enum { THREADS = 4 };
	struct pair pairs[THREADS];
	pthread_t threads[THREADS];

	alarm(20);
	if (getuid() == 0 && setresuid(65534, 65534, 65534))
		cannot_be_shown("root, and for ever");
	for (int i = 0; i < THREADS; i++)
		pairs[i] = new_pair(100000, i, 1);
	by_waiting(&pairs[0]);
	lay_down(&pairs[0].dst, DESTINATION);
	/* Before a fork workers leave. */
	pid_t child = fork();
	if (child == 0)
		_exit(0);
	waitpid(child, NULL, 0);
	pthread_barrier_init(&barrier, NULL, THREADS + 1);
	for (int i = 0; i < THREADS; i++)
		EXPECT(!pthread_create(&threads[i], NULL, note_at_once, &pairs[i]));
	EXPECT(!setrlimit(RLIMIT_NPROC, &(struct rlimit){ 0, 0 }));
	pthread_barrier_wait(&barrier);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], NULL);
		copied(&pairs[i], "limited");
	}
}

static void *fork_on(void *stop)
{
	while (!atomic_load((atomic_bool *)stop)) {
		pid_t child = fork();

		if (child == 0)
			_exit(0);
		waitpid(child, NULL, 0);
	}
	return NULL;
}

/* Idle workers leave, here because another thread forks, and come again. */
static void subject_idle(void)
{
	struct pair pair = new_pair(300000, 1, 2);
	atomic_bool stop = false;
	pthread_t thread;

	EXPECT(!pthread_create(&thread, NULL, fork_on, &stop));
	for (int i = 0; i < 100; i++) {
		lay_down(&pair.dst, DESTINATION);
		by_notif(&pair);
		copied(&pair, "after workers have left");
	}
	atomic_store(&stop, true);
	pthread_join(thread, NULL);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} subjects[] = {
		{ "oracle", subject_oracle },	{ "overlap", subject_overlap },
		{ "cookies", subject_cookies }, { "full", subject_full },
		{ "thousand", subject_thousand }, { "threads", subject_threads },
		{ "fork", subject_fork },	{ "signals", subject_signals },
		{ "exit", subject_exit },	{ "notif", subject_notif },
		{ "poll", subject_poll },	{ "faults", subject_faults },
		{ "errno", subject_errno },	{ "looking", subject_looking },
		{ "refused", subject_refused }, { "idle", subject_idle },
		{ "limited", subject_limited },
	};

	for (size_t i = 0; i < sizeof subjects / sizeof *subjects; i++)
		if (argc == 2 && !strcmp(argv[1], subjects[i].name)) {
			subjects[i].run();
			return 0;
		}
	fail("usage: api SUBJECT");
}
