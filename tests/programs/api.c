/* Every promise of include/adma.h that a program can see. Usage: api SUBJECT. */
#include "api_cookies.h"
#include "api_ends.h"
#include "api_faults.h"
#include "api_pairs.h"
#include "api_processes.h"
#include "api_workers.h"

static void subject_oracle(void)
{
    static const struct {
        const char *name;
        void (*copy)(struct pair *);
    } ways[] = { { "adma_copy", by_copy },
                 { "adma_icopy, adma_wait_copy", by_waiting },
                 { "adma_icopy, adma_check_copy", by_checking },
                 { "adma_icopy_batch", by_batch },
                 { "adma_icopy_notif", by_notif } };
    static const size_t sizes[] = { 0, 1, 63, 4096, 16383, 16384, 16385, 65536, 65537,
                    262144, 300001, MIB, 3 * MIB + 7 };
    static const size_t offsets[][2] = { { 0, 0 }, { 1, 0 }, { 0, 63 }, { 2047, 17 } };
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++)
        for (size_t at = 0; at < 4; at++) {
            struct pair pair = new_pair(sizes[size], offsets[at][0], offsets[at][1]);
            for (size_t way = 0; way < 5; way++) {
                copied_by(ways[way].copy, &pair, ways[way].name);
            }
            free_pair(&pair);
        }
    struct pair large = new_pair(40 * MIB + 5, 3, 5);
    by_waiting(&large);
    copied(&large, "40 MiB");
    free_pair(&large);
}

static void subject_overlap(void)
{
    enum { LEN = 400000 };
    static unsigned char bytes[3 * LEN], want[3 * LEN];
    static const ptrdiff_t distances[] = { -100000, -1, 0, 1, 4096, 399999 };
    for (int way = 0; way < 3; way++)
        for (size_t i = 0; i < sizeof distances / sizeof *distances; i++) {
            unsigned char *src = bytes + LEN / 2, *dst = src + distances[i];
            for (size_t at = 0; at < sizeof bytes; at++)
                want[at] = bytes[at] = stamp(0, at);
            for (size_t at = 0; at < LEN; at++)
                want[dst - bytes + at] = stamp(0, src - bytes + at);
            struct adma_op op = { src, dst, LEN };
            if (way == 0)
                EXPECT(adma_copy(src, dst, LEN) == 0);
            else if (way == 1)
                finish_by_wait(adma_icopy(src, dst, LEN));
            else
                finish_by_check(adma_icopy_batch(&op, 1));
            for (size_t at = 0; at < sizeof bytes; at++)
                if (bytes[at] != want[at])
                    wrong("distance %td: byte %zu", distances[i], at);
        }
}

static void subject_errno(void)
{
    struct pair pair = new_pair(300000, 0, 0);
    for (int i = 0; i < 100; i++) {
        errno = 1234;
        by_copy(&pair);
        EXPECT(errno == 1234);
        by_batch(&pair);
        EXPECT(errno == 1234);
        adma_check_copy(5);
        adma_poll_fd();
        adma_strerror(-5);
        adma_icopy_batch(NULL, 3);
        EXPECT(errno == 1234);
        finish_by_wait(start(&pair));
        EXPECT(errno == 1234);
    }
}

/* Between two calls of getppid there is nothing but looking: for strace. */
static void subject_looking(void)
{
    struct pair pair = new_pair(32 * MIB, 0, 0);
    adma_cookie_t cookie = start(&pair);
    int result, looks = 0;
    syscall(SYS_getppid);
    while ((result = adma_check_copy(cookie)) == 0)
        looks++;
    syscall(SYS_getppid);
    EXPECT(result == 1);
    copied(&pair, "looked at");
    printf("%d looks\n", looks);
}

SCENES((void)0, {"oracle", subject_oracle}, {"overlap", subject_overlap},
       {"cookies", subject_cookies}, {"full", subject_full}, {"thousand", subject_thousand},
       {"threads", subject_threads}, {"fork", subject_fork}, {"signals", subject_signals},
       {"exit", subject_exit}, {"notif", subject_notif}, {"poll", subject_poll},
       {"faults", subject_faults}, {"errno", subject_errno}, {"looking", subject_looking},
       {"refused", subject_refused}, {"idle", subject_idle}, {"limited", subject_limited})
