/*
 * Servers that accept in every way that accept(2) knows, and a client that is slow to greet:
 * whoever still accepts gets it. One scene by name, see main.
 */
#include "ipc_filter.h"
#include <ucontext.h>

/* Longer than anything here may take, on a busy machine too. */
enum { LONG = 60000 };

static char name[60];
static int listener, arrived[2], gate[2];

/* ---- clients ----------------------------------------------------------------------------- */

static void pass(int from, const char *what)
{
	struct pollfd one = { .fd = from, .events = POLLIN };
	char byte;

	if (poll(&one, 1, LONG) != 1 || read(from, &byte, 1) != 1)
		fail("%s", what);
}

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
		EXPECT(write(arrived[1], "x", 1), 1);
		pass(gate[0], "the gate stays closed");
	}
	int sent = sendmmsg(registers[REG_RDI], &message, 1, registers[REG_RDX]);

	registers[REG_RAX] = sent == 1 ? (long)message.msg_len : -errno;
}

/* A quick one comes when the slow one is at the gate. */
static pid_t client(bool slow)
{
	pid_t child = fork();

	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (slow)
			trap_call(SYS_sendmsg, send_slowly);
		else
			pass(arrived[0], "the slow client has not come");
		int connection = adma_connect(name);

		if (connection < 0)
			fail("a %s client: connect is %s", slow ? "slow" : "quick",
			     strerror(-connection));
		EXPECT(adma_write(connection, slow ? "slow" : "quick", 6), 6);
		EXPECT(adma_close(connection), 0);
		exit(0);
	}
	return child;
}

/* ---- servers ----------------------------------------------------------------------------- */

static void open_gate(void)
{
	EXPECT(write(gate[1], "x", 1), 1);
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

	if (poll(&one, 1, LONG) != 1)
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

	if (pipe(turn))
		fail("pipe");
	pid_t other = fork();

	if (other == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		pass(turn[0], "it is never this one's turn");
		EXPECT(accept_one(), true);
		exit(0);
	}
	pid_t slow = client(true), quick = client(false);

	EXPECT(accept_one(), false);
	EXPECT(write(turn[1], "x", 1), 1);
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

	if (fork() == 0) {
		sleep_ms(300); /* nobody is in the queue when the server accepts again */
		EXPECT(write(arrived[1], "x", 1), 1);
		_exit(0);
	}
	int connection = adma_accept(listener);
	char got[6];

	if (connection < 0)
		fail("accept: %s", strerror(-connection));
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
	struct { const char *name; void (*run)(void); } all[] = {
		{ "polled", polled }, { "processes", processes }, { "threads", threads },
		{ "last_word", last_word }, { "elsewhere", elsewhere },
	};

	alarm(110);
	if (pipe(arrived) || pipe(gate))
		fail("pipe");
	snprintf(name, sizeof(name), "@adma-accept-%d", getpid());
	listener = adma_listen(name);
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (argc > 1 && !strcmp(argv[1], all[i].name)) {
			all[i].run();
			EXPECT(adma_close(listener), 0);
			return 0;
		}
	fail("no scene is called %s", argc > 1 ? argv[1] : "");
}
