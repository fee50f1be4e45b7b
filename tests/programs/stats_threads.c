/* THREADS threads each make COUNT copies of SIZE bytes at once. */
#include "trap.h"

static size_t size;
static int copies;

static void *copy(void *number)
{
    struct blocks b = map_blocks(size);
    fill(b.from, size, (uintptr_t)number);
    for (int i = 0; i < copies; i++)
        memcpy(b.to, b.from, size);
    check(b.to, size, (uintptr_t)number, "copy");
    return NULL;
}

int main(int count, char **words)
{
    if (count != 4)
        wrong("usage: stats_threads THREADS SIZE COUNT");
    pthread_t threads[64];
    size = strtoull(words[2], NULL, 10);
    copies = atoi(words[3]);
    for (uintptr_t i = 0; i < strtoul(words[1], NULL, 10); i++)
        threads[i] = start_thread(copy, (void *)i);
    for (int i = 0; i < atoi(words[1]); i++)
        pthread_join(threads[i], NULL);
    return 0;
}
