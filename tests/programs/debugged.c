/* Copies in a function of its own, for a debugger to stop in. */
#include "pattern.h"

enum { LEN = 8 << 20 };

__attribute__((noinline)) static void copy_here(void *dst, const void *src)
{
    memcpy(dst, src, LEN);
    __asm__ volatile("" ::: "memory"); /* no tail call: the frame stays */
}

int main(void)
{
    byte *dst = pages_between_guards(LEN), *src = pages_between_guards(LEN);
    for (int round = 0; round < 1000; round++)
        copy_here((void *)dst, (void *)src);
    return 0;
}
