/*
 * Forks while another thread is about to close a socket of a connection that is being made: the
 * peer sees the end at once, and not only when the child ends.
 *
 * usage: ipc_end_forked thread, with ADMA_IPC_TIMEOUT=3
 */
#include "ipc_filter.h"
#include <ucontext.h>

static pid_t child;

/*
 * In place of socketpair(2). The first pair is for the helper thread that reads the peer's page; the
 * host, which is either side, makes a second one for the doorbell. The child is made without the
 * library's knowledge, which would close the pair there.
 */
static void pair_and_fork(int signal, siginfo_t *about, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	static int pairs;

	(void)signal;
	(void)about;
	registers[REG_RAX] = socketpair(AF_UNIX, SOCK_SEQPACKET, 0, (int *)registers[REG_R10]) ? -errno : 0;
	if (++pairs != 1)
		return;
	child = syscall(SYS_fork);
	while (child == 0)
		pause();
}

/* As the library makes them: the handler makes others. */
static void trap_pairs(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socketpair, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};

	sigaction(SIGSYS, &(struct sigaction){ .sa_sigaction = pair_and_fork, .sa_flags = SA_SIGINFO },
		  NULL);
	put_filter(filter, sizeof(filter) / sizeof(filter[0]));
}

/* A greeting that has left a call to a thread hears of its end within the limit. */
static void thread_is_done(void)
{
	int pair[2];

	make_pair(SOCK_STREAM, pair);
	pid_t other = fork_child();

	if (other == 0) {
		made(adma_attach(pair[1]));
		exit(0);
	}
	trap_pairs();
	sleep_ms(500); /* so the other has no time left when this one's is over */
	made(adma_attach(pair[0]));
	if (child <= 0)
		fail("nothing was left to a thread");
	kill_child(child);
	expect_good_end(other);
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "thread", thread_is_done }, { 0 }
	};

	alarm(100);
	return run_mode(argc, argv, all);
}
