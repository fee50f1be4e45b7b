/* Many threads copy at once, each its own size. First argument: how many. */
#include "trap.h"

static pthread_barrier_t start;

static void *copy_own_size(void *number)
{
    uintptr_t own = (uintptr_t)number;
    struct blocks b = map_blocks((8 + own * 37 % 1500) * KIB + own * 8);
    pthread_barrier_wait(&start);
    for (int round = 0; round < 10; round++)
        copy_checked(b, own << 32 | round, "one of many threads");
    unmap_blocks(b);
    return NULL;
}

int main(int count, char **words)
{
    int many = count > 1 ? atoi(words[1]) : 64;
    pthread_t threads[1000];
    pthread_barrier_init(&start, NULL, many);
    for (int i = 0; i < many; i++)
        threads[i] = start_thread(copy_own_size, (void *)(uintptr_t)i);
    for (int i = 0; i < many; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
