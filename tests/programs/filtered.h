/* A program that runs under a seccomp filter from its start, which forbids nothing that is used.
 */
#ifndef FILTERED_H
#define FILTERED_H

#include "trap.h"
#include "seccomp.h"

/* Installs the filter and executes this program again, with "again" for its second word. */
static inline void be_filtered(char **words)
{
    const int unused[] = {SYS_kexec_load, -1};
    if (answer_calls(unused, SECCOMP_RET_KILL_PROCESS, 0))
        cannot("no seccomp filter here: %s", strerror(errno));
    execl("/proc/self/exe", words[0], words[1], "again", (char *)NULL);
    wrong("cannot execute myself: %s", strerror(errno));
}

#endif
