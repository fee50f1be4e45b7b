/* For api.c: cookies are good once, and their number is limited. */
#pragma once
#include "api_pairs.h"

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
    /* Words are written without being asked for. */
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
