/* Seccomp filters with one answer for some calls and another for the rest. */
#pragma once
#include "verdict.h"
#include <linux/filter.h>
#include <linux/seccomp.h>

static inline void put_filter(struct sock_filter *code, unsigned short count, unsigned flags)
{
    struct sock_fprog program = {count, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program))
        cannot("no seccomp filter here: %s", strerror(errno));
}

/* Like `put_filter`, by a system call that no library sees. */
static inline void put_filter_unseen(struct sock_filter *code, unsigned short count, unsigned flags)
{
    struct sock_fprog program = {count, code};
    MUST(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
#ifdef __aarch64__
    register long answer __asm__("x0") = SECCOMP_SET_MODE_FILTER;
    register long second __asm__("x1") = flags;
    register void *third __asm__("x2") = &program;
    register long number __asm__("x8") = SYS_seccomp;
    __asm__ volatile("svc #0" : "+r"(answer) : "r"(second), "r"(third), "r"(number) : "memory");
#else
    long answer = SYS_seccomp;
    __asm__ volatile("syscall"
                     : "+a"(answer)
                     : "D"(SECCOMP_SET_MODE_FILTER), "S"(flags), "d"(&program)
                     : "rcx", "r11", "memory");
#endif
    if (answer)
        cannot("no seccomp filter here: %s", strerror(-answer));
}

/* Filters `calls`, which end with -1. */
static inline void filter_calls_and_rest(const int *calls, unsigned action, unsigned rest,
                                         unsigned flags)
{
    struct sock_filter code[256];
    unsigned short n = 0;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                             offsetof(struct seccomp_data, nr));
    for (; *calls >= 0; calls++) {
        code[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, *calls, 0, 1);
        code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, rest);
    put_filter(code, n, flags);
}

/* Like `filter_calls_and_rest`, but allows all other calls. */
static inline void filter_calls(const int *calls, unsigned action, unsigned flags)
{
    filter_calls_and_rest(calls, action, SECCOMP_RET_ALLOW, flags);
}
