/* Seccomp filters: results of system calls from now on, or a signal instead. */
#ifndef IPC_FILTER_H
#define IPC_FILTER_H
#include "ipc.h"
#include "seccomp.h"

static inline void filter_call(int call, unsigned answer)
{
    if (answer_calls((int[]){ call, -1 }, answer, 0))
        cannot("no seccomp filters here");
}

/* Filters the calls that reach into another process. */
static inline void filter_reach(unsigned answer)
{
    filter_call(SYS_process_vm_readv, answer);
    filter_call(SYS_process_vm_writev, answer);
}

/* Traps a call: the handler runs in its place, and returns its result. */
static inline void trap_call(int call, void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
    sigaction(SIGSYS, &action, NULL);
    filter_call(call, SECCOMP_RET_TRAP);
}
#endif
