/* Copies where only one CPU may be used; no thread may be made for it.
 *
 *   given  the caller of this program has seen to the one CPU
 *   narrow the program narrows its own affinity before the first large copy
 *   later  it does so when workers live already; only the copies are judged
 *   widen  it narrows its affinity before the first large copy and takes that back: workers
 *          come after a while
 *   shrink it narrows its affinity when workers live: they go after a while
 *   quota  it sets the quota of its control group when workers live: they go after a while,
 *          and come again when it takes that back. Further words: the file that holds the
 *          quota, what it holds for one CPU, and without a limit.
 */
#include "trap.h"
#include <sched.h>

static cpu_set_t all;

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

/* Copies until there are workers, or none. */
static void expect_change(struct blocks b, bool workers)
{
    for (int ms = 0; (threads_named("adma-") != 0) != workers; ms += 20) {
        if (ms >= 60000)
            wrong(workers ? "no worker came in a minute" : "the workers stay");
        copy_checked(b, 100 + ms, "copy after a change");
        sleep_ms(20);
    }
}

static void set_quota(const char *path, const char *value)
{
    int fd = open(path, O_WRONLY);
    if (fd < 0 || write(fd, value, strlen(value)) < 0 || close(fd))
        wrong("%s to %s: %s", value, path, strerror(errno));
}

int main(int count, char **words)
{
    const char *way = count > 1 ? words[1] : "given";
    struct blocks b = map_blocks(32 * MIB);
    if (!strcmp(way, "narrow") || !strcmp(way, "widen"))
        narrow();
    if (!strcmp(way, "shrink")) {
        if (getenv("LD_PRELOAD"))
            expect_change(b, true);
        narrow();
        expect_change(b, false);
        return 0;
    }
    if (!strcmp(way, "quota") && count > 4) {
        bool workers = getenv("LD_PRELOAD");
        expect_change(b, workers);
        set_quota(words[2], words[3]);
        expect_change(b, false);
        set_quota(words[2], words[4]);
        expect_change(b, workers);
        return 0;
    }
    for (int i = 0; i < 5; i++) {
        copy_checked(b, i, "copy on one CPU");
        if (strcmp(way, "later") && threads_named("") != 1)
            wrong("%d threads on one CPU", threads_named(""));
    }
    if (!strcmp(way, "widen")) {
        sched_setaffinity(0, sizeof all, &all);
        if (getenv("LD_PRELOAD"))
            expect_change(b, true);
    }
    if (!strcmp(way, "later")) {
        narrow();
        for (int i = 5; i < 15; i++)
            copy_checked(b, i, "copy after narrowing");
    }
    return 0;
}
