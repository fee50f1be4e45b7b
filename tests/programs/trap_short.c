/* Processes too short for an engine, and ones that want it at once. With no knobs set:
 *
 *   prefork  children copy 256 KiB and leave: none has another thread
 *   turn     the program copies 256 KiB and forks in turn: there is no other thread
 *   large    one copy of 64 MiB, after which there are workers; the second word tells how
 *   again    children copy 4 MiB each, as the program has done before; the second word tells how
 *   faults   says how many page faults the child of a fork has had when it begins
 */
#include "trap.h"
#include <sys/resource.h>

static void expect_alone(const char *who)
{
    if (threads_named("") != 1)
        wrong("%s has %d threads", who, threads_named(""));
}

static void in_child(struct blocks b, int round)
{
    copy_checked(b, round, "child");
    if (b.size < MIB)
        expect_alone("the child");
    _exit(0);
}

int main(int count, char **words)
{
    const char *way = count > 1 ? words[1] : "prefork";
    size_t size = !strcmp(way, "large") ? 64 * MIB : !strcmp(way, "again") ? 4 * MIB : 256 * KIB;
    struct blocks b = map_blocks(size);
    if (!strcmp(way, "large")) {
        fill(b.from, b.size, 1);
        memcpy(b.to, b.from, b.size);
        return 0;
    }
    if (!strcmp(way, "again"))
        copy_checked(b, 1000, "parent");
    for (int round = 0; round < (strcmp(way, "again") ? 20 : 5); round++) {
        if (!strcmp(way, "turn")) {
            copy_checked(b, round, "parent");
            expect_alone("the program");
        }
        pid_t child = fork();
        if (child == 0 && !strcmp(way, "faults")) {
            struct rusage used;
            getrusage(RUSAGE_SELF, &used);
            printf("%ld\n", used.ru_minflt);
            exit(0);
        }
        if (child == 0 && !strcmp(way, "turn"))
            _exit(0);
        if (child == 0)
            in_child(b, 100 + round);
        expect_success(child, "child");
        if (!strcmp(way, "faults"))
            break;
    }
    return 0;
}
