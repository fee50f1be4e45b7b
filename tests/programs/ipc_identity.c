/*
 * Who the other process is: words that are not the sender's own, sockets that are not, somebody in
 * between, an equal that lies. This process is the server; whatever is tried, it takes nobody for
 * its equal who is not.
 *
 * usage: ipc_identity relayed|early|bells|rung|handed_on|liar [reflects]
 */
#include "ipc_liar.h"

enum { BYTE = 2 };

/*
 * Runs `lie` as a stranger, beside a process that stays root and writes into the socket what it
 * gets over `cat`; and answers what the server gets from it.
 */
static int served(void (*lie)(struct liar *liar, int cat))
{
	int pair[2], cat[2], connection;
	pid_t child;

	root_only();
	make_pair(SOCK_STREAM, pair);
	make_pair(SOCK_STREAM, cat);
	child = fork_child();
	if (child == 0) {
		struct liar liar = { 0 };

		close(pair[0]);
		if (fork() == 0) {
			char bytes[sizeof(struct greeting)];
			ssize_t len;

			close(cat[1]);
			while ((len = read(cat[0], bytes, sizeof(bytes))) > 0) {
				say(pair[1], bytes, len, NULL, 0);
				say(cat[0], "", 1, NULL, 0);
			}
			_exit(0);
		}
		close(cat[0]);
		become_user(STRANGER);
		prepare(&liar, pair[1]);
		lie(&liar, cat[1]);
		_exit(0);
	}
	close(pair[1]);
	close(cat[0]);
	close(cat[1]);
	connection = adma_attach(pair[0]);
	close(pair[0]);
	if (connection > 0)
		expect_engine(connection, "shared memory");
	expect_good_end(child);
	if (connection > 0)
		adma_close(connection);
	return connection > 0 ? 0 : connection;
}

/* As `cat` would. */
static void let_write(int cat, const void *bytes, size_t len)
{
	say(cat, bytes, len, NULL, 0);
	await_byte(cat);
}

/* ---- words of others ------------------------------------------------------------------------- */

static void introduce(struct liar *liar, int bell)
{
	hear(liar);
	say_hello(liar, bell, sizeof(liar->mine));
	say_rest(liar);
}

/* Nothing is wrong with this one, so it is connected, as what it is. */
static void tell_the_truth(struct liar *liar, int cat)
{
	(void)cat;
	introduce(liar, liar->bell[1]);
}

/* It could take pages away; and nobody else waits for the lock of its memory. */
static void seal_nothing(struct liar *liar, int cat)
{
	liar->leaves_open = true;
	tell_the_truth(liar, cat);
}

static void last_byte_of_hello(struct liar *liar, int cat)
{
	hear(liar);
	say_hello(liar, liar->bell[1], sizeof(liar->mine) - 1);
	let_write(cat, (char *)(&liar->mine + 1) - 1, 1);
	say_rest(liar);
}

static void middle_of_hello(struct liar *liar, int cat)
{
	hear(liar);
	say_hello(liar, liar->bell[1], 30);
	let_write(cat, (char *)&liar->mine + 30, 30);
	say(liar->socket, (char *)&liar->mine + 60, sizeof(liar->mine) - 60, NULL, 0);
	say_rest(liar);
}

static void whole_ready(struct liar *liar, int cat)
{
	struct greeting ready = liar->mine;

	ready.step = READY;
	ready.equal = 1;
	hear(liar);
	say_hello(liar, liar->bell[1], sizeof(liar->mine));
	let_write(cat, &ready, sizeof(ready));
	while (hear(liar))
		;
}

static void relayed(void)
{
	EXPECT(served(tell_the_truth), 0);
	EXPECT(served(seal_nothing), -EPROTO);
	EXPECT(served(last_byte_of_hello), -EPROTO);
	EXPECT(served(middle_of_hello), -EPROTO);
	EXPECT(served(whole_ready), -EPROTO);
}

/* What is said before anybody asks who says it is nobody's word. */
static void early(void)
{
	struct liar liar = { 0 };
	int pair[2];

	root_only();
	make_pair(SOCK_STREAM, pair);
	prepare(&liar, pair[1]);
	pid_t child = fork_child();

	if (child == 0) {
		become_user(STRANGER);
		say_hello(&liar, liar.bell[1], sizeof(liar.mine));
		_exit(0);
	}
	expect_good_end(child);
	child = fork_child(); /* a root process, and after the server has asked */
	if (child == 0) {
		close(pair[0]);
		hear(&liar);
		say_rest(&liar);
		_exit(0);
	}
	EXPECT(adma_attach(pair[0]), -EPROTO);
	close(pair[0]);
	expect_good_end(child);
}

/* ---- doorbells -------------------------------------------------------------------------------- */

static int foreign_bell[2];
static bool give_accepted;

static void bell_of_others(struct liar *liar, int cat)
{
	(void)cat;
	introduce(liar, foreign_bell[1]);
}

static int listener_at(struct sockaddr_un *at, socklen_t *len)
{
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	char name[60];

	snprintf(name, sizeof(name), "@adma-identity-%d", getpid());
	*len = abstract_address(name, at);
	if (bind(listener, (void *)at, *len) || listen(listener, 8))
		fail("listen: %s", strerror(errno));
	return listener;
}

static int connected_to(struct sockaddr_un *at, socklen_t len)
{
	int client = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (connect(client, (void *)at, len))
		fail("connect: %s", strerror(errno));
	return client;
}

static void bell_with_a_name(struct liar *liar, int cat)
{
	struct sockaddr_un at;
	socklen_t len;
	int listener = listener_at(&at, &len), client = connected_to(&at, len);
	int accepted = accept(listener, NULL, NULL);

	(void)cat;
	introduce(liar, give_accepted ? accepted : client);
}

static void bells(void)
{
	make_pair(SOCK_SEQPACKET, foreign_bell);
	EXPECT(served(bell_of_others), -EPROTO);
	EXPECT(served(bell_with_a_name), -EPROTO);
	give_accepted = true;
	EXPECT(served(bell_with_a_name), -EPROTO);
}

/*
 * The bell of one connection is the socket that another is just made over, and the server, which
 * rings it, says the last byte of a greeting: it would talk to itself, and be asked for what it has
 * asked for.
 */
static void rung(void)
{
	struct sockaddr_un at;
	socklen_t len;
	int listener, first, second;
	pid_t child;
	pthread_t thread;
	void *got;

	root_only();
	listener = listener_at(&at, &len);
	child = fork_child();
	if (child == 0) {
		struct liar one = { 0 }, two = { 0 };

		become_user(STRANGER);
		prepare(&two, connected_to(&at, len));
		prepare(&one, connected_to(&at, len));
		hear(&two);
		two.mine.seed = two.theirs.seed;
		two.mine.word = two.theirs.word;
		*(volatile uint32_t *)(one.region + 8) = BYTE; /* how we want to be woken */
		hear(&one);
		say_hello(&two, two.bell[1], sizeof(two.mine) - 1);
		say_hello(&one, two.socket, sizeof(one.mine));
		if (say_rest(&one)) {
			while (*(volatile uint32_t *)(one.region + 8))
				; /* not rung yet */
			say_rest(&two);
		}
		_exit(0);
	}
	second = accept(listener, NULL, NULL);
	first = accept(listener, NULL, NULL);
	pthread_create(&thread, NULL, attach_in_thread, (void *)(long)second);
	int connection = adma_attach(first);

	if (connection > 0) {
		adma_write(connection, "x", 1); /* rings */
		pthread_join(thread, &got);
		char text[300] = "nothing";

		adma_connection_info((int)(long)got, text, sizeof(text));
		fail("one of its own sockets is taken for a bell; the other connection: %s", text);
	}
	EXPECT(connection, -EPROTO);
	close(first);
	shutdown(second, SHUT_RDWR);
	pthread_join(thread, &got);
	expect_good_end(child);
}

/* ---- who is in between -------------------------------------------------------------------------- */

/* Two processes of one user, over a socket that somebody else has made and kept. */
static void handed_on(void)
{
	int pair[2], pass[2];
	pid_t maker, child;
	char byte;

	root_only();
	make_pair(SOCK_STREAM, pass);
	maker = fork_child();
	if (maker == 0) {
		become_user(STRANGER);
		make_pair(SOCK_STREAM, pair);
		say(pass[1], "", 1, pair, 2);
		_exit(0);
	}
	expect_good_end(maker);
	EXPECT(take_with(pass[0], &byte, 1, pair), 1);
	child = fork_child();
	if (child == 0) {
		int connection = adma_attach(pair[1]);

		expect_engine(connection, "shared memory");
		_exit(read_one(connection));
	}
	int connection = adma_attach(pair[0]);

	expect_engine(connection, "shared memory");
	finish(connection, child);
}

/* ---- one of the same user who lies ---------------------------------------------------------------- */

/* It sends back what was demanded of it, or has not laid the page. */
static void equal_that_lies(void)
{
	int pair[2];
	pid_t child;

	make_pair(SOCK_STREAM, pair);
	child = fork_child();
	if (child == 0) {
		struct liar liar = { 0 };

		close(pair[0]);
		prepare(&liar, pair[1]);
		hear(&liar);
		if (variant) {
			liar.mine.seed = liar.theirs.seed;
			liar.mine.word = liar.theirs.word;
		}
		say_hello(&liar, liar.bell[1], sizeof(liar.mine));
		liar.mine.equal = liar.mine.chosen = 1; /* but there is no page */
		say_step(&liar, READY);
		if (hear(&liar)) {
			liar.mine.token = liar.theirs.token;
			say_step(&liar, VERDICT);
		}
		while (hear(&liar))
			;
		_exit(0);
	}
	close(pair[1]);
	EXPECT(adma_attach(pair[0]), -EPROTO);
	close(pair[0]);
	expect_good_end(child);
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "relayed", relayed }, { "early", early }, { "bells", bells }, { "rung", rung },
		{ "handed_on", handed_on }, { "liar", equal_that_lies }, { 0 }
	};

	return run_liar(argc, argv, all);
}
