/* Callers that do not keep to the calling convention: hand-written assembly and JITs whose
 * stack is 8 bytes off. libc's own functions do not mind.
 */
#include "trap.h"
#include <wchar.h>

extern void *__memcpy_chk(void *, const void *, size_t, size_t);
extern void *__memmove_chk(void *, const void *, size_t, size_t);
extern void *__mempcpy_chk(void *, const void *, size_t, size_t);
extern void *__mempcpy(void *, const void *, size_t);

/* call_off(to, from, size, room, function) */
void *call_off(void *, const void *, size_t, size_t, void *);
__asm__("call_off:\n"
        "\tpush %rbp\n"
        "\tmov %rsp, %rbp\n"
        "\tand $-16, %rsp\n"
        "\tsub $8, %rsp\n"
        "\tcall *%r8\n"
        "\tleave\n"
        "\tret\n");

static void copy_by(void *function, const char *name, size_t size, size_t unit, bool turned)
{
    static uint64_t seed;
    struct blocks b = map_blocks(size);
    fill(b.from, size, ++seed);
    if (turned)
        call_off(b.from, b.to, size, size, function);
    else
        call_off(b.to, b.from, size / unit, size, function);
    check(b.to, size, seed, name);
    unmap_blocks(b);
}

int main(void)
{
    for (size_t size = 4 * KIB; size <= 16 * MIB; size *= 16)
        for (int round = 0; round < 5; round++) {
            copy_by(memcpy, "memcpy", size, 1, false);
            copy_by(memmove, "memmove", size, 1, false);
            copy_by(mempcpy, "mempcpy", size, 1, false);
            copy_by(__mempcpy, "__mempcpy", size, 1, false);
            copy_by(bcopy, "bcopy", size, 1, true);
            copy_by(wmemcpy, "wmemcpy", size, sizeof(wchar_t), false);
            copy_by(wmemmove, "wmemmove", size, sizeof(wchar_t), false);
            copy_by(__memcpy_chk, "__memcpy_chk", size, 1, false);
            copy_by(__memmove_chk, "__memmove_chk", size, 1, false);
            copy_by(__mempcpy_chk, "__mempcpy_chk", size, 1, false);
        }
    return 0;
}
