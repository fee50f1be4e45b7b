/* Seccomp filters: results of system calls from now on, or a signal instead. */
#pragma once
#include "ipc.h"
#include "seccomp.h"

static inline void filter_call(int call, unsigned answer)
{
    filter_calls((int[]){ call, -1 }, answer, 0);
}

/* Filters the calls that reach into another process, of all threads: one serves connections. */
static inline void filter_reach(unsigned answer)
{
    filter_calls((int[]){ SYS_process_vm_readv, SYS_process_vm_writev, -1 }, answer,
                 SECCOMP_FILTER_FLAG_TSYNC);
}

/* Traps a call: the handler runs in its place, and returns its result. */
static inline void trap_call(int call, void (*handler)(int, siginfo_t *, void *))
{
    handle_info(SIGSYS, handler);
    filter_call(call, SECCOMP_RET_TRAP);
}
