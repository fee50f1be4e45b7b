/* Copies 1 MiB five times, then has one child for each argument, one after the other; each child
 * copies 1 MiB as often as its argument says. Prints "parent PID" and "child PID COPIES" lines.
 */
#include "trap.h"

static void copy(int times)
{
    static struct blocks b;
    if (!b.to)
        b = map_blocks(MIB);
    for (int i = 0; i < times; i++)
        copy_checked(b, i, "copy");
}

int main(int count, char **words)
{
    copy(5);
    printf("parent %d\n", getpid());
    for (int i = 1; i < count; i++) {
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            printf("child %d %s\n", getpid(), words[i]);
            copy(atoi(words[i]));
            exit(0);
        }
        expect_success(child, "child");
    }
    return 0;
}
