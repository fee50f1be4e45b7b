/* Copies 1 MiB five times, then has one child for each argument, one after the other, and
 * each child copies 1 MiB as often as its argument says. Prints "parent PID" and
 * "child PID COPIES" lines. A child that finds a report of its parent's must show only
 * copies of its own.
 */
#define _GNU_SOURCE
#include "same.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 1 << 20 };

static unsigned char *from, *to;

static void copy(int times)
{
    for (int i = 0; i < times; i++) {
        from[i] = i + 1;
        memcpy(to, from, SIZE);
        if (!same(to, from, SIZE))
            _exit(1);
    }
}

int main(int words, char **word)
{
    from = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    to = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    copy(5);
    printf("parent %d\n", getpid());
    for (int i = 1; i < words; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child < 0)
            return 1;
        if (child == 0) {
            printf("child %d %s\n", getpid(), word[i]);
            copy(atoi(word[i]));
            exit(0);
        }
        int status;
        if (waitpid(child, &status, 0) != child || status)
            return 1;
    }
    return 0;
}
