/* Resources run out before the first large copy:
 *
 *   nproc   no more processes for this user, so clone gives EAGAIN
 *   memory  no more address space, so a worker's stack cannot be had
 *
 * The copies are libc's then, and right.
 */
#include "trap.h"
#include <sys/resource.h>

static void exhaust_processes(void)
{
    struct rlimit none = {0, 0};
    /* The limit does not bind root. Nobody else runs under this number. */
    if (geteuid() == 0 && setresuid(54321, 54321, 54321))
        cannot("cannot leave root: %s", strerror(errno));
    setrlimit(RLIMIT_NPROC, &none);
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    if (child > 0)
        cannot("RLIMIT_NPROC does not hinder fork here");
}

static void exhaust_address_space(void)
{
    struct rlimit little = {16 * MIB, 16 * MIB}; /* less than is in use already */
    if (setrlimit(RLIMIT_AS, &little))
        cannot("RLIMIT_AS: %s", strerror(errno));
    if (mmap(NULL, 16 * KIB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) != MAP_FAILED)
        cannot("RLIMIT_AS does not hinder mmap here");
}

int main(int count, char **words)
{
    struct blocks b = map_blocks(32 * MIB);
    if (count > 1 && !strcmp(words[1], "nproc"))
        exhaust_processes();
    else
        exhaust_address_space();
    for (int i = 0; i < 8; i++)
        copy_checked(b, i, "copy without means");
    int fd = open("/proc/self/comm", O_RDONLY);
    if (fd < 0)
        wrong("no descriptor can be had afterwards: %s", strerror(errno));
    return 0;
}
