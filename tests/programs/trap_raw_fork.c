/* Forks that run no fork handler: the system calls themselves, and _Fork().
 *
 * The child has its parent's memory, where workers seem to live and other
 * threads' copies seem to be under way. It must copy right and not wait for them, and
 * with "exit" it must not report them.
 */
#include "trap.h"

static pid_t fork_without_handlers(int round)
{
    switch (round % 3) {
    case 0:
        return syscall(SYS_fork);
    case 1:
        return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    default:
        return _Fork();
    }
}

static void copy_and_fork_again(struct blocks b, int round)
{
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

int main(int count, char **words)
{
    struct blocks b = map_blocks(1 * MIB);
    copy_checked(b, 1, "before");
    if (count > 1 && !strcmp(words[1], "exit")) {
        for (int round = 0; round < 3; round++) {
            pid_t child = fork_without_handlers(round);
            if (child == 0)
                exit(0); /* with all that is to be done at exit */
            expect_success(child, "child that only exits");
        }
        return 0;
    }
    pid_t child = fork_without_handlers(0);
    if (child == 0)
        copy_and_fork_again(b, 1000);
    expect_success(child, "child of an idle process");

    pthread_t threads[3];
    start_copiers(threads, 3, 256 * KIB);
    for (int round = 0; round < rounds(70); round++) {
        child = fork_without_handlers(round);
        if (child == 0)
            copy_and_fork_again(b, round);
        expect_success(child, "child of a busy process");
    }
    stop_copiers(threads, 3);
    copy_checked(b, 2, "after");
    return 0;
}
