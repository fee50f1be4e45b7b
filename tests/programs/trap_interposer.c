/* A further interposed library: its moving functions call the copying ones, by name, as a
 * tracing or checking library may. "calls" tells how often they were called.
 */
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>
#include <wchar.h>

int interposed_calls;

void *memmove(void *to, const void *from, size_t size)
{
    interposed_calls++;
    return memcpy(to, from, size);
}

void *__memmove_chk(void *to, const void *from, size_t size, size_t room)
{
    extern void *__memcpy_chk(void *, const void *, size_t, size_t);
    interposed_calls++;
    return __memcpy_chk(to, from, size, room);
}

wchar_t *wmemmove(wchar_t *to, const wchar_t *from, size_t count)
{
    interposed_calls++;
    return wmemcpy(to, from, count);
}
