/* Makes one copy of 1 MiB and ends in the manner named by its first argument. The exit status is 7
 * where the manner lets the program choose.
 */
#include "trap.h"

enum { STATUS = 7 };

static struct blocks b;

static void copy(void)
{
    memcpy(b.to, b.from, b.size);
    check(b.to, b.size, 1, "copy");
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
    for (void *own = map(b.size);;)
        memcpy(own, b.from, b.size);
    return unused;
}

static void start_copying(void)
{
    for (int i = 0; i < 3; i++)
        start_thread(copy_for_ever, NULL);
    usleep(20000);
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

static int say_line(void)
{
    fprintf(stderr, "a line of the program\n");
    return STATUS;
}

int main(int words, char **word)
{
    const char *manner = words > 1 ? word[1] : "return";
    b = map_blocks(MIB);
    fill(b.from, b.size, 1);
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
        start_thread(leave_by_exit, NULL);
        wait_for_ever();
    }
    if (!strcmp(manner, "exit-in-handler")) { /* two copies */
        atexit(exit_again);
        return 0;
    }
    if (!strcmp(manner, "last-thread")) { /* two copies, status 0 */
        start_thread(copy_later, NULL);
        pthread_exit(NULL);
    }
    if (!strcmp(manner, "exit-while-copying")) {
        start_copying();
        exit(STATUS);
    }
    if (!strcmp(manner, "_exit"))
        _exit(STATUS);
    if (!strcmp(manner, "_Exit"))
        _Exit(STATUS);
    if (!strcmp(manner, "_exit-in-handler")) { /* with next to no stack */
        stack_t small = {.ss_size = sysconf(_SC_MINSIGSTKSZ) + 1024};
        small.ss_sp = map(small.ss_size);
        sigaltstack(&small, NULL);
        handle(SIGUSR1, leave_at_once, SA_ONSTACK);
        raise(SIGUSR1);
    }
    if (!strcmp(manner, "_exit-while-copying")) {
        start_copying();
        for (int i = 0; i < 3; i++)
            start_thread(leave_too, NULL);
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
        return say_line();
    }
    if (!strcmp(manner, "own-stderr-by-dup2")) {
        int fd = open(word[2], O_WRONLY | O_CREAT | O_TRUNC, 0666);
        dup2(fd, 2);
        close(fd);
        return say_line();
    }
    if (!strcmp(manner, "own-stderr-by-freopen")) {
        if (!freopen(word[2], "w", stderr))
            return 1;
        return say_line();
    }
    if (!strcmp(manner, "closed-stderr")) {
        close(2);
        return STATUS;
    }
    fprintf(stderr, "no manner %s\n", manner);
    return 1;
}
