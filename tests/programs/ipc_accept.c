/*
 * Servers that accept in every way that accept(2) knows, and a client that is slow to greet:
 * whoever still accepts gets it.
 *
 * usage: ipc_accept polled|processes|threads
 */
#include "ipc_filter.h"
#include <ucontext.h>

static char name[60];
static int listener, arrived[2], gate[2];

/* ---- clients ----------------------------------------------------------------------------- */

/* The first message of a client waits at the gate. */
static void send_slowly(int signal, siginfo_t *about, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	struct mmsghdr message = { .msg_hdr = *(struct msghdr *)registers[REG_RSI] };
	static bool held;

	(void)signal;
	(void)about;
	if (!held) {
		held = true;
		send_byte(arrived[1]);
		await_byte(gate[0]);
	}
	int sent = sendmmsg(registers[REG_RDI], &message, 1, registers[REG_RDX]);

	registers[REG_RAX] = sent == 1 ? (long)message.msg_len : -errno;
}

static pid_t client(bool slow)
{
	pid_t child = fork_child();

	if (child == 0) {
		if (slow)
			trap_call(SYS_sendmsg, send_slowly);
		int connection = made(adma_connect(name));

		EXPECT(adma_write(connection, slow ? "slow" : "quick", 6), 6);
		EXPECT(adma_close(connection), 0);
		exit(0);
	}
	if (slow)
		await_byte(arrived[0]);
	return child;
}

/* ---- servers ----------------------------------------------------------------------------- */

static void open_gate(void)
{
	send_byte(gate[1]);
}

/* Accepts somebody; says whether that was the slow one. */
static bool accept_one(void)
{
	char got[6] = "";
	int connection;

	/* One that has gone may be told of. */
	do
		connection = adma_accept(listener);
	while (connection == -ECONNRESET || connection == -EPIPE);
	if (connection < 0)
		fail("accept: %s", strerror(-connection));
	EXPECT(adma_read(connection, got, 6), 6);
	EXPECT(adma_close(connection), 0);
	return !strcmp(got, "slow");
}

/* It accepts when the listener says that there is somebody. */
static bool poll_and_accept(void)
{
	struct pollfd one = { .fd = listener, .events = POLLIN };

	if (poll(&one, 1, 60000) != 1)
		fail("nobody is there");
	return accept_one();
}

static void polled(void)
{
	pid_t slow = client(true), quick = client(false);

	EXPECT(poll_and_accept(), false);
	open_gate();
	EXPECT(poll_and_accept(), true);
	expect_good_end(quick);
	expect_good_end(slow);
}

/* Two processes accept; the one that has taken the slow client off the queue goes away then. */
static void processes(void)
{
	int turn[2];

	make_pipe(turn);
	pid_t other = fork_child();

	if (other == 0) {
		await_byte(turn[0]);
		EXPECT(accept_one(), true);
		exit(0);
	}
	pid_t slow = client(true), quick = client(false);

	EXPECT(accept_one(), false);
	send_byte(turn[1]);
	open_gate();
	expect_good_end(quick);
	expect_good_end(slow);
	expect_good_end(other);
}

static void *accept_in_thread(void *slow)
{
	*(bool *)slow = accept_one();
	if (!*(bool *)slow)
		open_gate();
	return NULL;
}

static void threads(void)
{
	for (int round = 0; round < 10; round++) {
		bool slow[2];
		pthread_t both[2];

		for (int i = 0; i < 2; i++)
			pthread_create(&both[i], NULL, accept_in_thread, &slow[i]);
		sleep_ms(round % 3 * 10); /* or they come later than the first client */
		pid_t first = client(true), second = client(false);

		for (int i = 0; i < 2; i++)
			pthread_join(both[i], NULL);
		EXPECT(slow[0] + slow[1], 1);
		expect_good_end(first);
		expect_good_end(second);
	}
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "polled", polled }, { "processes", processes }, { "threads", threads }, { 0 }
	};

	alarm(110);
	make_pipe(arrived);
	make_pipe(gate);
	snprintf(name, sizeof(name), "@adma-accept-%d", getpid());
	listener = adma_listen(name);
	run_mode(argc, argv, all);
	EXPECT(adma_close(listener), 0);
	return 0;
}
