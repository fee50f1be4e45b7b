/* Works its allocator hard from several threads and over fork, for a run beside
 * jemalloc, tcmalloc or mimalloc: realloc moves large blocks, allocators copy
 * while they hold locks of their own.
 */
#include "trap.h"

static void *grow_and_shrink(void *number)
{
    uint64_t seed = (uintptr_t)number;
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

int main(void)
{
    pthread_t threads[4];
    grow_and_shrink((void *)1);
    for (int i = 0; i < 4; i++)
        threads[i] = start_thread(grow_and_shrink, (void *)(uintptr_t)(1000 * (i + 1)));
    for (int round = 0; round < 3; round++) {
        pid_t child = fork();
        if (child == 0) {
            grow_and_shrink((void *)7);
            exit(0);
        }
        expect_success(child, "child that allocates");
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
