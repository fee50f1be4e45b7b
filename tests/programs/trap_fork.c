/* Forks 160 times while other threads copy; with "handlers", fork handlers copy too. One set of
 * them is registered before any library's constructor ran, one after.
 *
 * Children copy and exit, copy and _exit, only _exit, or have children of their own. A child that
 * leaves by exit, and so reports, has copied three times 1 MiB.
 */
#include "trap.h"

static struct blocks for_handlers;
static bool handlers_copy;

static void copy_in_fork_handler(void)
{
    static uint64_t seed;
    if (handlers_copy)
        copy_checked(for_handlers, 5000 + seed++, "fork handler");
}

static void register_early(void)
{
    pthread_atfork(copy_in_fork_handler, copy_in_fork_handler, copy_in_fork_handler);
}

__attribute__((section(".preinit_array"), used)) static void (*early)(void) = register_early;

static void copy_as_child(struct blocks b, int round)
{
    for (int i = 0; i < 3; i++)
        copy_checked(b, 100 * round + i, "child");
}

static void be_child(struct blocks b, int round)
{
    if (round % 4 == 3) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            copy_as_child(b, round);
            _exit(0);
        }
        expect_success(grandchild, "grandchild");
    }
    if (round % 4 != 2)
        copy_as_child(b, round + 1);
    if (round % 4 == 0)
        exit(0);
    _exit(0);
}

int main(int count, char **words)
{
    handlers_copy = count > 1 && !strcmp(words[1], "handlers");
    pthread_t threads[3];
    struct blocks b = map_blocks(1 * MIB);
    for_handlers = map_blocks(1 * MIB);
    if (handlers_copy)
        pthread_atfork(copy_in_fork_handler, copy_in_fork_handler, copy_in_fork_handler);
    start_copiers(threads, 3, 256 * KIB);
    for (int round = 0; round < rounds(handlers_copy ? 60 : 160); round++) {
        pid_t child = fork();
        if (child == 0)
            be_child(b, round);
        expect_success(child, "child of fork");
    }
    stop_copiers(threads, 3);
    copy_checked(b, 1, "parent after all forks");
    return 0;
}
