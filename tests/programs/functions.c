/* Every copy function, at the edges of what it promises.
 *
 *   calls NAME COUNT SIZE        COUNT calls; which way they go stands in the statistics, or callgrind
 *   overlap NAME DISTANCE SIZE   a region copied onto itself, further up and further down
 *   checked NAME SIZE ROOM       into a destination that the compiler believes to have ROOM bytes
 *   nothing                      zero bytes, also between pointers that point nowhere
 *   itself                       a region copied to where it is
 *   wrap                         wide characters whose length in bytes wraps round to 36
 *   beyond NAME SIZE             more than there are, perhaps more than there are addresses
 *   off                          callers whose stack is 8 bytes off, as of hand-written assembly and JITs
 */
#include "pattern.h"
#include "scenes.h"

static const struct operation *named_operation(void)
{
    return operation_named(scene_argument(0, ""));
}

static size_t number(int which)
{
    return strtoul(scene_argument(which, "0"), NULL, 0);
}

static struct side dst, src;

/* Maps `len` bytes between `margin` others that must not change. */
static void map_sides(size_t len, size_t margin)
{
    size_t size = len + 2 * margin;
    dst = (struct side){ pages_between_guards(size), size, margin, len };
    src = (struct side){ pages_between_guards(size), size, margin, len };
    lay_down(&dst, DESTINATION);
    lay_down(&src, SOURCE);
}

static void calls(void)
{
    const struct operation *operation = named_operation();
    map_sides(number(2), 64);
    for (size_t i = 0; i < number(1); i++)
        operation->call((void *)(dst.base + 64), (void *)(src.base + 64), dst.len);
    expect_copied(&dst, &src, operation->name);
}

/* The result must be that of a copy through a third place, for memcpy as well: glibc's memcpy is its
 * memmove on x86-64, and programs have come to rely on it. */
static void copy_onto_itself(size_t to, size_t from, size_t len)
{
    size_t size = (to > from ? to : from) + len;
    byte *arena = pages_between_guards(size);
    unsigned char *want = malloc(size);
    for (size_t i = 0; i < size; i++)
        want[i] = arena[i] = stamp(SOURCE, i);
    for (size_t i = 0; i < len; i++)
        want[to + i] = stamp(SOURCE, from + i);
    named_operation()->call((void *)(arena + to), (void *)(arena + from), len);
    for (size_t i = 0; i < size; i++)
        if (arena[i] != want[i])
            wrong("%zu bytes from %zu to %zu: byte %zu is %#x, want %#x", len, from, to, i, arena[i],
                 want[i]);
    free(want);
    release_pages_between_guards(arena, size);
}

static void overlap(void)
{
    copy_onto_itself(number(1), 0, number(2));
    copy_onto_itself(0, number(1), number(2));
}

/* The abort is expected; a destination that was written before it is not. */
static void on_abort(int signo)
{
    expect_untouched(&dst, DESTINATION, "before the abort");
    signal(signo, SIG_DFL);
    raise(signo);
}

/* With too little room: glibc's "buffer overflow detected" and SIGABRT before a byte is written. */
static void checked(void)
{
    const char *name = scene_argument(0, "");
    map_sides(number(1), 0);
    signal(SIGABRT, on_abort);
    (!strcmp(name, "__memcpy_chk")    ? __memcpy_chk
     : !strcmp(name, "__memmove_chk") ? __memmove_chk
                                      : __mempcpy_chk)((void *)dst.base, (void *)src.base, dst.len,
                                                       number(2));
    expect_copied(&dst, &src, name);
}

enum { LEN = 1 << 20 };

static void nothing(void)
{
    map_sides(0, LEN);
    for (int i = 0; i < OPERATIONS; i++) {
        operations[i].call((void *)dst.base, (void *)src.base, 0);
        operations[i].call(NULL, NULL, 0);
        operations[i].call((void *)(dst.base - 1), (void *)8, 0);
    }
    expect_copied(&dst, &src, "zero bytes");
}

static void itself(void)
{
    map_sides(LEN, 0);
    for (int i = 0; i < OPERATIONS; i++)
        operations[i].call((void *)src.base, (void *)src.base, LEN);
    expect_untouched(&src, SOURCE, "copied onto itself");
}

/* glibc copies 36 bytes here. */
static void wrap(void)
{
    size_t wrapping = ((size_t)1 << 62) + 9;
    map_sides(36, LEN);
    char *to = (char *)dst.base + LEN, *from = (char *)src.base + LEN;
    if (wmemcpy((void *)to, (void *)from, wrapping) != (void *)to)
        wrong("wmemcpy returned something else than its destination");
    expect_copied(&dst, &src, "wmemcpy");
    lay_down(&dst, DESTINATION);
    if (wmemmove((void *)to, (void *)from, wrapping) != (void *)to)
        wrong("wmemmove returned something else than its destination");
    expect_copied(&dst, &src, "wmemmove");
}

/* Must die of SIGSEGV, as without us. */
static void beyond(void)
{
    map_sides(LEN, 0);
    named_operation()->call((void *)dst.base, (void *)src.base, number(1));
    wrong("%zu bytes were copied", number(1));
}

#ifdef __x86_64__
/* Calls an operation with a misaligned stack. */
void call_off(void *to, const void *from, size_t size, void (*call)(void *, const void *, size_t));
__asm__("call_off:\n"
        "\tpush %rbp\n"
        "\tmov %rsp, %rbp\n"
        "\tand $-16, %rsp\n"
        "\tsub $8, %rsp\n"
        "\tcall *%rcx\n"
        "\tleave\n"
        "\tret\n");

static void stack_off(void)
{
    for (size_t size = 4 << 10; size <= 16 << 20; size *= 16)
        for (int i = 0; i < 5 * OPERATIONS; i++) {
            const struct operation *operation = &operations[i % OPERATIONS];
            map_sides(size, 0);
            call_off((void *)dst.base, (void *)src.base, size, operation->call);
            expect_copied(&dst, &src, operation->name);
            release_pages_between_guards(dst.base, size);
            release_pages_between_guards(src.base, size);
        }
}
#else /* the CPU allows none */
#define stack_off calls
#endif

SCENES((void)0, {"calls", calls}, {"overlap", overlap}, {"checked", checked}, {"nothing", nothing},
       {"itself", itself}, {"wrap", wrap}, {"beyond", beyond}, {"off", stack_off})
