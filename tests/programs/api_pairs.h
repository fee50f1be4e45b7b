/* For api.c: buffers, and every way to begin a copy and to find its end. */
#pragma once
#include "pattern.h"
#include "scenes.h"
#include <adma.h>

#ifdef LOOKED_UP
#include "looked_up.h"
#endif

static void expect(bool good, const char *what)
{
    if (!good)
        wrong("%s", what);
}
#define EXPECT(condition) expect(condition, #condition)

/* A pair of buffers with a copy of `len` bytes in the middle, not aligned alike. */
struct pair {
    struct side src, dst;
};

static struct pair new_pair(size_t len, size_t src_at, size_t dst_at)
{
    struct pair pair = { { NULL, len + 2 * PAGE, PAGE / 2 + src_at, len },
                         { NULL, len + 2 * PAGE, PAGE / 2 + dst_at, len } };
    pair.src.base = pages_between_guards(pair.src.size);
    pair.dst.base = pages_between_guards(pair.dst.size);
    lay_down(&pair.src, SOURCE);
    lay_down(&pair.dst, DESTINATION);
    return pair;
}

static void free_pair(struct pair *pair)
{
    release_pages_between_guards(pair->src.base, pair->src.size);
    release_pages_between_guards(pair->dst.base, pair->dst.size);
}

static const void *from(const struct pair *pair)
{
    return (const void *)(pair->src.base + pair->src.from);
}

static void *to(const struct pair *pair)
{
    return (void *)(pair->dst.base + pair->dst.from);
}

static adma_cookie_t start(const struct pair *pair)
{
    adma_cookie_t cookie = adma_icopy(from(pair), to(pair), pair->src.len);
    if (cookie <= 0)
        wrong("adma_icopy: %lld, %s", (long long)cookie, adma_strerror((int)cookie));
    return cookie;
}

static void finish_by_wait(adma_cookie_t cookie)
{
    int result = adma_wait_copy(cookie);
    if (result)
        wrong("adma_wait_copy: %d, %s", result, adma_strerror(result));
}

static void finish_by_check(adma_cookie_t cookie)
{
    int result;
    while ((result = adma_check_copy(cookie)) == 0)
        sched_yield();
    if (result != 1)
        wrong("adma_check_copy: %d, %s", result, adma_strerror(result));
}

static void copied(struct pair *pair, const char *what)
{
    expect_copied(&pair->dst, &pair->src, what);
}

static void by_notif(struct pair *pair)
{
    static uint64_t value;
    _Alignas(8) uint64_t word = 0;
    int result = adma_icopy_notif(from(pair), to(pair), pair->src.len, &word, ++value);
    if (result)
        wrong("adma_icopy_notif: %d", result);
    while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != value)
        sched_yield();
}

static void by_batch(struct pair *pair)
{
    /* In three copies that meet: large, small, the rest. */
    size_t len = pair->src.len, a = len / 2, b = a + (len - a > 100 ? 100 : len - a);
    const char *src = from(pair);
    char *dst = to(pair);
    struct adma_op ops[] = { { src, dst, a }, { src + a, dst + a, b - a },
                             { src + b, dst + b, len - b } };
    adma_cookie_t cookie = adma_icopy_batch(ops, 3);
    memset(ops, 0xff, sizeof ops); /* the array is ours again */
    if (cookie <= 0)
        wrong("adma_icopy_batch: %lld", (long long)cookie);
    finish_by_wait(cookie);
}

static void by_copy(struct pair *pair)
{
    EXPECT(adma_copy(from(pair), to(pair), pair->src.len) == 0);
}

static void by_waiting(struct pair *pair)
{
    finish_by_wait(start(pair));
}

static void by_checking(struct pair *pair)
{
    finish_by_check(start(pair));
}

/* Resets the destination, copies, and checks. */
static void copied_by(void (*way)(struct pair *), struct pair *pair, const char *what)
{
    lay_down(&pair->dst, DESTINATION);
    way(pair);
    copied(pair, what);
}

static void child_succeeds(pid_t pid)
{
    int status;
    EXPECT(pid > 0 && waitpid(pid, &status, 0) == pid);
    if (!WIFEXITED(status) || WEXITSTATUS(status))
        wrong("child: status %#x", status);
}
