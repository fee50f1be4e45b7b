/* A daemon of root gives up rights after it has copied. Later copies must be right, and no worker
 * may go on with root's rights: an attacker in the program would find them there.
 *
 *   idle      setuid; copies a little, rests and copies again
 *   threaded  like idle, with other threads copying
 *   busy      setuid; copies on without a rest
 *   at-once   setuid; looks at all threads right afterwards
 *   capset    like at-once, with capabilities
 *   numbers   threads have user numbers of their own, as a file server's have: they do not send
 *             each other's workers away
 */
#include "trap.h"

extern int capset(void *, const void *);

static struct blocks b;
static bool users_too;

/* Within `patience` milliseconds, in which a worker that was sent away gets a CPU to leave. Idle
 * ones that are not sent away stay for five seconds. */
static void expect_no_rights(int patience)
{
    struct task all[MOST_TASKS];
    for (int ms = 0;; ms += 10) {
        const struct task *found = NULL;
        for (int i = tasks_of(getpid(), all) - 1; i >= 0; i--)
            if (all[i].capabilities || (users_too && (!all[i].user || !all[i].effective_user)))
                found = &all[i];
        if (!found)
            return;
        if (ms >= patience)
            wrong("thread %d still has the capabilities %llx, as user %u", found->tid,
                  found->capabilities, found->effective_user);
        sleep_ms(10);
    }
}

static void drop_root(void)
{
    users_too = true;
    if (setgid(54321) || setuid(54321))
        wrong("setuid after a copy: %s", strerror(errno));
    if (getuid() != 54321 || geteuid() != 54321)
        wrong("setuid did not change the user");
}

static void drop_capabilities(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
    if (capset(&header, none))
        wrong("capset after a copy: %s", strerror(errno));
}

static void look_at_once(void (*drop)(void))
{
    b = map_blocks(4 * MIB);
    copy_checked(b, 1, "before");
    expect_workers(b, "before");
    copy_checked(b, 2, "just before");
    long begun = clock_ms();
    drop();
    expect_no_rights(waited_in_vain(begun) ? 60000 : 0);
    copy_checked(b, 3, "afterwards");
    expect_workers(b, "afterwards");
}

static void setuid_at_once(void)
{
    look_at_once(drop_root);
}

static void capset_at_once(void)
{
    look_at_once(drop_capabilities);
}

static void idle(void)
{
    b = map_blocks(32 * MIB);
    copy_checked(b, 1, "copy of root");
    drop_root();
    for (int i = 2; i < 6; i++)
        copy_checked(b, i, "copy after setuid");
    have_workers_leave();
    copy_checked(b, 7, "copy after setuid and idleness");
    expect_no_rights(0);
}

static void threaded(void)
{
    pthread_t threads[2];
    copy_once(32 * MIB, 1, "copy of root");
    start_copiers(threads, 2, 512 * KIB);
    drop_root();
    copy_once(32 * MIB, 2, "copy after setuid");
    stop_copiers(threads, 2);
    have_workers_leave();
    copy_once(32 * MIB, 7, "copy after setuid and idleness");
    expect_no_rights(0);
}

static void busy(void)
{
    b = map_blocks(2 * MIB); /* no time to be idle */
    copy_checked(b, 1, "copy of root");
    drop_root();
    for (int i = 2; i < 150; i++)
        copy_checked(b, i, "copy after setuid");
    expect_no_rights(3000);
}

static void *copy_as_user(void *user)
{
    /* The system call changes the user of this thread only. */
    if (syscall(SYS_setresuid, -1, (long)user, -1))
        cannot("no user number for one thread: %s", strerror(errno));
    return copy_until_stopped((void *)(512 * KIB));
}

/* Counts the different workers of half a second. */
static void numbers(void)
{
    static int seen[4096];
    struct task all[MOST_TASKS];
    int count = 0;
    copy_once(512 * KIB, 1, "before the others");
    pthread_t one = start_thread(copy_as_user, (void *)54321);
    pthread_t two = start_thread(copy_as_user, (void *)54322);
    for (long begun = clock_ms(); clock_ms() - begun < 500; sleep_ms(1))
        for (int i = tasks_of(getpid(), all) - 1; i >= 0; i--) {
            int at = 0;
            while (at < count && seen[at] != all[i].tid)
                at++;
            if (is_worker(&all[i]) && at == count && count < 4096)
                seen[count++] = all[i].tid;
        }
    copiers_stop = true;
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    if (count > 30)
        wrong("%d workers came and went", count);
    if (workers_expected() && count == 0)
        wrong("no worker came");
}

static void set_up(void)
{
    if (geteuid() != 0)
        cannot("only root can drop privileges");
}

SCENES(set_up(), {"idle", idle}, {"threaded", threaded}, {"busy", busy},
       {"at-once", setuid_at_once}, {"capset", capset_at_once}, {"numbers", numbers})
