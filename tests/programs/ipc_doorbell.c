/*
 * What a hostile process sends over the doorbell of a connection, or does to it: whoever reads,
 * waits or closes is not held up, and no descriptor is left.
 *
 * usage: ipc_doorbell lingers|unread|many|peeked|timed|half
 */
#include "ipc_hostile.h"
#include "ipc_inside.h"
#include "ipc_lingering.h"
#include <fcntl.h>

static int connected_doorbell(void)
{
	made(adma_connect(name));
	return doorbell();
}

/* As a block comes, with its number. */
static const char record[9] = { 2, 7 };

static void one_lingers(void)
{
	send_one_that_lingers(connected_doorbell(), record, sizeof(record), 0);
}

static void empty_one_lingers(void)
{
	send_one_that_lingers(connected_doorbell(), "", 0, 0);
}

static void last_of_many_lingers(void)
{
	send_many_of_which_one_lingers(connected_doorbell(), record, sizeof(record));
}

static void many_come(void)
{
	int bell = connected_doorbell(), many[18];

	for (int i = 0; i < 18; i++)
		many[i] = open("/dev/null", O_RDONLY);
	for (int i = 0; i < 400; i++)
		if (send_with(bell, record, 1 + i % 9, many, 18, MSG_DONTWAIT) < 0)
			break; /* as many as there is room for */
}

/* What whoever has made the doorbell can set on a copy of our end. */
static int options_of_our_end[2];

/* Of a connection that one reads from with a limit, or that is closed at once. */
static void expect_bell_holds_nobody_up(void (*scene)(void), bool reads)
{
	static char data[1000];
	int listener = adma_listen(name);

	expect_network();
	expect_honest(listener, "nobody else");
	long before = entries_of("/proc/self/fd");
	pid_t child = hostile(scene);
	int connection = made(adma_accept(listener));
	double begun;

	for (int i = 0; i < 2 && options_of_our_end[i]; i++)
		if (setsockopt(doorbell(), SOL_SOCKET, options_of_our_end[i], &(int){ 1 },
			       sizeof(int)))
			fail("setsockopt: %s", strerror(errno));
	await_byte(done[0]);
	if (reads) {
		adma_cookie_t cookie = adma_iread(connection, data, sizeof(data));
		long got = -ETIMEDOUT;

		for (int times = 0; times < 400 && got == -ETIMEDOUT; times++) {
			begun = seconds();
			got = adma_wait_for(cookie, 100);
			expect_soon(begun, "100 ms");
		}
		EXPECT(got, -EPROTO);
		EXPECT(adma_write(connection, data, 1), -EPROTO);
	}
	begun = seconds();
	EXPECT(adma_close(connection), 0);
	expect_soon(begun, "closing");
	kill_child(child);
	expect_descriptors(before);
}

static void lingers(void)
{
	expect_bell_holds_nobody_up(one_lingers, true);
}

static void unread(void)
{
	expect_bell_holds_nobody_up(one_lingers, false);
}

/* A look at what is there begins behind the first byte. */
static void peeked(void)
{
	options_of_our_end[0] = SO_PEEK_OFF;
	expect_bell_holds_nobody_up(empty_one_lingers, false);
}

/* Times and senders take room from descriptors, and the last finds none. */
static void timed(void)
{
	options_of_our_end[0] = SO_TIMESTAMP;
	options_of_our_end[1] = SO_PASSCRED;
	expect_bell_holds_nobody_up(last_of_many_lingers, true);
}

static void many(void)
{
	expect_bell_holds_nobody_up(many_come, true);
}

static void half_closed_bell(void)
{
	EXPECT(shutdown(connected_doorbell(), SHUT_WR), 0);
}

/* It would always have something to tell, and who sleeps until then would not sleep at all. */
static void half(void)
{
	int listener = adma_listen(name);
	pid_t child = hostile(half_closed_bell);
	int connection = made(adma_accept(listener));
	char byte;

	EXPECT(adma_read(connection, &byte, 1), -ECONNRESET);
	EXPECT(adma_close(connection), 0);
	kill_child(child);
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "lingers", lingers }, { "unread", unread }, { "many", many }, { "peeked", peeked },
		{ "timed", timed }, { "half", half }, { 0 }
	};

	return run_hostile(argc, argv, all);
}
