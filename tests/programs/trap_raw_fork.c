/* Forks that run no fork handler: the system calls themselves, and _Fork(). The child has its
 * parent's memory, in which workers seem to live and copies of other threads seem to be in flight:
 * it must copy right and not wait for them.
 *
 *   copy  children and grandchildren copy, of an idle process and of a busy one
 *   exit  children call exit, and must not report their parent's copies
 */
#include "trap.h"

static struct blocks b;

static pid_t fork_without_handlers(int round)
{
    return round % 3 == 0   ? syscall(SYS_fork)
           : round % 3 == 1 ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0)
                            : _Fork();
}

static void fork_and_copy(int round, const char *what)
{
    pid_t child = fork_without_handlers(round);
    if (child == 0) {
        for (int i = 0; i < 3; i++)
            copy_checked(b, 100 * round + i, "child");
        pid_t grandchild = fork_without_handlers(round + 1);
        if (grandchild == 0) {
            copy_checked(b, 100 * round + 9, "grandchild");
            _exit(0);
        }
        expect_success(grandchild, "grandchild");
        _exit(0);
    }
    expect_success(child, what);
}

static void copy(void)
{
    pthread_t threads[3];
    copy_checked(b, 1, "before");
    fork_and_copy(0, "child of an idle process");
    start_copiers(threads, 3, 256 * KIB);
    for (int round = 0; round < rounds(70); round++)
        fork_and_copy(round, "child of a busy process");
    stop_copiers(threads, 3);
    copy_checked(b, 2, "after");
}

static void only_exit(void)
{
    copy_checked(b, 1, "before");
    for (int round = 0; round < 3; round++) {
        pid_t child = fork_without_handlers(round);
        if (child == 0)
            exit(0);
        expect_success(child, "child that only exits");
    }
}

SCENES(b = map_blocks(1 * MIB), {"copy", copy}, {"exit", only_exit})
