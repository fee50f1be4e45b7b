/* Resources run out before the first large copy:
 *
 *   nproc   no more processes for this user, so clone gives EAGAIN
 *   memory  no more address space, so a worker's stack cannot be had
 *
 * The copies are libc's then, and right. Or the first large copy finds no worker for a
 * reason that goes away:
 *
 *   nproc-once  as nproc, and then the limit is lifted
 *   deadline    a SCHED_DEADLINE thread may make no threads; others may
 *
 * Workers come within some seconds, then. Or the limit leaves room for the program's own threads only:
 *
 *   room  it makes them right after a large copy
 */
#include "trap.h"
#include <sys/resource.h>

static void exhaust_processes(bool for_good)
{
    struct rlimit none;
    getrlimit(RLIMIT_NPROC, &none);
    none.rlim_cur = 0;
    if (for_good)
        none.rlim_max = 0;
    /* The limit does not bind root. No other process runs under this number. */
    if (geteuid() == 0 && setresuid(54321, 54321, 54321))
        cannot("cannot leave root: %s", strerror(errno));
    setrlimit(RLIMIT_NPROC, &none);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (child > 0)
        cannot("RLIMIT_NPROC does not hinder fork here");
}

static void *wait_at(void *gate)
{
    pthread_barrier_wait(gate);
    return NULL;
}

static void make_threads_up_to_the_limit(struct blocks b)
{
    enum { OWN = 4 };
    struct rlimit limit = {1 + OWN, 1 + OWN};
    /* No other process runs under this number, not even another of these programs. */
    if (geteuid() == 0 && setresuid(54322, 54322, 54322))
        cannot("cannot leave root: %s", strerror(errno));
    if (setrlimit(RLIMIT_NPROC, &limit))
        cannot("RLIMIT_NPROC: %s", strerror(errno));
    for (int round = 0; round < 20; round++) {
        pthread_t threads[OWN];
        pthread_barrier_t gate;
        pthread_barrier_init(&gate, NULL, OWN + 1);
        copy_checked(b, round, "copy before threads");
        for (int i = 0; i < OWN; i++)
            threads[i] = start_thread(wait_at, &gate);
        pthread_barrier_wait(&gate);
        for (int i = 0; i < OWN; i++)
            pthread_join(threads[i], NULL);
        while (threads_named("") > 1 + threads_named("adma-"))
            sleep_ms(1); /* joined ones are counted a little longer */
    }
}

static void exhaust_address_space(void)
{
    struct rlimit little = {16 * MIB, 16 * MIB}; /* less than is in use already */
    if (setrlimit(RLIMIT_AS, &little))
        cannot("RLIMIT_AS: %s", strerror(errno));
    if (mmap(NULL, 16 * KIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        cannot("RLIMIT_AS does not hinder mmap here");
}

static void lift_limit(void)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NPROC, &limit);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NPROC, &limit))
        wrong("the limit cannot be lifted: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    expect_success(child, "child after the limit was lifted");
}

static void *copy_with_a_deadline(void *blocks)
{
    struct {
        uint32_t size, policy;
        uint64_t flags;
        int32_t nice;
        uint32_t priority;
        uint64_t runtime, deadline, period;
    } attributes = {48, 6 /* SCHED_DEADLINE */, 0, 0, 0, 80000000, 100000000, 100000000};
    if (syscall(SYS_sched_setattr, 0, &attributes, 0))
        cannot("no deadline scheduling here: %s", strerror(errno));
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) != -1)
        cannot("a deadline thread can make others here");
    copy_checked(*(struct blocks *)blocks, 1, "copy with a deadline");
    return NULL;
}

/* expect_workers waits for 300 ms at least; refusals are believed for longer. */
static void expect_workers_soon(struct blocks b)
{
    for (int ms = 0; workers_expected() && threads_named("adma-") == 0; ms += 50) {
        if (ms == 60000)
            wrong("no worker came in a minute");
        copy_checked(b, 100 + ms, "copy after a refusal");
        sleep_ms(50);
    }
}

int main(int count, char **words)
{
    struct blocks b = map_blocks(32 * MIB);
    if (count > 1 && !strcmp(words[1], "room")) {
        make_threads_up_to_the_limit(b);
        return 0;
    }
    if (count > 1 && !strcmp(words[1], "nproc"))
        exhaust_processes(true);
    else if (count > 1 && !strcmp(words[1], "nproc-once"))
        exhaust_processes(false);
    else if (count > 1 && !strcmp(words[1], "deadline")) {
        pthread_join(start_thread(copy_with_a_deadline, &b), NULL);
        expect_workers_soon(b);
        return 0;
    } else
        exhaust_address_space();
    for (int i = 0; i < 8; i++)
        copy_checked(b, i, "copy without means");
    int fd = open("/proc/self/comm", O_RDONLY);
    if (fd < 0)
        wrong("no descriptor can be had afterwards: %s", strerror(errno));
    if (count > 1 && !strcmp(words[1], "nproc-once")) {
        lift_limit();
        expect_workers_soon(b);
    }
    return 0;
}
