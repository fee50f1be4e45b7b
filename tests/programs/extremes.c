/*
 * extremes CASE [N]: lengths that are mistakes.
 *
 *   nothing  zero bytes, also between pointers that point nowhere
 *   itself   a region copied onto itself
 *   wrap     wide characters whose length in bytes wraps round to 36: glibc copies 36 bytes
 *   NAME N   N bytes, more than there are, perhaps more than there are addresses: must die
 *            of SIGSEGV, as without us
 */
#include "pattern.h"

enum { LEN = 1 << 20 };

int main(int argc, char **argv)
{
    struct side dst = { pages_between_guards(LEN), LEN, 0, 0 };
    struct side src = { pages_between_guards(LEN), LEN, 0, 0 };
    if (argc < 2)
        fail("usage: extremes nothing|itself|wrap|NAME N");
    lay_down(&dst, DESTINATION);
    lay_down(&src, SOURCE);
    if (!strcmp(argv[1], "nothing")) {
        for (int i = 0; i < OPERATIONS; i++) {
            operations[i].call((void *)dst.base, (void *)src.base, 0);
            operations[i].call(NULL, NULL, 0);
            operations[i].call((void *)(dst.base - 1), (void *)8, 0);
        }
        expect_copied(&dst, &src, "zero bytes");
    } else if (!strcmp(argv[1], "itself")) {
        for (int i = 0; i < OPERATIONS; i++)
            operations[i].call((void *)src.base, (void *)src.base, LEN);
        expect_untouched(&src, SOURCE, "copied onto itself");
    } else if (!strcmp(argv[1], "wrap")) {
        size_t wrapping = ((size_t)1 << 62) + 9;
        src.len = dst.len = 36;
        lay_down(&dst, DESTINATION);
        lay_down(&src, SOURCE);
        if (wmemcpy((void *)dst.base, (void *)src.base, wrapping) != (void *)dst.base)
            fail("wmemcpy returned something else than its destination");
        expect_copied(&dst, &src, "wmemcpy");
        lay_down(&dst, DESTINATION);
        if (wmemmove((void *)dst.base, (void *)src.base, wrapping) != (void *)dst.base)
            fail("wmemmove returned something else than its destination");
        expect_copied(&dst, &src, "wmemmove");
    } else if (argc == 3) {
        operation_named(argv[1])->call((void *)dst.base, (void *)src.base,
                                       strtoul(argv[2], NULL, 0));
        fail("%s of %s bytes came back", argv[1], argv[2]);
    } else {
        fail("%s wants a length", argv[1]);
    }
    return 0;
}
