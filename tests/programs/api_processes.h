/* For api.c: threads, fork, signals and exit while copies are under way. */
#pragma once
#include "api_cookies.h"

enum { THREADS = 6, ROUNDS = 60 };
static adma_cookie_t shared_cookie;
static pthread_barrier_t barrier;
static int told;

static void *share_waiting(void *number)
{
    struct pair pair = new_pair(200000 + 1000 * (size_t)(uintptr_t)number, 1, 9);
    for (int round = 0; round < ROUNDS; round++) {
        /* Its own ... */
        lay_down(&pair.dst, DESTINATION);
        adma_cookie_t own = start(&pair);
        /* ... and one that all of them wait for. */
        pthread_barrier_wait(&barrier);
        int result = round % 2 ? adma_wait_copy(shared_cookie) : 0;
        while (round % 2 == 0 && (result = adma_check_copy(shared_cookie)) == 0)
            sched_yield();
        if (result >= 0)
            __atomic_fetch_add(&told, 1, __ATOMIC_RELAXED);
        else
            EXPECT(result == -EINVAL);
        finish_by_wait(own);
        copied(&pair, "thread");
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
    }
    return NULL;
}

static void *start_and_leave(void *pair)
{
    return (void *)(intptr_t)start(pair);
}

static void subject_threads(void)
{
    pthread_t threads[THREADS];
    struct pair pair = new_pair(MIB, 0, 0);
    pthread_barrier_init(&barrier, NULL, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        threads[i] = start_thread(share_waiting, (void *)(uintptr_t)i);
    for (int round = 0; round < ROUNDS; round++) {
        told = 0;
        shared_cookie = start(&pair);
        pthread_barrier_wait(&barrier);
        pthread_barrier_wait(&barrier);
        EXPECT(told == 1);
        pthread_barrier_wait(&barrier);
    }
    join_all(threads, THREADS);
    for (int round = 0; round < 50; round++) {
        void *cookie;
        lay_down(&pair.dst, DESTINATION);
        pthread_join(start_thread(start_and_leave, &pair), &cookie);
        finish_by_wait((intptr_t)cookie);
        copied(&pair, "started by a thread that has left");
    }
}

enum { COPIES = 16 };

static void start_all(struct pair *pairs, adma_cookie_t *cookies)
{
    for (int i = 0; i < COPIES; i++) {
        lay_down(&pairs[i].dst, DESTINATION);
        cookies[i] = start(&pairs[i]);
    }
}

static void finish_all(struct pair *pairs, const adma_cookie_t *cookies)
{
    for (int i = 0; i < COPIES; i++) {
        finish_by_wait(cookies[i]);
        copied(&pairs[i], "parent");
    }
}

static void subject_fork(void)
{
    struct pair pairs[COPIES];
    adma_cookie_t cookies[COPIES];
    int fd = adma_poll_fd();
    for (int i = 0; i < COPIES; i++)
        pairs[i] = new_pair(500000, i, 2 * i);
    for (int round = 0; round < 10; round++) {
        uint64_t word = 0;
        struct pair noted = new_pair(300000, 5, 6);
        start_all(pairs, cookies);
        EXPECT(!adma_icopy_notif(from(&noted), to(&noted), 300000, &word, 1));
        pid_t pid = fork();
        if (pid == 0) {
            alarm(200);
            for (int i = 0; i < COPIES; i++)
                is_unknown(cookies[i]);
            struct pair own = new_pair(MIB, 1, 2);
            adma_cookie_t cookie = start(&own);
            is_unknown(cookies[0]);
            finish_by_wait(cookie);
            copied(&own, "child");
            copied_by(by_notif, &own, "child's word");
            EXPECT(adma_poll_fd() != fd);
            _exit(0);
        }
        while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) != 1)
            sched_yield();
        copied(&noted, "parent's word");
        finish_all(pairs, cookies);
        child_succeeds(pid);
        free_pair(&noted);
    }
    /* The child of a fork without handlers has no workers: all is done at once, and copies of the
     * parent would never end there. */
    for (int round = 0; round < 10; round++) {
        start_all(pairs, cookies);
        pid_t pid = round % 2 ? syscall(SYS_fork)
                : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) {
            alarm(200);
            for (int i = 0; i < COPIES; i++)
                is_unknown(cookies[i]);
            EXPECT(adma_poll_fd() != fd);
            for (int i = 0; i < 5; i++) {
                copied_by(by_notif, &pairs[i], "child of a bare fork");
                copied_by(by_waiting, &pairs[i], "cookie of a bare fork's child");
                is_unknown(cookies[i]);
            }
            _exit(0);
        }
        finish_all(pairs, cookies);
        child_succeeds(pid);
    }
}

static volatile adma_cookie_t current;
static volatile sig_atomic_t by_handler, alarms;
static struct pair handlers_own;

static void ring_soon(void)
{
    struct itimerval once = { .it_value = { 0, 700 } };
    setitimer(ITIMER_REAL, &once, NULL);
}

static void on_alarm(int signal)
{
    int before = errno;
    errno = 4321;
    alarms++;
    if (current && adma_check_copy(current) == 1)
        by_handler = 1;
    adma_cookie_t cookie = adma_icopy(from(&handlers_own), to(&handlers_own), 200000);
    if (cookie <= 0 || adma_wait_copy(cookie) || adma_check_copy(cookie) != -EINVAL)
        _exit(3);
    if (current && !by_handler && alarms % 2 == 0) {
        /* Whatever was interrupted, waiting for it must not hang. */
        int result = adma_wait_copy(current);
        if (result == 0)
            by_handler = 1;
        else if (result != -EINVAL)
            _exit(4);
    }
    if (errno != 4321)
        _exit(5);
    errno = before;
    ring_soon(); /* not before: on a busy machine there would be nothing but alarms */
}

static void subject_signals(void)
{
    struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
    struct pair pair = new_pair(2 * MIB, 1, 3);
    handlers_own = new_pair(200000, 0, 0);
    sigaction(SIGALRM, &action, NULL);
    ring_soon();
    for (int round = 0; round < 100 || alarms < 100; round++) {
        lay_down(&pair.dst, DESTINATION);
        by_handler = 0;
        current = start(&pair);
        int result = round % 2 ? adma_wait_copy(current) : 0;
        while (round % 2 == 0 && (result = adma_check_copy(current)) == 0)
            ;
        EXPECT(result >= 0 || (result == -EINVAL && by_handler));
        current = 0;
        copied(&pair, "interrupted");
    }
}

static struct pair at_exit;

static void exit_handler(void)
{
    copied_by(by_waiting, &at_exit, "exit handler");
}

__attribute__((destructor)) static void destructor(void)
{
    if (!at_exit.src.base)
        return;
    copied_by(by_waiting, &at_exit, "destructor");
    copied_by(by_notif, &at_exit, "destructor");
    if (write(1, "destructor\n", 11) != 11)
        _exit(6);
}

/* Leaves with copies under way. */
static void subject_exit(void)
{
    struct pair pairs[64];
    static uint64_t words[64];
    at_exit = new_pair(300000, 1, 2);
    atexit(exit_handler);
    for (int i = 0; i < 64; i++)
        pairs[i] = new_pair(MIB, i, 0);
    for (int i = 0; i < 64; i++) {
        start(&pairs[i]);
        EXPECT(!adma_icopy_notif(from(&pairs[i]), to(&pairs[i]), MIB, &words[i], 1));
    }
    exit(0);
}
