/*
 * Copies by a graphics card: fake_cuda.c, as libcuda.so.1. Usage: gpu SUBJECT [HOW].
 *
 * Ends with 0 when all went right, with 1 and a reason on stderr when not, and with 77 when the
 * subject cannot be shown on this machine.
 */
#include "gpu_memory.h"
#include "gpu_processes.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>

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
	/* On a busy machine the card gets only a part of them. */
	for (int i = 0; i < 40 || (carried() - all < 32 << 20 && i < 2000); i++)
		copy(dst, src, LEN, "ways");
	printf("%lu %lu\n", ask("fake_cuda_straight") - straight, carried() - all);
}

enum { COPIES = 8 };

/* How many bytes of these copies the card has carried; and how many there were. */
static unsigned long start_and_wait(byte *dst, byte *src, unsigned long *all)
{
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
		if (poll(&wanted, 1, 100000) != 1)
			fail("the descriptor does not become readable");
		if (adma_wait_copy(cookie))
			fail("adma_wait_copy after poll");
		expect(dst, LEN, round_number, "adma_poll_fd");
		bytes += (4 + COPIES) * LEN;
	}
	*all = bytes;
	return carried() - before;
}

/* The explicit interface. */
static void asynchronous(const char *how)
{
	byte *dst = map_at(NULL, COPIES * LEN), *src = map_at(NULL, COPIES * LEN);
	unsigned long by_card, all;
	int tries = 0;

	(void)how;
	warm_up(dst, src, COPIES * LEN);
	/*
	 * Nearly all of it; a copy that the service thread did not take in time is taken back, which
	 * on a busy machine is more than half of them now and then.
	 */
	do
		by_card = start_and_wait(dst, src, &all);
	while (by_card < all / 2 && ++tries < 6);
	if (by_card < all / 2)
		fail("the card has carried %lu of %lu bytes", by_card, all);
}

/*
 * While the service thread asks what has become of an overdue copy, that one ends after all, and the
 * next one gets its slot: what is answered is not about this one.
 */
static void overdue(const char *how)
{
	byte *dst = map_at(NULL, LEN), *src = map_at(NULL, LEN);
	time_t end = time(NULL) + 200;

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

static const struct {
	const char *name;
	void (*show)(const char *how);
} subjects[] = {
	{ "plain", plain },	  { "steady", steady }, { "stale", stale },
	{ "protect", protect },	  { "children", children }, { "leave", leave },
	{ "own", own },		  { "async", asynchronous }, { "closed", closed },
	{ "keep", keep },	  { "idle", idle },	    { "ways", ways },
	{ "overdue", overdue },   { "filtered", filtered },
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
