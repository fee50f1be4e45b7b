/* Copies in .preinit_array, before the constructor of any library, in the program's own first
 * constructor, and WITH_IFUNC in an IFUNC resolver, while the program is being relocated.
 */
#include "trap.h"

extern void *__memcpy_chk(void *to, const void *from, size_t size, size_t room);

static void copy_every_way(const char *where)
{
    static uint64_t from[16 * KIB], to[16 * KIB];
    size_t sizes[] = {8, 64, 4 * KIB, 128 * KIB};
    for (int i = 0; i < 16; i++) {
        size_t size = sizes[i / 4];
        fill(from, size, 10 + i);
        switch (i % 4) {
        case 0: memcpy(to, from, size); break;
        case 1: memmove(to, from, size); break;
        case 2: __memcpy_chk(to, from, size, sizeof to); break;
        default:
            if (mempcpy(to, from, size) != (char *)to + size)
                wrong("%s: mempcpy returned something else than the end", where);
        }
        check(to, size, 10 + i, where);
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
