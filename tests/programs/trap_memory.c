/* What a program holds that has made small copies only, in KiB:
 *
 *   (nothing)  prints how much is resident
 *   private    prints how much it has to itself
 *   locked     locks all of it, with a limit of 6000 KiB, and copies then
 */
#include "trap.h"
#include <linux/capability.h>
#include <sys/resource.h>

static long kib(const char *path, const char *format)
{
    char line[200];
    long found = -1;
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, format, &found);
    if (file)
        fclose(file);
    if (found < 0)
        cannot("nothing like \"%s\" in %s", format, path);
    return found;
}

/* The limit does not bind root. */
static void have_no_right_to_lock(void)
{
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct sets[2];
    if (syscall(SYS_capget, &header, sets))
        cannot("capget: %s", strerror(errno));
    sets[0].effective &= ~(1u << CAP_IPC_LOCK);
    sets[0].permitted &= ~(1u << CAP_IPC_LOCK);
    if (syscall(SYS_capset, &header, sets))
        cannot("capset: %s", strerror(errno));
}

static void lock_all(void)
{
    struct rlimit limit = {6000 * KIB, 6000 * KIB};
    have_no_right_to_lock();
    if (setrlimit(RLIMIT_MEMLOCK, &limit))
        cannot("RLIMIT_MEMLOCK: %s", strerror(errno));
    if (mlockall(MCL_CURRENT))
        wrong("mlockall: %s, with %ld KiB mapped", strerror(errno),
              kib("/proc/self/status", "VmSize: %ld"));
    copy_once(4 * KIB, 1, "small copy");
    struct blocks b = map_blocks(32 * MIB);
    for (int i = 0; i < 10; i++)
        copy_checked(b, i, "large copy");
    expect_workers(b, "large copy");
    /* Whatever is mapped from now on is locked as well, as far as the limit goes. */
    struct blocks small = map_blocks(512 * KIB);
    munmap(b.to, b.size);
    munmap(b.from, b.size);
    if (mlockall(MCL_FUTURE))
        wrong("mlockall of what is to come: %s", strerror(errno));
    have_workers_leave();
    for (int i = 0; i < 10; i++)
        copy_checked(small, i, "large copy, everything locked");
}

int main(int count, char **words)
{
    for (int i = 0; i < 1000; i++)
        copy_once(4 * KIB, i, "small copy");
    if (count > 1 && !strcmp(words[1], "locked")) {
        lock_all();
        return 0;
    }
    sleep_ms(50);
    if (count > 1 && !strcmp(words[1], "private"))
        printf("%ld\n", kib("/proc/self/smaps_rollup", "Anonymous: %ld"));
    else
        printf("%ld\n", kib("/proc/self/status", "VmRSS: %ld"));
    return 0;
}
