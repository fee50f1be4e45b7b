/* Closes every descriptor, opens its own files under the numbers 0 to 9, copies,
 * writes one line into each and exits: nothing else may get into them.
 * First argument: the folder for the files. With "later" behind it large copies are
 * made before as well, and all numbers up to 600 are taken by the last file: one of
 * them may have been an engine's.
 *
 * With "none": RLIMIT_NOFILE is 0, so no descriptor can be had at all.
 *
 * With "again": for some seconds a number is given back and the next file gets it, between copies
 * after which workers have nothing to do. The file behind the number is always this one's, and no
 * worker has read any, as the kernel counts.
 */
#include "trap.h"
#include <sys/resource.h>
#include <sys/stat.h>

static int copy_without_descriptors(void)
{
    struct rlimit none = {0, 0};
    if (setrlimit(RLIMIT_NOFILE, &none))
        cannot("RLIMIT_NOFILE: %s", strerror(errno));
    for (int i = 0; i < 5; i++)
        copy_once(16 * MIB, i, "copy without descriptors");
    return 0;
}

static void expect_no_reads_by_workers(void)
{
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
        char path[64], text[200] = "";
        long reads = 0;
        if (entry->d_name[0] == '.' || atoi(entry->d_name) == getpid())
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/io", entry->d_name);
        int fd = open(path, O_RDONLY);
        if (fd < 0 && errno != ENOENT)
            cannot("%s: %s", path, strerror(errno));
        if (fd >= 0 && read(fd, text, sizeof text - 1) > 0 && strstr(text, "syscr: "))
            reads = atol(strstr(text, "syscr: ") + 7);
        if (reads)
            wrong("a worker has called read %ld times", reads);
        close(fd);
    }
    closedir(tasks);
}

static int open_again_and_again(void)
{
    struct blocks b = map_blocks(MIB);
    struct stat zero, now;
    long until = clock_ms() + 7000, opened = 0;
    if (stat("/dev/zero", &zero))
        cannot("/dev/zero: %s", strerror(errno));
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
    return 0;
}

int main(int count, char **words)
{
    bool later = count == 3 && !strcmp(words[2], "later");
    if (count != 2 && !later)
        wrong("want FOLDER [later] or none");
    if (!strcmp(words[1], "again"))
        return open_again_and_again();
    if (!strcmp(words[1], "none"))
        return copy_without_descriptors();
    for (int i = 0; later && i < 3; i++)
        copy_once(16 * MIB, 100 + i, "copy with descriptors of its own");
    if (syscall(SYS_close_range, 0, ~0u, 0))
        cannot("close_range: %s", strerror(errno));
    for (int wanted = 0; wanted < 10; wanted++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", words[1], wanted);
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
    return 0;
}
