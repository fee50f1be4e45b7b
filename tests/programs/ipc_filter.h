/* A seccomp filter: what one system call answers from now on, or that it is a signal. */
#ifndef IPC_FILTER_H
#define IPC_FILTER_H
#include "ipc.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

static inline void put_filter(struct sock_filter *filter, unsigned short len)
{
	struct sock_fprog program = { len, filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		cannot_be_shown("no seccomp filters here");
}

static inline void filter_call(int call, unsigned answer)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, answer),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	put_filter(filter, sizeof(filter) / sizeof(filter[0]));
}

/* The handler runs where the call would have, and answers for it. */
static inline void trap_call(int call, void (*handler)(int, siginfo_t *, void *))
{
	struct sigaction action = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };

	sigaction(SIGSYS, &action, NULL);
	filter_call(call, SECCOMP_RET_TRAP);
}
#endif
