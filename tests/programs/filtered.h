/* A program that runs under a seccomp filter from its start, which does not matter to anybody.
 */
#ifndef FILTERED_H
#define FILTERED_H

#include "trap.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

/* Installs the filter and executes this program again, with "again" for its second word. */
static inline void be_filtered(char **words)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kexec_load, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program))
        cannot("no seccomp filter here: %s", strerror(errno));
    execl("/proc/self/exe", words[0], words[1], "again", (char *)NULL);
    wrong("cannot execute myself: %s", strerror(errno));
}

#endif
