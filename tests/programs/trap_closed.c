/* Closes every descriptor, opens its own files under the numbers 0 to 9, copies,
 * writes one line into each and exits: nothing else may get into them.
 * First argument: the folder for the files. With "later" behind it large copies are
 * made before as well, and all numbers up to 600 are taken by the last file: one of
 * them may have been an engine's.
 *
 * With "none": RLIMIT_NOFILE is 0, so no descriptor can be had at all.
 */
#include "trap.h"
#include <sys/resource.h>

static int copy_without_descriptors(void)
{
    struct rlimit none = {0, 0};
    if (setrlimit(RLIMIT_NOFILE, &none))
        cannot("RLIMIT_NOFILE: %s", strerror(errno));
    for (int i = 0; i < 5; i++)
        copy_once(16 * MIB, i, "copy without descriptors");
    return 0;
}

int main(int count, char **words)
{
    bool later = count == 3 && !strcmp(words[2], "later");
    if (count != 2 && !later)
        wrong("want FOLDER [later] or none");
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
