/* Calls right after a copy that count the threads of the process. Idle workers must be gone.
 *
 *   fork     /proc/self/task afterwards, in parent and child: Python warns of other threads
 *   unshare  the user namespace: for processes of one thread
 *   setns    the mount namespace: for processes that share their directory with no other
 */
#include "trap.h"

static struct blocks b;

static void fork_alone(void)
{
    for (int round = 0; round < rounds(30); round++) {
        copy_checked(b, round, "before fork");
        if (round % 3 == 0)
            expect_workers(b, "before fork");
        long begun = clock_ms();
        pid_t child = fork();
        int threads = count_threads();
        bool too_busy = waited_in_vain(begun);
        if (child == 0) {
            copy_checked(b, 100 + round, "child");
            _exit(threads != 1);
        }
        expect_success(child, "child of fork");
        if (threads != 1 && !too_busy)
            wrong("%d threads right after fork, round %d", threads, round);
    }
}

static void enter_namespace(bool own_user_namespace)
{
    int mounts = open("/proc/self/ns/mnt", O_RDONLY);
    copy_checked(b, 1, "before");
    expect_workers(b, "before");
    copy_checked(b, 2, "just before");
    long begun = clock_ms();
    if (own_user_namespace ? unshare(CLONE_NEWUSER) : setns(mounts, CLONE_NEWNS)) {
        if (errno != EINVAL)
            cannot("not permitted here: %s", strerror(errno));
        if (!waited_in_vain(begun))
            wrong("the call sees other threads");
    }
    copy_checked(b, 3, "afterwards");
    expect_workers(b, "afterwards");
}

static void unshare_user(void)
{
    enter_namespace(true);
}

static void set_mounts(void)
{
    enter_namespace(false);
}

SCENES(b = map_blocks(4 * MIB), {"fork", fork_alone}, {"unshare", unshare_user},
       {"setns", set_mounts})
