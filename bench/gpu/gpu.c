/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What a graphics card in loopback does for copies, on a machine that has one. Run by bench/gpu/run
 * under the preloaded library; nothing is linked but libc.
 *
 *	gpu copy SIZE ROUNDS	libc, the shim, and a pipeline written by hand, in turn
 *	gpu overlap SIZE	the first paper's overlap, by adma_icopy
 *	gpu first SIZE		memory that was never copied before, copied 1 to 16 times
 *	gpu cache SIZE		the first paper's figure 8: a small buffer after a large copy
 *
 * Every copy that is timed is compared afterwards, outside of the time.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static double clock_us(clockid_t which)
{
	struct timespec t;

	clock_gettime(which, &t);
	return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static double now(void)
{
	return clock_us(CLOCK_MONOTONIC);
}

/* Of all threads of the process: the library's and the driver's too. */
static double cpu_time(void)
{
	return clock_us(CLOCK_PROCESS_CPUTIME_ID);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values, int count)
{
	qsort(values, count, sizeof(*values), ascending);
	return values[count / 2];
}

static unsigned char *pages(size_t len)
{
	unsigned char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	memset(at, 1, len);
	return at;
}

/* Something else in every page, by words, so that a copy that was left out is seen. */
static void stir(unsigned char *at, size_t len, uint64_t round)
{
	for (size_t i = 0; i + 8 <= len; i += 512)
		*(volatile uint64_t *)(at + i) = (i ^ round * 0x9e3779b97f4a7c15) | 1;
}

static int wrong_copies;

static void compare(const unsigned char *dst, const unsigned char *src, size_t len, const char *who)
{
	if (memcmp(dst, src, len)) {
		wrong_copies++;
		fprintf(stderr, "WRONG: a copy by %s\n", who);
	}
}

/* ---- the pipeline written by hand ------------------------------------------------------ */

typedef unsigned long long devptr;
static int (*p_cuInit)(unsigned);
static int (*p_cuDeviceGet)(int *, int);
static int (*p_cuDevicePrimaryCtxRetain)(void **, int);
static int (*p_cuCtxSetCurrent)(void *);
static int (*p_cuStreamCreate)(void **, unsigned);
static int (*p_cuEventCreate)(void **, unsigned);
static int (*p_cuEventRecord)(void *, void *);
static int (*p_cuStreamWaitEvent)(void *, void *, unsigned);
static int (*p_cuStreamSynchronize)(void *);
static int (*p_cuMemAlloc)(devptr *, size_t);
static int (*p_cuMemHostRegister)(void *, size_t, unsigned);
static int (*p_cuMemcpyHtoDAsync)(devptr, const void *, size_t, void *);
static int (*p_cuMemcpyDtoHAsync)(void *, devptr, size_t, void *);

enum { SLOTS = 4, MIB = 1 << 20 };
static void *up, *down, *arrived[SLOTS], *gone[SLOTS];
static devptr bounce;

static void call(int answer, const char *what)
{
	if (answer) {
		fprintf(stderr, "%s: CUDA error %d\n", what, answer);
		exit(1);
	}
}
#define CALL(expression) call(p_##expression, #expression)

static void *function(void *library, const char *name)
{
	void *found = dlsym(library, name);

	if (!found) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	return found;
}

static void by_hand_open(void)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW), *context;
	int device;

	if (!lib) {
		fprintf(stderr, "%s\n", dlerror());
		exit(1);
	}
	p_cuInit = function(lib, "cuInit");
	p_cuDeviceGet = function(lib, "cuDeviceGet");
	p_cuDevicePrimaryCtxRetain = function(lib, "cuDevicePrimaryCtxRetain");
	p_cuCtxSetCurrent = function(lib, "cuCtxSetCurrent");
	p_cuStreamCreate = function(lib, "cuStreamCreate");
	p_cuEventCreate = function(lib, "cuEventCreate");
	p_cuEventRecord = function(lib, "cuEventRecord");
	p_cuStreamWaitEvent = function(lib, "cuStreamWaitEvent");
	p_cuStreamSynchronize = function(lib, "cuStreamSynchronize");
	p_cuMemAlloc = function(lib, "cuMemAlloc_v2");
	p_cuMemHostRegister = function(lib, "cuMemHostRegister_v2");
	p_cuMemcpyHtoDAsync = function(lib, "cuMemcpyHtoDAsync_v2");
	p_cuMemcpyDtoHAsync = function(lib, "cuMemcpyDtoHAsync_v2");
	CALL(cuInit(0));
	CALL(cuDeviceGet(&device, 0));
	CALL(cuDevicePrimaryCtxRetain(&context, device));
	CALL(cuCtxSetCurrent(context));
	CALL(cuStreamCreate(&up, 1));
	CALL(cuStreamCreate(&down, 1));
	CALL(cuMemAlloc(&bounce, SLOTS * 4 * (size_t)MIB));
	for (int i = 0; i < SLOTS; i++) {
		CALL(cuEventCreate(&arrived[i], 2));
		CALL(cuEventCreate(&gone[i], 2));
	}
}

/* Two streams, events between them, chunks of 4 MiB or a sixth of a smaller copy. */
static void by_hand(unsigned char *dst, const unsigned char *src, size_t len)
{
	size_t chunk = len >= 24 * (size_t)MIB ? 4 * (size_t)MIB : (len / 6 + 65535) & ~65535ul;
	int i = 0;

	for (size_t at = 0; at < len; at += chunk, i++) {
		size_t part = len - at < chunk ? len - at : chunk;
		devptr place = bounce + i % SLOTS * 4 * (devptr)MIB;

		if (i >= SLOTS)
			CALL(cuStreamWaitEvent(up, gone[i % SLOTS], 0));
		CALL(cuMemcpyHtoDAsync(place, src + at, part, up));
		CALL(cuEventRecord(arrived[i % SLOTS], up));
		CALL(cuStreamWaitEvent(down, arrived[i % SLOTS], 0));
		CALL(cuMemcpyDtoHAsync(dst + at, place, part, down));
		CALL(cuEventRecord(gone[i % SLOTS], down));
	}
	CALL(cuStreamSynchronize(down));
}

/* ---- who copies ------------------------------------------------------------------------- */

typedef void *(*copy_function)(void *, const void *, size_t);
static copy_function libc_memcpy, shim_memcpy;
typedef long (*icopy_function)(const void *, void *, size_t);
typedef int (*wait_function)(long);
static icopy_function icopy;
static wait_function wait_copy;

static void look_up(void)
{
	void *libc = dlopen("libc.so.6", RTLD_LAZY);

	libc_memcpy = (copy_function)function(libc, "memcpy");
	shim_memcpy = (copy_function)function(RTLD_DEFAULT, "memcpy");
	icopy = (icopy_function)function(RTLD_DEFAULT, "adma_icopy");
	wait_copy = (wait_function)function(RTLD_DEFAULT, "adma_wait_copy");
	if (libc_memcpy == shim_memcpy) {
		fprintf(stderr, "the library is not preloaded\n");
		exit(1);
	}
}

/* Until the card is up and the buffers are registered. */
static void warm_up(unsigned char *dst, unsigned char *src, size_t len)
{
	for (double begun = now(); now() - begun < 2.5e6;)
		shim_memcpy(dst, src, len);
}

enum { LIBC, SHIM, HAND, ARMS };
static const char *const NAMES[] = { "libc", "shim", "by hand" };

static int copy_bench(size_t len, int rounds)
{
	unsigned char *dst[ARMS], *src[ARMS];
	double *times[ARMS], *cpu[ARMS], *own[ARMS], all_cpu[ARMS] = { 0 }, wall[ARMS] = { 0 };

	by_hand_open();
	for (int arm = 0; arm < ARMS; arm++) {
		dst[arm] = pages(len);
		src[arm] = pages(len);
		times[arm] = calloc(rounds, sizeof(double));
		cpu[arm] = calloc(rounds, sizeof(double));
		own[arm] = calloc(rounds, sizeof(double));
	}
	CALL(cuMemHostRegister(dst[HAND], len, 0));
	CALL(cuMemHostRegister(src[HAND], len, 0));
	warm_up(dst[SHIM], src[SHIM], len);
	for (int round = 0; round < rounds; round++) {
		for (int turn = 0; turn < ARMS; turn++) {
			int arm = (round + turn) % ARMS;

			stir(src[arm], len, round);
			double own0 = clock_us(CLOCK_THREAD_CPUTIME_ID), cpu0 = cpu_time(), begun = now();
			if (arm == LIBC)
				libc_memcpy(dst[arm], src[arm], len);
			else if (arm == SHIM)
				shim_memcpy(dst[arm], src[arm], len);
			else
				by_hand(dst[arm], src[arm], len);
			double took = now() - begun;
			cpu[arm][round] = cpu_time() - cpu0;
			own[arm][round] = clock_us(CLOCK_THREAD_CPUTIME_ID) - own0;
			all_cpu[arm] += cpu[arm][round];
			wall[arm] += took;
			times[arm][round] = took;
			compare(dst[arm], src[arm], len, NAMES[arm]);
		}
	}
	double medians[ARMS];
	for (int arm = 0; arm < ARMS; arm++)
		medians[arm] = median(times[arm], rounds);
	for (int arm = 0; arm < ARMS; arm++)
		printf("  %-8s %4zu MiB  %9.1f us  %6.2f GB/s  x libc %5.2f  of by hand %5.2f  "
		       "p10 %8.1f p90 %8.1f  CPU time %5.1f %% of all copies (median %6.1f us, %6.1f of it the "
		       "caller's)\n",
		       NAMES[arm], len / MIB, medians[arm], len / medians[arm] / 1e3,
		       medians[LIBC] / medians[arm], medians[HAND] / medians[arm],
		       times[arm][rounds / 10], times[arm][rounds * 9 / 10], 100 * all_cpu[arm] / wall[arm],
		       median(cpu[arm], rounds), median(own[arm], rounds));
	return 0;
}

/* ---- overlap -------------------------------------------------------------------------- */

static volatile uint64_t sink;

static void compute(uint64_t steps)
{
	uint64_t x = sink | 1;

	for (uint64_t i = 0; i < steps; i++)
		x = x * 6364136223846793005u + 1442695040888963407u;
	sink = x;
}

static int overlap_bench(size_t len)
{
	enum { ROUNDS = 101 };
	unsigned char *dst = pages(len), *src = pages(len);
	double alone[ROUNDS], only[ROUNDS], both[ROUNDS], started[ROUNDS], cpu[ROUNDS], ratio[ROUNDS];

	warm_up(dst, src, len);
	for (int i = 0; i < 20; i++)
		wait_copy(icopy(src, dst, len));
	double begun = now();
	compute(10000000);
	double per_step = (now() - begun) / 1e7;
	begun = now();
	for (int i = 0; i < 20; i++)
		wait_copy(icopy(src, dst, len));
	uint64_t steps = (now() - begun) / 20 * 1.5 / per_step;
	for (int i = 0; i < ROUNDS; i++) {
		stir(src, len, 3 * i);
		double cpu0 = cpu_time();
		begun = now();
		wait_copy(icopy(src, dst, len));
		alone[i] = now() - begun;
		cpu[i] = cpu_time() - cpu0;
		compare(dst, src, len, "icopy");
		begun = now();
		compute(steps);
		only[i] = now() - begun;
		stir(src, len, 3 * i + 1);
		begun = now();
		long cookie = icopy(src, dst, len);
		started[i] = now() - begun;
		compute(steps);
		wait_copy(cookie);
		both[i] = now() - begun;
		compare(dst, src, len, "icopy beside computing");
		ratio[i] = (alone[i] + only[i] - both[i]) / alone[i];
	}
	printf("  %4zu MiB  copy %8.1f us  compute %8.1f us  both %8.1f us  overlap %5.2f  "
	       "start %5.1f us  CPU time of the copy %5.1f us\n",
	       len / MIB, median(alone, ROUNDS), median(only, ROUNDS), median(both, ROUNDS),
	       median(ratio, ROUNDS), median(started, ROUNDS), median(cpu, ROUNDS));
	return 0;
}

/* ---- first copies ---------------------------------------------------------------------- */

/* The next memory has another address: what was learned about this one says nothing about it. */
static void give_back(unsigned char *at, size_t len)
{
	int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;

	if (mmap(at, len, PROT_NONE, flags, -1, 0) != at) {
		perror("mmap");
		exit(1);
	}
}

/*
 * Memory that was never copied before, copied 1 to 16 times and then given back. The CPU time has
 * what the library does with it afterwards, too.
 */
static int first_bench(size_t len)
{
	enum { ROUNDS = 7, MOST = 16 };
	static const int uses[] = { 1, 2, 3, 4, 8, 16 };
	unsigned char *dst = pages(len), *src = pages(len);

	warm_up(dst, src, len);
	for (size_t which = 0; which < sizeof(uses) / sizeof(uses[0]); which++) {
		double wall[2][ROUNDS], cpu[2][ROUNDS], last[2][ROUNDS];

		for (int round = 0; round < ROUNDS; round++) {
			for (int turn = 0; turn < 2; turn++) {
				int arm = (round + turn) % 2;
				unsigned char *to = pages(len), *from = pages(len);
				double cpu0, cpu1 = 0;

				wall[arm][round] = 0;
				for (int use = 0; use < uses[which]; use++) {
					stir(from, len, round * MOST + use);
					cpu0 = cpu_time();
					double begun = now();
					(arm ? shim_memcpy : libc_memcpy)(to, from, len);
					last[arm][round] = now() - begun;
					wall[arm][round] += last[arm][round];
					if (use + 1 == uses[which])
						usleep(40000);
					cpu1 += cpu_time() - cpu0;
					compare(to, from, len, NAMES[arm]);
				}
				cpu0 = cpu_time();
				give_back(to, len);
				give_back(from, len);
				usleep(20000);
				cpu[arm][round] = cpu1 + cpu_time() - cpu0;
			}
		}
		double libc = median(wall[0], ROUNDS), libc_cpu = median(cpu[0], ROUNDS);
		printf("  %4zu MiB copied %2d times  libc %9.1f us, CPU %9.1f  shim %9.1f us, CPU %9.1f  "
		       "x libc: time %5.2f, CPU %5.2f  the last copy %8.1f us\n",
		       len / MIB, uses[which], libc, libc_cpu, median(wall[1], ROUNDS),
		       median(cpu[1], ROUNDS), libc / median(wall[1], ROUNDS),
		       libc_cpu / median(cpu[1], ROUNDS), median(last[1], ROUNDS));
	}
	return 0;
}

/* ---- cache ---------------------------------------------------------------------------- */

/* Column by column of rows of 4 KiB, every line once. */
static double columns(volatile unsigned char *small, size_t len)
{
	double begun = now();
	unsigned sum = 0;

	for (size_t column = 0; column < 4096; column += 64)
		for (size_t row = 0; row < len; row += 4096)
			sum += small[row + column];
	sink += sum;
	return now() - begun;
}

/* Memory whose place in the caches is its address: huge pages, where they are to be had. */
static unsigned char *huge_pages(size_t len)
{
	size_t huge = 2 * (size_t)MIB, room = (len + huge - 1) / huge * huge;
	unsigned char *at = mmap(NULL, room + huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (at == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	at = (unsigned char *)(((uintptr_t)at + huge - 1) / huge * huge);
	madvise(at, room, MADV_HUGEPAGE);
	memset(at, 1, room);
	return at;
}

/*
 * All kinds in turn in each round; what is told is the median of the ratios to "computing" in the
 * same round, with the range that holds it in 95 of 100 cases. "computing again" shows what the
 * measurement itself is worth. Rounds in which the thread was moved to another CPU do not count.
 */
static void cache_rounds(unsigned char *dst, unsigned char *src, size_t len, size_t small_len, int rounds,
			 double copy, uint64_t steps)
{
	enum { COMPUTING, AGAIN, SLEEPING, LIBC_COPY, SHIM_COPY, BESIDE, KINDS, MOST = 1001 };
	static const char *const kinds[KINDS] = {
		"computing", "computing again", "sleeping as long", "libc", "shim", "shim beside computing",
	};
	static double times[KINDS][MOST], ratios[MOST];
	static char stayed[KINDS][MOST];
	unsigned char *small = huge_pages(small_len);
	int warm = small_len > 4 * (size_t)MIB ? 2 : 5;

	for (int round = 0; round < rounds; round++) {
		for (int turn = 0; turn < KINDS; turn++) {
			int kind = (round + turn) % KINDS;
			long cookie = 0;

			for (int i = 0; i < warm; i++)
				columns(small, small_len);
			int cpu = sched_getcpu();
			if (kind == BESIDE)
				cookie = icopy(src, dst, len);
			if (kind == COMPUTING || kind == AGAIN || kind == BESIDE)
				compute(steps);
			if (kind == SLEEPING)
				usleep(copy > 60 ? copy - 60 : 1);
			if (kind == LIBC_COPY)
				libc_memcpy(dst, src, len);
			if (kind == SHIM_COPY)
				shim_memcpy(dst, src, len);
			if (kind == BESIDE)
				wait_copy(cookie);
			times[kind][round] = columns(small, small_len);
			stayed[kind][round] = cpu == sched_getcpu();
		}
	}
	for (int kind = 0; kind < KINDS; kind++) {
		memcpy(ratios, times[kind], sizeof(ratios));
		double time = median(ratios, rounds);
		int count = 0, off = 1; /* about the root of the count: order statistics of a median */

		for (int round = 0; round < rounds; round++)
			if (stayed[kind][round] && stayed[COMPUTING][round])
				ratios[count++] = times[kind][round] / times[COMPUTING][round];
		while (off * off < count)
			off++;
		if (count < 9) {
			printf("  %6zu KiB  after %-22s was moved to other CPUs nearly always\n", small_len >> 10,
			       kinds[kind]);
			continue;
		}
		double ratio = median(ratios, count);
		printf("  %6zu KiB  after %-22s %9.2f us  x computing %5.3f  (%5.3f to %5.3f, %d rounds)\n",
		       small_len >> 10, kinds[kind], time, ratio, ratios[count / 2 - off], ratios[count / 2 + off],
		       count);
	}
}

static int cache_bench(size_t len)
{
	unsigned char *dst = pages(len), *src = pages(len);
	long level2 = sysconf(_SC_LEVEL2_CACHE_SIZE), level3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
	size_t l2 = level2 > 0 ? level2 : 2 * MIB, l3 = level3 > 0 ? level3 : 32 * MIB;

	warm_up(dst, src, len);
	double begun = now();
	for (int i = 0; i < 50; i++)
		shim_memcpy(dst, src, len);
	double copy = (now() - begun) / 50;
	begun = now();
	compute(10000000);
	uint64_t steps = copy * 1.2 / ((now() - begun) / 1e7);
	printf("  level 2 %zu KiB, level 3 %zu KiB\n", l2 >> 10, l3 >> 10);
	cache_rounds(dst, src, len, l2 / 4, 301, copy, steps);
	cache_rounds(dst, src, len, l2 / 2, 301, copy, steps);
	cache_rounds(dst, src, len, l3 / 4 < 32 * (size_t)MIB ? l3 / 4 : 32 * (size_t)MIB, 31, copy, steps);
	return 0;
}

int main(int count, char **words)
{
	size_t len = count > 2 ? (size_t)atol(words[2]) * MIB : 0;

	if (!len) {
		fprintf(stderr, "usage: gpu copy MIB ROUNDS | overlap MIB | cache MIB | first MIB\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	look_up();
	if (!strcmp(words[1], "copy"))
		copy_bench(len, count > 3 ? atoi(words[3]) : 100);
	else if (!strcmp(words[1], "overlap"))
		overlap_bench(len);
	else if (!strcmp(words[1], "cache"))
		cache_bench(len);
	else if (!strcmp(words[1], "first"))
		first_bench(len);
	fflush(stdout);
	return wrong_copies ? 1 : 0;
}
