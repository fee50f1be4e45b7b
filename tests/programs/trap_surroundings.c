/* Surroundings of a program: seccomp filters, rights that it gives up, descriptors that it closes and
 * opens, memory that it counts or locks.
 */
#include "filtered.h"
#include "older.h"

static struct blocks b;

/* ---- seccomp: copies stay right, and no thread runs without end ------------------------------- */

extern int capset(void *, const void *);

static const int making_threads[] = {SYS_clone, SYS_clone3, SYS_fork, SYS_vfork, -1};
static const int threads_and_futex[] = {SYS_clone, SYS_clone3, SYS_futex, -1};
static const int only_futex[] = {SYS_futex, -1};
static const int opening[] = {SYS_openat, SYS_clone, SYS_clone3, -1};
static const int rare[] = {SYS_mincore, SYS_membarrier, SYS_rseq, SYS_sched_setaffinity,
                           SYS_sched_setscheduler, SYS_process_vm_readv, SYS_process_vm_writev, -1};
/* What adma(7) names, and what this program needs. systemd's @system-service without @resources allows
 * all of these. */
static const int least[] = {
    /* the loader's and ours */
    SYS_arch_prctl, SYS_brk, SYS_clone, SYS_close, SYS_execve, SYS_exit, SYS_exit_group,
    SYS_futex, SYS_geteuid, SYS_getpid, SYS_getrandom, SYS_gettid, SYS_mmap, SYS_mprotect,
    SYS_munmap, SYS_openat, SYS_pread64, SYS_prctl, SYS_prlimit64, SYS_read, SYS_rseq,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_sched_getaffinity, SYS_sched_yield,
    SYS_set_robust_list, SYS_set_tid_address, SYS_write, SYS_access, SYS_newfstatat, SYS_fstat,
    /* this program's own */
    SYS_clock_nanosleep, SYS_getdents64, SYS_lseek,
    /* a report's */
    SYS_fcntl, SYS_readlinkat, SYS_rename, SYS_renameat, SYS_renameat2, SYS_rt_sigpending,
    SYS_rt_sigtimedwait, SYS_unlink, SYS_unlinkat, SYS_ftruncate, SYS_uname, SYS_lstat, SYS_stat,
    -1,
};

static const int asking[] = {SYS_prctl, SYS_clone, SYS_clone3, -1};

enum moment { BEFORE_ERRNO, BEFORE_KILL, BEFORE_ASKING, FUTEX, TSYNC, IDLE_KILL, RARE, RARE_HANDLED, OPENING,
              ASKING };

static const struct filter {
    const int *calls;
    unsigned action, flags;
} filters[] = {
    [BEFORE_ERRNO] = {threads_and_futex, SECCOMP_RET_ERRNO | EPERM, 0},
    [BEFORE_KILL] = {making_threads, SECCOMP_RET_KILL_PROCESS, 0},
    [BEFORE_ASKING] = {asking, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC},
    [FUTEX] = {only_futex, SECCOMP_RET_ERRNO | EPERM, 0},
    [TSYNC] = {threads_and_futex, SECCOMP_RET_ERRNO | EPERM, SECCOMP_FILTER_FLAG_TSYNC},
    [IDLE_KILL] = {making_threads, SECCOMP_RET_KILL_PROCESS, 0},
    [RARE] = {rare, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC},
    [RARE_HANDLED] = {rare, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC},
    [OPENING] = {opening, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC},
    [ASKING] = {asking, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC},
};

static void copy_several(const char *where)
{
    b = map_blocks(32 * MIB);
    for (int i = 0; i < 5; i++) {
        copy_checked(b, i, where);
        sleep_ms(30); /* long enough for workers to fall asleep, so that they must be woken */
    }
}

static void expect_idle(void)
{
    sleep_ms(300);
    long before = cpu_time_us();
    sleep_ms(300);
    if (cpu_time_us() - before > 100000)
        wrong("%ld us of CPU time in 300 ms of idleness", cpu_time_us() - before);
}

/* Filters before the first large copy, while workers live, or when they have come and gone. */
static void filter_now(void)
{
    const struct filter *filter = &filters[scene_how];
    if (scene_how == RARE_HANDLED)
        handle(SIGSEGV, unexpected_fault, 0);
    if (scene_how > BEFORE_ASKING) {
        copy_several("copy before the filter");
        expect_workers(b, "before the filter");
    }
    if (scene_how == IDLE_KILL)
        have_workers_leave();
    filter_calls(filter->calls, filter->action, filter->flags);
    copy_several("copy under the filter");
    if (scene_how == OPENING)
        sleep_ms(2500); /* the number of CPUs is read again every second or two */
    expect_idle();
    copy_several("copy after idleness under the filter");
}

/* Filters from the start, like a service: every call but the least kills the process. */
static void filter_all_but_the_least(void)
{
    if (!*scene_argument(0, "")) {
        filter_calls_and_rest(least, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS, 0);
        execute_again(scene_words);
    }
    copy_several("copy with the least calls");
    expect_workers(b, "with the least calls");
}

/* Leaves by exit or _exit where all but that kills; with an argument, after a large copy. */
static void leave_under_a_tight_filter(void)
{
    if (*scene_argument(0, ""))
        copy_several("copy before the filter");
    fflush(stdout);
    filter_calls_and_rest((const int[]){SYS_exit_group, -1}, SECCOMP_RET_ALLOW,
                          SECCOMP_RET_KILL_PROCESS, 0);
    if (scene_how)
        _exit(0);
}

/* ---- rights: no worker may go on with root's, for an attacker in the program would find them ---- */

static bool users_too;

static void need_root(void)
{
    if (geteuid() != 0)
        cannot("only root can drop privileges");
}

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
    MUST(!capset(&header, none));
}

/* Checks all threads right afterwards. */
static void drop_at_once(void)
{
    need_root();
    b = map_blocks(4 * MIB);
    expect_workers(b, "before");
    copy_checked(b, 2, "just before");
    long begun = clock_ms();
    (scene_how ? drop_root : drop_capabilities)();
    expect_no_rights(waited_in_vain(begun) ? 60000 : 0);
    expect_workers(b, "afterwards");
}

/* Copies a little, rests and copies again; also while other threads copy. */
static void drop_and_rest(void)
{
    pthread_t threads[2];
    need_root();
    b = map_blocks(32 * MIB);
    copy_checked(b, 1, "copy of root");
    if (scene_how)
        start_copiers(threads, 2, 512 * KIB);
    drop_root();
    for (int i = 2; i < 6; i++)
        copy_checked(b, i, "copy after setuid");
    if (scene_how)
        stop_copiers(threads, 2);
    have_workers_leave();
    copy_checked(b, 7, "copy after setuid and idleness");
    expect_no_rights(0);
}

/* Copies on without a rest. */
static void drop_and_copy_on(void)
{
    need_root();
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

/* Threads have user numbers of their own, as a file server's have, and do not send each other's workers
 * away. Counts the different workers of half a second. */
static void numbers(void)
{
    need_root();
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

/* ---- descriptors ------------------------------------------------------------------------------ */

/* With RLIMIT_NOFILE 0 no descriptor can be opened. */
static void copy_without_descriptors(void)
{
    limit_to(RLIMIT_NOFILE, 0);
    for (int i = 0; i < 5; i++)
        copy_once(16 * MIB, i, "copy without descriptors");
}

static void expect_no_reads_by_workers(void)
{
    struct task tasks[MOST_TASKS];
    for (int i = tasks_of(getpid(), tasks) - 1; i >= 0; i--) {
        char path[64], text[200] = "";
        long reads = 0;
        snprintf(path, sizeof path, "/proc/self/task/%d/io", tasks[i].tid);
        int fd = tasks[i].tid == getpid() ? -1 : open(path, O_RDONLY);
        if (fd < 0)
            continue;
        if (read(fd, text, sizeof text - 1) > 0 && strstr(text, "syscr: "))
            reads = atol(strstr(text, "syscr: ") + 7);
        if (reads)
            wrong("a worker has called read %ld times", reads);
        close(fd);
    }
}

/* Opens and closes the lowest number for seconds, between copies after which workers are idle: the file
 * behind it is always this program's, and no worker has called read, as the kernel counts. */
static void open_again_and_again(void)
{
    struct stat zero, now;
    long until = clock_ms() + 7000, opened = 0;
    if (stat("/dev/zero", &zero) || access("/proc/self/io", R_OK))
        cannot("/dev/zero or /proc/self/io: %s", strerror(errno));
    b = map_blocks(MIB);
    close(0);
    for (uint64_t seed = 1; clock_ms() < until; seed++) {
        copy_checked(b, seed, "copy between files");
        expect_no_reads_by_workers();
        for (int i = 0; i < 3000; i++, opened++) {
            int fd = open("/dev/zero", O_RDONLY);
            if (fd != 0)
                wrong("file %ld: open gave number %d, not 0", opened, fd);
            if (fstat(0, &now) || now.st_rdev != zero.st_rdev)
                wrong("file %ld is another: %s", opened, strerror(errno));
            if (close(0))
                wrong("file %ld was closed: %s", opened, strerror(errno));
        }
    }
}

/* Closes every descriptor, opens its own files in a folder under the numbers 0 to 9, copies, and writes
 * one line into each: nothing else may get there. With "later" large copies are made before as well, and
 * all numbers up to 600 are taken by the last file: one of them may have been an engine's. */
static void close_all(void)
{
    const char *folder = scene_argument(0, "");
    bool later = *scene_argument(1, "");
    for (int i = 0; later && i < 3; i++)
        copy_once(16 * MIB, 100 + i, "copy with descriptors of its own");
    if (syscall(SYS_close_range, 0, ~0u, 0))
        cannot("close_range: %s", strerror(errno));
    for (int wanted = 0; wanted < 10; wanted++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", folder, wanted);
        if (open(path, O_RDWR | O_CREAT | O_TRUNC, 0600) != wanted)
            _exit(1);
    }
    for (int fd = 9; later && fd >= 0 && fd < 600;)
        fd = dup(9);
    for (int i = 0; i < 5; i++)
        copy_once(16 * MIB, i, "copy with strange descriptors");
    for (int fd = 0; fd < 10; fd++)
        if (dprintf(fd, "file %d\n", fd) != 7)
            _exit(1);
}

/* ---- memory ------------------------------------------------------------------------------------ */

/* Prints KiB, in a program that has made small copies only. */
static void print_memory(void)
{
    for (int i = 0; i < 1000; i++)
        copy_once(4 * KIB, i, "small copy");
    sleep_ms(50);
    long kib = scene_how ? number_in("/proc/self/smaps_rollup", "Anonymous:")
                         : number_in("/proc/self/status", "VmRSS:");
    if (kib < 0)
        cannot("the system does not tell its memory");
    printf("%ld\n", kib);
}

static void lock_all(void)
{
    drop_capability(CAP_IPC_LOCK);
    limit_to(RLIMIT_MEMLOCK, 6000 * KIB);
    if (mlockall(MCL_CURRENT))
        wrong("mlockall: %s, with %ld KiB mapped", strerror(errno),
              number_in("/proc/self/status", "VmSize:"));
    copy_once(4 * KIB, 1, "small copy");
    b = map_blocks(32 * MIB);
    for (int i = 0; i < 10; i++)
        copy_checked(b, i, "large copy");
    expect_workers(b, "large copy");
    /* Everything mapped from now on is locked as well, within the limit. */
    struct blocks small = map_blocks(512 * KIB);
    unmap_blocks(b);
    MUST(!mlockall(MCL_FUTURE));
    have_workers_leave();
    for (int i = 0; i < 10; i++)
        copy_checked(small, i, "large copy, everything locked");
}

SCENES((void)0, {"before-errno", filter_now, BEFORE_ERRNO}, {"before-kill", filter_now, BEFORE_KILL},
       {"after-futex", filter_now, FUTEX}, {"after-tsync", filter_now, TSYNC},
       {"idle-kill", filter_now, IDLE_KILL}, {"after-rare", filter_now, RARE},
       {"before-asking", filter_now, BEFORE_ASKING}, {"after-asking", filter_now, ASKING},
       {"after-handled", filter_now, RARE_HANDLED}, {"after-open", filter_now, OPENING},
       {"least", filter_all_but_the_least}, {"tight-exit", leave_under_a_tight_filter, false},
       {"tight-_exit", leave_under_a_tight_filter, true}, {"setuid", drop_at_once, true},
       {"capset", drop_at_once, false}, {"setuid-idle", drop_and_rest, false},
       {"setuid-threaded", drop_and_rest, true}, {"setuid-busy", drop_and_copy_on},
       {"numbers", numbers}, {"files", close_all}, {"no-files", copy_without_descriptors},
       {"open-again", open_again_and_again}, {"resident", print_memory, false},
       {"private", print_memory, true}, {"locked", lock_all})
