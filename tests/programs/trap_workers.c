/* Workers as the program can see them: when they come and go, how they are scheduled, on which CPUs,
 * and what becomes of copies where none can be had. Scenes that name a second word "filtered" run
 * under a seccomp filter from their start.
 */
#include "filtered.h"
#include "older.h"

static struct blocks b;

/* ---- one thread before the first large copy, and again after a while of idleness ------------- */

/* Checks that the program stays single-threaded for glibc. */
static void expect_alone(const char *when)
{
    if (count_threads() != 1)
        wrong("%d threads %s", count_threads(), when);
    if (!knows_of_no_thread())
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

/* Retries, because each worker has to get a CPU to leave. */
static void expect_soon_alone(void)
{
    for (int tries = 0; tries < 10; tries++) {
        copy_checked(b, 40 + tries, "large copy before idleness");
        for (int ms = 0; ms < 2000; ms += 20, sleep_ms(20))
            if (count_threads() == 1)
                return;
    }
    wrong("idle workers stay for seconds");
}

/* Checks that workers have a name, all signals blocked, no CPU time when idle and no descriptor. */
static void live_and_leave(void)
{
    long descriptors = entries_of("/proc/self/fd");
    copy_once(4 * KIB, 1, "small copy");
    expect_alone("before the first large copy");

    expect_workers(b, "after the first large copy");
    for (int ms = 0; count_threads() != 1 + count_workers(); ms += 10) {
        if (ms > 4000) /* each names itself when it gets a CPU */
            wrong("a thread has another name than adma-");
        sleep_ms(10);
    }
    if (!knows_of_no_thread())
        wrong("glibc was told about threads");
    expect_signals_blocked();
    expect_no_cpu_time();
    /* Where the program may have threads the list of mappings stays open. */
    descriptors += !one_thread_flag();
    long now = entries_of("/proc/self/fd");
    if (now != descriptors)
        wrong("%ld descriptors are open, not %ld", now, descriptors);

    if (count_workers() != 0 || workers_expected())
        expect_soon_alone();
    expect_alone("after idleness");
    expect_workers(b, "after idleness");
}

/* ---- scheduling: as that of the main thread, SCHED_BATCH at most, on its CPUs ------------------ */

enum { NICED, IDLE_CLASS, REAL_TIME, PINNED, IO_PRIORITY };

static atomic_bool has_copied, over;

static void change_scheduling(pid_t tid)
{
    struct sched_param none = {0}, some = {1};
    int refused = 0;
    switch (scene_how) {
    case NICED: refused = setpriority(PRIO_PROCESS, tid, 7); break;
    case IDLE_CLASS: refused = sched_setscheduler(tid, SCHED_IDLE, &none); break;
    case REAL_TIME: refused = sched_setscheduler(tid, SCHED_FIFO, &some); break;
    case PINNED: stay_on(sched_getcpu()); break;
    default: refused = syscall(SYS_ioprio_set, 1 /* IOPRIO_WHO_PROCESS */, tid, 2 << 13 | 6);
    }
    if (refused)
        cannot("no thread of that kind here: %s", strerror(errno));
}

static void *copy_first(void *nothing)
{
    /* Small: an idle-class thread gets milliseconds in a minute, where others compute. */
    struct blocks first = map_blocks(512 * KIB);
    change_scheduling(syscall(SYS_gettid));
    for (int i = 0; i < 20 && !over; i++) {
        copy_checked(first, i, "first copies");
        has_copied = true;
    }
    while (!over)
        sleep_ms(1); /* it is there all the time */
    return nothing;
}

static int io_priority(pid_t tid)
{
    return syscall(SYS_ioprio_get, 1 /* IOPRIO_WHO_PROCESS */, tid);
}

/* Returns the number of workers; `fault` says what is wrong with one of them. */
static int look_at_workers(char fault[100])
{
    int seen = 0, usual = getpriority(PRIO_PROCESS, getpid()), io = io_priority(getpid());
    bool idle = sched_getscheduler(getpid()) == SCHED_IDLE;
    struct task tasks[MOST_TASKS];
    cpu_set_t all, its;
    fault[0] = 0;
    sched_getaffinity(getpid(), sizeof all, &all);
    for (int i = tasks_of(getpid(), tasks) - 1; i >= 0; i--) {
        pid_t tid = tasks[i].tid;
        if (!is_worker(&tasks[i]))
            continue;
        errno = 0;
        int nice = getpriority(PRIO_PROCESS, tid), class = sched_getscheduler(tid);
        int its_io = io_priority(tid);
        if (errno || sched_getaffinity(tid, sizeof its, &its))
            continue; /* it has ended meanwhile */
        seen++;
        if (nice != usual)
            snprintf(fault, 100, "a worker has the nice value %d, not %d", nice, usual);
        if (its_io != io)
            snprintf(fault, 100, "a worker has the I/O priority %d, not %d", its_io, io);
        if (idle ? class != SCHED_IDLE : class != SCHED_BATCH && class != SCHED_OTHER)
            snprintf(fault, 100, "a worker has the scheduling class %d", class);
        if (!CPU_EQUAL(&its, &all))
            snprintf(fault, 100, "a worker may use %d CPUs of %d", CPU_COUNT(&its),
                     CPU_COUNT(&all));
    }
    return seen;
}

/* Changes the main thread while it copies, so that no worker is idle for long. */
static void change_while_copying(void)
{
    char fault[100] = "";
    expect_workers(b, "before a change");
    change_scheduling(getpid());
    for (int tries = 0; tries < 20000; tries++) {
        copy_checked(b, tries, "copy after a change");
        int seen = look_at_workers(fault);
        if (!fault[0] && (seen || !workers_expected()))
            return;
    }
    wrong("%s", fault[0] ? fault : "no worker came");
}

/* A thread of another class makes the first large copies; workers must not inherit that. */
static void follow_the_main_thread(void)
{
    if (!strcmp(scene_argument(0, ""), "filtered"))
        be_filtered(scene_words);
    if (scene_how == IDLE_CLASS)
        drop_capability(CAP_SYS_NICE); /* root may leave SCHED_IDLE, others may not */
    pthread_t thread = start_thread(copy_first, NULL);
    while (!has_copied)
        sleep_ms(1);
    sleep_ms(50);
    expect_workers(b, "main thread");
    for (int i = 0; i < 20; i++) {
        char fault[100];
        sleep_ms(20);
        /* New workers move to their CPUs when they get one. */
        for (int tries = 0; look_at_workers(fault), fault[0]; tries++) {
            if (tries == 150)
                wrong("%s", fault);
            sleep_ms(20);
        }
        expect_workers(b, "main thread again");
    }
    over = true;
    pthread_join(thread, NULL);
}

/* ---- one CPU, for which no thread may be made ---------------------------------------------------- */

static cpu_set_t all_cpus;

static void narrow(void)
{
    sched_getaffinity(0, sizeof all_cpus, &all_cpus);
    stay_on(sched_getcpu());
}

/* Copies until there are workers, or none. A busy machine takes longer, and a refusal is believed for
 * a while. Without the library there never are. */
static void expect_change(bool workers)
{
    workers = workers && getenv("LD_PRELOAD");
    for (int ms = 0; (count_workers() != 0) != workers; ms += 20) {
        if (ms >= 60000)
            wrong(workers ? "no worker came in a minute" : "the workers stay");
        copy_checked(b, 100 + ms, "copy after a change");
        sleep_ms(20);
    }
}

/* The test or this program itself has restricted it to one CPU. */
static void copy_on_one_cpu(void)
{
    if (scene_how)
        narrow();
    for (int i = 0; i < 5; i++) {
        copy_checked(b, i, "copy on one CPU");
        if (count_threads() != 1)
            wrong("%d threads on one CPU", count_threads());
    }
}

static void narrow_later(void)
{
    for (int i = 0; i < 15; i++) {
        if (i == 5)
            narrow();
        copy_checked(b, i, "copy around narrowing");
    }
}

static void widen(void)
{
    copy_on_one_cpu();
    sched_setaffinity(0, sizeof all_cpus, &all_cpus);
    expect_change(true);
}

static void shrink(void)
{
    expect_change(true);
    narrow();
    expect_change(false);
}

static void set_quota(const char *value)
{
    const char *path = scene_argument(0, "");
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, value, strlen(value)) < 0 || close(fd))
        wrong("%s to %s: %s", value, path, strerror(errno));
}

/* quota FILE ONE ALL: sets the control group's quota to one CPU and then to all. */
static void quota(void)
{
    expect_change(true);
    set_quota(scene_argument(1, ""));
    expect_change(false);
    set_quota(scene_argument(2, ""));
    expect_change(true);
}

/* ---- resources run out before the first large copy, and libc copies ------------------------------ */

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
    MUST(open("/proc/self/comm", O_RDONLY) >= 0);
}

/* Leaves no address space for the stack of a worker. */
static void exhaust_address_space(void)
{
    limit_to(RLIMIT_AS, 16 * MIB); /* less than is in use already */
    if (mmap(NULL, 16 * KIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        cannot("RLIMIT_AS does not hinder mmap here");
    copy_without_means();
}

/* clone returns EAGAIN; then the limit is lifted, except in the scene where it is permanent. */
static void exhaust_processes(void)
{
    struct rlimit limit;
    limit_processes(54321, 0, scene_how);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (child > 0)
        cannot("RLIMIT_NPROC does not hinder fork here");
    copy_without_means();
    if (scene_how)
        return;
    getrlimit(RLIMIT_NPROC, &limit);
    limit.rlim_cur = limit.rlim_max;
    MUST(!setrlimit(RLIMIT_NPROC, &limit));
    expect_change(true);
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

/* A SCHED_DEADLINE thread may make no threads; others get workers. */
static void copy_first_with_a_deadline(void)
{
    pthread_join(start_thread(copy_with_a_deadline, NULL), NULL);
    expect_change(true);
}

static void *wait_at(void *gate)
{
    pthread_barrier_wait(gate);
    return NULL;
}

/* The limit leaves room for the program's own threads only, made right after a copy. */
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
        join_all(threads, OWN);
        while (count_threads() > 1 + count_workers())
            sleep_ms(1); /* joined ones are counted a little longer */
    }
}

SCENES(b = map_blocks(16 * MIB), {"live", live_and_leave}, {"niced", follow_the_main_thread, NICED},
       {"idle", follow_the_main_thread, IDLE_CLASS}, {"fifo", follow_the_main_thread, REAL_TIME},
       {"pinned", follow_the_main_thread, PINNED}, {"later-niced", change_while_copying, NICED},
       {"later-idle", change_while_copying, IDLE_CLASS},
       {"later-io", change_while_copying, IO_PRIORITY}, {"one-cpu", copy_on_one_cpu, false},
       {"narrow", copy_on_one_cpu, true}, {"narrow-later", narrow_later}, {"widen", widen, true},
       {"shrink", shrink}, {"quota", quota}, {"no-memory", exhaust_address_space},
       {"no-processes", exhaust_processes, true}, {"no-processes-yet", exhaust_processes, false},
       {"deadline", copy_first_with_a_deadline}, {"room", make_threads_up_to_the_limit})
