/*
 * Copies by a graphics card: fake_cuda.c, as libcuda.so.1. Usage: gpu SUBJECT [HOW].
 *
 * Ends with 0 when all went right, with 1 and a reason on stderr when not, and with 77 when the
 * subject cannot be shown on this machine.
 */
#include "pattern.h"
#include <adma.h>
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <sys/wait.h>

enum { LEN = 2 << 20 };

/* Not linked: found where the library was preloaded. */
#define LOOK_UP(name) ((__typeof__(&name))dlsym(RTLD_DEFAULT, #name))
#define adma_icopy LOOK_UP(adma_icopy)
#define adma_icopy_batch LOOK_UP(adma_icopy_batch)
#define adma_icopy_notif LOOK_UP(adma_icopy_notif)
#define adma_check_copy LOOK_UP(adma_check_copy)
#define adma_wait_copy LOOK_UP(adma_wait_copy)
#define adma_poll_fd LOOK_UP(adma_poll_fd)

static void *driver(void)
{
	return dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_LAZY);
}

static unsigned long ask(const char *name)
{
	void *library = driver();
	unsigned long (*function)(void) = library ? dlsym(library, name) : NULL;

	return function ? function() : 0;
}

static unsigned long carried(void)
{
	return ask("fake_cuda_bytes");
}

static unsigned long round_number;

static uint64_t word(size_t at, unsigned long round)
{
	return (at + 1) * 0x9e3779b97f4a7c15u ^ round * 0xd1342543de82ef95u;
}

static void fill(byte *at, size_t len, unsigned long round)
{
	for (size_t i = 0; i + 8 <= len; i += 8)
		*(volatile uint64_t *)(at + i) = word(i, round);
}

static void expect(byte *at, size_t len, unsigned long round, const char *what)
{
	for (size_t i = 0; i + 8 <= len; i += 8)
		if (*(volatile uint64_t *)(at + i) != word(i, round))
			fail("%s: byte %zu of %zu is wrong", what, i, len);
}

/* One copy of bytes that were never there before. */
static void copy(byte *dst, byte *src, size_t len, const char *what)
{
	unsigned long round = ++round_number;

	fill(src, len, round);
	memcpy((void *)dst, (void *)src, len);
	expect(dst, len, round, what);
	expect(src, len, round, what);
}

/* Until the card carries all of the copies between these. */
static void warm_up(byte *dst, byte *src, size_t len)
{
	int in_a_row = 0;

	for (time_t end = time(NULL) + 40; in_a_row < 3;) {
		unsigned long before = carried();

		copy(dst, src, len, "warming up");
		in_a_row = carried() > before ? in_a_row + 1 : 0;
		if (time(NULL) > end)
			fail("the card does not carry copies");
		if (!in_a_row)
			usleep(1000);
	}
}

static byte *map_at(void *at, size_t len)
{
	int fixed = at ? MAP_FIXED_NOREPLACE : 0;
	void *got = mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);

	if (got == MAP_FAILED || (at && got != at))
		fail("no memory at %p", at);
	return got;
}

/* ---- subjects -------------------------------------------------------------------------- */

static void *many(void *unused)
{
	byte *dst = pages_between_guards(LEN), *src = pages_between_guards(LEN);
	unsigned seed = (uintptr_t)&seed;

	(void)unused;
	for (int i = 0; i < 150; i++) {
		size_t from = rand_r(&seed) % 8192 * 8, to = rand_r(&seed) % 8192 * 8;
		size_t len = LEN / 2 + rand_r(&seed) % (LEN / 4) / 8 * 8;
		unsigned long round = (uintptr_t)&seed * 1000 + i;

		fill(src + from, len, round);
		memcpy((void *)(dst + to), (void *)(src + from), len);
		expect(dst + to, len, round, "one of many");
	}
	return NULL;
}

/* Copies, with one or several threads. */
static void plain(const char *how)
{
	int threads = how ? atoi(how) : 0;
	pthread_t others[16];
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);

	for (int i = 0; i < 60; i++) {
		copy(dst, src, LEN, "plain");
		copy(dst + 24, src + 4096 + 8, LEN - 3 * 4096, "plain, not aligned");
		usleep(1000);
	}
	for (int i = 0; i < threads; i++)
		pthread_create(&others[i], NULL, many, NULL);
	for (int i = 0; i < threads; i++)
		pthread_join(others[i], NULL);
	printf("%lu\n", carried());
}

/* The card is used all the time: for those who make trouble and want it met. */
static void steady(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);

	(void)how;
	warm_up(dst, src, LEN);
	for (int i = 0; i < 100; i++)
		copy(dst, src, LEN, "steady");
	printf("%lu\n", carried());
}

/* How much the card carries without buffers, and how much in all. */
static void ways(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);

	(void)how;
	warm_up(dst, src, LEN);
	unsigned long straight = ask("fake_cuda_straight"), all = carried();
	for (int i = 0; i < 40; i++)
		copy(dst, src, LEN, "ways");
	printf("%lu %lu\n", ask("fake_cuda_straight") - straight, carried() - all);
}

/* Memory goes and comes back at the same address: as source, and as destination. */
static void stale(const char *how)
{
	enum { ROUNDS = 4 };
	int came_back = 0;
	byte *other = map_at(NULL, LEN);
	bool (*pins)(void);

	mallopt(M_MMAP_THRESHOLD, LEN / 8); /* every block is a mapping, and none is kept */
	for (int round = 0; round < ROUNDS; round++) {
		for (int as_source = 0; as_source < 2; as_source++) {
			bool by_malloc = !strcmp(how, "free") || !strcmp(how, "realloc");
			bool by_break = !strcmp(how, "brk");
			byte *it = by_malloc ? malloc(LEN + 4096) : by_break ? sbrk(LEN) : map_at(NULL, LEN);
			byte *again = it;

			warm_up(as_source ? other : it, as_source ? it : other, LEN);
			pins = dlsym(driver(), "fake_cuda_pins");
			if (!pins || !pins())
				cannot_be_shown("no io_uring: memory cannot be pinned here");
			if (!strcmp(how, "munmap")) {
				munmap((void *)it, LEN);
				map_at((void *)it, LEN);
			} else if (!strcmp(how, "page")) { /* one in the middle */
				munmap((void *)(it + LEN / 2), 4096);
				map_at((void *)(it + LEN / 2), 4096);
			} else if (!strcmp(how, "raw")) {
				syscall(SYS_munmap, it, LEN);
				map_at((void *)it, LEN);
			} else if (!strcmp(how, "fixed")) {
				mmap((void *)it, LEN, PROT_READ | PROT_WRITE,
				     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
			} else if (!strcmp(how, "dontneed")) {
				madvise((void *)it, LEN, MADV_DONTNEED);
			} else if (!strcmp(how, "raw_dontneed")) {
				syscall(SYS_madvise, it + 4096, 4096, MADV_DONTNEED);
			} else if (!strcmp(how, "madv_free")) {
				madvise((void *)it, LEN, MADV_FREE);
			} else if (!strcmp(how, "mremap")) { /* away, and another to its place */
				void *away = (void *)map_at(NULL, LEN);
				byte *new = map_at(NULL, LEN);

				mremap((void *)it, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, away);
				mremap((void *)new, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, it);
			} else if (!strcmp(how, "brk")) {
				if (brk((void *)it) || sbrk(LEN) != (void *)it)
					cannot_be_shown("the break was moved by somebody else");
			} else if (!strcmp(how, "free")) {
				free((void *)it);
				again = malloc(LEN + 4096);
			} else if (!strcmp(how, "realloc")) {
				again = realloc((void *)it, LEN / 4);
				again = realloc((void *)again, LEN + 4096);
			} else {
				fail("no such way: %s", how);
			}
			came_back += again == it;
			for (int i = 0; i < 3; i++)
				copy(as_source ? other : again, as_source ? again : other, LEN, how);
			if (by_malloc)
				free((void *)again);
			else if (!by_break)
				munmap((void *)again, LEN);
		}
	}
	if (!came_back)
		cannot_be_shown("no memory came back at the same address");
	printf("%lu\n", carried());
}

static sigjmp_buf back;

static void on_fault(int signal)
{
	siglongjmp(back, signal);
}

/* Memory that may not be written any more faults, as without the card. */
static void protect(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);
	volatile int faults = 0;

	(void)how;
	signal(SIGSEGV, on_fault);
	for (volatile int round = 0; round < 3; round++) {
		warm_up(dst, src, LEN);
		mprotect((void *)(dst + LEN / 2), 4096, PROT_READ);
		if (sigsetjmp(back, 1) == 0)
			memcpy((void *)dst, (void *)src, LEN);
		else
			faults++;
		if (faults != round + 1)
			fail("a copy into memory that is read-only does not fault");
		mprotect((void *)(dst + LEN / 2), 4096, PROT_READ | PROT_WRITE);
		mprotect((void *)src, 4096, PROT_NONE);
		if (sigsetjmp(back, 1) == 0)
			memcpy((void *)dst, (void *)src, LEN);
		else
			faults++;
		mprotect((void *)src, 4096, PROT_READ | PROT_WRITE);
		if (faults != round + 2)
			fail("a copy out of memory that is not to be read does not fault");
		faults--;
		copy(dst, src, LEN, "after the faults");
	}
}

/* A child never calls the driver, whichever way it was made. */
static void children(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);

	warm_up(dst, src, LEN);
	for (int round = 0; round < 3; round++) {
		fflush(stdout);
		pid_t child = !strcmp(how, "raw")     ? syscall(SYS_fork)
			      : !strcmp(how, "vfork") ? vfork()
						      : fork();
		if (child == 0) {
			if (!strcmp(how, "vfork")) {
				execlp("true", "true", (char *)NULL);
				_exit(1);
			}
			unsigned long calls = ask("fake_cuda_calls");
			for (int i = 0; i < 5; i++)
				copy(dst, src, LEN, "in the child");
			munmap((void *)src, LEN);
			src = map_at((void *)src, LEN);
			copy(dst, src, LEN, "in the child, new memory");
			if (ask("fake_cuda_calls") != calls)
				fail("the child calls the driver");
			if (!strcmp(how, "raw"))
				_exit(0);
			exit(0);
		}
		copy(dst, src, LEN, "beside the child");
		int status;
		if (waitpid(child, &status, 0) != child || status)
			fail("the child ended with %#x", status);
		warm_up(dst, src, LEN); /* the card goes on */
	}
}

static byte *exit_dst, *exit_src;
static _Atomic bool copying;
static pthread_t copier;

/* For ever, or for so long. */
static void *copy_on(void *times)
{
	for (uintptr_t i = 0; i < (uintptr_t)times; i++) {
		memcpy((void *)exit_dst, (void *)exit_src, LEN);
		copying = true;
	}
	return NULL;
}

static void copy_at_exit(void)
{
	for (int i = 0; i < 3; i++)
		copy(exit_dst, exit_src, LEN, "at exit");
}

static void join_at_exit(void)
{
	pthread_join(copier, NULL);
}

__attribute__((destructor))
static void copy_at_end(void)
{
	if (exit_dst && getenv("AT_END"))
		copy_at_exit();
}

static void leave(const char *how)
{
	exit_dst = map_at(NULL, LEN);
	exit_src = map_at(NULL, LEN);
	if (!strcmp(how, "early")) /* before the driver is up */ {
		copy(exit_dst, exit_src, LEN, "once");
		exit(0);
	}
	if (!strcmp(how, "handler_before"))
		atexit(copy_at_exit);
	if (!strcmp(how, "joined"))
		atexit(join_at_exit);
	warm_up(exit_dst, exit_src, LEN);
	if (!strcmp(how, "handler_after"))
		atexit(copy_at_exit);
	if (!strcmp(how, "threads") || !strcmp(how, "joined") || !strcmp(how, "at_once")) {
		pthread_create(&copier, NULL, copy_on, (void *)(strcmp(how, "joined") ? UINTPTR_MAX : 300));
		while (!copying)
			usleep(100);
	}
	if (!strcmp(how, "at_once"))
		_exit(0);
	if (!strcmp(how, "quick"))
		quick_exit(0);
	exit(0);
}

/* The program uses the driver itself. */
static void own(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *current;
	int device;

	(void)how;
	int (*init)(unsigned) = dlsym(library, "cuInit");
	int (*get)(int *, int) = dlsym(library, "cuDeviceGet");
	int (*retain)(void **, int) = dlsym(library, "cuDevicePrimaryCtxRetain");
	int (*release)(int) = dlsym(library, "cuDevicePrimaryCtxRelease_v2");
	int (*push)(void *) = dlsym(library, "cuCtxPushCurrent_v2");
	int (*pop)(void **) = dlsym(library, "cuCtxPopCurrent_v2");
	int (*get_current)(void **) = dlsym(library, "cuCtxGetCurrent");
	/* As a program that is linked with the driver finds them. */
	int (*reg)(void *, size_t, unsigned) = dlsym(RTLD_DEFAULT, "cuMemHostRegister_v2");
	int (*unreg)(void *) = dlsym(RTLD_DEFAULT, "cuMemHostUnregister");

	if (init(0) || get(&device, 0))
		fail("no driver");
	warm_up(dst, src, LEN);
	if (get_current(&current) || current)
		fail("a context is current in a thread of the program's");
	if (retain(&context, device) || push(context))
		fail("no context");
	for (int round = 0; round < 3; round++) {
		int code = reg((void *)(dst + 4096), LEN / 2, 0);
		if (code)
			fail("memory that the library had registered cannot be: error %d", code);
		copy(dst, src, LEN, "registered by the program");
		copy(dst, src, LEN, "registered by the program");
		if ((code = unreg((void *)(dst + 4096))))
			fail("memory that the program had registered is not: error %d", code);
		if (unreg((void *)(dst + 4096)) != 713)
			fail("memory can be unregistered twice");
		for (int i = 0; i < 10; i++)
			copy(dst, src, LEN, "afterwards");
	}
	if (get_current(&current) || current != context)
		fail("the program's context is not current any more");
	pop(&current);
	release(device);
	copy(dst, src, LEN, "without a context");
}

/* The explicit interface. */
static void asynchronous(const char *how)
{
	enum { COPIES = 8 };
	byte *dst = map_at(NULL, COPIES * LEN), *src = map_at(NULL, COPIES * LEN);

	(void)how;
	warm_up(dst, src, COPIES * LEN);
	unsigned long before = carried(), bytes = 0;
	for (int round = 0; round < 20; round++) {
		fill(src, LEN, ++round_number);
		adma_cookie_t cookie = adma_icopy((void *)src, (void *)dst, LEN);
		if (cookie <= 0 || adma_wait_copy(cookie))
			fail("adma_icopy: %ld", (long)cookie);
		expect(dst, LEN, round_number, "adma_icopy");

		fill(src, LEN, ++round_number);
		cookie = adma_icopy((void *)src, (void *)dst, LEN);
		int got;
		while ((got = adma_check_copy(cookie)) == 0)
			usleep(50);
		if (got != 1)
			fail("adma_check_copy: %d", got);
		expect(dst, LEN, round_number, "adma_check_copy");

		uint64_t word = 0;
		fill(src, LEN, ++round_number);
		if (adma_icopy_notif((void *)src, (void *)dst, LEN, &word, 5) < 0)
			fail("adma_icopy_notif");
		while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != 5)
			usleep(50);
		expect(dst, LEN, round_number, "adma_icopy_notif");

		struct adma_op batch[COPIES];
		fill(src, COPIES * LEN, ++round_number);
		for (int i = 0; i < COPIES; i++)
			batch[i] = (struct adma_op){ (void *)(src + i * LEN), (void *)(dst + i * LEN), LEN };
		cookie = adma_icopy_batch(batch, COPIES);
		if (cookie <= 0 || adma_wait_copy(cookie))
			fail("adma_icopy_batch: %ld", (long)cookie);
		expect(dst, COPIES * LEN, round_number, "adma_icopy_batch");

		int fd = adma_poll_fd();
		struct pollfd wanted = { fd, POLLIN, 0 };
		uint64_t count;
		if (read(fd, &count, 8) < 0 && errno != EAGAIN)
			fail("adma_poll_fd");
		fill(src, LEN, ++round_number);
		cookie = adma_icopy((void *)src, (void *)dst, LEN);
		if (poll(&wanted, 1, 20000) != 1)
			fail("the descriptor does not become readable");
		if (adma_wait_copy(cookie))
			fail("adma_wait_copy after poll");
		expect(dst, LEN, round_number, "adma_poll_fd");
		bytes += (4 + COPIES) * LEN;
	}
	/* Nearly all of it; a copy that the service thread did not take in time is taken back. */
	if (carried() - before < bytes / 2)
		fail("the card has carried %lu of %lu bytes", carried() - before, bytes);
}

/*
 * While the service thread asks what has become of an overdue copy, that one ends after all, and the
 * next one gets its slot: what is answered is not about this one.
 */
static void overdue(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);
	time_t end = time(NULL) + 40;

	(void)how;
	warm_up(dst, src, LEN);
	for (int shown = 0; shown < 3;) {
		int over = 0;

		fill(src, LEN, ++round_number);
		ask("fake_cuda_hold");
		adma_cookie_t first = adma_icopy((void *)src, (void *)dst, LEN);
		while (!ask("fake_cuda_asked") && !(over = adma_check_copy(first))) {
			if (time(NULL) > end)
				fail("nobody asks for an overdue copy");
			usleep(1000);
		}
		if (time(NULL) > end)
			fail("the card does not carry copies");
		ask("fake_cuda_let_words_come");
		if (!over && adma_wait_copy(first))
			fail("adma_wait_copy of the first one");
		expect(dst, LEN, round_number, "overdue");
		fill(src, LEN, ++round_number);
		adma_cookie_t second = adma_icopy((void *)src, (void *)dst, LEN);
		ask("fake_cuda_answer");
		if (adma_wait_copy(second))
			fail("adma_wait_copy of the second one");
		expect(dst, LEN, round_number, "after the overdue one");
		shown += !over; /* else it was taken back: the service thread was busy */
	}
}

/* The descriptor that tells of changes is closed: nothing may be believed any more. */
static void closed(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);
	int found = 0;
	DIR *folder = opendir("/proc/self/fd");

	(void)how;
	warm_up(dst, src, LEN);
	for (struct dirent *entry; (entry = readdir(folder));) {
		char target[64] = "";

		if (readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1) > 0 &&
		    strstr(target, "userfaultfd"))
			found += !close(atoi(entry->d_name));
	}
	if (found != 1)
		fail("%d descriptors of that kind", found);
	munmap((void *)src, LEN);
	src = map_at((void *)src, LEN);
	unsigned long before = carried();
	for (int i = 0; i < 5; i++)
		copy(dst, src, LEN, "without the descriptor");
	if (carried() != before)
		fail("the card goes on without knowing what changes");
}

/* No more than so much stays registered (ADMA_KEEP), and what is used least goes first. */
static void keep(const char *how)
{
	enum { PAIRS = 3 };
	unsigned long most = atol(how) + 4096; /* with the card's words */
	byte *dst[PAIRS], *src[PAIRS];

	for (int i = 0; i < PAIRS; i++) {
		dst[i] = map_at(NULL, LEN);
		src[i] = map_at(NULL, LEN);
	}
	for (int round = 0; round < 3; round++)
		for (int i = 0; i < PAIRS; i++) {
			warm_up(dst[i], src[i], LEN);
			if (ask("fake_cuda_registered") > most)
				fail("%lu bytes are registered", ask("fake_cuda_registered"));
		}
}

/* What nobody uses is let go. */
static void idle(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);

	(void)how;
	warm_up(dst, src, LEN);
	if (ask("fake_cuda_registered") < 2 * LEN)
		fail("only %lu bytes are registered", ask("fake_cuda_registered"));
	for (time_t end = time(NULL) + 40; ask("fake_cuda_registered") > 4096; usleep(10000))
		if (time(NULL) > end)
			fail("%lu bytes are registered still", ask("fake_cuda_registered"));
	warm_up(dst, src, LEN);
}

static const struct {
	const char *name;
	void (*show)(const char *how);
} subjects[] = {
	{ "plain", plain },	  { "steady", steady }, { "stale", stale },
	{ "protect", protect },	  { "children", children }, { "leave", leave },
	{ "own", own },		  { "async", asynchronous }, { "closed", closed },
	{ "keep", keep },	  { "idle", idle },	    { "ways", ways },
	{ "overdue", overdue },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof(subjects) / sizeof(subjects[0]); i++)
		if (!strcmp(subjects[i].name, argv[1])) {
			subjects[i].show(argc > 2 ? argv[2] : NULL);
			return 0;
		}
	fail("usage: gpu SUBJECT [HOW]");
}
