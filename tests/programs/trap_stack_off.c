/* Callers that do not keep to the calling convention: hand-written assembly and JITs whose stack is
 * 8 bytes off. libc's own functions do not mind.
 */
#include "trap.h"
#include "pattern.h"

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

int main(void)
{
    void *const functions[] = {memcpy,  memmove,  mempcpy,      __mempcpy,     bcopy,
                               wmemcpy, wmemmove, __memcpy_chk, __memmove_chk, __mempcpy_chk};
    for (size_t size = 4 * KIB; size <= 16 * MIB; size *= 16)
        for (int i = 0; i < 50; i++) {
            void *function = functions[i % 10];
            bool wide = function == (void *)wmemcpy || function == (void *)wmemmove;
            struct blocks b = map_blocks(size);
            fill(b.from, size, i);
            if (function == (void *)bcopy)
                call_off(b.from, b.to, size, size, function);
            else
                call_off(b.to, b.from, size / (wide ? sizeof(wchar_t) : 1), size, function);
            check(b.to, size, i, "called with its stack 8 bytes off");
            unmap_blocks(b);
        }
    return 0;
}
