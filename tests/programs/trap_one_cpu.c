/* Copies where only one CPU may be used; no thread may be made for it.
 *
 *   given  the caller of this program has seen to the one CPU
 *   narrow the program narrows its own affinity before the first large copy
 *   later  it does so when workers live already; only the copies are judged
 */
#include "trap.h"
#include <sched.h>

static void narrow(void)
{
    cpu_set_t all, one;
    sched_getaffinity(0, sizeof all, &all);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &all))
            CPU_SET(cpu, &one);
    if (sched_setaffinity(0, sizeof one, &one))
        cannot("sched_setaffinity: %s", strerror(errno));
}

int main(int count, char **words)
{
    const char *way = count > 1 ? words[1] : "given";
    struct blocks b = map_blocks(32 * MIB);
    if (!strcmp(way, "narrow"))
        narrow();
    for (int i = 0; i < 5; i++) {
        copy_checked(b, i, "copy on one CPU");
        if (strcmp(way, "later") && threads_named("") != 1)
            wrong("%d threads on one CPU", threads_named(""));
    }
    if (!strcmp(way, "later")) {
        narrow();
        for (int i = 5; i < 15; i++)
            copy_checked(b, i, "copy after narrowing");
    }
    return 0;
}
