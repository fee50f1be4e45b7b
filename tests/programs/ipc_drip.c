/*
 * A client that says its greetings byte by byte, each as soon as the one before was heard: whoever
 * accepts gives it some milliseconds, and then looks for others again.
 *
 * Nothing depends on how busy the machine is. The server is this process, and whenever it polls, the
 * client, which is this process as well, says a byte a millisecond later. What counts is how many it
 * has said when the server looks at its listener, where an honest client waits.
 */
#include "ipc_filter.h"
#include "ipc_greeting.h"
#include <ucontext.h>

/* All three greetings are listened to, whoever says them; a tenth of that is too much. */
enum { LENGTH = sizeof(struct greeting), ALL = 3 * LENGTH, TOO_MANY = ALL / 10 };

static struct greeting greeting;
static int dripping, said, said_before_look = -1;

/* What an honest process says first, without what comes with it. */
static void overhear(void)
{
	int from = honest_greeter(), fds[2];

	greeting = take_hello(from, fds);
	EXPECT(greeting.step, HELLO);
	close(from);
	close(fds[MEMORY]);
	close(fds[BELL]);
}

static void say_next_byte(void)
{
	char next;

	greeting.step = HELLO + said / LENGTH; /* they differ in nothing else */
	next = ((char *)&greeting)[said % LENGTH];
	say(dripping, &next, 1, NULL, 0);
	said++;
}

/* In place of poll(2). Who accepts polls its listener, or -1 for it, and all clients. */
static void drip_and_poll(int signal, siginfo_t *about, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	struct pollfd *fds = (void *)registers[REG_RDI];
	nfds_t count = registers[REG_RSI];
	int limit = registers[REG_RDX];
	struct timespec time = { limit / 1000, limit % 1000 * 1000000l };

	(void)signal;
	(void)about;
	if (count > 1 && fds[0].fd >= 0 && said_before_look < 0)
		said_before_look = said;
	if (count > 1 && said_before_look < 0) {
		sleep_ms(1);
		say_next_byte();
	}
	int ready = ppoll(fds, count, limit < 0 ? NULL : &time, NULL);

	registers[REG_RAX] = ready < 0 ? -errno : ready;
}

int main(void)
{
	char name[60];

	alarm(100);
	snprintf(name, sizeof(name), "@adma-drip-%d", getpid());
	overhear();
	int listener = made(adma_listen(name));

	dripping = plain_client(name);
	pid_t honest = fork_child();

	if (honest == 0)
		exit(adma_close(made(adma_connect(name))));
	trap_call(SYS_poll, drip_and_poll);
	int connection = adma_accept(listener);

	if (said_before_look < 0 || said_before_look >= TOO_MANY)
		fail("%d of %d bytes are heard before the server looks for others", said_before_look,
		     ALL);
	made(connection);
	expect_good_end(honest);
	EXPECT(adma_close(connection), 0);
	return 0;
}
