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

__attribute__((unused))
static void expect_result(long got, long want, const char *call, int line)
{
	if (got != want)
		fail("line %d, process %d: %s is %ld (%s), want %ld", line, getpid(), call, got,
		     got < 0 ? strerror(-got) : "a count", want);
}

/* Bytes that depend on the message and on the place. */
static inline unsigned char content(unsigned message, size_t at)
{
	return (uint32_t)(at + 1) * 0x9e3779b1u >> 24 ^ message * 151;
}

__attribute__((unused))
static void fill(byte *data, size_t len, unsigned message)
{
	for (size_t at = 0; at < len; at++)
		data[at] = content(message, at);
}

__attribute__((unused))
static void expect_content(byte *data, size_t len, unsigned message, const char *what)
{
	for (size_t at = 0; at < len; at++)
		if (data[at] != content(message, at))
			fail("%s: byte %zu of %zu of message %u is %#x, want %#x", what, at, len,
			     message, data[at], content(message, at));
}

__attribute__((unused))
static void expect_only(byte *data, size_t len, unsigned char value, const char *what)
{
	for (size_t at = 0; at < len; at++)
		if (data[at] != value)
			fail("%s: byte %zu beside the buffer was written: %#x", what, at, data[at]);
}

/* Entries of a folder: descriptors in /proc/self/fd, threads in /proc/self/task. */
__attribute__((unused))
static long entries_of(const char *folder)
{
	DIR *list = opendir(folder);
	long number = 0;

	while (readdir(list))
		number++;
	closedir(list);
	return number;
}

/* How many sockets this process has. */
__attribute__((unused))
static int sockets(void)
{
	int number = 0;

	for (int fd = 0; fd < 100; fd++) {
		struct stat stat;

		number += fstat(fd, &stat) == 0 && S_ISSOCK(stat.st_mode);
	}
	return number;
}

/* Sends bytes with descriptors beside them; answers as sendmsg does. */
__attribute__((unused))
static ssize_t send_with(int to, const void *bytes, size_t len, const int *fds, int count, int flags)
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

/* The same where only the other's end may keep it from being sent. */
__attribute__((unused))
static void say(int to, const void *bytes, size_t len, const int *fds, int count)
{
	if (send_with(to, bytes, len, fds, count, 0) != (ssize_t)len && errno != EPIPE)
		fail("sendmsg: %s", strerror(errno));
}

/* A socket that is connected to an abstract name, and nothing more; negative: it is not. */
__attribute__((unused))
static int try_client(const char *name, int kind)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	socklen_t len = offsetof(struct sockaddr_un, sun_path) + strlen(name);
	int client = socket(AF_UNIX, SOCK_STREAM | kind, 0);

	strcpy(address.sun_path + 1, name + 1);
	if (connect(client, (void *)&address, len) == 0)
		return client;
	close(client);
	return -1;
}

__attribute__((unused))
static int plain_client(const char *name)
{
	int client = try_client(name, 0);

	if (client < 0)
		fail("connect: %s", strerror(errno));
	return client;
}

__attribute__((unused))
static double seconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + now.tv_nsec * 1e-9;
}

/* No more are open than before: what strangers send is closed by a thread, when it gets a CPU. */
__attribute__((unused))
static void expect_descriptors(long before)
{
	for (double begun = seconds(); entries_of("/proc/self/fd") > before; sleep_ms(10))
		if (seconds() - begun > 60)
			fail("%ld descriptors are left", entries_of("/proc/self/fd") - before);
}

/* The parent's end of a connected pair; the child gets the other and runs `other`. */
__attribute__((unused))
static int with_child(int (*other)(int connection), pid_t *child)
{
	int pair[2], connection;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair: %s", strerror(errno));
	*child = fork();
	if (*child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
		connection = adma_attach(pair[1]);
		if (connection < 0)
			fail("attach in the child: %s", strerror(-connection));
		close(pair[1]);
		exit(other(connection));
	}
	close(pair[1]);
	connection = adma_attach(pair[0]);
	if (connection < 0)
		fail("attach: %s", strerror(-connection));
	close(pair[0]);
	return connection;
}

__attribute__((unused))
static void expect_good_end(pid_t child)
{
	int status;

	if (waitpid(child, &status, 0) != child || status != 0)
		fail("the other process ended with status %#x", status);
}

/* Memory for messages: a block of adma_alloc where BLOCKS is set. */
__attribute__((unused))
static byte *message_memory(size_t size)
{
	if (!getenv("BLOCKS"))
		return pages_between_guards(size);
	byte *block = adma_alloc(size);
	if (!block)
		fail("no block of %zu bytes", size);
	return block;
}

__attribute__((unused))
static void expect_engine(int connection, const char *name)
{
	char text[200];

	if (adma_connection_info(connection, text, sizeof(text)) <= 0)
		fail("no connection info");
	if (strncmp(text, name, strlen(name)))
		fail("the engine is %s, want %s", text, name);
}
#endif
