/* Copies by a graphics card: fake_cuda.c, as libcuda.so.1. Usage: gpu SCENE [HOW]. */
#include "gpu_memory.h"
#include "gpu_processes.h"

static void *many(void *unused)
{
    char *dst = map(LEN), *src = map(LEN);
    unsigned seed = (uintptr_t)&seed;
    for (int i = 0; i < 150; i++) {
        size_t from = rand_r(&seed) % 8192 * 8, to = rand_r(&seed) % 8192 * 8;
        size_t len = LEN / 2 + rand_r(&seed) % (LEN / 4) / 8 * 8;
        copy_checked((struct blocks){dst + to, src + from, len}, (uintptr_t)&seed * 1000 + i,
                     "one of many");
    }
    return unused;
}

/* Copies, with one or several threads. */
static void plain(void)
{
    struct blocks b = map_blocks(LEN);
    struct blocks shifted = {(char *)b.to + 24, (char *)b.from + 4096 + 8, LEN - 3 * 4096};
    for (int i = 0; i < 60; i++) {
        copy(b, "plain");
        copy(shifted, "plain, not aligned");
        usleep(1000);
    }
    in_threads(atoi(scene_argument(0, "0")), many);
    printf("%lu\n", carried());
}

/* Uses the card all the time, for runs with injected faults. */
static void steady(void)
{
    struct blocks b = warm_blocks();
    for (int i = 0; i < 100; i++)
        copy(b, "steady");
    printf("%lu\n", carried());
}

/* Prints how much the card carries without buffers, and how much in all. */
static void ways(void)
{
    struct blocks b = warm_blocks();
    unsigned long straight = ask("fake_cuda_straight"), all = carried();
    /* On a busy machine the card gets only a part of them. */
    for (int i = 0; i < 40 || (carried() - all < 32 << 20 && i < 2000); i++)
        copy(b, "ways");
    printf("%lu %lu\n", ask("fake_cuda_straight") - straight, carried() - all);
}

enum { COPIES = 8 };

static adma_cookie_t start(struct blocks b)
{
    fill(b.from, LEN, ++round_number);
    adma_cookie_t cookie = adma_icopy(b.from, b.to, LEN);
    if (cookie <= 0)
        wrong("adma_icopy: %ld", (long)cookie);
    return cookie;
}

/* Returns the bytes of these copies that the card has carried; `all` is how many there were. */
static unsigned long start_and_wait(struct blocks b, unsigned long *all)
{
    unsigned long before = carried();
    for (int round = 0; round < 20; round++) {
        if (adma_wait_copy(start(b)))
            wrong("adma_wait_copy");
        check(b.to, LEN, round_number, "adma_wait_copy");

        adma_cookie_t cookie = start(b);
        int got;
        while ((got = adma_check_copy(cookie)) == 0)
            usleep(50);
        if (got != 1)
            wrong("adma_check_copy: %d", got);
        check(b.to, LEN, round_number, "adma_check_copy");

        uint64_t word = 0;
        fill(b.from, LEN, ++round_number);
        if (adma_icopy_notif(b.from, b.to, LEN, &word, 5) < 0)
            wrong("adma_icopy_notif");
        while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != 5)
            usleep(50);
        check(b.to, LEN, round_number, "adma_icopy_notif");

        struct adma_op batch[COPIES];
        fill(b.from, b.size, ++round_number);
        for (int i = 0; i < COPIES; i++)
            batch[i] = (struct adma_op){(char *)b.from + i * LEN, (char *)b.to + i * LEN, LEN};
        cookie = adma_icopy_batch(batch, COPIES);
        if (cookie <= 0 || adma_wait_copy(cookie))
            wrong("adma_icopy_batch: %ld", (long)cookie);
        check(b.to, b.size, round_number, "adma_icopy_batch");

        struct pollfd wanted = {adma_poll_fd(), POLLIN, 0};
        uint64_t count;
        if (read(wanted.fd, &count, 8) < 0 && errno != EAGAIN)
            wrong("adma_poll_fd");
        cookie = start(b);
        if (poll(&wanted, 1, 100000) != 1)
            wrong("the descriptor does not become readable");
        if (adma_wait_copy(cookie))
            wrong("adma_wait_copy after poll");
        check(b.to, LEN, round_number, "adma_poll_fd");
    }
    *all = 20ul * (4 + COPIES) * LEN;
    return carried() - before;
}

/* Tests the explicit interface. */
static void asynchronous(void)
{
    struct blocks b = map_blocks(COPIES * LEN);
    unsigned long by_card, all;
    int tries = 0;
    warm_up(b);
    /* Nearly all of it; a copy that the service thread did not take in time is taken back, which on
     * a busy machine is more than half of them now and then. */
    do
        by_card = start_and_wait(b, &all);
    while (by_card < all / 2 && ++tries < 6);
    if (by_card < all / 2)
        wrong("the card has carried %lu of %lu bytes", by_card, all);
}

/* While the service thread asks about an overdue copy, that one ends after all, and the next one
 * gets its slot: the answer is not about this one. */
static void overdue(void)
{
    struct blocks b = warm_blocks();
    long limit = clock_ms() + 200000;
    for (int shown = 0; shown < 3;) {
        int over = 0;
        ask("fake_cuda_hold");
        adma_cookie_t first = start(b);
        while (!ask("fake_cuda_asked") && !(over = adma_check_copy(first))) {
            if (clock_ms() > limit)
                wrong("no thread asks for an overdue copy");
            usleep(1000);
        }
        if (clock_ms() > limit)
            wrong("the card does not carry copies");
        ask("fake_cuda_let_words_come");
        if (!over && adma_wait_copy(first))
            wrong("adma_wait_copy of the first one");
        check(b.to, LEN, round_number, "overdue");
        adma_cookie_t second = start(b);
        ask("fake_cuda_answer");
        if (adma_wait_copy(second))
            wrong("adma_wait_copy of the second one");
        check(b.to, LEN, round_number, "after the overdue one");
        shown += !over; /* else it was taken back: the service thread was busy */
    }
}

SCENES((void)0, {"plain", plain}, {"steady", steady}, {"stale", stale}, {"protect", protect},
       {"children", children}, {"leave", leave}, {"own", own}, {"async", asynchronous},
       {"closed", closed}, {"keep", keep}, {"idle", idle}, {"ways", ways}, {"overdue", overdue},
       {"filtered", filtered})
