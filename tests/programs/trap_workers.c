/* The life of the workers as the program can see it: one thread before the first large copy; then
 * workers with a name, all signals blocked, no CPU time when idle and no descriptor; one thread again
 * after a tenth of a second of idleness, and new workers at the next copy. For glibc the program is
 * single-threaded all the time.
 */
#include "trap.h"
#include <sys/single_threaded.h>

static int count_descriptors(void)
{
    int count = 0;
    DIR *open_now = opendir("/proc/self/fd");
    while (readdir(open_now))
        count++;
    closedir(open_now);
    return count;
}

static void expect_alone(const char *when)
{
    if (count_threads() != 1)
        wrong("%d threads %s", count_threads(), when);
    if (!__libc_single_threaded)
        wrong("glibc believes in threads %s", when);
}

/* A worker unblocks SIGSEGV and SIGBUS while it copies, and may be slow to get a CPU to stop. */
static void expect_signals_blocked(void)
{
    /* SIGKILL and SIGSTOP cannot be blocked. */
    const unsigned long long never = 1ull << (SIGKILL - 1) | 1ull << (SIGSTOP - 1);
    struct task all[MOST_TASKS];
    for (int ms = 0;; ms += 10) {
        unsigned long long blocked = ~0ull;
        for (int i = tasks_of(getpid(), all) - 1; i >= 0; i--)
            if (is_worker(&all[i]))
                blocked &= all[i].blocked_signals | never;
        if (blocked == ~0ull)
            return;
        if (ms > 4000)
            wrong("a worker blocks only %llx", blocked);
        sleep_ms(10);
    }
}

/* Workers spin a little before they sleep, on a busy machine later. */
static void expect_no_cpu_time(void)
{
    for (int tries = 0;; tries++) {
        sleep_ms(15);
        long before = cpu_time_us();
        sleep_ms(60);
        long used = cpu_time_us() - before;
        if (used <= 6000)
            return;
        if (tries == 20)
            wrong("idle workers used %ld us of CPU time in 60 ms", used);
    }
}

/* Each worker has to get a CPU to leave, so a busy machine has several tries. */
static void expect_soon_alone(struct blocks b)
{
    for (int tries = 0; tries < 10; tries++) {
        copy_checked(b, 40 + tries, "large copy before idleness");
        for (int ms = 0; ms < 2000; ms += 20, sleep_ms(20))
            if (count_threads() == 1)
                return;
    }
    wrong("idle workers stay for seconds");
}

int main(void)
{
    struct blocks b = map_blocks(32 * MIB);
    struct blocks small = map_blocks(4 * KIB);
    int descriptors = count_descriptors();
    copy_checked(small, 1, "small copy");
    expect_alone("before the first large copy");

    copy_checked(b, 2, "large copy");
    expect_workers(b, "after the first large copy");
    for (int ms = 0; count_threads() != 1 + count_workers(); ms += 10) {
        if (ms > 4000) /* each names itself when it gets a CPU */
            wrong("a thread has another name than adma-");
        sleep_ms(10);
    }
    if (!__libc_single_threaded)
        wrong("glibc was told about threads");
    expect_signals_blocked();
    expect_no_cpu_time();
    if (count_descriptors() != descriptors)
        wrong("%d descriptors are open, not %d", count_descriptors(), descriptors);

    if (count_workers() != 0 || workers_expected())
        expect_soon_alone(b);
    expect_alone("after idleness");
    copy_checked(b, 3, "large copy after idleness");
    expect_workers(b, "after idleness");
    return 0;
}
