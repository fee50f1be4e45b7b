/* Small and large copies by functions that a further interposed library stands in front of: its
 * moving functions call the copying ones by name, as a tracing or checking library may. With
 * LIBRARY defined this file is that library. With UNTYPED its memmove has no type, as in assembly
 * that names none; with COPYING it has the copying functions instead, which call no other; with OWN
 * its functions have versions of its own, so that only itself calls them.
 */
#include "trap.h"

extern void *__memcpy_chk(void *, const void *, size_t, size_t);
extern void *__memmove_chk(void *, const void *, size_t, size_t);
#ifdef LIBRARY

int interposed_calls;
#ifdef OWN
int interposed_own = 1;
#endif

#ifdef COPYING
int interposed_copying = 1;

void *memcpy(void *to, const void *from, size_t size)
{
    interposed_calls++;
    for (size_t i = 0; i < size; i++)
        ((volatile char *)to)[i] = ((const char *)from)[i];
    return to;
}

wchar_t *wmemcpy(wchar_t *to, const wchar_t *from, size_t count)
{
    return memcpy(to, from, count * sizeof(wchar_t));
}

void *__memcpy_chk(void *to, const void *from, size_t size, size_t room)
{
    return size <= room ? memcpy(to, from, size) : NULL;
}

#else
#ifdef UNTYPED
#define memmove counted_memmove
__asm__(".globl memmove\nmemmove: jmp counted_memmove@PLT");
#endif

void *memmove(void *to, const void *from, size_t size)
{
    interposed_calls++;
    return memcpy(to, from, size);
}

void *__memmove_chk(void *to, const void *from, size_t size, size_t room)
{
    interposed_calls++;
    return __memcpy_chk(to, from, size, room);
}

wchar_t *wmemmove(wchar_t *to, const wchar_t *from, size_t count)
{
    interposed_calls++;
    return wmemcpy(to, from, count);
}

#endif
#else

extern int interposed_calls __attribute__((weak)), interposed_copying __attribute__((weak)),
    interposed_own __attribute__((weak));

static void copy_by_all(struct blocks b)
{
    /* The first way that goes through the other library. */
    int first = &interposed_own ? -1 : &interposed_copying ? 0 : 1;
    for (int way = 0; way < 6; way++) {
        int before = &interposed_calls ? interposed_calls : 0;
        fill(b.from, b.size, b.size + way);
        switch (way) {
        case 0: memcpy(b.to, b.from, b.size); break;
        case 1: memmove(b.to, b.from, b.size); break;
        case 2: wmemcpy(b.to, b.from, b.size / sizeof(wchar_t)); break;
        case 3: wmemmove(b.to, b.from, b.size / sizeof(wchar_t)); break;
        case 4: __memcpy_chk(b.to, b.from, b.size, b.size); break;
        case 5: __memmove_chk(b.to, b.from, b.size, b.size); break;
        }
        check(b.to, b.size, b.size + way, "interposed");
        /* Large ones may be carried without it. */
        if (&interposed_calls && b.size < 64 * KIB && interposed_calls - before != (way % 2 == first))
            wrong("way %d: the other library was called %d times", way,
                  interposed_calls - before);
    }
}

int main(void)
{
    copy_by_all(map_blocks(64));
    copy_by_all(map_blocks(4 * KIB));
    copy_by_all(map_blocks(8 * MIB));
    return 0;
}
#endif
