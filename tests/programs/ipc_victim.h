/* Shared by ipc_victim.c and ipc_deputy.c: where the bytes lie. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <sys/mman.h>

/* Above what a program's heap may take of the first gigabyte. */
#define SECRET_AT 0x200000000l
enum { SECRET_LEN = 4 << 20, SECRET = 0x5a, TOUCHED = 3 };

static inline unsigned char *lay_down_secret(void)
{
    unsigned char *at = mmap((void *)SECRET_AT, SECRET_LEN, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (at == MAP_FAILED)
        return NULL;
    for (volatile size_t i = 0; i < SECRET_LEN; i++)
        at[i] = SECRET;
    return at;
}

static inline bool is_untouched(const unsigned char *at)
{
    for (volatile size_t i = 0; i < SECRET_LEN; i++)
        if (at[i] != SECRET)
            return false;
    return true;
}
