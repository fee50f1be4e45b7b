/* Makes one copy of 1 MiB and ends in the manner named by its first argument.
 * The exit status is 7 where the manner lets the program choose.
 */
#define _GNU_SOURCE
#include "same.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { SIZE = 1 << 20, STATUS = 7 };

static unsigned char *from, *to;

static void copy(void)
{
    memcpy(to, from, SIZE);
    if (!same(to, from, SIZE))
        _exit(1);
}

static void *leave_by_exit(void *unused)
{
    (void)unused;
    exit(STATUS);
}

static void *copy_later(void *unused)
{
    (void)unused;
    usleep(20000);
    copy();
    return NULL;
}

static void *copy_for_ever(void *unused)
{
    (void)unused;
    unsigned char *own = malloc(SIZE);
    while (own)
        memcpy(own, from, SIZE);
    return NULL;
}

static void exit_again(void)
{
    copy();
    exit(STATUS);
}

static void wait_for_ever(void)
{
    for (;;)
        pause();
}

static void start(void *(*work)(void *))
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, NULL))
        _exit(1);
}

static void leave_at_once(int signal)
{
    (void)signal;
    _exit(STATUS);
}

static void *leave_too(void *unused)
{
    (void)unused;
    _exit(STATUS);
}

static sigjmp_buf before_abort;

static void jump_back(int signal)
{
    (void)signal;
    siglongjmp(before_abort, 1);
}

int main(int words, char **word)
{
    const char *manner = words > 1 ? word[1] : "return";
    from = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    to = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int at = 0; at < SIZE; at++)
        from[at] = at * 7 ^ at >> 8;
    copy();

    if (!strcmp(manner, "return"))
        return STATUS;
    if (!strcmp(manner, "replaced")) { /* its file, as by an upgrade */
        unlink(word[0]);
        return STATUS;
    }
    if (!strcmp(manner, "exit"))
        exit(STATUS);
    if (!strcmp(manner, "exit-in-thread")) {
        start(leave_by_exit);
        wait_for_ever();
    }
    if (!strcmp(manner, "exit-in-handler")) { /* two copies */
        atexit(exit_again);
        return 0;
    }
    if (!strcmp(manner, "last-thread")) { /* two copies, status 0 */
        start(copy_later);
        pthread_exit(NULL);
    }
    if (!strcmp(manner, "exit-while-copying")) {
        for (int i = 0; i < 3; i++)
            start(copy_for_ever);
        usleep(20000);
        exit(STATUS);
    }
    if (!strcmp(manner, "_exit"))
        _exit(STATUS);
    if (!strcmp(manner, "_Exit"))
        _Exit(STATUS);
    if (!strcmp(manner, "_exit-in-handler")) { /* with next to no stack */
        stack_t small = {.ss_size = sysconf(_SC_MINSIGSTKSZ) + 1024};
        small.ss_sp = mmap(NULL, small.ss_size, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        struct sigaction action = {.sa_handler = leave_at_once, .sa_flags = SA_ONSTACK};
        sigaltstack(&small, NULL);
        sigaction(SIGUSR1, &action, NULL);
        raise(SIGUSR1);
    }
    if (!strcmp(manner, "_exit-while-copying")) {
        for (int i = 0; i < 3; i++)
            start(copy_for_ever);
        usleep(20000);
        for (int i = 0; i < 3; i++)
            start(leave_too);
        wait_for_ever();
    }
    if (!strcmp(manner, "abort-and-jump")) { /* a handler keeps the process alive: two copies */
        signal(SIGABRT, jump_back);
        if (!sigsetjmp(before_abort, 1))
            abort();
        copy();
        return STATUS;
    }
    if (!strcmp(manner, "quick_exit"))
        quick_exit(STATUS);
    if (!strcmp(manner, "abort")) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        abort();
    }
    if (!strcmp(manner, "kill"))
        kill(getpid(), SIGKILL);
    if (!strcmp(manner, "daemon")) { /* three more copies by the daemon; status 0 */
        if (daemon(0, 0))
            return 1;
        for (int i = 0; i < 3; i++)
            copy();
        return 0;
    }
    if (!strcmp(manner, "small-file-limit")) { /* no file may grow any more */
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0});
        return STATUS;
    }
    if (!strcmp(manner, "own-stderr")) { /* its own file takes the place of stderr */
        close(2);
        if (open(word[2], O_WRONLY | O_CREAT | O_TRUNC, 0666) != 2)
            return 1;
        fprintf(stderr, "a line of the program\n");
        return STATUS;
    }
    if (!strcmp(manner, "own-stderr-by-dup2")) {
        int fd = open(word[2], O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(fd, 2);
        close(fd);
        fprintf(stderr, "a line of the program\n");
        return STATUS;
    }
    if (!strcmp(manner, "own-stderr-by-freopen")) {
        if (!freopen(word[2], "w", stderr))
            return 1;
        fprintf(stderr, "a line of the program\n");
        return STATUS;
    }
    if (!strcmp(manner, "closed-stderr")) {
        close(2);
        return STATUS;
    }
    fprintf(stderr, "no manner %s\n", manner);
    return 1;
}
