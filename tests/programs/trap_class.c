/* Scheduling of workers. The first large copies are made by a thread that the scheduler treats in
 * another way than the rest of the process; workers must not inherit that from it:
 *
 *   niced   it has a nice value of its own
 *   idle    it is SCHED_IDLE
 *   fifo    it has real-time scheduling
 *   pinned  it may use one CPU only
 *
 * Workers that serve the main thread afterwards are as the main thread is, SCHED_BATCH at most, and
 * use its CPUs. With "filtered" as second word a seccomp filter is there from the start.
 *
 *   later-niced, later-idle, later-io  the main thread changes its nice value, class or I/O
 *                                      priority while it copies, and workers follow
 */
#include "filtered.h"

static const char *way;
static struct blocks first, b;
static atomic_bool has_copied, over;

static void *copy_first(void *nothing)
{
    struct sched_param none = {0}, some = {1};
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    int refused = !strcmp(way, "niced")  ? setpriority(PRIO_PROCESS, syscall(SYS_gettid), 15)
                  : !strcmp(way, "idle") ? sched_setscheduler(0, SCHED_IDLE, &none)
                  : !strcmp(way, "fifo") ? sched_setscheduler(0, SCHED_FIFO, &some)
                                         : sched_setaffinity(0, sizeof one, &one);
    if (refused)
        cannot("no thread of that kind here: %s", strerror(errno));
    /* A busy machine gives an idle thread next to nothing. */
    for (int i = 0; i < 20 && !over; i++) {
        copy_checked(first, i, way);
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

/* Copies all the time, so that no worker is idle for long. */
static void expect_followed(void)
{
    char fault[100] = "";
    for (int tries = 0; tries < 20000; tries++) {
        copy_checked(b, tries, "copy after a change");
        int seen = look_at_workers(fault);
        if (!fault[0] && (seen || !workers_expected()))
            return;
    }
    wrong("%s", fault[0] ? fault : "no worker came");
}

static void change_while_copying(void)
{
    struct sched_param none = {0};
    expect_workers(b, "before a change");
    if (!strcmp(way, "later-niced")  ? setpriority(PRIO_PROCESS, 0, 7)
        : !strcmp(way, "later-idle") ? sched_setscheduler(0, SCHED_IDLE, &none)
                                     : syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 6))
        cannot("%s: %s", way, strerror(errno));
    expect_followed();
}

static void follow_the_main_thread(void)
{
    if (!strcmp(way, "idle"))
        drop_capability(CAP_SYS_NICE); /* root may leave SCHED_IDLE, others may not */
    pthread_t thread = start_thread(copy_first, NULL);
    while (!has_copied)
        sleep_ms(1);
    sleep_ms(50);
    expect_workers(b, "main thread");
    for (int i = 0; i < 20; i++) {
        char fault[100];
        sleep_ms(20);
        /* New ones find their place when they get a CPU. */
        for (int tries = 0; look_at_workers(fault), fault[0]; tries++) {
            if (tries == 150)
                wrong("%s", fault);
            sleep_ms(20);
        }
        expect_workers(b, "main thread again");
        copy_checked(b, i, "main thread");
    }
    over = true;
    pthread_join(thread, NULL);
}

int main(int count, char **words)
{
    /* Small: an idle thread gets milliseconds in a minute, where others compute. */
    first = map_blocks(512 * KIB);
    b = map_blocks(4 * MIB);
    way = count > 1 ? words[1] : "niced";
    if (count > 2 && !strcmp(words[2], "filtered"))
        be_filtered(words);
    if (!strncmp(way, "later", 5))
        change_while_copying();
    else
        follow_the_main_thread();
    return 0;
}
