/* Descriptors that a program closes and opens.
 *
 *   FOLDER [later]      closes every descriptor, opens its own files in FOLDER under the numbers 0
 *                       to 9, copies, and writes one line into each: nothing else may get there.
 *                       With "later" large copies are made before as well, and all numbers up to
 *                       600 are taken by the last file: one of them may have been an engine's
 *   none                RLIMIT_NOFILE is 0: no descriptor can be had
 *   again               opens and closes the lowest number for seconds, between copies after which
 *                       workers are idle: the file behind it is always this program's, and no
 *                       worker has called read, as the kernel counts
 */
#include "trap.h"

static void copy_without_descriptors(void)
{
    struct rlimit none = {0, 0};
    if (setrlimit(RLIMIT_NOFILE, &none))
        cannot("RLIMIT_NOFILE: %s", strerror(errno));
    for (int i = 0; i < 5; i++)
        copy_once(16 * MIB, i, "copy without descriptors");
}

static void expect_no_reads_by_workers(void)
{
    struct task tasks[MOST_TASKS];
    for (int i = tasks_of(getpid(), tasks) - 1; i >= 0; i--) {
        char path[64], text[200] = "";
        long reads = 0;
        snprintf(path, sizeof path, "/proc/self/task/%d/io", tasks[i].tid);
        int fd = tasks[i].tid == getpid() ? -1 : open(path, O_RDONLY);
        if (fd < 0)
            continue;
        if (read(fd, text, sizeof text - 1) > 0 && strstr(text, "syscr: "))
            reads = atol(strstr(text, "syscr: ") + 7);
        if (reads)
            wrong("a worker has called read %ld times", reads);
        close(fd);
    }
}

static void open_again_and_again(void)
{
    struct blocks b = map_blocks(MIB);
    struct stat zero, now;
    long until = clock_ms() + 7000, opened = 0;
    if (stat("/dev/zero", &zero) || access("/proc/self/io", R_OK))
        cannot("/dev/zero or /proc/self/io: %s", strerror(errno));
    close(0);
    for (uint64_t seed = 1; clock_ms() < until; seed++) {
        copy_checked(b, seed, "copy between files");
        expect_no_reads_by_workers();
        for (int i = 0; i < 3000; i++, opened++) {
            int fd = open("/dev/zero", O_RDONLY);
            if (fd != 0)
                wrong("file %ld: open gave number %d, not 0", opened, fd);
            if (fstat(0, &now) || now.st_rdev != zero.st_rdev)
                wrong("file %ld is another: %s", opened, strerror(errno));
            if (close(0))
                wrong("file %ld was closed: %s", opened, strerror(errno));
        }
    }
}

static void close_all(const char *folder, bool later)
{
    for (int i = 0; later && i < 3; i++)
        copy_once(16 * MIB, 100 + i, "copy with descriptors of its own");
    if (syscall(SYS_close_range, 0, ~0u, 0))
        cannot("close_range: %s", strerror(errno));
    for (int wanted = 0; wanted < 10; wanted++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", folder, wanted);
        if (open(path, O_RDWR | O_CREAT | O_TRUNC, 0600) != wanted)
            _exit(1);
    }
    for (int fd = 9; later && fd >= 0 && fd < 600;)
        fd = dup(9);
    for (int i = 0; i < 5; i++)
        copy_once(16 * MIB, i, "copy with strange descriptors");
    for (int fd = 0; fd < 10; fd++)
        if (dprintf(fd, "file %d\n", fd) != 7)
            _exit(1);
}

int main(int count, char **words)
{
    if (count == 2 && !strcmp(words[1], "again"))
        open_again_and_again();
    else if (count == 2 && !strcmp(words[1], "none"))
        copy_without_descriptors();
    else if (count > 1)
        close_all(words[1], count > 2);
    return 0;
}
