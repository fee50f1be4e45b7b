/*
 * Files that take long to close and come with greetings: nobody waits for them, and none is left.
 *
 * usage: ipc_lingering greeting|unaccepted|closers
 */
#include "ipc_hostile.h"
#include "ipc_lingering.h"
#include <fcntl.h>
#include <sys/resource.h>

static void one_lingers(void)
{
	send_one_that_lingers(plain_client(name), "x", 1, 0);
}

static void last_of_many_lingers(void)
{
	send_many_of_which_one_lingers(plain_client(name), "x", 1);
}

/* It is never received, but closed with the socket. */
static void unread_lingers(void)
{
	int client = plain_client(name);

	send_with(client, "not what is wanted, and more than one looks at at once, in front of "
		  "what is not looked at: this message is longer than any greeting", 130,
		  (int[]){ STDIN_FILENO }, 1, MSG_DONTWAIT);
	send_one_that_lingers(client, "x", 1, 0);
}

/* The same, in the queue of a socket that is sent. */
static void socket_has_what_lingers(void)
{
	send_lingering(plain_client(name));
}

/* The same, urgently. */
static void urgent_lingers(void)
{
	int client = plain_client(name), pair[2];

	make_pair(SOCK_STREAM, pair);
	send_one_that_lingers(client, "x", 1, MSG_OOB); /* not in every kernel */
	send_with(client, "x", 1, &pair[1], 1, MSG_DONTWAIT);
}

static void greeting(void)
{
	static const struct mode all[] = {
		{ "one lingers", one_lingers },
		{ "the last of many lingers", last_of_many_lingers },
		{ "what is unread lingers", unread_lingers },
		{ "a socket has what lingers", socket_has_what_lingers },
		{ "what is urgent lingers", urgent_lingers },
	};
	int listener = adma_listen(name);

	expect_network();
	expect_honest(listener, "nobody else");
	long before = entries_of("/proc/self/fd");

	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		pid_t child = hostile(all[i].run);

		await_byte(done[0]); /* what it has sent is nobody else's */
		double begun = seconds();
		int refused = adma_accept(listener);

		if (refused >= 0)
			fail("%s: accepted", all[i].name);
		expect_soon(begun, all[i].name);
		expect_honest(listener, all[i].name);
		kill_child(child);
	}
	expect_descriptors(before);
}

/* Nor can who was not accepted hold up who closes the listener. */
static void unaccepted(void)
{
	int listener = left_to_parent = adma_listen(name);

	expect_network();
	pid_t child = hostile(one_lingers);

	await_byte(done[0]);
	double begun = seconds();

	EXPECT(adma_close(listener), 0);
	expect_soon(begun, "closing a listener");
	listener = adma_listen(name);
	expect_honest(listener, "a listener lingers");
	EXPECT(adma_close(listener), 0);
	kill_child(child);
}

/* More than there are threads to close them, and then more than may wait for that. */
enum { STUCK = 17, WAITING = 300 };

static void all_linger(void)
{
	int fds[WAITING / 2], client;

	for (int i = 0; i < STUCK; i++)
		socket_has_what_lingers();
	for (int i = 0; i < WAITING / 2; i++)
		fds[i] = open("/dev/null", O_RDONLY);
	/* In one queue more than the server lets wait of all users. */
	client = plain_client(name);
	for (int i = 0; i < 8; i++)
		send_with(client, "x", 1, fds, WAITING / 2, MSG_DONTWAIT);
	for (int i = 0; i < 2; i++)
		send_with(plain_client(name), "x", 1, fds, WAITING / 2, MSG_DONTWAIT);
}

/* A user who has all of its descriptors closed slowly holds up no other user. */
static void closers(void)
{
	struct rlimit enough = { 4096, 4096 };
	int listener = adma_listen(name);

	expect_network();
	root_only();
	setrlimit(RLIMIT_NOFILE, &enough);
	pid_t child = hostile(all_linger);

	await_byte(done[0]);
	for (int i = 0; i < STUCK + 3; i++) {
		int refused = adma_accept(listener);

		if (refused >= 0)
			fail("accepted");
	}
	hostile_user = STRANGER + 1;
	expect_honest(listener, "files linger");
	kill_child(child);
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "greeting", greeting }, { "unaccepted", unaccepted }, { "closers", closers }, { 0 }
	};

	return run_hostile(argc, argv, all);
}
