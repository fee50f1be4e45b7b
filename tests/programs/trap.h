/* Scaffold of the trap_ programs: patterned blocks, checked copies, threads and children.
 *
 * TRAP_WORKERS in the environment: copies must be offloaded. TRAP_LESS: divides the number of
 * rounds, for slow machines.
 */
#pragma once

#include "verdict.h"
#include "scenes.h"

/* Prints that a moment was reached; without stdio, which has its own exit handlers. */
static inline void say(const char *line)
{
    struct iovec both[2] = {{(void *)line, strlen(line)}, {"\n", 1}};
    MUST(writev(1, both, 2) >= 0);
}

static inline bool workers_expected(void)
{
    return getenv("TRAP_WORKERS") != NULL;
}

static inline int rounds(int usual)
{
    const char *less = getenv("TRAP_LESS");
    return less ? usual / atoi(less) + 1 : usual;
}

/* Returns a word by place and seed: short, misplaced and stale copies show. */
static inline uint64_t word_at(size_t place, uint64_t seed)
{
    return (place + 1) * 0x9E3779B97F4A7C15u ^ seed * 0xD1B54A32D192ED03u;
}

static inline void fill(void *block, size_t size, uint64_t seed)
{
    uint64_t *words = block;
    for (size_t i = 0; i < size / 8; i++)
        words[i] = word_at(i, seed);
}

static inline void check(const void *block, size_t size, uint64_t seed, const char *where)
{
    const uint64_t *words = block;
    for (size_t i = 0; i < size / 8; i++)
        if (words[i] != word_at(i, seed))
            wrong("%s: byte %zu of %zu is wrong", where, i * 8, size);
}

/* Maps memory, so that no allocator is involved. Sizes are multiples of 8. */
static inline void *map(size_t size)
{
    void *block = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        wrong("mmap of %zu bytes: %s", size, strerror(errno));
    return block;
}

struct blocks {
    void *to, *from;
    size_t size;
};

static inline struct blocks map_blocks(size_t size)
{
    return (struct blocks){map(size), map(size), size};
}

static inline void unmap_blocks(struct blocks b)
{
    munmap(b.to, b.size);
    munmap(b.from, b.size);
}

/* Copies with a fresh seed, which distinguishes the bytes from an earlier copy's. */
static inline void copy_checked(struct blocks b, uint64_t seed, const char *where)
{
    fill(b.from, b.size, seed);
    errno = 4711;
    void *back = memcpy(b.to, b.from, b.size);
    if (errno != 4711)
        wrong("%s: memcpy changed errno to %d", where, errno);
    if (back != b.to)
        wrong("%s: memcpy returned %p, not %p", where, back, b.to);
    check(b.to, b.size, seed, where);
}

static inline void copy_once(size_t size, uint64_t seed, const char *where)
{
    struct blocks b = map_blocks(size);
    copy_checked(b, seed, where);
    unmap_blocks(b);
}

/* Threads that copy until they are told to stop. */
static atomic_bool copiers_stop;

static inline void *copy_until_stopped(void *size)
{
    struct blocks b = map_blocks((size_t)size);
    for (uint64_t seed = (uintptr_t)&b; !copiers_stop; seed++)
        copy_checked(b, seed, "thread in the background");
    unmap_blocks(b);
    return NULL;
}

static inline void start_copiers(pthread_t *threads, int count, size_t size)
{
    for (int i = 0; i < count; i++)
        threads[i] = start_thread(copy_until_stopped, (void *)(size + i * 64 * KIB));
}

static inline void stop_copiers(pthread_t *threads, int count)
{
    copiers_stop = true;
    join_all(threads, count);
}

/* Waits for a child, and kills one that hangs. */
static inline void expect_success(pid_t child, const char *what)
{
    if (child < 0)
        wrong("%s: no child: %s", what, strerror(errno));
    int status = 0;
    for (int ms = 0; waitpid(child, &status, WNOHANG) == 0; ms++) {
        if (ms == 100000) {
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
            wrong("%s: the child hung", what);
        }
        sleep_ms(1);
    }
    if (status)
        wrong("%s: the child ended with status 0x%x", what, status);
}

/* Runs the block behind this in a child made by fork(), which has to reach its end. */
#define IN_CHILD(what)                                                                             \
    for (pid_t child_ = fork(); child_ == 0 || (expect_success(child_, what), false); _exit(0))

static inline void handle(int number, void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    MUST(!sigaction(number, &action, NULL));
}

static inline void unexpected_fault(int number)
{
    wrong("signal %d, but nothing faults here", number);
}

static inline void stay_on(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        cannot("sched_setaffinity: %s", strerror(errno));
}

/* Rings SIGALRM once. */
static inline void alarm_after_us(long us)
{
    struct itimerval once = {.it_value = {us / 1000000, us % 1000000}};
    setitimer(ITIMER_REAL, &once, NULL);
}

static inline long cpu_time_us(void)
{
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    return used.tv_sec * 1000000 + used.tv_nsec / 1000;
}

/* A thread, as in /proc/PID/task/TID/status. */
struct task {
    pid_t tid;
    char name[32];
    unsigned user, effective_user;
    unsigned long long capabilities, blocked_signals;
};
enum { MOST_TASKS = 400 };

/* Returns the number of threads of a process. One that ends meanwhile is left out. */
static inline int tasks_of(pid_t process, struct task all[MOST_TASKS])
{
    char path[64], text[4096];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/task", process);
    DIR *tasks = opendir(path);
    if (!tasks)
        cannot("no %s", path);
    for (struct dirent *entry; (entry = readdir(tasks)) && count < MOST_TASKS;) {
        struct task task = {.tid = atoi(entry->d_name)};
        snprintf(path, sizeof path, "/proc/%d/task/%d/status", process, task.tid);
        int fd = task.tid ? open(path, O_RDONLY) : -1;
        ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
        if (fd >= 0)
            close(fd);
        if (length <= 0)
            continue;
        text[length] = 0;
        sscanf(text, "Name: %31s", task.name);
        sscanf(strstr(text, "Uid:"), "Uid: %u %u", &task.user, &task.effective_user);
        sscanf(strstr(text, "CapEff:"), "CapEff: %llx", &task.capabilities);
        sscanf(strstr(text, "SigBlk:"), "SigBlk: %llx", &task.blocked_signals);
        all[count++] = task;
    }
    closedir(tasks);
    return count;
}

/* Returns the number behind `name` in a file of lines, or -1. */
static inline long number_in(const char *path, const char *name)
{
    char line[256];
    long found = -1;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, name, strlen(name)))
            found = atol(line + strlen(name));
    if (file)
        fclose(file);
    return found;
}

static inline bool is_worker(const struct task *task)
{
    return !strncmp(task->name, "adma-", 5);
}

static inline int count_threads(void)
{
    struct task all[MOST_TASKS];
    return tasks_of(getpid(), all);
}

static inline int count_workers(void)
{
    struct task all[MOST_TASKS];
    int workers = 0;
    for (int i = tasks_of(getpid(), all) - 1; i >= 0; i--)
        workers += is_worker(&all[i]);
    return workers;
}

/* Copies at least once, until a worker shows; a new one names itself only when it gets a CPU. */
static inline void expect_workers(struct blocks b, const char *when)
{
    uint64_t round = 7000000;
    copy_checked(b, round++, when);
    while (workers_expected() && count_workers() == 0) {
        if (round == 7020000) /* of a millisecond at least: a busy machine has few to give */
            wrong("%s: no worker came", when);
        sleep_ms(1);
        copy_checked(b, round++, when);
    }
}

/* Before fork and its like the library waits up to a second for workers to end. A worker that got
 * no CPU in that second is still there afterwards, and that is no failure. */
static inline bool waited_in_vain(long since_ms)
{
    return clock_ms() - since_ms >= 900;
}

/* Workers that wait for work leave before a fork. */
static inline void have_workers_leave(void)
{
    long begun;
    int tries = 0;
    do {
        begun = clock_ms();
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        bool too_busy = waited_in_vain(begun);
        expect_success(child, "child for which the workers leave");
        if (count_workers() == 0)
            return;
        if (!too_busy)
            break;
    } while (++tries < 20);
    wrong("%d workers stayed", count_workers());
}
