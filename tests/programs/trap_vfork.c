/* vfork: the child lives in the parent's memory and no fork handler runs.
 *
 *   copy    the child copies a large block and leaves by _exit
 *   exec    the child executes another program
 *   first   like copy, and the child's copy is the first large one of all: workers it made would be
 *           threads of the child and die with it
 *   race    like first, with another thread's first copy at the same moment, in 80 processes: a
 *           worker that dies with the child leaves a piece undone
 *   killed  children are killed in the middle of their copies; the parent's are shared as before
 *
 * Other threads of the parent copy meanwhile, and the parent itself copies afterwards: nothing of a
 * dead child may be waited for.
 */
#include "trap.h"

static struct blocks shared;

static void vfork_and_copy(int round)
{
    fill(shared.from, shared.size, round);
    pid_t child = vfork();
    if (child == 0) {
        memcpy(shared.to, shared.from, shared.size);
        _exit(0);
    }
    expect_success(child, "child of vfork");
    check(shared.to, shared.size, round, "what the child of vfork copied");
    copy_checked(shared, 1000 + round, "parent after vfork");
}

static void vfork_and_exec(int round)
{
    (void)round;
    pid_t child = vfork();
    if (child == 0) {
        execl("/bin/true", "true", (char *)NULL);
        _exit(1);
    }
    expect_success(child, "program after vfork");
}

static atomic_bool child_copies;

static void *copy_along(void *blocks)
{
    struct blocks b = *(struct blocks *)blocks;
    while (!child_copies)
        ;
    for (int round = 0; round < 40; round++)
        memcpy(b.to, b.from, b.size);
    check(b.to, b.size, 8, "thread beside the child of vfork");
    return NULL;
}

static void race_for_first_copy(void)
{
    struct blocks beside = map_blocks(1 * MIB);
    fill(beside.from, beside.size, 8);
    fill(beside.to, beside.size, 9);
    pthread_t thread = start_thread(copy_along, &beside);
    pid_t child = vfork();
    if (child == 0) {
        child_copies = true;
        memcpy(shared.to, shared.from, shared.size);
        _exit(0);
    }
    pthread_join(thread, NULL);
    expect_success(child, "child of vfork");
    check(shared.to, shared.size, 7, "what the child of vfork copied");
}

static void race(void)
{
    fill(shared.from, shared.size, 7);
    for (int round = 0; round < rounds(80); round++)
        in_child(race_for_first_copy, "process with a race for its first copy");
    copy_checked(shared, 1, "after the races");
}

/* The parent waits in vfork, so another thread is the one to kill. */
static atomic_int copying_child;

static void *kill_children(void *count)
{
    for (int i = 0; i < *(int *)count; i++) {
        while (copying_child == 0)
            ;
        pid_t child = copying_child;
        usleep(100 + i % 16 * 100);
        copying_child = 0;
        kill(child, SIGKILL);
    }
    return NULL;
}

static void kill_in_the_middle_of_copies(void)
{
    int count = rounds(60);
    pthread_t killer = start_thread(kill_children, &count);
    for (int round = 0; round < count; round++) {
        pid_t child = vfork();
        if (child == 0) {
            copying_child = getpid();
            for (;;)
                memcpy(shared.to, shared.from, shared.size);
        }
        int status;
        if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status))
            wrong("the child was not killed: status 0x%x", status);
    }
    pthread_join(killer, NULL);
    for (int round = 0; round < 100; round++)
        copy_checked(shared, 200 + round, "parent after its children were killed");
}

static void killed(void)
{
    copy_checked(shared, 1, "before vfork");
    kill_in_the_middle_of_copies();
}

static void in_rounds(void (*work)(int))
{
    pthread_t threads[2];
    start_copiers(threads, 2, 512 * KIB);
    for (int round = 2; round < 2 + rounds(98); round++)
        work(round);
    stop_copiers(threads, 2);
    for (int round = 100; round < 103; round++) {
        have_workers_leave(); /* the next child would be the one to make new ones */
        vfork_and_copy(round);
    }
    copiers_stop = false;
    start_copiers(threads, 2, 512 * KIB);
    for (int round = 103; round < 120; round++)
        vfork_and_copy(round);
    stop_copiers(threads, 2);
    have_workers_leave(); /* again: new workers show that copies are offloaded */
    copy_checked(shared, 5000, "parent at the end");
    expect_workers(shared, "parent after all children");
}

static void copy(void)
{
    copy_checked(shared, 1, "before vfork");
    in_rounds(vfork_and_copy);
}

static void exec(void)
{
    copy_checked(shared, 1, "before vfork");
    in_rounds(vfork_and_exec);
}

static void first(void)
{
    vfork_and_copy(1);
    in_rounds(vfork_and_copy);
}

SCENES(shared = map_blocks(2 * MIB), {"copy", copy}, {"exec", exec}, {"first", first},
       {"race", race}, {"killed", killed})
