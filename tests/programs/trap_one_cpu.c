/* Copies where only one CPU may be used, for which no thread may be made.
 *
 *   given  the caller of this program has seen to the one CPU
 *   narrow the program narrows its own affinity before the first large copy
 *   later  like narrow, when workers live already; only the copies are judged
 *   widen  narrow, and then takes it back: workers come after a while
 *   shrink narrows its affinity when workers live: they go after a while
 *   quota FILE ONE ALL  writes ONE to the quota of its control group when workers live, and they go;
 *          writes ALL, and they come again
 */
#include "trap.h"

static cpu_set_t all;
static struct blocks b;

static void narrow(void)
{
    cpu_set_t one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        cannot("sched_setaffinity: %s", strerror(errno));
}

/* Copies until there are workers, or none. Without the library there never are. */
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

static void set_quota(const char *value)
{
    const char *path = scene_argument(0, "");
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, value, strlen(value)) < 0 || close(fd))
        wrong("%s to %s: %s", value, path, strerror(errno));
}

static void given(void)
{
    for (int i = 0; i < 5; i++) {
        copy_checked(b, i, "copy on one CPU");
        if (count_threads() != 1)
            wrong("%d threads on one CPU", count_threads());
    }
}

static void narrow_first(void)
{
    narrow();
    given();
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
    narrow_first();
    sched_setaffinity(0, sizeof all, &all);
    expect_change(true);
}

static void shrink(void)
{
    expect_change(true);
    narrow();
    expect_change(false);
}

static void quota(void)
{
    expect_change(true);
    set_quota(scene_argument(1, ""));
    expect_change(false);
    set_quota(scene_argument(2, ""));
    expect_change(true);
}

SCENES(b = map_blocks(32 * MIB), {"given", given}, {"narrow", narrow_first},
       {"later", narrow_later}, {"widen", widen}, {"shrink", shrink}, {"quota", quota})
