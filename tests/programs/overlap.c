/*
 * overlap NAME DISTANCE SIZE: copies SIZE bytes onto themselves, DISTANCE bytes further up
 * and, in a second copy, as many further down.
 *
 * The result must be that of a copy through a third place, for memcpy as well: glibc's
 * memcpy is its memmove on x86-64, and programs have come to rely on it.
 */
#include "pattern.h"

static void copy_onto_itself(const struct operation *operation, size_t to, size_t from, size_t len)
{
    size_t size = (to > from ? to : from) + len;
    byte *arena = pages_between_guards(size);
    unsigned char *want = malloc(size);
    for (size_t i = 0; i < size; i++)
        want[i] = arena[i] = stamp(SOURCE, i);
    for (size_t i = 0; i < len; i++)
        want[to + i] = stamp(SOURCE, from + i);
    operation->call((void *)(arena + to), (void *)(arena + from), len);
    for (size_t i = 0; i < size; i++)
        if (arena[i] != want[i])
            fail("%s of %zu bytes from %zu to %zu: byte %zu is %#x, want %#x", operation->name, len,
                 from, to, i, arena[i], want[i]);
    free(want);
    release_pages_between_guards(arena, size);
}

int main(int argc, char **argv)
{
    if (argc != 4)
        fail("usage: overlap NAME DISTANCE SIZE");
    const struct operation *operation = operation_named(argv[1]);
    size_t distance = strtoul(argv[2], NULL, 0), len = strtoul(argv[3], NULL, 0);
    copy_onto_itself(operation, distance, 0, len);
    copy_onto_itself(operation, 0, distance, len);
    return 0;
}
