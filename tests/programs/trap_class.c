/* The first large copies are made by a thread that the scheduler treats in another way than
 * the rest of the process. What workers inherit from it would stay with them, for all callers:
 *
 *   niced   it has a nice value of its own
 *   idle    it is SCHED_IDLE
 *   fifo    it has real-time scheduling
 *   pinned  it may use one CPU only
 *
 * The workers that serve the main thread afterwards are as the main thread is, but SCHED_BATCH
 * at most, and use the CPUs that it may use. With "filtered" as second word the process is
 * under a seccomp filter from its start, which forbids nothing that is used.
 *
 * Or the main thread itself changes while it copies and workers live, and they follow it:
 *
 *   later-niced, later-idle, later-io  its nice value, scheduling class, I/O priority
 */
#include "filtered.h"
#include "trap.h"
#include <linux/capability.h>
#include <sched.h>
#include <sys/resource.h>

static const char *way;
static atomic_bool has_copied, over;

static void *copy_first(void *blocks)
{
    struct sched_param none = {0}, some = {1};
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    int refused = 0;
    if (!strcmp(way, "niced"))
        refused = setpriority(PRIO_PROCESS, syscall(SYS_gettid), 15);
    else if (!strcmp(way, "idle"))
        refused = sched_setscheduler(0, SCHED_IDLE, &none);
    else if (!strcmp(way, "fifo"))
        refused = sched_setscheduler(0, SCHED_FIFO, &some);
    else
        refused = sched_setaffinity(0, sizeof one, &one);
    if (refused)
        cannot("no thread of that kind here: %s", strerror(errno));
    /* A busy machine has next to nothing for an idle one: as many as it comes to. */
    for (int i = 0; i < 20 && !over; i++) {
        copy_checked(*(struct blocks *)blocks, i, way);
        has_copied = true;
    }
    while (!over)
        sleep_ms(1); /* it is there all the time */
    return NULL;
}

static int io_priority(pid_t tid)
{
    return syscall(SYS_ioprio_get, 1 /* IOPRIO_WHO_PROCESS */, tid);
}

/* Of each worker: nice value, scheduling class, I/O priority and CPUs. What is wrong with one is in
 * `fault`. */
static int look_at_workers(char fault[100])
{
    int seen = 0, usual = getpriority(PRIO_PROCESS, getpid()), io = io_priority(getpid());
    bool idle = sched_getscheduler(getpid()) == SCHED_IDLE;
    fault[0] = 0;
    cpu_set_t all;
    sched_getaffinity(getpid(), sizeof all, &all);
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(tasks));) {
        char path[64], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        bool worker = file && fgets(name, sizeof name, file) && !strncmp(name, "adma-", 5);
        if (file)
            fclose(file);
        pid_t tid = atoi(entry->d_name);
        cpu_set_t its;
        errno = 0;
        int nice = worker ? getpriority(PRIO_PROCESS, tid) : 0;
        int class = worker ? sched_getscheduler(tid) : 0, its_io = worker ? io_priority(tid) : 0;
        if (!worker || errno || sched_getaffinity(tid, sizeof its, &its))
            continue; /* or it has ended meanwhile */
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
    closedir(tasks);
    return seen;
}

/* Root may leave SCHED_IDLE, others may not. */
static void have_no_right_to_schedule(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    if (syscall(SYS_capget, &header, sets))
        cannot("capget: %s", strerror(errno));
    sets[0].effective &= ~(1u << CAP_SYS_NICE);
    sets[0].permitted &= ~(1u << CAP_SYS_NICE);
    if (syscall(SYS_capset, &header, sets))
        cannot("capset: %s", strerror(errno));
}

/* Copies all the time, so that no worker is idle for long. */
static void expect_followed(struct blocks b)
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

static void change_while_copying(struct blocks b)
{
    struct sched_param none = {0};
    int refused;
    expect_workers(b, "before a change");
    if (!strcmp(way, "later-niced"))
        refused = setpriority(PRIO_PROCESS, 0, 7);
    else if (!strcmp(way, "later-idle"))
        refused = sched_setscheduler(0, SCHED_IDLE, &none);
    else
        refused = syscall(SYS_ioprio_set, 1, 0, 2 << 13 | 6) != 0;
    if (refused)
        cannot("%s: %s", way, strerror(errno));
    expect_followed(b);
}

int main(int count, char **words)
{
    /* Small: an idle thread gets milliseconds in a minute, where others compute. */
    struct blocks first = map_blocks(512 * KIB), b = map_blocks(4 * MIB);
    way = count > 1 ? words[1] : "niced";
    if (!strncmp(way, "later", 5)) {
        change_while_copying(b);
        return 0;
    }
    if (count > 2 && !strcmp(words[2], "filtered"))
        be_filtered(words);
    if (!strcmp(way, "idle"))
        have_no_right_to_schedule();
    pthread_t thread = start_thread(copy_first, &first);
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
    return 0;
}
