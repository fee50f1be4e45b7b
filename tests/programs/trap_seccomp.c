/* A program under a seccomp filter: copies stay right, and no thread runs without end.
 *
 *   before-errno  before its first large copy: clone and futex answer EPERM
 *   before-kill   before its first large copy: clone ends the process
 *   after-futex   when workers live: futex answers EPERM in the calling thread
 *   after-tsync   when workers live: futex answers EPERM in all threads
 *   idle-kill     when workers have come and gone: clone ends the process
 *   after-rare    when workers live: calls that hardly any program makes end the process
 *   after-handled like after-rare, in a program that handles SIGSEGV
 *   after-open    when workers live: openat and clone end the process, in any thread
 *   least         from its start, as a service: every call but those that adma(7) names and those of
 *                 this program ends the process
 */
#include "filtered.h"

static const int making_threads[] = {SYS_clone, SYS_clone3, SYS_fork, SYS_vfork, -1};
static const int threads_and_futex[] = {SYS_clone, SYS_clone3, SYS_futex, -1};
static const int only_futex[] = {SYS_futex, -1};
static const int opening[] = {SYS_openat, SYS_clone, SYS_clone3, -1};
static const int rare[] = {SYS_mincore, SYS_membarrier, SYS_rseq, SYS_sched_setaffinity,
                           SYS_sched_setscheduler, SYS_process_vm_readv, SYS_process_vm_writev, -1};
/* systemd's @system-service without @resources allows all of these. */
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

static const struct moment {
    const char *name;
    const int *calls;
    unsigned action, flags;
} moments[] = {
    {"before-errno", threads_and_futex, SECCOMP_RET_ERRNO | EPERM, 0},
    {"before-kill", making_threads, SECCOMP_RET_KILL_PROCESS, 0},
    {"after-futex", only_futex, SECCOMP_RET_ERRNO | EPERM, 0},
    {"after-tsync", threads_and_futex, SECCOMP_RET_ERRNO | EPERM, SECCOMP_FILTER_FLAG_TSYNC},
    {"idle-kill", making_threads, SECCOMP_RET_KILL_PROCESS, 0},
    {"after-rare", rare, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC},
    {"after-handled", rare, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC},
    {"after-open", opening, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC},
};

static void copy_several(const char *where)
{
    struct blocks b = map_blocks(32 * MIB);
    for (int i = 0; i < 5; i++) {
        copy_checked(b, i, where);
        sleep_ms(30); /* long enough for workers to fall asleep, so that they must be woken */
    }
    unmap_blocks(b);
}

static void expect_idle(void)
{
    sleep_ms(300);
    long before = cpu_time_us();
    sleep_ms(300);
    if (cpu_time_us() - before > 100000)
        wrong("%ld us of CPU time in 300 ms of idleness", cpu_time_us() - before);
}

static void on_fault(int number)
{
    wrong("signal %d, but nothing faults here", number);
}

static void filter_now(const struct moment *moment)
{
    if (!strcmp(moment->name, "after-handled"))
        handle(SIGSEGV, on_fault, 0);
    if (strncmp(moment->name, "before", 6)) {
        copy_several("copy before the filter");
        expect_workers(map_blocks(32 * MIB), "before the filter");
    }
    if (!strcmp(moment->name, "idle-kill"))
        have_workers_leave();
    filter_calls(moment->calls, moment->action, moment->flags);
    copy_several("copy under the filter");
    if (!strcmp(moment->name, "after-open"))
        sleep_ms(2500); /* the number of CPUs is read again every second or two */
    expect_idle();
    copy_several("copy after idleness under the filter");
}

int main(int count, char **words)
{
    const char *name = count > 1 ? words[1] : "least";
    for (size_t i = 0; i < sizeof moments / sizeof *moments; i++)
        if (!strcmp(name, moments[i].name)) {
            filter_now(&moments[i]);
            return 0;
        }
    if (count < 3) {
        if (answer_calls_and_rest(least, SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS, 0))
            cannot("no seccomp filter here: %s", strerror(errno));
        execl("/proc/self/exe", words[0], name, "again", (char *)NULL);
        wrong("cannot execute myself: %s", strerror(errno));
    }
    copy_several(name);
    expect_workers(map_blocks(32 * MIB), name);
    return 0;
}
