/* For a C library that is not glibc: large copies, fills and comparisons, a fork, a thread and a
 * handler, all of which go through functions that the library stands in front of.
 */
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 3 << 20 };

static sigjmp_buf back;

static void caught(int signal)
{
    siglongjmp(back, signal);
}

static void *copies(void *count)
{
    char *from = malloc(SIZE), *to = malloc(SIZE);
    for (int i = 0; i < *(int *)count; i++) {
        memset(from, i, SIZE);
        memcpy(to, from, SIZE);
        memmove(to + 1, to, SIZE - 1);
        if (memcmp(to, from, SIZE))
            exit(1);
    }
    free(from);
    free(to);
    return NULL;
}

int main(void)
{
    int half = 50, status = 0;
    pthread_t thread;
    pid_t child = fork();
    if (child == 0) {
        copies(&half);
        _exit(0);
    }
    waitpid(child, &status, 0);
    if (status)
        return 1;
    pthread_create(&thread, NULL, copies, &half);
    copies(&half);
    pthread_join(thread, NULL);
    signal(SIGSEGV, caught);
    if (!sigsetjmp(back, 1)) {
        memcpy((char *)8, &half, 4);
        return 1;
    }
    puts("copied 100 times, caught one");
    return 0;
}
