/* oracle [-s SEED] [-t THREADS] [-h]: all copy functions against a naive oracle.
 *
 * Every pair of offsets within a cache line about a page's edge for chosen sizes, every size
 * up to three pages for chosen offsets, copies that begin or end at a page that must not be
 * touched, and random ones up to 8 MiB. The functions take turns. Threads share the cases out
 * and have buffers of their own. -h installs handlers for SIGSEGV and SIGBUS, which makes
 * the library copy in another way; they must never be called.
 */
#include "pattern.h"

enum { LARGEST = 8 << 20, ROOM = LARGEST + 4 * PAGE, LINE = 64, RANDOM_COPIES = 160 };

static uint64_t seed = 1;
static unsigned threads = 1;

struct bench {
    unsigned number; /* takes every case that is its number modulo the threads */
    unsigned turn;
    uint64_t random;
    byte *dst, *src;
};

static uint64_t random_of(struct bench *bench)
{
    bench->random ^= bench->random << 13;
    bench->random ^= bench->random >> 7;
    bench->random ^= bench->random << 17;
    return bench->random;
}

/* Copies once, and checks `before` bytes ahead of it and `after` bytes behind it. */
static void copy(struct bench *bench, size_t dst_at, size_t src_at, size_t len, size_t before,
                 size_t after)
{
    unsigned turn = bench->turn++;
    const struct operation *operation = &operations[turn / threads % OPERATIONS];
    char what[160];
    if (turn % threads != bench->number)
        return;
    len -= len % operation->unit;

    struct side dst = { bench->dst + dst_at - before, before + len + after, before, len };
    struct side src = { bench->src + src_at - before, before + len + after, before, len };
    snprintf(what, sizeof(what), "seed %lu, copy %u: %s", seed, turn, operation->name);
    lay_down(&dst, DESTINATION);
    lay_down(&src, SOURCE);
    operation->call((void *)(bench->dst + dst_at), (void *)(bench->src + src_at), len);
    expect_copied(&dst, &src, what);
}

static void every_offset(struct bench *bench)
{
    static const size_t sizes[] = { 1, 4, 31, 63, 64, 65, 200, 1024, PAGE - 1, PAGE, PAGE + 1 };
    size_t edge = PAGE - LINE / 2;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        for (size_t dst = 0; dst < LINE; dst++)
            for (size_t src = 0; src < LINE; src++)
                copy(bench, edge + dst, edge + src, sizes[i], LINE, LINE);
}

static void every_size(struct bench *bench)
{
    static const size_t offsets[][2] = { { 0, 0 }, { 1, 0 }, { 0, 63 }, { 2048, 17 } };
    for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++)
        for (size_t len = 1; len <= 3 * PAGE; len++)
            copy(bench, PAGE + offsets[i][0], PAGE + offsets[i][1], len, 2 * LINE, 2 * LINE);
}

/* A loop that reads or writes a byte too much, even only to write it back, faults here. */
static void at_forbidden_pages(struct bench *bench)
{
    for (size_t len = 4; len <= 2 * PAGE + LINE; len += 4) {
        size_t to_the_end = ROOM - len;
        copy(bench, 0, 0, len, 0, LINE);
        copy(bench, to_the_end, to_the_end, len, LINE, 0);
        copy(bench, PAGE, to_the_end, len, LINE, 0);
        copy(bench, to_the_end, PAGE, len, LINE, 0);
    }
}

static void at_random(struct bench *bench)
{
    for (int i = 0; i < RANDOM_COPIES; i++) {
        /* As many copies between 1 and 2 MiB as between 1 and 2 KiB. */
        size_t limit = (size_t)LARGEST >> random_of(bench) % 16;
        size_t len = limit / 2 + random_of(bench) % (limit / 2) + 1;
        size_t dst_at = PAGE + random_of(bench) % PAGE;
        size_t src_at = PAGE + random_of(bench) % PAGE;
        if (i % 2)
            copy(bench, dst_at, src_at, len, PAGE, PAGE);
        else /* up to the forbidden page, in whole wide characters */
            copy(bench, ROOM - len / 4 * 4, ROOM - len / 4 * 4, len / 4 * 4, PAGE, 0);
    }
}

static void *work(void *number)
{
    struct bench bench = {
        .number = (uintptr_t)number,
        .random = seed * 0x9e3779b97f4a7c15u | 1,
        .dst = pages_between_guards(ROOM),
        .src = pages_between_guards(ROOM),
    };
    every_offset(&bench);
    every_size(&bench);
    at_forbidden_pages(&bench);
    at_random(&bench);
    if (!bench.number)
        printf("seed %lu: %u copies in %u threads\n", seed, bench.turn, threads);
    return NULL;
}

static void on_fault(int signo, siginfo_t *info, void *context)
{
    wrong("seed %lu: signal %d at %p, but nothing faults here", seed, signo, info->si_addr);
}

static void handle_faults(void)
{
    handle_info(SIGSEGV, on_fault);
    handle_info(SIGBUS, on_fault);
}

int main(int argc, char **argv)
{
    for (int option; (option = getopt(argc, argv, "s:t:h")) != -1;)
        if (option == 's')
            seed = strtoul(optarg, NULL, 0);
        else if (option == 't')
            threads = atoi(optarg);
        else if (option == 'h')
            handle_faults();
        else
            wrong("usage: oracle [-s SEED] [-t THREADS] [-h]");
    pthread_t others[threads];
    for (uintptr_t i = 1; i < threads; i++)
        others[i] = start_thread(work, (void *)i);
    work(0);
    join_all(others + 1, threads - 1);
    return 0;
}
