/* Calls right after a copy that count the threads of the process, or reach only those that
 * the C library knows of. Workers that only wait for work must not be there then.
 *
 *   fork     in the parent, /proc/self/stat after fork: Python warns when it finds threads
 *   unshare  a user namespace is for processes of one thread
 *   setns    a mount namespace is for processes that share their directory with no other
 *   setuid   root's rights are given up
 *   capset   and capabilities
 */
#include "trap.h"
#include <linux/capability.h>
#include <sched.h>

extern int capset(void *, const void *);

static int threads_counted(void)
{
    char text[1024];
    int fd = open("/proc/self/stat", O_RDONLY), count = 0;
    ssize_t length = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (length < 0)
        cannot("no /proc/self/stat");
    close(fd);
    text[length] = 0;
    const char *at = strrchr(text, ')') + 2;
    for (int field = 3; field < 20; field++)
        at = strchr(at, ' ') + 1;
    sscanf(at, "%d", &count);
    return count;
}

static void fork_alone(struct blocks b)
{
    for (int round = 0; round < rounds(30); round++) {
        copy_checked(b, round, "before fork");
        if (round % 3 == 0)
            expect_workers(b, "before fork");
        long begun = clock_ms();
        pid_t child = fork();
        int threads = threads_counted();
        bool too_busy = waited_in_vain(begun);
        if (child == 0) {
            copy_checked(b, 100 + round, "child");
            _exit(threads != 1);
        }
        expect_success(child, "child of fork");
        if (threads != 1 && !too_busy)
            wrong("%d threads right after fork, round %d", threads, round);
    }
}

/* The thread that still has any, which is the program's own or one that has not left. */
static bool a_thread_has_rights(char which[100])
{
    bool found = false;
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; (entry = readdir(tasks));) {
        char path[64], line[200];
        unsigned user = 1;
        unsigned long long rights = 0;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/status", entry->d_name);
        FILE *status = entry->d_name[0] == '.' ? NULL : fopen(path, "r");
        while (status && fgets(line, sizeof line, status)) {
            sscanf(line, "Uid: %*u %u", &user);
            sscanf(line, "CapEff: %llx", &rights);
        }
        if (status)
            fclose(status);
        found |= rights != 0;
        if (rights)
            snprintf(which, 100, "thread %.20s still has the capabilities %llx, as user %u",
                     entry->d_name, rights, user);
    }
    closedir(tasks);
    return found;
}

static void expect_no_rights(long begun)
{
    char which[100];
    bool too_busy = waited_in_vain(begun);
    for (int ms = 0; a_thread_has_rights(which); ms += 10) {
        if (!too_busy || ms == 60000)
            wrong("%s", which);
        sleep_ms(10);
    }
}

/* Whether it is refused because there are other threads. */
static bool sees_others(int result, long begun)
{
    if (result == 0)
        return false;
    if (errno != EINVAL)
        cannot("not permitted here: %s", strerror(errno));
    return !waited_in_vain(begun);
}

int main(int count, char **words)
{
    const char *way = count > 1 ? words[1] : "fork";
    struct blocks b = map_blocks(4 * MIB);
    if (!strcmp(way, "fork")) {
        fork_alone(b);
        return 0;
    }
    copy_checked(b, 1, "before");
    expect_workers(b, "before");
    copy_checked(b, 2, "just before");
    long begun = clock_ms();
    if (!strcmp(way, "unshare")) {
        if (sees_others(unshare(CLONE_NEWUSER), begun))
            wrong("unshare of the user namespace sees other threads");
    } else if (!strcmp(way, "setns")) {
        int own = open("/proc/self/ns/mnt", O_RDONLY);
        if (sees_others(setns(own, CLONE_NEWNS), begun))
            wrong("setns of the mount namespace sees other threads");
    } else if (!strcmp(way, "setuid")) {
        if (geteuid() != 0)
            cannot("only root can drop privileges");
        if (setgid(54321) || setuid(54321))
            wrong("setuid after a copy: %s", strerror(errno));
        expect_no_rights(begun);
    } else {
        struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
        struct __user_cap_data_struct none[2] = {{0, 0, 0}, {0, 0, 0}};
        if (geteuid() != 0)
            cannot("only root has capabilities");
        if (capset(&header, none))
            wrong("capset after a copy: %s", strerror(errno));
        expect_no_rights(begun);
    }
    copy_checked(b, 3, "afterwards");
    expect_workers(b, "afterwards");
    return 0;
}
