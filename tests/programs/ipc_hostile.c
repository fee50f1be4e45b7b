/*
 * Processes that want a server to wait for them, or to run out of descriptors: files that take
 * long to close, clients that say nothing, a page that never comes. One scene by name, see main.
 */
#include "ipc.h"
#include <fcntl.h>
#include <grp.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* Longer than anything here may take, on a busy machine too. */
enum { LINGER = 60, SOON = 40 };

static char name[60];

static void expect_soon(double begun, const char *what)
{
	if (seconds() - begun > SOON)
		fail("%s took %.1f s", what, seconds() - begun);
}

/* ---- the other side -------------------------------------------------------------------- */

static int somebody = 1001;

static void become(uid_t user)
{
	if (getuid() == 0 && (setgroups(0, NULL) || setresgid(user, user, user) ||
			      setresuid(user, user, user)))
		fail("setresuid: %s", strerror(errno));
	prctl(PR_SET_DUMPABLE, 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* which has gone with the user */
}

static void become_somebody(void)
{
	become(somebody);
}

static bool same_user;
static int left_to_parent; /* a listener */
static int done[2];

/* Runs `scene` in a process of another user, if there is one, that stays until it is killed. */
static pid_t hostile(void (*scene)(void))
{
	pid_t child = fork();

	if (child == 0) {
		if (left_to_parent)
			close(left_to_parent);
		if (!same_user)
			become_somebody();
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* of who it is now */
		scene();
		EXPECT(write(done[1], "x", 1), 1);
		for (;;)
			pause();
	}
	return child;
}

/* It has done all that it wants. */
static void wait_done(void)
{
	struct pollfd one = { .fd = done[0], .events = POLLIN };
	char byte;

	if (poll(&one, 1, 60000) != 1 || read(done[0], &byte, 1) != 1)
		fail("the other process does nothing");
}

static void end(pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

/* A socket that is not closed before LINGER seconds are over, for what it has to send. */
static int lingering(void)
{
	static char bytes[1 << 16];
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t len = sizeof(address);
	int little = 4096, listener = socket(AF_INET, SOCK_STREAM, 0);
	int sender = socket(AF_INET, SOCK_STREAM, 0);
	struct linger linger = { 1, LINGER };

	setsockopt(listener, SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
	if (bind(listener, (void *)&address, len) || listen(listener, 1) ||
	    getsockname(listener, (void *)&address, &len) ||
	    connect(sender, (void *)&address, len) || accept(listener, NULL, NULL) < 0)
		fail("no network: %s", strerror(errno));
	while (send(sender, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
		;
	setsockopt(sender, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger));
	return sender;
}

static int has_network(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET,
				       .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int one = socket(AF_INET, SOCK_STREAM, 0), can = 0;

	can = bind(one, (void *)&address, sizeof(address)) == 0;
	close(one);
	return can;
}

/* ---- what comes with greetings ------------------------------------------------------------ */

static void one_lingers(void)
{
	int client = plain_client(name), fd = lingering();

	send_with(client, "x", 1, &fd, 1, MSG_DONTWAIT);
	close(fd);
}

static void last_of_many_lingers(void)
{
	int client = plain_client(name), fds[253];

	for (int i = 0; i < 252; i++)
		fds[i] = STDIN_FILENO;
	fds[252] = lingering();
	send_with(client, "x", 1, fds, 253, MSG_DONTWAIT);
	close(fds[252]);
}

/* It is never received, but closed with the socket. */
static void unread_lingers(void)
{
	int client = plain_client(name), fd = lingering();

	send_with(client, "not what is wanted, and more than one looks at at once, in front of "
		  "what is not looked at: this message is longer than any greeting", 130,
		  (int[]){ STDIN_FILENO }, 1, MSG_DONTWAIT);
	send_with(client, "x", 1, &fd, 1, MSG_DONTWAIT);
	close(fd);
}

/* The same, in the queue of a socket that is sent. */
static void socket_has_what_lingers(void)
{
	int client = plain_client(name), fd = lingering(), pair[2];

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair))
		fail("socketpair");
	send_with(pair[0], "", 0, &fd, 1, MSG_DONTWAIT);
	send_with(client, "x", 1, &pair[1], 1, MSG_DONTWAIT);
	close(fd);
	close(pair[1]);
}

/* The same, urgently. */
static void urgent_lingers(void)
{
	int client = plain_client(name), fd = lingering(), pair[2];
	char beside[CMSG_SPACE(sizeof(int))] = "";
	struct iovec piece = { "x", 1 };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = beside,
				  .msg_controllen = sizeof(beside) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair");
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &fd, sizeof(int));
	sendmsg(client, &message, MSG_OOB); /* not in every kernel */
	send_with(client, "x", 1, &pair[1], 1, MSG_DONTWAIT);
	close(fd);
}

static void honest_client(void)
{
	int connection = -ETIMEDOUT;

	/* Two seconds may be too few for a machine that is busy with all the others. */
	for (int tries = 0; connection == -ETIMEDOUT && tries < SOON / 2; tries++)
		connection = adma_connect(name);
	if (connection < 0)
		fail("an honest client: connect is %s", strerror(-connection));
	EXPECT(adma_write(connection, "good", 4), 4);
	EXPECT(adma_close(connection), 0);
	_exit(0);
}

/* Accepts until an honest one has come; answers the last error before. */
static int expect_honest(int listener, const char *while_there_is)
{
	char got[10];
	double begun = seconds();
	pid_t child = hostile(honest_client);
	int error = 0;

	for (;;) {
		int connection = adma_accept(listener);

		if (seconds() - begun > SOON)
			fail("%s: accept took %.1f s", while_there_is, seconds() - begun);
		if (connection < 0) {
			error = connection;
			continue;
		}
		EXPECT(adma_read(connection, got, 10), 4);
		EXPECT(adma_close(connection), 0);
		expect_good_end(child);
		return error;
	}
}

static void greeting(void)
{
	void (*all[])(void) = { one_lingers, last_of_many_lingers, unread_lingers,
				socket_has_what_lingers, urgent_lingers };
	const char *names[] = { "one lingers", "the last of many lingers", "what is unread lingers",
				"a socket has what lingers", "what is urgent lingers" };
	int listener = adma_listen(name);

	if (!has_network())
		cannot_be_shown("no network here");
	expect_honest(listener, "nobody else");
	long before = entries_of("/proc/self/fd");

	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		pid_t child = hostile(all[i]);

		wait_done(); /* what it has sent is nobody else's */
		double begun = seconds();
		int refused = adma_accept(listener);

		if (refused >= 0)
			fail("%s: accepted", names[i]);
		expect_soon(begun, names[i]);
		expect_honest(listener, names[i]);
		end(child);
	}
	expect_descriptors(before);
}

/* Nor can who was not accepted hold up who closes the listener. */
static void unaccepted(void)
{
	int listener = left_to_parent = adma_listen(name);

	if (!has_network())
		cannot_be_shown("no network here");
	pid_t child = hostile(one_lingers);

	wait_done();
	double begun = seconds();

	EXPECT(adma_close(listener), 0);
	expect_soon(begun, "closing a listener");
	listener = adma_listen(name);
	expect_honest(listener, "a listener lingers");
	EXPECT(adma_close(listener), 0);
	end(child);
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

	if (!has_network())
		cannot_be_shown("no network here");
	if (getuid())
		cannot_be_shown("cannot become another user");
	setrlimit(RLIMIT_NOFILE, &enough);
	pid_t child = hostile(all_linger);

	wait_done();
	for (int i = 0; i < STUCK + 3; i++) {
		int refused = adma_accept(listener);

		if (refused >= 0)
			fail("accepted");
	}
	somebody = 1002;
	expect_honest(listener, "files linger");
	end(child);
}

/* ---- what comes over the doorbell ------------------------------------------------------- */

/* Our end of it: of the only sockets of their kind that a client has the latest. */
static int doorbell(void)
{
	int kind, bell = -1;
	socklen_t len = sizeof(kind);

	for (int fd = 3; fd < 1000; fd++)
		if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &len) == 0 && kind == SOCK_SEQPACKET)
			bell = fd;
	if (bell < 0)
		fail("no doorbell");
	return bell;
}

static int connected_doorbell(void)
{
	int connection = adma_connect(name);

	if (connection < 0)
		fail("a hostile client: connect is %s", strerror(-connection));
	return doorbell();
}

/* As a block comes, with its number. */
static const char record[9] = { 2, 7 };

static void bell_lingers(void)
{
	int bell = connected_doorbell(), fd = lingering();

	send_with(bell, record, sizeof(record), &fd, 1, MSG_DONTWAIT);
	close(fd);
}

static void bell_carries_many(void)
{
	int bell = connected_doorbell(), many[18];

	for (int i = 0; i < 18; i++)
		many[i] = open("/dev/null", O_RDONLY);
	for (int i = 0; i < 400; i++)
		if (send_with(bell, record, 1 + i % 9, many, 18, MSG_DONTWAIT) < 0)
			break; /* as many as there is room for */
}

static void empty_one_lingers(void)
{
	int bell = connected_doorbell(), fd = lingering();

	send_with(bell, "", 0, &fd, 1, MSG_DONTWAIT);
	close(fd);
}

static void last_of_many_over_the_bell_lingers(void)
{
	int bell = connected_doorbell(), fds[253];

	for (int i = 0; i < 252; i++)
		fds[i] = STDIN_FILENO;
	fds[252] = lingering();
	send_with(bell, record, sizeof(record), fds, 253, MSG_DONTWAIT);
	close(fds[252]);
}

/* What whoever has made the doorbell can set on a copy of our end. */
static int options_of_our_end[2];

/* Of a connection that one reads from with a limit, or that is closed at once. */
static void expect_bell_holds_nobody_up(void (*scene)(void), bool reads)
{
	static char data[1000];
	int listener = adma_listen(name);

	if (!has_network())
		cannot_be_shown("no network here");
	expect_honest(listener, "nobody else");
	long before = entries_of("/proc/self/fd");
	pid_t child = hostile(scene);
	int connection = adma_accept(listener);
	double begun;

	if (connection < 0)
		fail("accept: %s", strerror(-connection));
	for (int i = 0; i < 2 && options_of_our_end[i]; i++)
		if (setsockopt(doorbell(), SOL_SOCKET, options_of_our_end[i], &(int){ 1 },
			       sizeof(int)))
			fail("setsockopt: %s", strerror(errno));
	wait_done();
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
	end(child);
	expect_descriptors(before);
}

static void bell(void)
{
	expect_bell_holds_nobody_up(bell_lingers, true);
}

static void bell_unread(void)
{
	expect_bell_holds_nobody_up(bell_lingers, false);
}

/* A look at what is there begins behind the first byte. */
static void bell_peeked(void)
{
	options_of_our_end[0] = SO_PEEK_OFF;
	expect_bell_holds_nobody_up(empty_one_lingers, false);
}

/* Times and senders take room from descriptors, and the last finds none. */
static void bell_timed(void)
{
	options_of_our_end[0] = SO_TIMESTAMP;
	options_of_our_end[1] = SO_PASSCRED;
	expect_bell_holds_nobody_up(last_of_many_over_the_bell_lingers, true);
}

static void bell_many(void)
{
	expect_bell_holds_nobody_up(bell_carries_many, true);
}

static void half_closed_bell(void)
{
	EXPECT(shutdown(connected_doorbell(), SHUT_WR), 0);
}

/* It would always have something to tell, and who sleeps until then would not sleep at all. */
static void bell_half(void)
{
	int listener = adma_listen(name);
	pid_t child = hostile(half_closed_bell);
	int connection = adma_accept(listener);
	char byte;

	EXPECT(adma_read(connection, &byte, 1), -ECONNRESET);
	EXPECT(adma_close(connection), 0);
	end(child);
}

/* ---- memory whose lock is never let go ------------------------------------------------------ */

static int page_that_never_comes(byte *at);

struct held {
	int memory;
	byte *source;
};

static void *hold(void *it)
{
	struct held *held = it;

	pwrite(held->memory, (void *)held->source, PAGE, 0);
	return NULL;
}

/* Many connections, over each of which memory is lent that cannot be sealed. */
static void lend_what_is_locked(void)
{
	static struct held all[STUCK];
	char lend[13] = { 3, 7 };

	for (int i = 0; i < STUCK; i++) {
		all[i].memory = memfd_create("held", MFD_ALLOW_SEALING);
		all[i].source = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
				     -1, 0);
		if (fallocate(all[i].memory, 0, 0, PAGE) ||
		    fcntl(all[i].memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) ||
		    page_that_never_comes(all[i].source) < 0)
			fail("no memory: %s", strerror(errno));
	}
	become_somebody();
	for (int i = 0; i < STUCK; i++) {
		pthread_t thread;

		pthread_create(&thread, NULL, hold, &all[i]);
	}
	sleep_ms(200); /* until they do */
	for (int i = 0; i < STUCK; i++) {
		int bell = connected_doorbell();

		lend[9] = 1;
		send_with(bell, lend, sizeof(lend), &all[i].memory, 1, MSG_DONTWAIT);
	}
}

/* Neither who waits with a limit, on whatever connection, nor another user. */
static void locked(void)
{
	static char data[STUCK][1000];
	int listener = adma_listen(name), faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	adma_cookie_t cookies[STUCK];

	if (faults < 0)
		cannot_be_shown("no userfaultfd here");
	if (getuid())
		cannot_be_shown("cannot become another user");
	close(faults);
	same_user = true;
	pid_t child = hostile(lend_what_is_locked);

	for (int i = 0; i < STUCK; i++) {
		int connection = adma_accept(listener);

		if (connection < 0)
			fail("accept: %s", strerror(-connection));
		cookies[i] = adma_iread(connection, data[i], sizeof(data[i]));
	}
	wait_done();
	double begun = seconds();

	EXPECT(adma_wait_for(cookies[0], 100), -ETIMEDOUT);
	expect_soon(begun, "100 ms");
	same_user = false;
	somebody = 1002;
	expect_honest(listener, "locks are held");
	end(child);
}

/* ---- a page that never comes -------------------------------------------------------------- */

static void *attach(void *socket_fd)
{
	adma_attach((int)(long)socket_fd);
	return NULL;
}

/* Negative: it does come. */
static int page_that_never_comes(byte *at)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .range = { (unsigned long)at, PAGE },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC);

	if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range))
		return -1;
	return faults;
}

/* The page that says that we agree to be reached: alone, where nothing else is. */
static void take_sign_away(void)
{
	char line[300];
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to;

	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx rw-p", &from, &to) == 2 && to - from == PAGE &&
		    from >= 0x100000000000 && from < 0x500000000000) {
			if (mmap((void *)from, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE |
				 MAP_ANONYMOUS, -1, 0) == MAP_FAILED ||
			    page_that_never_comes((byte *)from) < 0)
				fail("userfaultfd: %s", strerror(errno));
			fclose(maps);
			return;
		}
	fail("no page says that we agree");
}

/* Hands a greeting on, with what comes with it; but with a bell of ours, for that of another
 * process is refused. */
static bool hand_on(int from, int to)
{
	char bytes[200], beside[256];
	struct iovec piece = { bytes, sizeof(bytes) };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = beside,
				  .msg_controllen = sizeof(beside) };
	ssize_t got = recvmsg(from, &message, 0);
	int fds[2], bell[2];

	if (got <= 0 || socketpair(AF_UNIX, SOCK_SEQPACKET, 0, bell))
		return false;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
		if (c->cmsg_type == SCM_RIGHTS) {
			memcpy(fds, CMSG_DATA(c), sizeof(fds));
			fds[1] = bell[1];
			memcpy(CMSG_DATA(c), fds, sizeof(fds));
			/* Not who has sent it, which may come as well. */
			message.msg_controllen = CMSG_SPACE(sizeof(fds));
			memmove(beside, c, message.msg_controllen);
			piece.iov_len = got;
			return sendmsg(to, &message, MSG_NOSIGNAL) == got;
		}
	return send(to, bytes, got, MSG_NOSIGNAL) == got;
}

/* An equal, whose page is gone when it says where it is. */
static void without_page(void)
{
	int pair[2], client = plain_client(name);
	pthread_t thread;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) ||
	    setsockopt(client, SOL_SOCKET, SO_PASSCRED, (int[]){ 1 }, sizeof(int)))
		fail("socketpair");
	pthread_create(&thread, NULL, attach, (void *)(long)pair[1]);
	hand_on(pair[0], client);
	hand_on(client, pair[0]);
	struct pollfd second = { .fd = pair[0], .events = POLLIN };

	poll(&second, 1, -1);
	take_sign_away();
	hand_on(pair[0], client);
	/* The server has heard of it, and looks for the page from now on. */
	hand_on(client, pair[0]);
}

static void page(void)
{
	int listener = adma_listen(name), faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	double begun;

	if (faults < 0)
		cannot_be_shown("no userfaultfd here");
	close(faults);
	same_user = true;
	pid_t child = hostile(without_page);

	int error = expect_honest(listener, "a page does not come");

	/* The library over there may give up first, and take the page away. */
	for (begun = seconds(); error != -EPROTO && error != -ETIMEDOUT; error = adma_accept(listener))
		expect_soon(begun, "two seconds");
	end(child);
}

/* ---- clients that say nothing ------------------------------------------------------------- */

/* As many as it can, again and again. */
static void crowd(void)
{
	enum { MANY = 300 };
	struct pollfd all[MANY];

	for (int i = 0; i < MANY; i++)
		all[i].fd = -1;
	for (;;) {
		for (int i = 0; i < MANY; i++) {
			all[i].events = 0;
			if (all[i].fd < 0)
				all[i].fd = try_client(name, SOCK_NONBLOCK);
		}
		poll(all, MANY, 1);
		for (int i = 0; i < MANY; i++)
			if (all[i].fd >= 0 && all[i].revents & (POLLHUP | POLLERR)) {
				close(all[i].fd);
				all[i].fd = -1;
			}
	}
}

static void silent(void)
{
	struct rlimit limit = { 4096, 4096 };
	int listener = adma_listen(name);

	setrlimit(RLIMIT_NOFILE, &limit);
	pid_t child = hostile(crowd);

	sleep_ms(500);
	for (int i = 0; i < 3; i++)
		expect_honest(listener, "a crowd is there");
	end(child);
}

/* They say something, are greeted, and read nothing. */
static void deaf_crowd(void)
{
	enum { DEAF = 100, GREETING = 88 };

	for (int i = 0; i < DEAF; i++) {
		int client = plain_client(name), heard = 0;

		say(client, "adma-ipc", 8, NULL, 0);
		while (heard < GREETING) {
			sleep_ms(1);
			ioctl(client, FIONREAD, &heard);
		}
	}
}

static void *accept_them(void *listener)
{
	for (;;)
		adma_accept((int)(long)listener);
	return NULL;
}

static void serve_deaf(int listener)
{
	struct rlimit limit = { 100, 1024 };
	int pair[2];
	pthread_t thread;

	become(54321); /* root has no limit */
	pthread_create(&thread, NULL, accept_them, (void *)(long)listener);
	wait_done();
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || setrlimit(RLIMIT_NOFILE, &limit))
		fail("socketpair, setrlimit: %s", strerror(errno));
	if (send_with(pair[0], "x", 1, pair, 1, 0) != 1)
		fail("no descriptor can be sent any more: %s", strerror(errno));
	exit(0);
}

/* Descriptors that were sent and not received count for the user who has sent them. */
static void deaf(void)
{
	int listener = adma_listen(name), status;

	if (getuid())
		cannot_be_shown("only root can become others");
	pid_t child = hostile(deaf_crowd), server = fork();

	if (server == 0)
		serve_deaf(listener);
	waitpid(server, &status, 0);
	end(child);
	EXPECT(status, 0);
}

static void nothing(int signal)
{
	(void)signal;
}

static void *interrupt(void *thread)
{
	/* Until it is heard: the first may come too early. */
	for (;;) {
		sleep_ms(50);
		pthread_kill(*(pthread_t *)thread, SIGUSR1);
	}
	return NULL;
}

static void interrupted(void)
{
	struct sigaction action = { .sa_handler = nothing };
	int listener = adma_listen(name), client = plain_client(name);
	pthread_t self = pthread_self(), other;

	sigaction(SIGUSR1, &action, NULL);
	pthread_create(&other, NULL, interrupt, &self);
	for (int i = 0; i < 3; i++)
		EXPECT(adma_accept(listener), -EINTR);
	close(client);
}

static void closed_listeners(void)
{
	long before = entries_of("/proc/self/fd");

	for (int round = 0; round < 4; round++) {
		int listener = adma_listen(name);

		for (int i = 0; i < 10; i++)
			EXPECT(write(plain_client(name), "adma-ipc", 8), 8);
		expect_honest(listener, "silence");
		close(listener);
		for (int fd = 3; fd < 200; fd++) { /* the clients' ends */
			struct sockaddr_un address;
			socklen_t len = sizeof(address);

			if (getpeername(fd, (void *)&address, &len) == 0 && len > 10)
				close(fd);
		}
		sprintf(strrchr(name, '-'), "-%d", round);
	}
	sleep_ms(2100); /* more than ADMA_IPC_TIMEOUT */
	int listener = adma_listen(name);

	expect_honest(listener, "others are closed");
	EXPECT(adma_close(listener), 0);
	expect_descriptors(before);
}

static void *accept_late(void *listener)
{
	sleep_ms(1800);
	for (int i = 0; i < 2; i++)
		accept((int)(long)listener, NULL, NULL);
	return NULL;
}

/* Nobody accepts for most of the limit, and then nobody greets. */
static void limit(void)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int listener = socket(AF_UNIX, SOCK_STREAM, 0);
	pthread_t thread;

	strcpy(address.sun_path + 1, name + 1);
	if (bind(listener, (void *)&address, offsetof(struct sockaddr_un, sun_path) + strlen(name)) ||
	    listen(listener, 0))
		fail("listen");
	plain_client(name);
	pthread_create(&thread, NULL, accept_late, (void *)(long)listener);
	double begun = seconds();

	EXPECT(adma_connect(name), -ETIMEDOUT);
	/* A limit of its own for each part would end after 3.8 s at the earliest. */
	if (seconds() - begun < 1.9 || seconds() - begun > 3.7)
		fail("two seconds took %.2f s", seconds() - begun);
}

int main(int argc, char **argv)
{
	struct { const char *name; void (*run)(void); } all[] = {
		{ "greeting", greeting }, { "unaccepted", unaccepted }, { "bell", bell },
		{ "closers", closers }, { "locked", locked },
		{ "bell_unread", bell_unread }, { "bell_many", bell_many }, { "page", page },
		{ "bell_peeked", bell_peeked }, { "bell_timed", bell_timed },
		{ "bell_half", bell_half },
		{ "silent", silent }, { "deaf", deaf }, { "interrupted", interrupted },
		{ "closed", closed_listeners }, { "limit", limit },
	};

	alarm(200);
	if (pipe(done))
		fail("pipe");
	snprintf(name, sizeof(name), "@adma-hostile-%d-x", getpid());
	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (argc > 1 && !strcmp(argv[1], all[i].name)) {
			all[i].run();
			return 0;
		}
	fail("no scene is called %s", argc > 1 ? argv[1] : "");
}
