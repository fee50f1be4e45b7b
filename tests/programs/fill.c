/* memset and its relatives against a naive oracle. Takes a scene, and then a seed for "lengths", the room
 * for "checked", or NAME COUNT SIZE for "calls".
 */
#include "trap.h"
#include "fault.h"

void *__memset_chk(void *, int, size_t, size_t);

#define GUARD 64

static void *by_memset(void *at, int value, size_t size)
{
    return memset(at, value, size);
}

static void *by_checked(void *at, int value, size_t size)
{
    return __memset_chk(at, value, size, size);
}

static void *by_bzero(void *at, int value, size_t size)
{
    bzero(at, size);
    return at;
}

static void *by_wmemset(void *at, int value, size_t size)
{
    unsigned char byte = value;
    return wmemset(at, byte * 0x01010101u, size / 4);
}

static const struct way {
    const char *name;
    void *(*fill)(void *, int, size_t);
    bool zero;
    size_t unit;
} ways[] = {
    {"memset", by_memset, false, 1},
    {"memset_chk", by_checked, false, 1},
    {"bzero", by_bzero, true, 1},
    {"wmemset", by_wmemset, false, 4},
};
enum { WAYS = COUNT(ways) };

static void one(const struct way *way, unsigned char *region, size_t offset, int value, size_t size)
{
    if (way->zero)
        value = 0;
    offset -= offset % way->unit;
    size -= size % way->unit;
    unsigned char *at = region + GUARD + offset, other = ~(unsigned char)value;
    for (size_t i = 0; i < size + 2 * GUARD; i++)
        ((volatile unsigned char *)at)[(ssize_t)i - GUARD] = other;
    errno = 4711;
    void *back = way->fill(at, value, size);
    if (back != at || errno != 4711)
        wrong("%s: returned %p for %p, errno %d", way->name, back, (void *)at, errno);
    for (size_t i = 0; i < size; i++)
        if (at[i] != (unsigned char)value)
            wrong("%s(%d) of %zu at %zu: byte %zu is %d", way->name, value, size, offset, i, at[i]);
    for (size_t i = 0; i < GUARD; i++)
        if (at[size + i] != other || at[-1 - (ssize_t)i] != other)
            wrong("%s(%d) of %zu at %zu: guard bytes changed", way->name, value, size, offset);
}

static void values(void)
{
    unsigned char *region = map(MIB);
    for (int value = -1; value < 258; value++)
        for (int way = 0; way < WAYS; way++)
            one(&ways[way], region, value * 7 & 127, value, 100000 + value * 13);
}

static void lengths_from(uint64_t seed)
{
    unsigned char *region = map(12 * MIB);
    for (size_t size = 0; size < 300; size++)
        one(&ways[size % WAYS], region, size * 5 % 67, size, size);
    for (size_t border = 512; border <= 8 * MIB; border *= 2)
        for (int off = -2; off <= 2; off++)
            one(&ways[(off + 2) % WAYS], region, (border >> 9) % 4099, off * 31 + 5, border + off);
    for (int round = 0; round < 150; round++) {
        next_random(&seed);
        one(&ways[round % WAYS], region, (seed >> 40) % (2 * PAGE), round, (seed >> 20) % (2 * MIB));
    }
    /* Characters whose bytes differ. */
    wchar_t *wide = (wchar_t *)region;
    if (wmemset(wide, 0x01020304, MIB) != wide)
        wrong("wmemset returned something else");
    for (size_t i = 0; i < MIB; i++)
        if (wide[i] != 0x01020304)
            wrong("wmemset: character %zu is %x", i, (unsigned)wide[i]);
}

static void fresh(void)
{
    for (size_t size = 64 * KIB; size <= 32 * MIB; size = size * 3 + 12345) {
        unsigned char *region = map(size + 2 * PAGE), *at = region + 100;
        memset(at, 0x5a, size);
        for (size_t i = 0; i < size; i++)
            if (at[i] != 0x5a)
                wrong("fresh: byte %zu of %zu is %d", i, size, at[i]);
        if (at[-1] || at[size])
            wrong("fresh: a byte beside it changed");
        munmap(region, size + 2 * PAGE);
    }
}

static void fault(void)
{
    const size_t size = 4 * MIB, places[] = {0, PAGE, 64 * KIB, MIB, 2 * MIB, 3 * MIB + PAGE,
                                             4 * MIB - PAGE};
    handle_faults();
    for (volatile size_t i = 0; i < COUNT(places); i++)
        for (volatile int way = 0; way < WAYS; way++) {
            char *region = map(size);
            ways[0].fill(region, 1, size);
            mprotect(region + places[i], PAGE, i % 2 ? PROT_READ : PROT_NONE);
            fault_at = NULL;
            if (sigsetjmp(jump, 1) == 0) {
                ways[way].fill(region, 2, size);
                wrong("%s over a bad page came back", ways[way].name);
            }
            expect_fault_in(region + places[i], ways[way].name);
            /* No worker fills any more. */
            mprotect(region, size, PROT_READ | PROT_WRITE);
            for (size_t at = 0; at < size; at += 64)
                region[at] = 3;
            sleep_ms(1);
            for (size_t at = 0; at < size; at += 64)
                if (region[at] != 3)
                    wrong("%s: byte %zu was filled after the fault", ways[way].name, at);
            munmap(region, size);
        }
}

static void checked(void)
{
    __memset_chk(map(MIB), 1, 300000, strtoul(scene_argument(0, "0"), NULL, 0));
}

static void calls(void)
{
    size_t size = strtoul(scene_argument(2, "0"), NULL, 0);
    char *region = map(size);
    for (int i = 0; i < atoi(scene_argument(1, "0")); i++)
        for (int way = 0; way < WAYS; way++)
            if (!strcmp(ways[way].name, scene_argument(0, "")))
                ways[way].fill(region, i, size);
}

SCENES((void)0, {"values", values}, {"lengths", lengths}, {"fresh", fresh}, {"threads", threads},
       {"fault", fault}, {"checked", checked}, {"calls", calls})
