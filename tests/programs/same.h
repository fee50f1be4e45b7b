/* Whether two blocks are the same, for victims whose large calls are counted: memcmp is one. */
#include <stddef.h>

static inline int same(const unsigned char *a, const unsigned char *b, size_t size)
{
    size_t at = 0;
    while (at < size && a[at] == b[at])
        at++;
    return at == size;
}
