/* THREADS threads each make COUNT copies of SIZE bytes at once; a thread checks its last. */
#include "same.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static size_t size;
static int count;

static void *copy(void *number)
{
    unsigned char *from = malloc(size), *to = malloc(size);
    for (size_t at = 0; at < size; at++)
        from[at] = at * 13 + (size_t)number;
    for (int i = 0; i < count; i++) {
        from[i % size] ^= i;
        memcpy(to, from, size);
    }
    return same(to, from, size) ? NULL : "wrong";
}

int main(int words, char **word)
{
    if (words != 4)
        return 2;
    int threads = atoi(word[1]);
    size = strtoull(word[2], NULL, 10);
    count = atoi(word[3]);
    pthread_t thread[64];
    for (int i = 0; i < threads; i++)
        if (pthread_create(&thread[i], NULL, copy, (void *)(size_t)i))
            return 1;
    for (int i = 0; i < threads; i++) {
        void *wrong;
        if (pthread_join(thread[i], &wrong) || wrong)
            return 1;
    }
    return 0;
}
