/* A daemon of root that drops its privileges after it has copied.
 *
 *   idle      then copies a little, rests and copies again
 *   threaded  the same with other threads copying
 *   busy      then copies on without a rest
 *
 * setuid must succeed, later copies must be right, and no worker may go on with
 * root's rights: whoever took over the program would find them there.
 */
#include "trap.h"

static void expect_no_root(void)
{
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(tasks));) {
        char path[64], line[200];
        unsigned real = 1, effective = 1;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/status", entry->d_name);
        FILE *status = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        while (status && fgets(line, sizeof line, status))
            sscanf(line, "Uid: %u %u", &real, &effective);
        if (status)
            fclose(status);
        if (real == 0 || effective == 0)
            wrong("thread %s is still root's", entry->d_name);
    }
    closedir(tasks);
}

int main(int count, char **words)
{
    bool threaded = count > 1 && !strcmp(words[1], "threaded");
    bool busy = count > 1 && !strcmp(words[1], "busy");
    struct blocks b = map_blocks(busy ? 2 * MIB : 32 * MIB); /* busy: no time to be idle */
    pthread_t threads[2];
    if (geteuid() != 0)
        cannot("only root can drop privileges");
    copy_checked(b, 1, "copy of root");
    if (threaded)
        start_copiers(threads, 2, 512 * KIB);
    if (setgid(54321) || setuid(54321))
        wrong("setuid after a copy: %s", strerror(errno));
    if (getuid() != 54321 || geteuid() != 54321)
        wrong("setuid did not change the user");
    for (int i = 2; i < (busy ? 150 : 6); i++)
        copy_checked(b, i, "copy after setuid");
    if (threaded)
        stop_copiers(threads, 2);
    if (!busy)
        have_workers_leave();
    copy_checked(b, 7, "copy after setuid and idleness");
    expect_no_root();
    return 0;
}
