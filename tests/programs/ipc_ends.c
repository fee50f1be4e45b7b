/*
 * Tests the ends of a connection: fork, exec, exit, adma_close, and closed descriptors; and what is
 * left of it then.
 *
 * usage: ipc_ends first_thread|fork|orphan|exec|close|again|all_closed
 */
#include "ipc_echo.h"
#include <fcntl.h>
#include <sys/syscall.h>

/* ---- the first thread leaves ------------------------------------------------------------- */

static void *echo_in_thread(void *connection)
{
	if (echo((int)(long)connection))
		fail("echo without the first thread");
	return NULL;
}

static int leave_thread(int connection)
{
	pthread_t thread;

	pthread_create(&thread, NULL, echo_in_thread, (void *)(long)connection);
	pthread_exit(NULL);
}

/* The system finds no memory by such a process's number, but it lives. */
static void first_thread(void)
{
	int connection = with_child(leave_thread);

	sleep_ms(50);
	for (int i = 0; i < 5; i++) {
		ask_echo(connection, 100);
		ask_echo(connection, 10000);
		ask_echo(connection, 4 * MIB);
	}
	finish(connection, child);
}

/* ---- fork, exec ---------------------------------------------------------------------- */

static void forked(void)
{
	int connection = with_child(echo);
	adma_cookie_t cookie = adma_iread(connection, (void *)room, 100);
	pid_t mine = fork_child();

	if (mine == 0) {
		EXPECT(adma_write(connection, (void *)room, 10), -EPERM);
		EXPECT(adma_read(connection, (void *)room, 10 * MIB), -EPERM);
		EXPECT(adma_iwrite(connection, (void *)room, 10), -EPERM);
		EXPECT(adma_wait(cookie), -EPERM);
		EXPECT(adma_close(connection), -EPERM);
		/* Its own connections work. */
		pid_t grandchild;
		int own = with_process(echo, &grandchild);

		ask_echo(own, 100);
		ask_echo(own, 3 * MIB);
		EXPECT(adma_write(connection, (void *)room, 10), -EPERM);
		finish(own, grandchild);
		exit(0);
	}
	expect_good_end(mine);
	EXPECT(adma_write(connection, (void *)(room + MIB), 10), 10);
	EXPECT(adma_wait(cookie), 10);
	ask_echo(connection, 100);
	ask_echo(connection, 3 * MIB);
	/* A raw fork runs no handlers. */
	cookie = adma_iread(connection, (void *)(room + MIB), 3 * MIB);
	mine = syscall(SYS_fork);
	if (mine == 0) {
		alarm(200);
		EXPECT(adma_write(connection, (void *)room, 10), -EPERM);
		EXPECT(adma_wait(cookie), -EPERM);
		EXPECT(adma_wait_for(cookie, 10), -EPERM);
		EXPECT(adma_check(cookie), -EPERM);
		_exit(0);
	}
	expect_good_end(mine);
	EXPECT(adma_write(connection, (void *)room, 3 * MIB), 3 * MIB);
	EXPECT(adma_wait(cookie), 3 * MIB);
	ask_echo(connection, 3 * MIB);
	finish(connection, child);
}

static int orphan_lives[2], orphan_may_end[2]; /* pipes; it has the other ends */

/* A child that outlives its parent must not hide the parent's end. */
static int fork_and_die(int connection)
{
	char byte;

	(void)connection;
	close(orphan_lives[0]);
	close(orphan_may_end[1]);
	if (fork() == 0)
		_exit(read(orphan_may_end[0], &byte, 1) < 0);
	_exit(0);
}

static void orphaned(void)
{
	make_pipe(orphan_lives);
	make_pipe(orphan_may_end);
	int connection = with_child(fork_and_die);
	struct pollfd end = { .fd = orphan_lives[0] };

	close(orphan_lives[1]);
	close(orphan_may_end[0]);
	/* However long that takes: it was not the orphan's end that was seen. */
	EXPECT(adma_read(connection, (void *)room, 10), -ECONNRESET);
	EXPECT(poll(&end, 1, 0), 0);
	close(orphan_may_end[1]);
	expect_good_end(child);
}

static int exec_another(int connection)
{
	(void)connection;
	execlp("sleep", "sleep", "3", NULL);
	return 1;
}

static void executed(void)
{
	int connection = with_child(exec_another);

	EXPECT(adma_read(connection, (void *)room, 10), -ECONNRESET);
	EXPECT(adma_write(connection, (void *)room, 10), -ECONNRESET);
	kill(child, SIGKILL);
}

/* ---- closing ------------------------------------------------------------------------- */

static int close_at_once(int connection)
{
	EXPECT(adma_write(connection, (void *)room, 100), 100);
	adma_iwrite(connection, (void *)room, MIB);
	return adma_close(connection);
}

static void closed(void)
{
	int connection = with_child(close_at_once);

	expect_good_end(child);
	EXPECT(adma_read(connection, (void *)room, 1000), 100);
	EXPECT(adma_read(connection, (void *)room, MIB), -EPIPE);
	EXPECT(adma_read(connection, (void *)room, 10), -EPIPE);
	EXPECT(adma_write(connection, (void *)room, 10), -EPIPE);
	EXPECT(adma_write(connection, (void *)room, MIB), -EPIPE);
	EXPECT(adma_iwrite(connection, (void *)room, MIB), -EPIPE);
	EXPECT(adma_close(connection), 0);
	EXPECT(adma_close(connection), -EBADF);
	EXPECT(adma_close(0), -EBADF);
	EXPECT(adma_close(-1), -EBADF);
}

/* ---- what is left ---------------------------------------------------------------------- */

/* Descriptors and memory come back. */
static void again(void)
{
	long before = 0;

	for (int round = 0; round < 200; round++) {
		int connection = with_child(echo);

		ask_echo(connection, round % 2 ? 10 : 100000);
		finish(connection, child);
		if (round == 0)
			before = entries_of("/proc/self/fd");
	}
	expect_descriptors(before);
}

enum { FILES = 30 };

static void open_nothing(int two[2], pid_t other)
{
	(void)other;
	two[0] = open("/dev/null", O_RDONLY);
	two[1] = open("/dev/null", O_RDONLY);
}

/* Files of one process look the same, as do all processes and events in older kernels. */
static void open_process(int two[2], pid_t other)
{
	two[0] = syscall(SYS_pidfd_open, other, 0);
	two[1] = syscall(SYS_pidfd_open, other, 0);
}

static void open_sockets(int two[2], pid_t other)
{
	(void)other;
	make_pair(SOCK_STREAM, two);
}

static void expect_open(const int files[FILES])
{
	for (int i = 0; i < FILES; i++)
		if (fcntl(files[i], F_GETFD) < 0)
			fail("a file of the program was closed: %d", files[i]);
}

/* Nothing was sent there, and it can be used. */
static void expect_quiet(const int files[FILES])
{
	for (int i = 0; i < FILES; i++) {
		char byte;

		EXPECT(recv(files[i], &byte, 1, MSG_DONTWAIT), -1);
		EXPECT(errno, EAGAIN);
		EXPECT(send(files[i], "x", 1, MSG_NOSIGNAL), 1);
		EXPECT(recv(files[i ^ 1], &byte, 1, 0), 1);
	}
}

static void close_all_and_open(void (*open_two)(int two[2], pid_t other))
{
	pid_t mine;
	int connection = with_child(echo), files[FILES];
	void *block = adma_alloc(100000);

	ask_echo(connection, 100000);
	if (close_range(3, ~0u, 0))
		cannot_be_shown("no close_range in this kernel");
	for (int i = 0; i < FILES; i += 2)
		open_two(files + i, child);
	mine = fork();
	if (mine == 0) {
		expect_open(files);
		_exit(0);
	}
	expect_good_end(mine);
	EXPECT(adma_close(connection), 0);
	EXPECT(adma_free(block), 0);
	expect_open(files);
	if (open_two == open_sockets)
		expect_quiet(files);
	for (int i = 0; i < FILES; i++)
		close(files[i]); /* the next time they have the same numbers */
	kill_child(child);
}

/* Daemons close what they find; what they open then is theirs, and their children's. */
static void all_closed(void)
{
	close_all_and_open(open_nothing);
	close_all_and_open(open_process);
	close_all_and_open(open_sockets);
}

PROGRAM(make_room(),
	{ "first_thread", first_thread }, { "fork", forked }, { "orphan", orphaned },
	{ "exec", executed }, { "close", closed }, { "again", again },
	{ "all_closed", all_closed })
