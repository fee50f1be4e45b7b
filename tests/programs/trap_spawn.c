/* Programs that start others:
 *
 *   spawn   posix_spawn, system and popen while other threads copy; the spawned program is this one
 *           again ("leaf"), and copies
 *   daemon  daemon(), and the daemon copies
 */
#include "trap.h"
#include <spawn.h>

extern char **environ;

static void spawn_self(void)
{
    char *words[] = {"trap_spawn", "leaf", NULL};
    pid_t child;
    int refused = posix_spawn(&child, "/proc/self/exe", NULL, NULL, words, environ);
    if (refused)
        wrong("posix_spawn: %s", strerror(refused));
    expect_success(child, "spawned program");
}

static void read_from_shell(void)
{
    char line[16] = "";
    FILE *shell = popen("echo spawned", "r");
    if (!shell || !fgets(line, sizeof line, shell) || strcmp(line, "spawned\n"))
        wrong("popen gave \"%s\"", line);
    if (pclose(shell))
        wrong("pclose is not 0");
}

static void become_daemon(void)
{
    int ends[2];
    char answer = 0;
    copy_once(8 * MIB, 1, "before daemon()");
    if (pipe(ends))
        wrong("pipe: %s", strerror(errno));
    pid_t child = fork();
    if (child == 0) {
        if (daemon(0, 0))
            wrong("daemon: %s", strerror(errno));
        struct blocks b = map_blocks(8 * MIB);
        for (int i = 0; i < 5; i++)
            copy_checked(b, 2 + i, "daemon");
        expect_workers(b, "daemon");
        exit(write(ends[1], "k", 1) != 1);
    }
    close(ends[1]);
    expect_success(child, "parent of the daemon");
    struct pollfd until = {ends[0], POLLIN, 0};
    if (poll(&until, 1, 100000) != 1 || read(ends[0], &answer, 1) != 1 || answer != 'k')
        wrong("the daemon did not come to the end of its copies");
    /* The end of the pipe closes with the daemon's end, when its report is written. */
    if (poll(&until, 1, 100000) != 1 || read(ends[0], &answer, 1) != 0)
        wrong("the daemon did not end");
}

static void spawn(void)
{
    pthread_t threads[2];
    start_copiers(threads, 2, 512 * KIB);
    for (int round = 0; round < rounds(25); round++) {
        spawn_self();
        read_from_shell();
        if (system("exit 3") != 3 << 8)
            wrong("system does not tell the exit status");
    }
    stop_copiers(threads, 2);
}

static void leaf(void)
{
    copy_once(1 * MIB, 1, "spawned program");
}

SCENES((void)0, {"spawn", spawn}, {"daemon", become_daemon}, {"leaf", leaf})
