/* A SCHED_FIFO thread copies while its worker, an ordinary thread, is kept from its CPU by
 * another SCHED_FIFO thread. Two CPUs; the kernel does not limit real-time threads.
 *
 *   held     the other one lets go only when the copy is over: a copy that waits for the worker
 *            never is. Without a worker nothing is shown, so copies go on until there was one.
 *   first    the same with the first copy of a program that has several threads already
 *   measure  how long copies take beside four ordinary threads that compute: worst and median
 */
#include "trap.h"
#include <sched.h>
#include <semaphore.h>

enum {
    SIZE = 4 << 20,
    ROUNDS = 60,
    FIRST_SEED = 1000,
    LIMIT_MS = 10000,
    COMPUTING = 4,
    MEASURED = 100
};

static sem_t begin;
static atomic_bool over, stop;
static atomic_int held_for_ms, rounds_held;
static bool first;

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1e3 + now.tv_nsec / 1e6;
}

enum { ANY_CPU = -1 };

/* This thread, on one CPU. */
static void be_real_time(int priority, int cpu)
{
    struct sched_param parameters = {priority};
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu < 0 ? 0 : cpu, &one);
    if (cpu >= 0 && sched_setaffinity(0, sizeof one, &one))
        cannot("no second CPU here: %s", strerror(errno));
    if (sched_setscheduler(0, SCHED_FIFO, &parameters))
        cannot("no SCHED_FIFO here: %s", strerror(errno));
}

/* Whether somebody writes to the second half, where a worker begins. */
static bool somebody_is_at_the_end(const struct blocks *b, uint64_t seed)
{
    const volatile uint64_t *words = b->to;
    for (size_t at = b->size / 16; at < b->size / 8; at += 512)
        if (words[at] == word_at(at, seed))
            return true;
    return false;
}

/* Keeps everybody else from its CPU, once a worker has begun, until the copy is over. */
static void *hold(void *blocks)
{
    struct timespec moment = {0, 1000000}; /* leaves the worker its CPU */
    be_real_time(50, 1);
    for (int round = 0;; round++) {
        sem_wait(&begin);
        if (stop)
            return NULL;
        while (!over && !somebody_is_at_the_end(blocks, FIRST_SEED + round))
            nanosleep(&moment, NULL);
        rounds_held += !over;
        double from = now_ms();
        while (!over && now_ms() < from + LIMIT_MS)
            ;
        held_for_ms = (int)(now_ms() - from);
    }
}

static void copies_held(struct blocks b, int count)
{
    for (int round = 0; round < count; round++) {
        over = false;
        held_for_ms = -1;
        sem_post(&begin);
        copy_checked(b, FIRST_SEED + round, "while the worker cannot run");
        over = true;
        while (held_for_ms < 0)
            sleep_ms(1);
        if (held_for_ms >= LIMIT_MS)
            wrong("round %d: the copy waited for one of %d workers, who could not run", round,
                  threads_named("adma-"));
    }
}

static void *copy_real_time(void *blocks)
{
    be_real_time(20, first ? ANY_CPU : 0); /* a worker is born where its maker may be */
    copies_held(*(struct blocks *)blocks, first ? 1 : rounds(ROUNDS));
    if (!first && rounds_held == 0)
        wrong("every copy was over too soon");
    return NULL;
}

static void *compute(void *unused)
{
    while (!stop)
        ;
    return unused;
}

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(struct blocks b)
{
    static double times[MEASURED];
    pthread_t computing[COMPUTING];
    for (int i = 0; i < 20; i++)
        copy_checked(b, i, "before");
    for (int i = 0; i < COMPUTING; i++)
        computing[i] = start_thread(compute, NULL);
    struct sched_param parameters = {20};
    if (sched_setscheduler(0, SCHED_FIFO, &parameters))
        cannot("no SCHED_FIFO here: %s", strerror(errno));
    int count = rounds(MEASURED);
    for (int i = 0; i < count; i++) {
        double begun = now_ms();
        memcpy(b.to, b.from, b.size);
        times[i] = now_ms() - begun;
        sleep_ms(2);
    }
    stop = true;
    for (int i = 0; i < COMPUTING; i++)
        pthread_join(computing[i], NULL);
    qsort(times, count, sizeof times[0], compare_times);
    printf("%zu MiB beside %d computing threads: median %.2f ms, worst %.2f ms of %d\n",
           b.size >> 20, COMPUTING, times[count / 2], times[count - 1], count);
}

int main(int count, char **words)
{
    const char *way = count > 1 ? words[1] : "held";
    first = !strcmp(way, "first");
    struct blocks b = map_blocks(first ? 4 * SIZE : SIZE); /* long enough for a worker to come */
    /* As real-time programs do: a page that has to be read waits for threads of the kernel. */
    if (mlockall(MCL_CURRENT | MCL_FUTURE))
        cannot("mlockall: %s", strerror(errno));
    if (!strcmp(way, "measure")) {
        measure(b);
        return 0;
    }
    sem_init(&begin, 0, 0);
    if (!first)
        expect_workers(b, "before");
    pthread_t holder = start_thread(hold, &b);
    pthread_t copier = start_thread(copy_real_time, &b);
    pthread_join(copier, NULL);
    stop = true;
    sem_post(&begin);
    pthread_join(holder, NULL);
    return 0;
}
