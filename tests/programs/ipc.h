/*
 * What the programs of tests/ipc.rs share: two processes and a connection between them.
 *
 * They are linked with the library, or preloaded, or both; the tests say which.
 */
#ifndef IPC_H
#define IPC_H
#include "pattern.h"
#include "../../include/adma.h"
#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>

#define KIB 1024ul
#define MIB (1024ul * 1024)

/* A result that must be this one. */
#define EXPECT(call, want) expect_result(call, want, #call, __LINE__)

static inline void expect_result(long got, long want, const char *call, int line)
{
	if (got != want)
		fail("line %d, process %d: %s is %ld (%s), want %ld", line, getpid(), call, got,
		     got < 0 ? strerror(-got) : "a count", want);
}

/* What a program can show; its first argument says which of them, the second, if any, how. */
struct mode {
	const char *name; /* NULL: there are no more */
	void (*run)(void);
};

static const char *variant; /* the second argument */

static inline int run_mode(int argc, char **argv, const struct mode *all)
{
	const char *name = argc > 1 ? argv[1] : "";

	variant = argc > 2 ? argv[2] : NULL;
	for (; all->name; all++)
		if (!strcmp(name, all->name)) {
			all->run();
			return 0;
		}
	fail("no mode is called %s", name);
}

/* A whole program: what it does first, and its modes. A standstill ends it. */
#define PROGRAM(first, ...)                                                     \
	int main(int argc, char **argv)                                         \
	{                                                                       \
		static const struct mode all[] = { __VA_ARGS__, { 0 } };        \
                                                                                \
		alarm(200);                                                     \
		first;                                                          \
		return run_mode(argc, argv, all);                               \
	}

static inline void root_only(void)
{
	if (getuid())
		cannot_be_shown("only root can become others");
}

/* ---- bytes ------------------------------------------------------------------------------- */

/* Bytes that depend on the message and on the place. */
static inline unsigned char content(unsigned message, size_t at)
{
	return (uint32_t)(at + 1) * 0x9e3779b1u >> 24 ^ message * 151;
}

static inline void fill(byte *data, size_t len, unsigned message)
{
	for (size_t at = 0; at < len; at++)
		data[at] = content(message, at);
}

static inline void expect_content(byte *data, size_t len, unsigned message, const char *what)
{
	for (size_t at = 0; at < len; at++)
		if (data[at] != content(message, at))
			fail("%s: byte %zu of %zu of message %u is %#x, want %#x", what, at, len,
			     message, data[at], content(message, at));
}

static inline void expect_only(byte *data, size_t len, unsigned char value, const char *what)
{
	for (size_t at = 0; at < len; at++)
		if (data[at] != value)
			fail("%s: byte %zu beside the buffer was written: %#x", what, at, data[at]);
}

/* Entries of a folder: descriptors in /proc/self/fd, threads in /proc/self/task. */
static inline long entries_of(const char *folder)
{
	DIR *list = opendir(folder);
	long number = 0;

	while (readdir(list))
		number++;
	closedir(list);
	return number;
}

/* How many sockets this process has. */
static inline int sockets(void)
{
	int number = 0;

	for (int fd = 0; fd < 100; fd++) {
		struct stat stat;

		number += fstat(fd, &stat) == 0 && S_ISSOCK(stat.st_mode);
	}
	return number;
}

/* How many mappings have these rights, or any, and such a file behind them. */
static inline int mappings(const char *rights, const char *file)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[400];
	int count = 0;

	while (fgets(line, sizeof(line), maps))
		count += strstr(line, rights) && strstr(line, file);
	fclose(maps);
	return count;
}

/* ---- sockets and pipes ------------------------------------------------------------------- */

static inline void make_pair(int kind, int pair[2])
{
	if (socketpair(AF_UNIX, kind, 0, pair))
		fail("socketpair: %s", strerror(errno));
}

static inline void make_pipe(int ends[2])
{
	if (pipe(ends))
		fail("pipe: %s", strerror(errno));
}

/* One process tells another over a pipe to go on. */
static inline void send_byte(int to)
{
	EXPECT(write(to, "x", 1), 1);
}

static inline void await_byte(int from)
{
	struct pollfd one = { .fd = from, .events = POLLIN };
	char byte;

	/* Longer than a busy machine needs for anything. */
	if (poll(&one, 1, 60000) != 1 || read(from, &byte, 1) != 1)
		fail("process %d: the other process does nothing", getpid());
}

/* Sends bytes with descriptors beside them; answers as sendmsg does. */
static inline ssize_t send_with(int to, const void *bytes, size_t len, const int *fds, int count,
				int flags)
{
	char beside[CMSG_SPACE(253 * sizeof(int))] = "";
	struct iovec piece = { (void *)bytes, len };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };

	if (count) {
		message.msg_control = beside;
		message.msg_controllen = CMSG_SPACE(count * sizeof(int));
		struct cmsghdr *c = CMSG_FIRSTHDR(&message);

		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(count * sizeof(int));
		memcpy(CMSG_DATA(c), fds, count * sizeof(int));
	}
	return sendmsg(to, &message, MSG_NOSIGNAL | flags);
}

/* Like send_with; fails unless the other end has closed. */
static inline void say(int to, const void *bytes, size_t len, const int *fds, int count)
{
	if (send_with(to, bytes, len, fds, count, 0) != (ssize_t)len && errno != EPIPE)
		fail("sendmsg: %s", strerror(errno));
}

/* Takes bytes and, where they come, two descriptors (else -1); answers as recvmsg does. */
static inline ssize_t take_with(int from, void *bytes, size_t len, int fds[2])
{
	char beside[256];
	struct iovec piece = { bytes, len };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = beside,
				  .msg_controllen = sizeof(beside) };
	ssize_t got = recvmsg(from, &message, 0);

	fds[0] = fds[1] = -1;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); got > 0 && c; c = CMSG_NXTHDR(&message, c))
		if (c->cmsg_type == SCM_RIGHTS && c->cmsg_len >= CMSG_LEN(2 * sizeof(int)))
			memcpy(fds, CMSG_DATA(c), 2 * sizeof(int));
	return got;
}

/* The address of an abstract name, "@" first; answers its length. */
static inline socklen_t abstract_address(const char *name, struct sockaddr_un *address)
{
	*address = (struct sockaddr_un){ .sun_family = AF_UNIX };
	strcpy(address->sun_path + 1, name + 1);
	return offsetof(struct sockaddr_un, sun_path) + strlen(name);
}

/* A socket that is connected to such a name, and nothing more; negative: it is not. */
static inline int try_client(const char *name, int kind)
{
	struct sockaddr_un address;
	socklen_t len = abstract_address(name, &address);
	int client = socket(AF_UNIX, SOCK_STREAM | kind, 0);

	if (connect(client, (void *)&address, len) == 0)
		return client;
	close(client);
	return -1;
}

static inline int plain_client(const char *name)
{
	int client = try_client(name, 0);

	if (client < 0)
		fail("connect: %s", strerror(errno));
	return client;
}

/* ---- time and descriptors ---------------------------------------------------------------- */

static inline double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* No more are open than before: what strangers send is closed by a thread, when it gets a CPU. */
static inline void expect_descriptors(long before)
{
	for (double begun = seconds(); entries_of("/proc/self/fd") > before; sleep_ms(10))
		if (seconds() - begun > 60)
			fail("%ld descriptors are left", entries_of("/proc/self/fd") - before);
}

/* ---- connections ------------------------------------------------------------------------- */

static inline void expect_engine(int connection, const char *name)
{
	char text[200];

	if (adma_connection_info(connection, text, sizeof(text)) <= 0)
		fail("no connection info");
	if (strncmp(text, name, strlen(name)))
		fail("the engine is %s, want %s", text, name);
}

/* A connection that must be one. */
static inline int made(int connection)
{
	if (connection < 0)
		fail("process %d: no connection: %s", getpid(), strerror(-connection));
	return connection;
}

/* As often as a busy machine needs. */
static inline int connect_patiently(const char *name)
{
	int connection = -ETIMEDOUT;

	for (int tries = 0; connection == -ETIMEDOUT && tries < 20; tries++)
		connection = adma_connect(name);
	return made(connection);
}

/* Over a socket that is not needed any more. */
static inline int attach_and_close(int socket)
{
	int connection = made(adma_attach(socket));

	close(socket);
	return connection;
}

static inline void *attach_in_thread(void *socket)
{
	return (void *)(long)adma_attach((int)(long)socket);
}

/* Both ends here, or why not. */
static inline void attach_both(const int pair[2], int ends[2])
{
	pthread_t thread;
	void *other;

	if (pthread_create(&thread, NULL, attach_in_thread, (void *)(long)pair[1]))
		fail("pthread_create");
	ends[0] = adma_attach(pair[0]);
	pthread_join(thread, &other);
	ends[1] = (int)(long)other;
}

/* ---- processes --------------------------------------------------------------------------- */

static inline pid_t fork_child(void)
{
	pid_t child = fork();

	if (child == 0)
		prctl(PR_SET_PDEATHSIG, SIGKILL);
	return child;
}

/* Root becomes this user, without rights of its own; another user stays what it is. */
static inline void become_user(uid_t user)
{
	if (user == getuid())
		return;
	if (getuid() == 0 && (setgroups(0, NULL) || setresgid(user, user, user) ||
			      setresuid(user, user, user)))
		cannot_be_shown("cannot become another user");
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* which goes with the user */
}

/* The parent's end of a connected pair; the child gets the other and runs `other`. */
static inline int with_process(int (*other)(int connection), pid_t *child)
{
	int pair[2];

	make_pair(SOCK_STREAM, pair);
	*child = fork_child();
	if (*child == 0) {
		close(pair[0]);
		exit(other(attach_and_close(pair[1])));
	}
	close(pair[1]);
	return attach_and_close(pair[0]);
}

static pid_t child __attribute__((unused)); /* that of the latest with_child */

static inline int with_child(int (*other)(int connection))
{
	return with_process(other, &child);
}

enum { STRANGER = 1001 };

static inline void expect_good_end(pid_t child)
{
	int status;

	if (waitpid(child, &status, 0) != child || status != 0)
		fail("the other process ended with status %#x", status);
}

/* Closes, which is what the other process waits for. */
static inline void finish(int connection, pid_t child)
{
	EXPECT(adma_close(connection), 0);
	expect_good_end(child);
}

/* Ends as the child does. */
__attribute__((noreturn))
static inline void end_like(pid_t child)
{
	int status;

	waitpid(child, &status, 0);
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static inline void kill_child(pid_t child)
{
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
}

/* Memory for messages: a block of adma_alloc where BLOCKS is set. */
static inline byte *message_memory(size_t size)
{
	if (!getenv("BLOCKS"))
		return pages_between_guards(size);
	byte *block = adma_alloc(size);
	if (!block)
		fail("no block of %zu bytes", size);
	return block;
}
#endif
