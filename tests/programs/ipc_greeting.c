/*
 * Greetings that are not what they should be: somebody in the middle changes them, or what comes
 * with them. Whatever it is, making a connection ends within its limit, and nothing is left.
 *
 * usage: ipc_greeting silence|wrong|many|stuck|strangers; with ADMA_IPC_TIMEOUT=20, but stuck and
 * strangers with 1
 */
#include "ipc_faults.h"
#include "ipc_greeting.h"
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>

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
	server = fork_child();
	if (server == 0)
		serve(device);
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

/* Attaches in a process of its own, in time, to what `change` sends. */
static void expect_refusal(void (*change)(struct greeting *hello, int fds[2], int to))
{
	int fds[2], pair[2], result[2], from = honest_greeter(), got = 0;
	struct greeting hello = take_hello(from, fds);

	make_pair(SOCK_STREAM, pair);
	make_pipe(result);
	/* It may end only later: ending closes what cannot be closed. */
	if (fork() == 0) {
		close(pair[0]);
		got = adma_attach(pair[1]);
		if (write(result[1], &got, sizeof(got)) < 0)
			fail("write");
		_exit(0);
	}
	close(pair[1]);
	change(&hello, fds, pair[0]);
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

static void silent_bell(struct greeting *hello, int fds[2], int to)
{
	say(to, hello, sizeof(*hello), (int[]){ fds[MEMORY], silent }, 2);
}

static void silent_memory(struct greeting *hello, int fds[2], int to)
{
	say(to, hello, sizeof(*hello), (int[]){ silent, fds[BELL] }, 2);
}

static void silent_door(struct greeting *hello, int fds[2], int to)
{
	hello->version ^= 1;
	say(to, hello, sizeof(*hello), (int[]){ fds[MEMORY], fds[BELL], silent }, 3);
}

static void wrong_bell(struct greeting *hello, int fds[2], int to)
{
	int wrong = socket(AF_UNIX, SOCK_DGRAM, 0);

	say(to, hello, sizeof(*hello), (int[]){ fds[MEMORY], wrong }, 2);
	close(wrong);
}

static void pipe_bell(struct greeting *hello, int fds[2], int to)
{
	int wrong[2];

	make_pipe(wrong);
	say(to, hello, sizeof(*hello), (int[]){ fds[MEMORY], wrong[1] }, 2);
}

static void unsealed_memory(struct greeting *hello, int fds[2], int to)
{
	int wrong = memfd_create("wrong", MFD_ALLOW_SEALING);

	if (ftruncate(wrong, 1 << 21))
		fail("ftruncate");
	say(to, hello, sizeof(*hello), (int[]){ wrong, fds[BELL] }, 2);
}

static int stalled;

static void *write_nothing(void *page)
{
	(void)!pwrite(stalled, page, 1, 0);
	return NULL;
}

/* Somebody writes into the memory what never comes. */
static void stalled_memory(struct greeting *hello, int fds[2], int to)
{
	byte *page = pages_between_guards(PAGE);
	pthread_t thread;

	withhold_pages(page, PAGE);
	stalled = dup(fds[MEMORY]);
	pthread_create(&thread, NULL, write_nothing, (void *)page);
	sleep_ms(100);
	say(to, hello, sizeof(*hello), fds, 2);
	say(to, hello, sizeof(*hello), fds, 2); /* which is not what comes next */
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
	int fds[2], pair[2], extra[20];
	struct greeting hello = take_hello(honest_greeter(), fds);
	pthread_t thread;
	void *got;

	make_pair(SOCK_STREAM, pair);
	for (int i = 0; i < 20; i++)
		extra[i] = fds[MEMORY];
	long before = entries_of("/proc/self/fd");

	pthread_create(&thread, NULL, attach_in_thread, (void *)(long)pair[1]);
	for (size_t i = 0; i < sizeof(hello); i++) {
		say(pair[0], (char *)&hello + i, 1, extra, 20);
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

	if (fork_child() == 0) {
		int null = open("/dev/null", O_RDONLY);

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
	connect_patiently(name); /* and everybody is let in again */
}

/* ---- strangers --------------------------------------------------------------------------- */

/*
 * Takes a message and whatever comes with it, changes a byte, and sends it back; with a bell of its
 * own, for that of another process is refused.
 */
static bool mirror(int socket_fd, int bell, unsigned *state)
{
	struct greeting greeting;
	char *bytes = (char *)&greeting;
	int fds[2];
	ssize_t got = take_with(socket_fd, bytes, sizeof(greeting), fds);

	if (got <= 0)
		return false;
	*state = *state * 1664525 + 1013904223;
	unsigned choice = *state >> 8;

	/* Another nonce and demand, and no page, or it would not go on; and nonsense in one byte. */
	greeting.nonce ^= 1ull << choice % 8 * 8;
	greeting.seed ^= 1;
	greeting.chosen = 0;
	if (choice & 0x100)
		bytes[(choice >> 9) % got] ^= 1 << (choice >> 20) % 8;
	/* Descriptors: those that came, or none. */
	int count = fds[MEMORY] < 0 || choice % 5 == 0 ? 0 : 2;

	return send_with(socket_fd, bytes, got, (int[]){ fds[MEMORY], bell }, count, 0) == got;
}

/* Whatever a stranger says, making a connection ends, and so does using it. */
static void strangers(void)
{
	long before = 0;
	int met = 0;

	for (unsigned round = 0; round < 400; round++) {
		int pair[2];

		make_pair(SOCK_STREAM, pair);
		pid_t child = fork_child();

		if (child == 0) {
			unsigned state = round * 7919 + 1;
			int bell[2];

			close(pair[0]);
			make_pair(SOCK_SEQPACKET, bell);
			for (unsigned step = 0; step < 1 + round % 4; step++)
				if (!mirror(pair[1], bell[1], &state))
					break;
			_exit(0);
		}
		close(pair[1]);
		int connection = adma_attach(pair[0]);

		close(pair[0]);
		if (connection > 0) {
			met++;
			char data[10] = "";

			adma_write(connection, data, 10);
			long got = adma_read(connection, data, 10);

			if (got > 10 || got == 0)
				fail("read %ld of a stranger", got);
			EXPECT(adma_close(connection), 0);
		} else if (connection == 0 || connection == -EINVAL) {
			fail("attach is %d", connection);
		}
		waitpid(child, NULL, 0);
		if (round == 0)
			before = entries_of("/proc/self/fd");
	}
	expect_descriptors(before);
	if (met == 0)
		fail("no stranger came through: nothing was shown");
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "silence", silence }, { "wrong", wrong }, { "many", many }, { "stuck", stuck },
		{ "strangers", strangers }, { 0 }
	};

	alarm(200);
	return run_mode(argc, argv, all);
}
