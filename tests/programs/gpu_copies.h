/* For gpu.c: copies, who has carried them, and what the driver tells of itself. */
#ifndef GPU_COPIES_H
#define GPU_COPIES_H
#include "pattern.h"
#include <adma.h>
#include <dlfcn.h>
#include <stdbool.h>

#include "looked_up.h"

enum { LEN = 2 << 20 };

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

	for (time_t end = time(NULL) + 200; in_a_row < 3;) {
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

#endif
