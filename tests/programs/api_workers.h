/* For api.c: workers that are refused, limited, or have left. */
#pragma once
#include "api_pairs.h"
#include "seccomp.h"

/* No thread can be made: the caller does everything. */
static void subject_refused(void)
{
    const int making_threads[] = { SYS_clone, -1 };
    filter_calls(making_threads, SECCOMP_RET_ERRNO | EAGAIN, 0);
    struct pair pair = new_pair(MIB, 1, 2);
    for (int i = 0; i < 50; i++)
        copied_by(i % 2 ? by_waiting : by_notif, &pair, "refused");
}

static pthread_barrier_t all_ready;

static void *note_at_once(void *argument)
{
    struct pair *pair = argument;
    _Alignas(8) uint64_t word = 0;
    pthread_barrier_wait(&all_ready);
    EXPECT(!adma_icopy_notif(from(pair), to(pair), pair->src.len, &word, 1));
    while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != 1)
        sched_yield();
    return NULL;
}

/* Workers have ended, and there is a limit now: a thread that starts a copy while another
 * tries to make one in vain must not rely on it. */
static void subject_limited(void)
{
    enum { THREADS = 4 };
    struct pair pairs[THREADS];
    pthread_t threads[THREADS];
    alarm(200);
    if (getuid() == 0 && setresuid(65534, 65534, 65534))
        cannot("root, and for ever");
    for (int i = 0; i < THREADS; i++)
        pairs[i] = new_pair(100000, i, 1);
    by_waiting(&pairs[0]);
    lay_down(&pairs[0].dst, DESTINATION);
    /* Before a fork workers leave. */
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    waitpid(child, NULL, 0);
    pthread_barrier_init(&all_ready, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(note_at_once, &pairs[i]);
    EXPECT(!setrlimit(RLIMIT_NPROC, &(struct rlimit){ 0, 0 }));
    pthread_barrier_wait(&all_ready);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        copied(&pairs[i], "limited");
    }
}

static void *fork_on(void *stop)
{
    while (!atomic_load((atomic_bool *)stop)) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
    }
    return NULL;
}

/* Idle workers leave, here because another thread forks, and come again. */
static void subject_idle(void)
{
    struct pair pair = new_pair(300000, 1, 2);
    atomic_bool stop = false;
    pthread_t thread = start_thread(fork_on, &stop);
    for (int i = 0; i < 100; i++)
        copied_by(by_notif, &pair, "after workers have left");
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
}
