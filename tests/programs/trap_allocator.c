/* Works its allocator hard from several threads and over fork, for a run beside jemalloc,
 * tcmalloc or mimalloc: realloc moves large blocks, allocators copy under their own locks.
 */
#include "trap.h"

static void *grow_and_shrink(void *number)
{
    uint64_t seed = (uintptr_t)number * 1000;
    for (int round = 0; round < 6; round++) {
        size_t size = (16 + round) * KIB;
        char *block = malloc(size);
        fill(block, size, seed);
        for (; size < 4 * MIB; size += size / 2 / 8 * 8) {
            block = realloc(block, size + size / 2 / 8 * 8);
            if (!block)
                wrong("realloc refused");
            check(block, 16 * KIB, seed, "block that realloc moved");
            fill(block, size + size / 2 / 8 * 8, ++seed);
        }
        char *second = calloc(1, size);
        memcpy(second, block, size);
        check(second, size, seed, "copy between allocated blocks");
        block = realloc(block, 64 * KIB);
        check(block, 64 * KIB, seed, "block that realloc shrank");
        free(second);
        free(block);
    }
    return NULL;
}

static void *fork_and_allocate(void *number)
{
    for (int round = 0; !number && round < 3; round++)
        IN_CHILD("child that allocates") {
            grow_and_shrink((void *)7);
            exit(0);
        }
    return grow_and_shrink(number);
}

int main(void)
{
    grow_and_shrink((void *)5);
    in_threads(4, fork_and_allocate);
    return 0;
}
