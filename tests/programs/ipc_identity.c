/*
 * Who the other process is: words that are not the sender's own, sockets that are not, numbers
 * that were given away, somebody in between. This process is the server; whatever is tried, it
 * takes nobody for its equal who is not. One test by name, see main.
 */
#include "ipc.h"
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { SOMEBODY = 1001, HELLO = 1, READY = 2, VERDICT = 3, BYTE = 2 };

struct greeting {
	uint64_t magic;
	uint32_t version, step;
	uint64_t nonce, seed, word, token, pin;
	uint32_t region, chosen, equal, pull, push, helper, blocks, workers;
};

/* One who speaks without the library. */
struct liar {
	int socket, memory, bell[2];
	byte *region;
	struct greeting mine, theirs;
	bool leaves_open; /* does not seal the region */
};

static void become_somebody(void)
{
	if (setgroups(0, NULL) || setresgid(SOMEBODY, SOMEBODY, SOMEBODY) ||
	    setresuid(SOMEBODY, SOMEBODY, SOMEBODY))
		cannot_be_shown("only root can become others");
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* which goes with the user */
}

/* The server's next greeting. */
static bool hear(struct liar *liar)
{
	size_t got = 0;

	while (got < sizeof(liar->theirs)) {
		char *at = (char *)&liar->theirs + got;
		ssize_t count = recv(liar->socket, at, sizeof(liar->theirs) - got, 0);

		if (count <= 0)
			return false;
		got += count;
	}
	return true;
}

/* What is known of the protocol without having heard anything. */
static struct greeting overheard;

static void overhear(void)
{
	struct liar liar = { 0 };
	int pair[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair");
	child = fork();
	if (child == 0) {
		close(pair[0]);
		adma_attach(pair[1]);
		_exit(0);
	}
	close(pair[1]);
	liar.socket = pair[0];
	if (!hear(&liar))
		fail("no greeting");
	close(pair[0]);
	waitpid(child, NULL, 0);
	overheard = liar.theirs;
}

static void prepare(struct liar *liar, int socket)
{
	liar->socket = socket;
	liar->mine = (struct greeting){ .magic = overheard.magic, .version = overheard.version,
		.step = HELLO, .nonce = ~0ull, .seed = 1, .word = 2, .region = overheard.region };
	liar->memory = memfd_create("adma", MFD_ALLOW_SEALING);
	if (ftruncate(liar->memory, overheard.region) ||
	    fcntl(liar->memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) ||
	    socketpair(AF_UNIX, SOCK_SEQPACKET, 0, liar->bell))
		fail("memfd, socketpair: %s", strerror(errno));
	liar->region = mmap(NULL, overheard.region, PROT_READ | PROT_WRITE, MAP_SHARED,
			    liar->memory, 0);
}

static void say_hello(struct liar *liar, int bell, size_t len)
{
	say(liar->socket, &liar->mine, len, (int[]){ liar->memory, bell }, 2);
}

/* READY and VERDICT, as of an equal who says that it has laid the page. */
static bool say_rest(struct liar *liar, int ready, int verdict)
{
	liar->mine.step = READY;
	liar->mine.equal = liar->mine.chosen = 1;
	say(ready, &liar->mine, sizeof(liar->mine), NULL, 0);
	if (!hear(liar)) /* READY of the server */
		return false;
	if (liar->theirs.equal)
		fail("process %d of user %d is taken for an equal", getpid(), getuid());
	if (!liar->leaves_open)
		fcntl(liar->memory, F_ADD_SEALS, F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
	liar->mine.step = VERDICT;
	liar->mine.token = liar->theirs.token;
	liar->mine.pull = liar->mine.push = liar->mine.blocks = 1;
	say(verdict, &liar->mine, sizeof(liar->mine), NULL, 0);
	return hear(liar);
}

/*
 * Runs `lie` as somebody, beside a process that stays root and writes into the socket what it gets
 * over the third; and answers what the server gets from it.
 */
static int served(void (*lie)(struct liar *liar, int socket, int cat))
{
	int pair[2], cat[2], connection, status;
	pid_t child;

	if (getuid())
		cannot_be_shown("only root can become others");
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || socketpair(AF_UNIX, SOCK_STREAM, 0, cat))
		fail("socketpair");
	child = fork();
	if (child == 0) {
		struct liar liar = { 0 };

		prctl(PR_SET_PDEATHSIG, SIGKILL);
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
		become_somebody();
		prepare(&liar, pair[1]);
		lie(&liar, pair[1], cat[1]);
		_exit(0);
	}
	close(pair[1]);
	close(cat[0]);
	close(cat[1]);
	connection = adma_attach(pair[0]);
	close(pair[0]);
	if (connection > 0)
		expect_engine(connection, "shared memory");
	waitpid(child, &status, 0);
	if (status)
		fail("the liar ended with %#x", status);
	if (connection > 0)
		adma_close(connection);
	return connection > 0 ? 0 : connection;
}

/* As `cat` would. */
static void let_write(int cat, const void *bytes, size_t len)
{
	char done;

	say(cat, bytes, len, NULL, 0);
	if (read(cat, &done, 1) != 1)
		fail("cat has ended");
}

/* ---- words of others ------------------------------------------------------------------------- */

/* Nothing is wrong with this one, so it is connected, as what it is. */
static void tell_the_truth(struct liar *liar, int socket, int cat)
{
	(void)cat;
	hear(liar);
	say_hello(liar, liar->bell[1], sizeof(liar->mine));
	say_rest(liar, socket, socket);
}

/* It could take pages away; and nobody else waits for the lock of its memory. */
static void seal_nothing(struct liar *liar, int socket, int cat)
{
	liar->leaves_open = true;
	tell_the_truth(liar, socket, cat);
}

static void last_byte_of_hello(struct liar *liar, int socket, int cat)
{
	hear(liar);
	say_hello(liar, liar->bell[1], sizeof(liar->mine) - 1);
	let_write(cat, (char *)(&liar->mine + 1) - 1, 1);
	say_rest(liar, socket, socket);
}

static void middle_of_hello(struct liar *liar, int socket, int cat)
{
	hear(liar);
	say_hello(liar, liar->bell[1], 30);
	let_write(cat, (char *)&liar->mine + 30, 30);
	say(socket, (char *)&liar->mine + 60, sizeof(liar->mine) - 60, NULL, 0);
	say_rest(liar, socket, socket);
}

static void whole_ready(struct liar *liar, int socket, int cat)
{
	struct greeting ready = liar->mine;

	ready.step = READY;
	ready.equal = 1;
	hear(liar);
	say_hello(liar, liar->bell[1], sizeof(liar->mine));
	let_write(cat, &ready, sizeof(ready));
	(void)socket;
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
	int pair[2], status;

	if (getuid())
		cannot_be_shown("only root can become others");
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair");
	prepare(&liar, pair[1]);
	pid_t child = fork();

	if (child == 0) {
		become_somebody();
		say_hello(&liar, liar.bell[1], sizeof(liar.mine));
		_exit(0);
	}
	waitpid(child, &status, 0);
	child = fork(); /* a root process, and after the server has asked */
	if (child == 0) {
		close(pair[0]);
		hear(&liar);
		say_rest(&liar, pair[1], pair[1]);
		_exit(0);
	}
	EXPECT(adma_attach(pair[0]), -EPROTO);
	close(pair[0]);
	expect_good_end(child);
}

/* ---- doorbells -------------------------------------------------------------------------------- */

static int foreign_bell[2];
static bool give_accepted;

static void bell_of_others(struct liar *liar, int socket, int cat)
{
	(void)cat;
	hear(liar);
	say_hello(liar, foreign_bell[1], sizeof(liar->mine));
	say_rest(liar, socket, socket);
}

static int listener_at(struct sockaddr_un *at, socklen_t *len)
{
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	*at = (struct sockaddr_un){ .sun_family = AF_UNIX };
	*len = offsetof(struct sockaddr_un, sun_path) +
	       1 + snprintf(at->sun_path + 1, 90, "adma-test-identity-%d", getpid());
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

static void bell_with_a_name(struct liar *liar, int socket, int cat)
{
	struct sockaddr_un at;
	socklen_t len;
	int listener = listener_at(&at, &len), client = connected_to(&at, len);
	int accepted = accept(listener, NULL, NULL);

	(void)cat;
	hear(liar);
	say_hello(liar, give_accepted ? accepted : client, sizeof(liar->mine));
	say_rest(liar, socket, socket);
}

static void bells(void)
{
	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, foreign_bell))
		fail("socketpair");
	EXPECT(served(bell_of_others), -EPROTO);
	EXPECT(served(bell_with_a_name), -EPROTO);
	give_accepted = true;
	EXPECT(served(bell_with_a_name), -EPROTO);
}

static void *attach(void *socket_fd)
{
	return (void *)(long)adma_attach((int)(long)socket_fd);
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
	int listener, first, second, status;
	pid_t child;
	pthread_t thread;
	void *got;

	if (getuid())
		cannot_be_shown("only root can become others");
	listener = listener_at(&at, &len);
	child = fork();
	if (child == 0) {
		struct liar one = { 0 }, two = { 0 };

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		become_somebody();
		prepare(&two, connected_to(&at, len));
		prepare(&one, connected_to(&at, len));
		hear(&two);
		two.mine.seed = two.theirs.seed;
		two.mine.word = two.theirs.word;
		*(volatile uint32_t *)(one.region + 8) = BYTE; /* how we want to be woken */
		hear(&one);
		say_hello(&two, two.bell[1], sizeof(two.mine) - 1);
		say_hello(&one, two.socket, sizeof(one.mine));
		if (say_rest(&one, one.socket, one.socket)) {
			while (*(volatile uint32_t *)(one.region + 8))
				; /* not rung yet */
			say_rest(&two, two.socket, two.socket);
		}
		_exit(0);
	}
	second = accept(listener, NULL, NULL);
	first = accept(listener, NULL, NULL);
	pthread_create(&thread, NULL, attach, (void *)(long)second);
	int connection = adma_attach(first);

	if (connection > 0) {
		adma_write(connection, "x", 1); /* rings */
		pthread_join(thread, &got);
		char text[300] = "nothing";

		adma_connection_info((int)(long)got, text, sizeof(text));
		waitpid(child, &status, 0);
		fail("one of its own sockets is taken for a bell; the other connection: %s", text);
	}
	EXPECT(connection, -EPROTO);
	close(first);
	shutdown(second, SHUT_RDWR);
	pthread_join(thread, &got);
	waitpid(child, &status, 0);
	if (status)
		fail("the liar ended with %#x", status);
}

/* ---- numbers ---------------------------------------------------------------------------------- */

/* As a kernel before 6.5. */
static void refuse_descriptors_of_processes(void)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_setsockopt, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 76, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOPROTOOPT),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(filter[0]), filter };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
	    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		cannot_be_shown("no seccomp filters here");
}

/* A process says everything and ends; another has its number when that is heard. */
static void number(bool of_root)
{
	struct liar liar = { 0 };
	int pair[2], status;
	pid_t child, sender, watcher;

	if (getuid())
		cannot_be_shown("only root can become others");
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair");
	setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, (int[]){ 1 }, sizeof(int));
	child = sender = fork();
	if (sender == 0) {
		if (!of_root)
			become_somebody();
		prepare(&liar, pair[1]);
		say_hello(&liar, liar.bell[1], sizeof(liar.mine));
		liar.mine.step = READY;
		liar.mine.equal = 1;
		say(pair[1], &liar.mine, sizeof(liar.mine), NULL, 0);
		liar.mine.step = VERDICT;
		liar.mine.blocks = 1;
		say(pair[1], &liar.mine, sizeof(liar.mine), NULL, 0);
		_exit(0);
	}
	waitpid(sender, &status, 0);
	struct clone_args args = {
		.set_tid = (uint64_t)&child, .set_tid_size = 1, .exit_signal = SIGCHLD,
	};
	pid_t heir = syscall(SYS_clone3, &args, sizeof(args));

	if (heir == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	if (heir != sender)
		cannot_be_shown("process numbers cannot be chosen here");
	watcher = fork();
	if (watcher == 0) {
		close(pair[0]);
		liar.socket = pair[1];
		while (hear(&liar))
			if (liar.theirs.equal && !of_root)
				fail("whoever has the number is taken for an equal");
		_exit(0);
	}
	close(pair[1]);
	refuse_descriptors_of_processes();
	EXPECT(adma_attach(pair[0]), -EPROTO);
	close(pair[0]);
	kill(heir, SIGKILL);
	waitpid(watcher, &status, 0);
	if (status)
		fail("the watcher ended with %#x", status);
}

/* A process has the number of another one, which has made its doorbell and ended. */
static void bell_of_ended(void)
{
	struct clone_args args = { .flags = CLONE_FILES, .exit_signal = SIGCHLD };
	static int bell[2];
	int pair[2], status;

	if (getuid())
		cannot_be_shown("only root can become others");
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair");
	bell[0] = dup(pair[0]);
	bell[1] = dup(pair[0]);
	pid_t maker = syscall(SYS_clone3, &args, sizeof(args));

	if (maker == 0) {
		int made[2];

		if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, made) || dup2(made[0], bell[0]) < 0 ||
		    dup2(made[1], bell[1]) < 0)
			_exit(1);
		_exit(0);
	}
	waitpid(maker, &status, 0);
	args = (struct clone_args){ .set_tid = (uint64_t)&maker, .set_tid_size = 1,
				    .exit_signal = SIGCHLD };
	pid_t heir = syscall(SYS_clone3, &args, sizeof(args));

	if (heir == 0) {
		struct liar liar = { 0 };

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
		become_somebody();
		prepare(&liar, pair[1]);
		say_hello(&liar, bell[1], sizeof(liar.mine));
		hear(&liar);
		say_rest(&liar, pair[1], pair[1]);
		_exit(0);
	}
	if (heir != maker)
		cannot_be_shown("process numbers cannot be chosen here");
	close(pair[1]);
	if (getsockopt(pair[0], SOL_SOCKET, 77 /* SO_PEERPIDFD */, &status,
		       &(socklen_t){ sizeof(status) }))
		cannot_be_shown("the kernel has no SO_PEERPIDFD");
	EXPECT(adma_attach(pair[0]), -EPROTO);
	close(pair[0]);
	waitpid(heir, &status, 0);
}

static int read_one(int connection)
{
	char byte;

	return adma_read(connection, &byte, 1);
}

/* Those who are there are known all the same. */
static void numbers_of_the_living(void)
{
	pid_t child;

	refuse_descriptors_of_processes();
	int connection = with_child(read_one, &child);

	expect_engine(connection, "process_vm, one copy, both processes copy");
	EXPECT(adma_close(connection), 0);
	expect_good_end(child);
}

/* ---- who is in between -------------------------------------------------------------------------- */

/* Two processes of one user, over a socket that somebody else has made and kept. */
static void handed_on(void)
{
	int pair[2], pass[2], status;
	pid_t maker, child;

	if (getuid())
		cannot_be_shown("only root can become others");
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pass))
		fail("socketpair");
	maker = fork();
	if (maker == 0) {
		become_somebody();
		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
			fail("socketpair");
		say(pass[1], "", 1, pair, 2);
		_exit(0);
	}
	waitpid(maker, &status, 0);
	char byte, beside[CMSG_SPACE(sizeof(pair))];
	struct iovec piece = { &byte, 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = beside,
				  .msg_controllen = sizeof(beside) };

	if (recvmsg(pass[0], &message, 0) != 1)
		fail("recvmsg");
	memcpy(pair, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(pair));
	child = fork();
	if (child == 0) {
		int connection = adma_attach(pair[1]);

		expect_engine(connection, "shared memory");
		_exit(read_one(connection));
	}
	int connection = adma_attach(pair[0]);

	expect_engine(connection, "shared memory");
	EXPECT(adma_close(connection), 0);
	expect_good_end(child);
}

/* ---- one of the same user who lies ---------------------------------------------------------------- */

static void equal_that_lies(bool reflects)
{
	int pair[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair");
	child = fork();
	if (child == 0) {
		struct liar liar = { 0 };

		close(pair[0]);
		prepare(&liar, pair[1]);
		hear(&liar);
		if (reflects) {
			liar.mine.seed = liar.theirs.seed;
			liar.mine.word = liar.theirs.word;
		}
		say_hello(&liar, liar.bell[1], sizeof(liar.mine));
		liar.mine.step = READY;
		liar.mine.equal = liar.mine.chosen = 1; /* but there is no page */
		say(pair[1], &liar.mine, sizeof(liar.mine), NULL, 0);
		if (hear(&liar)) {
			liar.mine.step = VERDICT;
			liar.mine.token = liar.theirs.token;
			say(pair[1], &liar.mine, sizeof(liar.mine), NULL, 0);
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
	const char *what = argc > 1 ? argv[1] : "";

	alarm(200);
	signal(SIGPIPE, SIG_IGN);
	overhear();
	if (!strcmp(what, "relayed"))
		relayed();
	else if (!strcmp(what, "early"))
		early();
	else if (!strcmp(what, "bells"))
		bells();
	else if (!strcmp(what, "rung"))
		rung();
	else if (!strcmp(what, "bell_of_ended"))
		bell_of_ended();
	else if (!strcmp(what, "number"))
		number(argc > 2);
	else if (!strcmp(what, "living"))
		numbers_of_the_living();
	else if (!strcmp(what, "handed_on"))
		handed_on();
	else if (!strcmp(what, "page"))
		equal_that_lies(false);
	else if (!strcmp(what, "reflected"))
		equal_that_lies(true);
	else
		fail("no test is called %s", what);
	return 0;
}
