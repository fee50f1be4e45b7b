/* Resources run out before the first large copy, and libc copies:
 *
 *   memory      no more address space for the stack of a worker
 *   nproc       no more processes for this user: clone gives EAGAIN
 *   nproc-once  like nproc, and then the limit is lifted: workers come within seconds
 *   deadline    a SCHED_DEADLINE thread may make no threads; for others workers come
 *   room        the limit leaves room for the program's own threads only, made right after a copy
 */
#include "trap.h"

static struct blocks b;

/* RLIMIT_NPROC does not bind root. No other process, not even another of these programs, runs
 * under this user number. */
static void limit_processes(unsigned user, rlim_t most, bool for_good)
{
    struct rlimit limit;
    getrlimit(RLIMIT_NPROC, &limit);
    limit.rlim_cur = most;
    if (for_good)
        limit.rlim_max = most;
    if (geteuid() == 0 && setresuid(user, user, user))
        cannot("cannot leave root: %s", strerror(errno));
    if (setrlimit(RLIMIT_NPROC, &limit))
        cannot("RLIMIT_NPROC: %s", strerror(errno));
}

static void copy_without_means(void)
{
    for (int i = 0; i < 8; i++)
        copy_checked(b, i, "copy without means");
    if (open("/proc/self/comm", O_RDONLY) < 0)
        wrong("no descriptor can be had afterwards: %s", strerror(errno));
}

static void exhaust_processes(bool for_good)
{
    limit_processes(54321, 0, for_good);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (child > 0)
        cannot("RLIMIT_NPROC does not hinder fork here");
    copy_without_means();
}

/* A refusal is believed for a while; a busy machine takes longer. */
static void expect_workers_soon(void)
{
    for (int ms = 0; workers_expected() && count_workers() == 0; ms += 50) {
        if (ms == 60000)
            wrong("no worker came in a minute");
        copy_checked(b, 100 + ms, "copy after a refusal");
        sleep_ms(50);
    }
}

static void exhaust_address_space(void)
{
    struct rlimit little = {16 * MIB, 16 * MIB}; /* less than is in use already */
    if (setrlimit(RLIMIT_AS, &little))
        cannot("RLIMIT_AS: %s", strerror(errno));
    if (mmap(NULL, 16 * KIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        cannot("RLIMIT_AS does not hinder mmap here");
    copy_without_means();
}

static void exhaust_for_good(void)
{
    exhaust_processes(true);
}

static void do_nothing(void)
{
}

static void exhaust_once(void)
{
    struct rlimit limit;
    exhaust_processes(false);
    getrlimit(RLIMIT_NPROC, &limit);
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NPROC, &limit))
        wrong("the limit cannot be lifted: %s", strerror(errno));
    in_child(do_nothing, "child after the limit was lifted");
    expect_workers_soon();
}

static void *copy_with_a_deadline(void *nothing)
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
    copy_checked(b, 1, "copy with a deadline");
    return nothing;
}

static void copy_first_with_a_deadline(void)
{
    pthread_join(start_thread(copy_with_a_deadline, NULL), NULL);
    expect_workers_soon();
}

static void *wait_at(void *gate)
{
    pthread_barrier_wait(gate);
    return NULL;
}

static void make_threads_up_to_the_limit(void)
{
    enum { OWN = 4 };
    limit_processes(54322, 1 + OWN, true);
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
        while (count_threads() > 1 + count_workers())
            sleep_ms(1); /* joined ones are counted a little longer */
    }
}

SCENES(b = map_blocks(32 * MIB), {"memory", exhaust_address_space}, {"nproc", exhaust_for_good},
       {"nproc-once", exhaust_once}, {"deadline", copy_first_with_a_deadline},
       {"room", make_threads_up_to_the_limit})
