/* How a program of these ends: with 0 (passed), 1 (failed, reason on stderr) or 77 (cannot be shown here);
 * and a few words that all of them need.
 */
#pragma once
#include "usual.h"

#define KIB ((size_t)1024)
#define MIB ((size_t)1024 * 1024)
#define COUNT(array) (sizeof(array) / sizeof *(array))

#define wrong(...) end_with(1, __VA_ARGS__)
#define cannot(...) end_with(77, __VA_ARGS__)
#define MUST(condition) ((condition) ? (void)0 : wrong("%s: %s", #condition, strerror(errno)))

/* Not by exit: handlers and children call this, too. */
static inline __attribute__((noreturn, format(printf, 2, 3))) void end_with(int status,
                                                                            const char *format, ...)
{
    char line[1000];
    va_list rest;
    va_start(rest, format);
    int length = vsnprintf(line, sizeof line - 1, format, rest);
    va_end(rest);
    if (length > (int)sizeof line - 2)
        length = sizeof line - 2;
    line[length] = '\n';
    if (write(2, line, length + 1) < 0) {
        /* stderr may be closed: the status tells enough */
    }
    _exit(status);
}

/* TEST_SLOWER in the environment: what limits of time are multiplied by, in emulated guests. */
static inline int slower(void)
{
    const char *factor = getenv("TEST_SLOWER");
    return factor ? atoi(factor) : 1;
}

static inline void sleep_ms(long ms)
{
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (nanosleep(&left, &left) < 0)
        ;
}

static inline long clock_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static inline long clock_ms(void)
{
    return clock_us() / 1000;
}

static inline uint64_t next_random(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static __attribute__((noinline, unused)) pthread_t start_thread(void *(*work)(void *), void *argument)
{
    pthread_t thread;
    int refused = pthread_create(&thread, NULL, work, argument);
    if (refused)
        wrong("pthread_create: %s", strerror(refused));
    return thread;
}

static inline void join_all(const pthread_t *threads, int count)
{
    for (int i = 0; i < count; i++)
        pthread_join(threads[i], NULL);
}

/* Runs threads, each with its number. */
static inline void in_threads(uintptr_t count, void *(*work)(void *))
{
    pthread_t threads[count];
    for (uintptr_t i = 0; i < count; i++)
        threads[i] = start_thread(work, (void *)i);
    join_all(threads, count);
}

static inline void handle_info(int number, void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO};
    MUST(!sigaction(number, &action, NULL));
}

/* Drops a capability, so that root is bound by limits like others. */
static inline void drop_capability(int capability)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    if (syscall(SYS_capget, &header, sets))
        cannot("capget: %s", strerror(errno));
    sets[0].effective &= ~(1u << capability);
    sets[0].permitted &= ~(1u << capability);
    if (syscall(SYS_capset, &header, sets))
        cannot("capset: %s", strerror(errno));
}

static inline void limit_to(int resource, rlim_t most)
{
    struct rlimit limits;
    getrlimit(resource, &limits);
    limits.rlim_cur = most;
    if (setrlimit(resource, &limits))
        cannot("a limit cannot be set here: %s", strerror(errno));
}

/* Counts the entries of a folder: descriptors in /proc/self/fd, threads in /proc/self/task. */
static inline long entries_of(const char *folder)
{
    DIR *list = opendir(folder);
    long number = 0;
    while (readdir(list))
        number++;
    closedir(list);
    return number;
}
