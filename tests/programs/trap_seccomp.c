/* A program that sandboxes itself, at awkward moments:
 *
 *   before-errno  before its first large copy: clone and futex answer EPERM
 *   before-kill   before its first large copy: clone ends the process
 *   after-futex   when workers live: futex answers EPERM in the calling thread
 *   after-tsync   when workers live: futex answers EPERM in all threads
 *   idle-kill     when workers have come and gone: clone ends the process
 *   after-rare    when workers live: calls that hardly any program makes end the process
 *   after-open    when workers live: openat and clone end the process, whatever its thread
 *
 * Copies stay right, and no thread is left that runs without end.
 */
#include "trap.h"
#include "seccomp.h"

static const int making_threads[] = {SYS_clone, SYS_clone3, SYS_fork, SYS_vfork, -1};
static const int threads_and_futex[] = {SYS_clone, SYS_clone3, SYS_futex, -1};
static const int only_futex[] = {SYS_futex, -1};
static const int opening[] = {SYS_openat, SYS_clone, SYS_clone3, -1};
static const int rare[] = {SYS_mincore, SYS_membarrier, SYS_rseq, SYS_sched_setaffinity,
                           SYS_sched_setscheduler, SYS_process_vm_readv, -1};

static void sandbox(const int *calls, unsigned action, unsigned flags)
{
    if (answer_calls(calls, action, flags))
        cannot("no seccomp filter here: %s", strerror(errno));
}

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

int main(int count, char **words)
{
    const unsigned refuse = SECCOMP_RET_ERRNO | EPERM;
    const char *moment = count > 1 ? words[1] : "";
    if (strncmp(moment, "before", 6)) {
        copy_several("copy before the filter");
        expect_workers(map_blocks(32 * MIB), "before the filter");
    }
    if (!strcmp(moment, "before-errno"))
        sandbox(threads_and_futex, refuse, 0);
    else if (!strcmp(moment, "before-kill"))
        sandbox(making_threads, SECCOMP_RET_KILL_PROCESS, 0);
    else if (!strcmp(moment, "after-futex"))
        sandbox(only_futex, refuse, 0);
    else if (!strcmp(moment, "after-tsync"))
        sandbox(threads_and_futex, refuse, SECCOMP_FILTER_FLAG_TSYNC);
    else if (!strcmp(moment, "idle-kill")) {
        have_workers_leave();
        sandbox(making_threads, SECCOMP_RET_KILL_PROCESS, 0);
    } else if (!strcmp(moment, "after-rare"))
        sandbox(rare, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC);
    else if (!strcmp(moment, "after-open"))
        sandbox(opening, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC);
    else
        wrong("no moment \"%s\"", moment);
    copy_several("copy under the filter");
    if (!strcmp(moment, "after-open"))
        sleep_ms(2500); /* what is known of the CPUs is looked at again every second or two */
    expect_idle();
    copy_several("copy after idleness under the filter");
    return 0;
}
