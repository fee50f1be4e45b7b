/* Processes too short for an engine, and ones that want it at once. With no knobs set:
 *
 *   prefork  children copy 256 KiB and leave: none has another thread
 *   turn     the program copies 256 KiB and forks in turn: there is no other thread
 *   large    one copy of 64 MiB, for strace
 *   again    children copy 4 MiB each, as the program has done before, for strace
 *   faults   prints the number of page faults of a forked child at its beginning
 */
#include "trap.h"

static struct blocks b;

static void copy_alone(void)
{
    static uint64_t seed = 1;
    copy_checked(b, seed++, "short process");
    if (b.size < MIB && count_threads() != 1)
        wrong("a short process has %d threads", count_threads());
}

static void do_nothing(void)
{
}

static void prefork(void)
{
    b = map_blocks(256 * KIB);
    for (int round = 0; round < 20; round++)
        in_child(copy_alone, "child");
}

static void in_turn(void)
{
    b = map_blocks(256 * KIB);
    for (int round = 0; round < 20; round++) {
        copy_alone();
        in_child(do_nothing, "child");
    }
}

static void one_large(void)
{
    b = map_blocks(64 * MIB);
    fill(b.from, b.size, 1);
    memcpy(b.to, b.from, b.size);
}

static void again(void)
{
    b = map_blocks(4 * MIB);
    copy_alone();
    for (int round = 0; round < 5; round++)
        in_child(copy_alone, "child");
}

static void say_faults(void)
{
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("%ld\n", used.ru_minflt);
    exit(0);
}

static void faults(void)
{
    in_child(say_faults, "child");
}

SCENES((void)0, {"prefork", prefork}, {"turn", in_turn}, {"large", one_large}, {"again", again},
       {"faults", faults})
