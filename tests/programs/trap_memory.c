/* Memory of a program that has made small copies only, in KiB:
 *
 *   resident  prints how much is resident
 *   private   prints how much is private to the process
 *   locked    locks all of it, with a limit of 6000 KiB, and copies then
 */
#include "trap.h"

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

static void print_resident(void)
{
    printf("%ld\n", kib("/proc/self/status", "VmRSS: %ld"));
}

static void print_private(void)
{
    printf("%ld\n", kib("/proc/self/smaps_rollup", "Anonymous: %ld"));
}

static void lock_all(void)
{
    struct rlimit limit = {6000 * KIB, 6000 * KIB};
    drop_capability(CAP_IPC_LOCK);
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
    /* Everything mapped from now on is locked as well, within the limit. */
    struct blocks small = map_blocks(512 * KIB);
    unmap_blocks(b);
    if (mlockall(MCL_FUTURE))
        wrong("mlockall of what is to come: %s", strerror(errno));
    have_workers_leave();
    for (int i = 0; i < 10; i++)
        copy_checked(small, i, "large copy, everything locked");
}

static void set_up(void)
{
    for (int i = 0; i < 1000; i++)
        copy_once(4 * KIB, i, "small copy");
    sleep_ms(50);
}

SCENES(set_up(), {"resident", print_resident}, {"private", print_private}, {"locked", lock_all})
