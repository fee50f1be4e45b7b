/*
 * Servers that accept in every way that accept(2) knows, and a client that is slow to greet:
 * whoever still accepts gets it.
 *
 * usage: ipc_accept polled|last_word|processes|elsewhere|threads
 */
#include "ipc_filter.h"
#include <ucontext.h>

static char name[60];
static int listener, arrived[2], gate[2];

/* ---- clients ----------------------------------------------------------------------------- */

/* Which message of a slow client waits at the gate: of three greetings the first, or the last. */
enum { FIRST = 1, LAST = 3 };
static int held = FIRST;

static void send_slowly(int signal, siginfo_t *about, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	struct mmsghdr message = { .msg_hdr = *(struct msghdr *)registers[REG_RSI] };

	(void)signal;
	(void)about;
	if (--held == 0) {
		send_byte(arrived[1]);
		await_byte(gate[0]);
	}
	int sent = sendmmsg(registers[REG_RDI], &message, 1, registers[REG_RDX]);

	registers[REG_RAX] = sent == 1 ? (long)message.msg_len : -errno;
}

/* A quick one comes when the slow one is at the gate. */
static pid_t client(bool slow)
{
	pid_t child = fork_child();

	if (child == 0) {
		if (slow)
			trap_call(SYS_sendmsg, send_slowly);
		else
			await_byte(arrived[0]);
		int connection = made(adma_connect(name));

		EXPECT(adma_write(connection, slow ? "slow" : "quick", 6), 6);
		EXPECT(adma_close(connection), 0);
		exit(0);
	}
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

/* The server must not have said its last word then: the client would take that for the end. */
static void last_word(void)
{
	held = LAST;
	polled();
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

/* Who has left a client to another process, where it has come again, is not told of its end. */
static void elsewhere(void)
{
	processes();
	pid_t third = client(false);

	if (fork_child() == 0) {
		sleep_ms(300); /* nobody is in the queue when the server accepts again */
		send_byte(arrived[1]);
		_exit(0);
	}
	int connection = made(adma_accept(listener));
	char got[6];

	EXPECT(adma_read(connection, got, 6), 6);
	EXPECT(adma_close(connection), 0);
	expect_good_end(third);
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
		{ "polled", polled }, { "last_word", last_word }, { "processes", processes },
		{ "elsewhere", elsewhere }, { "threads", threads }, { 0 }
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
