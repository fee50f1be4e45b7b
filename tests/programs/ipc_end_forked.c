/*
 * A client gives up, and another thread of it forks while its socket is just being closed: the server
 * hears of the end all the same, and not only when the child ends.
 *
 * Run with ADMA_IPC_TIMEOUT=1.
 */
#include "ipc_filter.h"
#include <ucontext.h>

static int forked[2];

/*
 * In place of recvmsg(2). That nothing more comes is seen only where a socket is about to be closed. If
 * it is the one that was connected, and no doorbell, there is a child now, until its parent ends.
 */
static void receive_and_fork(int signal, siginfo_t *about, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	struct mmsghdr message = { .msg_hdr = *(struct msghdr *)registers[REG_RSI] };
	int got = recvmmsg(registers[REG_RDI], &message, 1, registers[REG_RDX], NULL);

	(void)signal;
	(void)about;
	registers[REG_RAX] = got == 1 ? (long)message.msg_len : -errno;
	*(struct msghdr *)registers[REG_RSI] = message.msg_hdr;
	static bool done;
	int kind = 0;

	getsockopt(registers[REG_RDI], SOL_SOCKET, SO_TYPE, &kind, &(socklen_t){ sizeof(kind) });
	if (got != 1 || message.msg_len != 0 || kind != SOCK_STREAM || done)
		return;
	done = true;
	if (fork_child() == 0) {
		send_byte(forked[1]);
		for (;;)
			pause();
	}
}

static void give_up(const char *name)
{
	trap_call(SYS_recvmsg, receive_and_fork);
	EXPECT(adma_connect(name), -ETIMEDOUT);
	for (;;)
		pause();
}

int main(void)
{
	char name[60], heard[1000];

	alarm(100);
	make_pipe(forked);
	snprintf(name, sizeof(name), "@adma-end-forked-%d", getpid());
	int listener = adma_listen(name);
	pid_t client = fork_child();

	if (client == 0)
		give_up(name);
	int server = accept(listener, NULL, NULL);
	struct timeval limit = { .tv_sec = 60 };

	await_byte(forked[0]);
	setsockopt(server, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
	for (long got = 1; got > 0;) {
		got = recv(server, heard, sizeof(heard), 0);
		if (got < 0)
			fail("the client has gone, and nobody hears of it: %s", strerror(errno));
	}
	kill_child(client);
	return 0;
}
