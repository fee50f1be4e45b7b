/* A daemon of root that drops its privileges after it has copied.
 *
 *   idle      then copies a little, rests and copies again
 *   threaded  the same with other threads copying
 *   busy      then copies on without a rest
 *   numbers   does not, but its threads have user numbers of their own, as a file server's
 *             have: they do not send each other's workers away
 *
 * setuid must succeed, later copies must be right, and no worker may go on with
 * root's rights: an attacker in the program would find them there.
 */
#include "trap.h"

static bool a_thread_is_roots(void)
{
    bool found = false;
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
        found |= real == 0 || effective == 0;
    }
    closedir(tasks);
    return found;
}

/* At once, or soon: who is sent away from a copy leaves when it gets a CPU. Idle ones that are
 * not sent away stay for five seconds. */
static void expect_no_root(bool soon)
{
    for (int ms = 0; a_thread_is_roots(); ms += 10) {
        if (!soon || ms > 3000)
            wrong("a thread is still root's");
        sleep_ms(10);
    }
}

/* The kernel's: of this thread only. */
static void *copy_as_somebody(void *user)
{
    struct blocks b = map_blocks(512 * KIB);
    if (syscall(SYS_setresuid, -1, (long)user, -1))
        cannot("no user number for one thread: %s", strerror(errno));
    for (uint64_t seed = (uintptr_t)user; !copiers_stop; seed++)
        copy_checked(b, seed, "thread with a user number of its own");
    unmap_blocks(b);
    return NULL;
}

static int tids_of_workers(int *tids, int most)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(tasks)) && count < most;) {
        char path[64], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%.20s/comm", entry->d_name);
        FILE *file = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (file && fgets(name, sizeof name, file) && !strncmp(name, "adma-", 5))
            tids[count++] = atoi(entry->d_name);
        if (file)
            fclose(file);
    }
    closedir(tasks);
    return count;
}

/* How many different workers are seen in half a second. */
static void copy_under_several_numbers(void)
{
    static int seen[4096];
    int count = 0, now[64];
    struct blocks b = map_blocks(512 * KIB);
    copy_checked(b, 1, "before the others");
    pthread_t one = start_thread(copy_as_somebody, (void *)54321);
    pthread_t two = start_thread(copy_as_somebody, (void *)54322);
    long begun = clock_ms();
    while (clock_ms() - begun < 500) {
        int found = tids_of_workers(now, 64);
        for (int i = 0; i < found; i++) {
            int at = 0;
            while (at < count && seen[at] != now[i])
                at++;
            if (at == count && count < 4096)
                seen[count++] = now[i];
        }
        sleep_ms(1);
    }
    copiers_stop = true;
    pthread_join(one, NULL);
    pthread_join(two, NULL);
    if (count > 30)
        wrong("%d workers came and went", count);
    if (workers_expected() && count == 0)
        wrong("no worker came");
}

int main(int count, char **words)
{
    bool threaded = count > 1 && !strcmp(words[1], "threaded");
    bool busy = count > 1 && !strcmp(words[1], "busy");
    struct blocks b = map_blocks(busy ? 2 * MIB : 32 * MIB); /* busy: no time to be idle */
    pthread_t threads[2];
    if (geteuid() != 0)
        cannot("only root can drop privileges");
    if (count > 1 && !strcmp(words[1], "numbers")) {
        copy_under_several_numbers();
        return 0;
    }
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
    expect_no_root(busy);
    return 0;
}
