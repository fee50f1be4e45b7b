/* For gpu.c: checked copies, and what the driver (fake_cuda.c) tells of itself. */
#pragma once
#include "trap.h"
#include <adma.h>
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

/* Copies bytes that were never there before. */
static void copy(struct blocks b, const char *what)
{
    unsigned long round = ++round_number;
    fill(b.from, b.size, round);
    memcpy(b.to, b.from, b.size);
    check(b.to, b.size, round, what);
    check(b.from, b.size, round, what);
}

/* Copies until the card carries all copies between these blocks. */
static void warm_up(struct blocks b)
{
    int back_to_back = 0;
    for (long limit = clock_ms() + 200000; back_to_back < 3;) {
        unsigned long before = carried();
        copy(b, "warming up");
        back_to_back = carried() > before ? back_to_back + 1 : 0;
        if (clock_ms() > limit)
            wrong("the card does not carry copies");
        if (!back_to_back)
            usleep(1000);
    }
}

/* Returns blocks between which the card carries copies. */
static struct blocks warm_blocks(void)
{
    struct blocks b = map_blocks(LEN);
    warm_up(b);
    return b;
}

static void *map_at(void *at, size_t len)
{
    if (mmap(at, len, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != at)
        wrong("no memory at %p", at);
    return at;
}
