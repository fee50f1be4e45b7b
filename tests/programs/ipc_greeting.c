/*
 * Greetings that are not what they should be: somebody in the middle changes what comes with
 * them. Whatever it is, making a connection ends within its limit. One test by name, see main;
 * run with ADMA_IPC_TIMEOUT=20, and "stuck" with 1.
 */
#include "ipc.h"
#include <fcntl.h>
#include <linux/fuse.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { MEMORY, BELL, HELLO = 200 };

/* ---- a file that answers nothing -------------------------------------------------------- */

static char folder[] = "/tmp/adma-fuse-XXXXXX";
static pid_t server;

static void answer(int device, const struct fuse_in_header *in, const void *data, size_t len)
{
	struct fuse_out_header out = { sizeof(out) + len, 0, in->unique };
	struct iovec parts[2] = { { &out, sizeof(out) }, { (void *)data, len } };

	if (writev(device, parts, 2) < 0)
		_exit(2);
}

/* Answers until a file is open, and never again. */
static void serve(int device)
{
	static char request[FUSE_MIN_READ_BUFFER + 4096];
	struct fuse_in_header *in = (void *)request;
	struct fuse_attr directory = { .ino = 1, .mode = S_IFDIR | 0755, .nlink = 2 };
	struct fuse_attr file = { .ino = 2, .mode = S_IFREG | 0666, .nlink = 1, .size = 1 << 20 };

	while (read(device, request, sizeof(request)) > 0)
		if (in->opcode == FUSE_INIT) {
			struct fuse_init_out init = { .major = 7, .minor = 31, .max_write = 4096 };

			answer(device, in, &init, sizeof(init));
		} else if (in->opcode == FUSE_GETATTR && in->nodeid == 1) {
			struct fuse_attr_out attr = { .attr_valid = 9, .attr = directory };

			answer(device, in, &attr, sizeof(attr));
		} else if (in->opcode == FUSE_LOOKUP) {
			struct fuse_entry_out entry = { .nodeid = 2, .entry_valid = 9, .attr = file };

			answer(device, in, &entry, sizeof(entry));
		} else if (in->opcode == FUSE_OPEN) {
			struct fuse_open_out open = { .fh = 1 };

			answer(device, in, &open, sizeof(open));
		}
	_exit(0);
}

static int silent_file(void)
{
	int device = open("/dev/fuse", O_RDWR);
	char options[100];

	snprintf(options, sizeof(options), "fd=%d,rootmode=40000,user_id=0,group_id=0", device);
	if (device < 0 || !mkdtemp(folder) || mount("adma", folder, "fuse", 0, options))
		cannot_be_shown("no file systems of one's own here");
	server = fork();
	if (server == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		serve(device);
	}
	close(device);
	snprintf(options, sizeof(options), "%s/file", folder);
	int file = open(options, O_RDWR);

	if (file < 0)
		fail("open: %s", strerror(errno));
	return file;
}

static void end_silence(void)
{
	if (!server)
		return;
	kill(server, SIGKILL);
	umount2(folder, MNT_DETACH);
	rmdir(folder);
}

/* ---- somebody in the middle ------------------------------------------------------------- */

static void *attach(void *socket_fd)
{
	return (void *)(long)adma_attach((int)(long)socket_fd);
}

/* A socket on which an honest process begins to greet. */
static int honest(void)
{
	int pair[2];
	pid_t child;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair");
	child = fork();
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		close(pair[0]);
		adma_attach(pair[1]);
		_exit(0);
	}
	close(pair[1]);
	return pair[0];
}

static size_t take_hello(int from, char *bytes, int fds[2])
{
	char beside[256];
	struct iovec piece = { bytes, HELLO };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = beside,
				  .msg_controllen = sizeof(beside) };
	ssize_t got = recvmsg(from, &message, 0);

	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
		if (c->cmsg_type == SCM_RIGHTS)
			memcpy(fds, CMSG_DATA(c), 2 * sizeof(int));
	if (got <= 0)
		fail("no greeting");
	return got;
}

/* Attaches in a process of its own, in time, to what `change` sends. */
static void expect_refusal(void (*change)(char *bytes, size_t len, int fds[2], int to))
{
	char bytes[HELLO];
	int fds[2], pair[2], result[2], from = honest(), got = 0;
	size_t len = take_hello(from, bytes, fds);

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || pipe(result))
		fail("socketpair");
	/* It may end only later: ending closes what cannot be closed. */
	if (fork() == 0) {
		close(pair[0]);
		got = adma_attach(pair[1]);
		if (write(result[1], &got, sizeof(got)) < 0)
			fail("write");
		_exit(0);
	}
	close(pair[1]);
	change(bytes, len, fds, pair[0]);
	struct pollfd heard = { .fd = result[0], .events = POLLIN };

	if (poll(&heard, 1, 15000) != 1 || read(result[0], &got, sizeof(got)) != sizeof(got))
		got = -EBUSY;
	if (got != -EPROTO) {
		end_silence();
		fail("making a connection is %s", strerror(-got));
	}
	close(pair[0]);
	close(from);
	close(fds[0]);
	close(fds[1]);
}

static int silent;

static void silent_bell(char *bytes, size_t len, int fds[2], int to)
{
	say(to, bytes, len, (int[]){ fds[MEMORY], silent }, 2);
}

static void silent_memory(char *bytes, size_t len, int fds[2], int to)
{
	say(to, bytes, len, (int[]){ silent, fds[BELL] }, 2);
}

static void silent_door(char *bytes, size_t len, int fds[2], int to)
{
	bytes[8] ^= 1; /* another version */
	say(to, bytes, len, (int[]){ fds[MEMORY], fds[BELL], silent }, 3);
}

static void wrong_bell(char *bytes, size_t len, int fds[2], int to)
{
	int wrong = socket(AF_UNIX, SOCK_DGRAM, 0);

	say(to, bytes, len, (int[]){ fds[MEMORY], wrong }, 2);
	close(wrong);
}

static void pipe_bell(char *bytes, size_t len, int fds[2], int to)
{
	int wrong[2];

	if (pipe(wrong))
		fail("pipe");
	say(to, bytes, len, (int[]){ fds[MEMORY], wrong[1] }, 2);
}

static void unsealed_memory(char *bytes, size_t len, int fds[2], int to)
{
	int wrong = memfd_create("wrong", MFD_ALLOW_SEALING);

	if (ftruncate(wrong, 1 << 21))
		fail("ftruncate");
	say(to, bytes, len, (int[]){ wrong, fds[BELL] }, 2);
}

static int stalled;

static void *write_nothing(void *page)
{
	(void)!pwrite(stalled, page, 1, 0);
	return NULL;
}

/* Somebody writes into the memory what never comes. */
static void stalled_memory(char *bytes, size_t len, int fds[2], int to)
{
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register range = { .range = { (uintptr_t)page, 4096 },
					 .mode = UFFDIO_REGISTER_MODE_MISSING };
	pthread_t thread;

	if (faults < 0 || ioctl(faults, UFFDIO_API, &api) ||
	    ioctl(faults, UFFDIO_REGISTER, &range))
		cannot_be_shown("no userfaultfd here");
	stalled = dup(fds[MEMORY]);
	pthread_create(&thread, NULL, write_nothing, page);
	sleep_ms(100);
	say(to, bytes, len, fds, 2);
	say(to, bytes, len, fds, 2); /* which is not what comes next */
}

static void silence(void)
{
	silent = silent_file();
	expect_refusal(silent_bell);
	expect_refusal(silent_memory);
	expect_refusal(silent_door);
	end_silence();
}

static void wrong(void)
{
	expect_refusal(wrong_bell);
	expect_refusal(pipe_bell);
	expect_refusal(unsealed_memory);
	expect_refusal(stalled_memory);
}

/* Byte by byte, each with more descriptors than the whole may have. */
static void many(void)
{
	char bytes[HELLO];
	int fds[2], pair[2], extra[20];
	size_t len = take_hello(honest(), bytes, fds);
	pthread_t thread;
	void *got;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair");
	for (int i = 0; i < 20; i++)
		extra[i] = fds[MEMORY];
	long before = entries_of("/proc/self/fd");

	pthread_create(&thread, NULL, attach, (void *)(long)pair[1]);
	for (size_t i = 0; i < len; i++) {
		say(pair[0], bytes + i, 1, extra, 20);
		sleep_ms(2);
		if (entries_of("/proc/self/fd") > before + 40)
			fail("%ld descriptors are accepted", entries_of("/proc/self/fd") - before);
	}
	pthread_join(thread, &got);
	EXPECT((long)got, -EPROTO);
	expect_descriptors(before);
}

/* ---- more that cannot be closed than there are threads for it ---------------------------- */

static int listener;

static void *accept_all(void *unused)
{
	(void)unused;
	for (;;)
		if (adma_accept(listener) == -EMFILE)
			sleep_ms(1);
	return NULL;
}

/* Whatever has come is closed in the end, and until then there is not much of it. */
static void stuck(void)
{
	enum { STUCK = 20, OTHERS = 200, MOST = 256 + 3 + STUCK + OTHERS };
	char name[60];
	pthread_t thread;

	silent = silent_file();
	snprintf(name, sizeof(name), "@adma-stuck-%d", getpid());
	listener = adma_listen(name);
	pthread_create(&thread, NULL, accept_all, NULL);
	long before = entries_of("/proc/self/fd"), most = 0;

	if (fork() == 0) {
		int null = open("/dev/null", O_RDONLY);

		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (int i = 0; i < STUCK + OTHERS; i++) {
			int fd = i < STUCK ? silent : null;

			say(plain_client(name), "x", 1, (int[]){ fd, fd, fd }, i < STUCK ? 1 : 3);
		}
		pause();
	}
	/* For three seconds, and until they have come. */
	for (double begun = seconds(), now; (now = seconds() - begun) < 3 || (most < 10 && now < 60);
	     sleep_ms(1)) {
		long more = entries_of("/proc/self/fd") - before;

		most = more > most ? more : most;
	}
	end_silence();
	if (most < 10 || most > MOST)
		fail("%ld descriptors", most);
	expect_descriptors(before);
	/* And everybody is let in again, who comes as often as a busy machine needs. */
	int connection = -ETIMEDOUT;

	for (int tries = 0; connection == -ETIMEDOUT && tries < 20; tries++)
		connection = adma_connect(name);
	if (connection < 0)
		fail("connect: %s", strerror(-connection));
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";

	alarm(200);
	if (!strcmp(what, "silence"))
		silence();
	else if (!strcmp(what, "wrong"))
		wrong();
	else if (!strcmp(what, "many"))
		many();
	else if (!strcmp(what, "stuck"))
		stuck();
	else
		fail("no test is called %s", what);
	return 0;
}
