/* memcmp, bcmp and wmemcmp against a naive oracle and libc's own functions. Takes a scene, and then a
 * seed for "lengths", or NAME COUNT SIZE for "calls".
 */
#include "trap.h"
#include "fault.h"

typedef int comparer(const void *, const void *, size_t);

static int by_wmemcmp(const void *a, const void *b, size_t size)
{
    return wmemcmp(a, b, size / 4);
}

static struct way {
    const char *name;
    comparer *compare;
    size_t unit;
    /* libc's own function, not an interposed one. */
    comparer *libcs;
} ways[] = {
    {"memcmp", memcmp, 1, NULL},
    {"bcmp", bcmp, 1, NULL},
    {"wmemcmp", by_wmemcmp, 4, NULL},
};
enum { WAYS = COUNT(ways) };

static comparer *libcs_wmemcmp;

static int by_libcs_wmemcmp(const void *a, const void *b, size_t size)
{
    return libcs_wmemcmp(a, b, size / 4);
}

static void find_libcs(void)
{
    void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
    if (!libc)
        wrong("no libc: %s", dlerror());
    ways[0].libcs = (comparer *)dlsym(libc, "memcmp");
    ways[1].libcs = (comparer *)dlsym(libc, "bcmp");
    ways[2].libcs = by_libcs_wmemcmp;
    libcs_wmemcmp = (comparer *)dlsym(libc, "wmemcmp");
}

static int sign(int value)
{
    return (value > 0) - (value < 0);
}

static int naive(const unsigned char *a, const unsigned char *b, size_t size, size_t unit)
{
    for (size_t i = 0; i < size; i++)
        if (a[i] != b[i]) {
            if (unit == 1)
                return a[i] < b[i] ? -1 : 1;
            /* Not by memcpy, which would be the library's as well. */
            wchar_t x = *(const wchar_t *)(a + i - i % 4);
            wchar_t y = *(const wchar_t *)(b + i - i % 4);
            return x < y ? -1 : 1;
        }
    return 0;
}

/* Checks a result; the oracle looks at `reach` bytes, up to the difference that was made. */
static void expect(const struct way *way, const unsigned char *a, const unsigned char *b,
                   size_t size, size_t reach)
{
    int want = naive(a, b, reach < size ? reach : size, way->unit);
    errno = 4711;
    int got = way->compare(a, b, size);
    if (errno != 4711)
        wrong("%s: errno is %d", way->name, errno);
    if (sign(got) != want)
        wrong("%s of %zu at %p and %p: %d instead of %d", way->name, size, (void *)a, (void *)b,
              got, want);
    int libcs = way->libcs(a, b, size);
#ifndef __x86_64__ /* there it depends on the length which values libc returns */
    got = sign(got), libcs = sign(libcs);
#endif
    if (got != libcs)
        wrong("%s of %zu: %d, and %d by libc's own", way->name, size, got, libcs);
}

/* Two equal regions, each with a bad page at its end. */
struct pair {
    unsigned char *a, *b;
    size_t size;
};

static struct pair map_pair(size_t size)
{
    struct pair pair = {map(size + PAGE), map(size + PAGE), size};
    fill(pair.a, size, size);
    fill(pair.b, size, size);
    mprotect(pair.a + size, PAGE, PROT_NONE);
    mprotect(pair.b + size, PAGE, PROT_NONE);
    return pair;
}

static void unmap_pair(struct pair pair)
{
    munmap(pair.a, pair.size + PAGE);
    munmap(pair.b, pair.size + PAGE);
}

/* Compares equal ranges right in front of the bad pages. */
static void without_difference(const struct way *way, struct pair pair, size_t size)
{
    size -= size % way->unit;
    expect(way, pair.a + pair.size - size, pair.b + pair.size - size, size, size);
}

/* Flips a byte of b, of `size` bytes before the end, and back again. */
static void with_difference(const struct way *way, struct pair pair, size_t size, size_t at,
                            unsigned char flip)
{
    size -= size % way->unit; /* characters are aligned */
    unsigned char *a = pair.a + pair.size - size, *b = pair.b + pair.size - size;
    if (at >= size)
        return;
    b[at] ^= flip;
    expect(way, a, b, size, at + 4);
    expect(way, b, a, size, at + 4);
    b[at] ^= flip;
}

/* Compares every length class, at odd places, right in front of a bad page. */
static void lengths_from(uint64_t seed)
{
    struct pair pair = map_pair(9 * MIB);
    for (size_t size = 0; size < 300; size++)
        for (int way = 0; way < WAYS; way++) {
            without_difference(&ways[way], pair, size);
            with_difference(&ways[way], pair, size, size * 7 % (size + 1), 0x41);
        }
    for (size_t border = 512; border <= 8 * MIB; border *= 2)
        for (int off = -2; off <= 2; off++) {
            const struct way *way = &ways[(off + 2) % WAYS];
            size_t size = border + off;
            without_difference(way, pair, size);
            with_difference(way, pair, size, size - 1, 0x80);
            with_difference(way, pair, size, size / 2, 0x01);
        }
    for (int round = 0; round < 150; round++) {
        next_random(&seed);
        size_t size = (seed >> 20) % (3 * MIB), at = (seed >> 42) % (size + 1);
        with_difference(&ways[round % WAYS], pair, size, at, seed >> 33 | 1);
        /* Sides with different alignment, which differ nearly everywhere. */
        size_t shift = 1 + (seed >> 50) % 100;
        expect(&ways[0], pair.a + shift, pair.b, size, 16);
        /* Sides that overlap, and are equal where they are periodic. */
        expect(&ways[1], pair.a, pair.a, size, 16);
    }
    unmap_pair(pair);
}

/* Puts differences at and around the borders of pieces, in both directions. */
static void borders(void)
{
    const size_t size = 4 * MIB;
    struct pair pair = map_pair(size);
    const size_t steps[] = {16 * KIB, 64 * KIB, 96 * KIB, 256 * KIB, MIB};
    for (size_t s = 0; s < COUNT(steps); s++)
        for (size_t border = steps[s]; border < size; border += steps[s] * 5)
            for (int off = -1; off <= 1; off++) {
                const struct way *way = &ways[(border / steps[s] + off) % WAYS];
                size_t at = border + off, later = at + 200 * KIB;
                /* A later difference in the other direction must not be the answer. */
                unsigned char before = pair.b[at];
                if (later < size)
                    pair.a[later] ^= 0xff;
                pair.b[at] = before + 1;
                expect(way, pair.a, pair.b, size, at + 4);
                expect(way, pair.b, pair.a, size, at + 4);
                pair.b[at] = before;
                if (later < size) {
                    expect(way, pair.a, pair.b, size, later + 4);
                    pair.a[later] ^= 0xff;
                }
            }
    for (int way = 0; way < WAYS; way++) {
        expect(&ways[way], pair.a, pair.b, size, size);
        with_difference(&ways[way], pair, size, size - 1, 1);
        with_difference(&ways[way], pair, size, 0, 1);
    }
    unmap_pair(pair);
}

static void values(void)
{
    const size_t size = 200 * KIB, at = 150 * KIB + 1;
    struct pair pair = map_pair(size);
    for (int x = 0; x < 256; x += 5)
        for (int y = 0; y < 256; y += 3) {
            pair.a[at] = x;
            pair.b[at] = y;
            expect(&ways[(x + y) % 2], pair.a, pair.b, size, at + 1);
        }
    pair.a[at] = pair.b[at];
    const wchar_t wide[] = {0, 1, -1, 0x7fffffff, -0x7fffffff - 1, 0x100, 0x01020304, -256};
    enum { COUNT = COUNT(wide) };
    wchar_t *a = (wchar_t *)(pair.a + 150 * KIB), *b = (wchar_t *)(pair.b + 150 * KIB);
    for (int x = 0; x < COUNT; x++)
        for (int y = 0; y < COUNT; y++) {
            *a = wide[x];
            *b = wide[y];
            expect(&ways[2], pair.a, pair.b, size, 150 * KIB + 4);
        }
    unmap_pair(pair);
}

static const size_t places[] = {0,       PAGE,           64 * KIB,       MIB,
                                2 * MIB, 3 * MIB + PAGE, 4 * MIB - PAGE};
enum { PLACES = COUNT(places) };

static void fault(void)
{
    const size_t size = 4 * MIB;
    handle_faults();
    for (int i = 0; i < PLACES; i++)
        for (int way = 0; way < WAYS; way++)
            for (int side = 0; side < 2; side++) {
                struct pair pair = map_pair(size);
                char *bad = (char *)(side ? pair.b : pair.a) + places[i];
                mprotect(bad, PAGE, PROT_NONE);
                fault_at = NULL;
                if (sigsetjmp(jump, 1) == 0) {
                    int got = ways[way].compare(pair.a, pair.b, size);
                    wrong("%s over a bad page answered %d", ways[way].name, got);
                }
                expect_fault_in(bad, ways[way].name);
                /* Everything is right again. */
                mprotect(bad, PAGE, PROT_READ | PROT_WRITE);
                expect(&ways[way], pair.a, pair.b, size, size);
                unmap_pair(pair);
            }
}

/* libc reads a few vectors further than the first difference, no more. */
static void behind(void)
{
    const size_t size = 4 * MIB, distances[] = {512, PAGE, 20 * KIB, 300 * KIB, 2 * MIB};
    for (int i = 1; i < PLACES; i++)
        for (size_t d = 0; d < COUNT(distances); d++)
            for (int way = 0; way < WAYS && distances[d] < places[i]; way++) {
                struct pair pair = map_pair(size);
                char *bad = (char *)(d % 2 ? pair.b : pair.a) + places[i];
                pair.a[places[i] - distances[d]] ^= 0x55;
                mprotect(bad, PAGE, PROT_NONE);
                expect(&ways[way], pair.a, pair.b, size, places[i] - distances[d] + 4);
                unmap_pair(pair);
            }
}

static void one_fault(int place)
{
    struct pair pair = map_pair(4 * MIB);
    expect(&ways[0], pair.a, pair.b, pair.size, pair.size);
    mprotect(pair.b + places[place], PAGE, PROT_NONE);
    ways[place % WAYS].compare(pair.a, pair.b, pair.size);
}

static void unhandled(void)
{
    signal(SIGSEGV, SIG_DFL);
    for (int i = 0; i < PLACES; i++) {
        pid_t child = fork();
        if (child == 0) {
            one_fault(i);
            _exit(0);
        }
        int status = 0;
        waitpid(child, &status, 0);
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
            wrong("the child ended with %x", status);
    }
    IN_CHILD("child with a bad page behind a difference")
        behind();
}

static void behind_handled(void)
{
    handle_faults();
    if (sigsetjmp(jump, 1))
        wrong("a page behind the difference was read, at %p", (void *)fault_at);
    behind();
}

/* A difference in the second MiB of 64. */
static void cancel(void)
{
    struct pair pair = map_pair(64 * MIB);
    const size_t at = MIB + 123;
    pair.a[at] ^= 1;
    for (int round = 0; round < 20; round++)
        expect(&ways[round % WAYS], pair.a, pair.b, pair.size, at + 4);
    unmap_pair(pair);
}

/* Differences in the first kilobytes: no worker is woken. */
static void early(void)
{
    struct pair pair = map_pair(16 * MIB);
    for (int round = 0; round < 30; round++)
        with_difference(&ways[round % WAYS], pair, pair.size, round * 1000, 1);
    if (count_workers() != 0)
        wrong("workers came for a difference at the beginning");
    unmap_pair(pair);
}

/* Lengths beyond all memory that differ soon. */
static void enormous(void)
{
    struct pair pair = map_pair(MIB);
    const size_t sizes[] = {(size_t)1 << 30, (size_t)1 << 40, (size_t)1 << 46};
    pair.b[500000] ^= 1;
    for (size_t i = 0; i < COUNT(sizes); i++) {
        int got = memcmp(pair.a, pair.b, sizes[i]);
        if (sign(got) != naive(pair.a, pair.b, MIB, 1))
            wrong("memcmp of %zx: %d", sizes[i], got);
    }
    unmap_pair(pair);
}

static void calls(void)
{
    const char *name = scene_argument(0, "memcmp");
    size_t size = strtoul(scene_argument(2, "0"), NULL, 0);
    char *a = map(size), *b = map(size);
    for (int i = 0; i < atoi(scene_argument(1, "0")); i++)
        for (int way = 0; way < WAYS; way++)
            if (!strcmp(ways[way].name, name) && ways[way].compare(a, b, size) != 0)
                wrong("%s: not the same", name);
}

SCENES(find_libcs(), {"lengths", lengths}, {"borders", borders}, {"values", values},
       {"fault", fault}, {"behind", behind_handled}, {"unhandled", unhandled}, {"threads", threads},
       {"cancel", cancel}, {"early", early}, {"enormous", enormous}, {"calls", calls})
