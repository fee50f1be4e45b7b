/* A thread copies while its worker, an ordinary thread, is kept from its CPU by a SCHED_FIFO
 * thread, which lets go only when the copy is over: a copy that waits for the worker never ends.
 * Two CPUs; the kernel does not limit real-time threads.
 *
 *   held      the caller is a SCHED_FIFO thread, too
 *   first     like held, with the first copy of a program that has several threads already
 *   ordinary  the caller is an ordinary thread; copies go on until there was a worker
 *
 * With "filtered" as second word the process is under a seccomp filter from its start.
 */
#include "filtered.h"

enum { SIZE = 4 << 20, ROUNDS = 60, FIRST_SEED = 1000, LIMIT_MS = 10000 };

static struct blocks b;
static sem_t begin;
static atomic_bool over, stop;
static atomic_int held_for_ms, rounds_held;
static bool first, ordinary;

static void be_real_time(int priority)
{
    struct sched_param parameters = {priority};
    if (sched_setscheduler(0, SCHED_FIFO, &parameters))
        cannot("no SCHED_FIFO here: %s", strerror(errno));
}

/* Whether a worker writes to the second half, where a worker begins. */
static bool worker_is_at_the_end(uint64_t seed)
{
    const volatile uint64_t *words = b.to;
    for (size_t at = b.size / 16; at < b.size / 8; at += 512)
        if (words[at] == word_at(at, seed))
            return true;
    return false;
}

/* Keeps all other threads from its CPU, once a worker has begun, until the copy is over. */
static void *hold(void *nothing)
{
    struct timespec moment = {0, 1000000}; /* leaves the worker its CPU */
    stay_on(1);
    be_real_time(50);
    for (int round = 0;; round++) {
        sem_wait(&begin);
        if (stop)
            return nothing;
        while (!over && !worker_is_at_the_end(FIRST_SEED + round))
            nanosleep(&moment, NULL);
        rounds_held += !over;
        long from = clock_ms();
        while (!over && clock_ms() < from + LIMIT_MS)
            ;
        held_for_ms = clock_ms() - from;
    }
}

static void *copy(void *nothing)
{
    if (!first) /* a worker is born where its maker may be */
        stay_on(0);
    if (!ordinary)
        be_real_time(20);
    for (int round = 0; round < (first ? 1 : rounds(ROUNDS)); round++) {
        over = false;
        held_for_ms = -1;
        sem_post(&begin);
        copy_checked(b, FIRST_SEED + round, "while the worker cannot run");
        over = true;
        while (held_for_ms < 0)
            sleep_ms(1);
        if (held_for_ms >= LIMIT_MS)
            wrong("round %d: the copy waited for one of %d workers, which could not run", round,
                  count_workers());
    }
    if (ordinary && rounds_held == 0)
        wrong("every copy was over too soon");
    return nothing;
}

int main(int count, char **words)
{
    const char *way = count > 1 ? words[1] : "held";
    if (count > 2 && !strcmp(words[2], "filtered"))
        be_filtered(words);
    first = !strcmp(way, "first");
    ordinary = !strcmp(way, "ordinary");
    b = map_blocks(first ? 4 * SIZE : SIZE); /* long enough for a worker to come */
    /* Like real-time programs: a page that has to be read waits for threads of the kernel. */
    if (mlockall(MCL_CURRENT | MCL_FUTURE))
        cannot("mlockall: %s", strerror(errno));
    sem_init(&begin, 0, 0);
    if (!first)
        expect_workers(b, "before");
    pthread_t holder = start_thread(hold, NULL);
    pthread_join(start_thread(copy, NULL), NULL);
    stop = true;
    sem_post(&begin);
    pthread_join(holder, NULL);
    return 0;
}
