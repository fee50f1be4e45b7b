/* Seccomp filters: one installed now, or one that is there from the start of the program. */
#pragma once
#include "trap.h"
#include "seccomp.h"

/* Executes this program again, with "again" for the second word. */
static inline void execute_again(char **words)
{
    execl("/proc/self/exe", words[0], words[1], "again", (char *)NULL);
    wrong("cannot execute myself: %s", strerror(errno));
}

/* Installs a filter that forbids nothing in use, and executes this program again. */
static inline void be_filtered(char **words)
{
    const int unused[] = {SYS_kexec_load, -1};
    filter_calls(unused, SECCOMP_RET_KILL_PROCESS, 0);
    execute_again(words);
}
