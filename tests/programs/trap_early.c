/* Copies in .preinit_array, before the constructor of any library, and in the
 * program's own first constructor.
 *
 * With WITH_IFUNC also in an IFUNC resolver, which runs while the program is
 * being relocated.
 */
#include "trap.h"

extern void *__memcpy_chk(void *to, const void *from, size_t size, size_t room);

static void copy_every_way(const char *where)
{
    static uint64_t from[16 * KIB], to[16 * KIB];
    size_t sizes[] = {8, 64, 4 * KIB, 128 * KIB};
    for (int i = 0; i < 4; i++) {
        size_t size = sizes[i];
        fill(from, size, 10 + i);
        memcpy(to, from, size);
        check(to, size, 10 + i, where);
        fill(from, size, 20 + i);
        memmove(to, from, size);
        check(to, size, 20 + i, where);
        fill(from, size, 30 + i);
        if (mempcpy(to, from, size) != (char *)to + size)
            wrong("%s: mempcpy returned something else than the end", where);
        check(to, size, 30 + i, where);
        fill(from, size, 40 + i);
        __memcpy_chk(to, from, size, sizeof to);
        check(to, size, 40 + i, where);
    }
    fill(from, 64 * KIB, 50);
    memmove(from + 1, from, 64 * KIB);
    check(from + 1, 64 * KIB, 50, where);
    memmove(from, from + 1, 64 * KIB);
    check(from, 64 * KIB, 50, where);
}

#ifdef WITH_IFUNC
static bool resolver_ran;

static int chosen_body(void)
{
    return 7;
}

static int (*choose(void))(void)
{
    /* No wrong() here: libc's own start-up may still be under way. */
    static volatile char from[256 * KIB] = "pattern", to[256 * KIB];
    memcpy((void *)to, (void *)from, sizeof to);
    resolver_ran = to[0] == 'p' && to[6] == 'n' && to[7] == 0;
    return chosen_body;
}

static int chosen(void) __attribute__((ifunc("choose")));
#endif

static void before_all_constructors(void)
{
    copy_every_way(".preinit_array");
}

__attribute__((section(".preinit_array"), used)) static void (*early)(void) =
    before_all_constructors;

__attribute__((constructor(101))) static void first_constructor(void)
{
    copy_every_way("constructor");
}

int main(void)
{
#ifdef WITH_IFUNC
    if (chosen() != 7 || !resolver_ran)
        wrong("the IFUNC resolver copied wrong");
#endif
    copy_every_way("main");
    copy_once(8 * MIB, 1, "main");
    return 0;
}
