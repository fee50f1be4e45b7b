/* Bytes that say where they belong, in the manner of the kernel's dmatest, and every
 * intercepted function behind one signature.
 *
 * A byte tells which side it was laid down on, whether it lies inside the region to be
 * copied, and its position, so a short, long, misplaced or source-clobbering copy is not
 * only seen but named. dmatest keeps the low bits of the position; they are hashed here,
 * because what we most fear is a piece that is misplaced by whole pages.
 *
 * All loops are over volatile bytes: the oracle must not become a memcpy itself.
 */
#pragma once
#include "verdict.h"

enum { PAGE = 4096 };
enum { SOURCE = 0x80, DESTINATION = 0, INSIDE = 0x40, POSITION = 0x3f };

typedef volatile unsigned char byte;

/* One side of a copy: `size` bytes at `base`, of which `len` from `from` on are copied. */
struct side {
    byte *base;
    size_t size, from, len;
};

/* Maps fresh pages, with an inaccessible page on either side. */
static inline byte *pages_between_guards(size_t size)
{
    size_t whole = (size + PAGE - 1) / PAGE * PAGE;
    char *all = mmap(NULL, whole + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all + PAGE, whole, PROT_READ | PROT_WRITE))
        wrong("no memory for %zu bytes", size);
    return (byte *)all + PAGE;
}

static inline void release_pages_between_guards(byte *pages, size_t size)
{
    size_t whole = (size + PAGE - 1) / PAGE * PAGE;
    munmap((char *)pages - PAGE, whole + 2 * PAGE);
}

static inline unsigned char stamp(unsigned kind, size_t at)
{
    return kind | (((uint32_t)at * 0x9e3779b1u) >> 26 & POSITION);
}

static inline unsigned char laid_down(const struct side *side, unsigned kind, size_t at)
{
    return stamp(at - side->from < side->len ? kind | INSIDE : kind, at - side->from);
}

static inline void lay_down(const struct side *side, unsigned kind)
{
    for (size_t at = 0; at < side->size; at++)
        side->base[at] = laid_down(side, kind, at);
}

/* Describes what is wrong with byte `at` of the destination. */
static inline const char *diagnosis(const struct side *dst, size_t at, unsigned char found)
{
    int inside = at - dst->from < dst->len;
    if (inside && found == laid_down(dst, DESTINATION, at))
        return "short: not copied";
    if (!inside && found & SOURCE)
        return "long: copied beyond the end or before the beginning";
    if (inside && (found & SOURCE) && (found & INSIDE))
        return "misplaced: a byte of another position";
    if (inside && (found & SOURCE))
        return "misplaced: a byte from outside the source region";
    return "spoiled: a byte of neither side";
}

/* Fails at the first byte that differs from what was laid down. */
static inline void expect_untouched(const struct side *side, unsigned kind, const char *what)
{
    for (size_t at = 0; at < side->size; at++)
        if (side->base[at] != laid_down(side, kind, at))
            wrong("%s: %s clobbered: byte %zd of %zu is %#x, was %#x", what,
                  kind == SOURCE ? "source" : "destination", (ssize_t)(at - side->from), side->len,
                  side->base[at], laid_down(side, kind, at));
}

/* Fails at the first byte that differs from a right copy. */
static inline void expect_copied(const struct side *dst, const struct side *src, const char *what)
{
    for (size_t at = 0; at < dst->size; at++) {
        unsigned char want = laid_down(dst, DESTINATION, at);
        unsigned char found = dst->base[at];
        if (at - dst->from < dst->len)
            want = laid_down(src, SOURCE, at - dst->from + src->from);
        if (found != want)
            wrong("%s: %s: byte %zd of %zu is %#x, want %#x (dst %p, src %p)", what,
                  diagnosis(dst, at, found), (ssize_t)(at - dst->from), dst->len, found, want,
                  (void *)(dst->base + dst->from), (void *)(src->base + src->from));
    }
    expect_untouched(src, SOURCE, what);
}

/* The functions. glibc declares the checked ones nowhere, and the old memcpy not at all. */
void *__memcpy_chk(void *, const void *, size_t, size_t);
void *__memmove_chk(void *, const void *, size_t, size_t);
void *__mempcpy_chk(void *, const void *, size_t, size_t);
void *__mempcpy(void *, const void *, size_t);
void *memcpy_old(void *, const void *, size_t);
void *memcpy_new(void *, const void *, size_t);
#ifdef __x86_64__
__asm__(".symver memcpy_old, memcpy@GLIBC_2.2.5");
__asm__(".symver memcpy_new, memcpy@GLIBC_2.14");
#else /* there is one version */
#define memcpy_old memcpy
#define memcpy_new memcpy
#endif
void bcopy(const void *, void *, size_t);

struct operation {
    const char *name;
    size_t unit; /* sizes are multiples of this */
    void (*call)(void *dst, const void *src, size_t n);
};

#define OPERATION(id, result, expression)                                                          \
    static void call_##id(void *dst, const void *src, size_t n)                                    \
    {                                                                                              \
        int before = errno = 4711;                                                                 \
        void *returned = expression;                                                               \
        if (errno != before)                                                                       \
            wrong(#id " of %zu bytes changed errno to %d", n, errno);                              \
        if (returned != (void *)(result))                                                          \
            wrong(#id " of %zu bytes to %p returned %p", n, dst, returned);                        \
    }

OPERATION(memcpy, dst, memcpy_new(dst, src, n))
OPERATION(memcpy_old, dst, memcpy_old(dst, src, n))
OPERATION(memmove, dst, memmove(dst, src, n))
OPERATION(mempcpy, (char *)dst + n, mempcpy(dst, src, n))
OPERATION(__mempcpy, (char *)dst + n, __mempcpy(dst, src, n))
OPERATION(bcopy, dst, (bcopy(src, dst, n), dst))
OPERATION(wmemcpy, dst, wmemcpy(dst, src, n / sizeof(wchar_t)))
OPERATION(wmemmove, dst, wmemmove(dst, src, n / sizeof(wchar_t)))
OPERATION(wmempcpy, (char *)dst + n, wmempcpy(dst, src, n / sizeof(wchar_t)))
OPERATION(__memcpy_chk, dst, __memcpy_chk(dst, src, n, n))
OPERATION(__memmove_chk, dst, __memmove_chk(dst, src, n, n))
OPERATION(__mempcpy_chk, (char *)dst + n, __mempcpy_chk(dst, src, n, n))

static const struct operation operations[] = {
    { "memcpy", 1, call_memcpy },
    { "memcpy@GLIBC_2.2.5", 1, call_memcpy_old },
    { "memmove", 1, call_memmove },
    { "mempcpy", 1, call_mempcpy },
    { "__mempcpy", 1, call___mempcpy },
    { "bcopy", 1, call_bcopy },
    { "wmemcpy", sizeof(wchar_t), call_wmemcpy },
    { "wmemmove", sizeof(wchar_t), call_wmemmove },
    { "wmempcpy", sizeof(wchar_t), call_wmempcpy },
    { "__memcpy_chk", 1, call___memcpy_chk },
    { "__memmove_chk", 1, call___memmove_chk },
    { "__mempcpy_chk", 1, call___mempcpy_chk },
};
enum { OPERATIONS = sizeof(operations) / sizeof(operations[0]) };

static inline const struct operation *operation_named(const char *name)
{
    for (int i = 0; i < OPERATIONS; i++)
        if (!strcmp(operations[i].name, name))
            return &operations[i];
    wrong("no operation is called %s", name);
}

/* Looks at a byte in every `stride`, waits, and looks again: a thread that still writes there is
 * seen at once, where a new pattern would take longer to lay down than a straggler needs. */
static inline void expect_no_writer(byte *at, size_t size, size_t stride, const char *what)
{
    size_t looks = size / stride;
    unsigned char *seen = malloc(looks);
    for (size_t i = 0; i < looks; i++)
        seen[i] = at[i * stride];
    sleep_ms(5);
    for (size_t i = 0; i < looks; i++)
        if (at[i * stride] != seen[i])
            wrong("%s: a thread still writes: byte %zu was %#x, is now %#x", what, i * stride,
                  seen[i], at[i * stride]);
    free(seen);
}
