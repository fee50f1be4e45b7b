/*
 * Nobody can make this process reach into a program that has not agreed: a peer posts an
 * address, and then becomes, or leaves its number to, another program. One test by name, see
 * main; the path of ipc_victim comes second.
 */
#include "ipc_filter.h"
#include "ipc_victim.h"
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <stddef.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

enum { SOMEBODY = 1001, TO_CHILD = 0, FROM_CHILD = 1 };

static byte *room; /* 8 MiB */

static void become(int user)
{
	if (user != (int)getuid() && (setgroups(0, NULL) || setresgid(user, user, user) ||
				      setresuid(user, user, user)))
		fail("setresuid: %s", strerror(errno));
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	prctl(PR_SET_PDEATHSIG, SIGKILL); /* which goes with the user */
}

/* ---- programs with rights of their own ------------------------------------------------- */

static char folder[] = "/tmp/adma-deputy-XXXXXX", program[100];

static void clean_up(void)
{
	unlink(program);
	rmdir(folder);
}

/* A copy in a place that everybody can get at. */
static void copy_program(const char *path, int mode, bool capable)
{
	int from = open(path, O_RDONLY), to;
	struct stat stat;

	if (!mkdtemp(folder) || chmod(folder, 0755))
		fail("mkdtemp: %s", strerror(errno));
	snprintf(program, sizeof(program), "%s/victim", folder);
	to = open(program, O_WRONLY | O_CREAT | O_EXCL, 0700);
	if (from < 0 || fstat(from, &stat) || to < 0 ||
	    sendfile(to, from, NULL, stat.st_size) != stat.st_size || fchmod(to, mode))
		fail("copying the program: %s", strerror(errno));
	close(from);
	close(to);
	if (capable) {
		struct vfs_cap_data caps = {
			.magic_etc = VFS_CAP_REVISION_2 | VFS_CAP_FLAGS_EFFECTIVE,
			.data[0].permitted = 1 << CAP_NET_RAW,
		};

		if (setxattr(program, "security.capability", &caps, sizeof(caps), 0)) {
			clean_up();
			cannot_be_shown("no file capabilities here");
		}
	}
}

/* ---- a peer that becomes another program ------------------------------------------------ */

/* Both numbers of the user are what the processes have at first. */
struct scene {
	int server, peer;	/* users */
	int mode;		/* of the program */
	bool capable;		/* it has a file capability */
	int becomes;		/* the user that the program has in effect */
	bool ends;		/* nothing but the program has changed */
	const char *engine;
};

/* Posts an address of the program that it then becomes; descriptors stay. */
static void become_program(int socket, int pipes[2][2], bool reads)
{
	int connection = adma_attach(socket);

	if (connection < 0)
		fail("attach: %s", strerror(-connection));
	if ((reads ? adma_iread(connection, (void *)SECRET_AT, SECRET_LEN) :
		     adma_iwrite(connection, (void *)SECRET_AT, SECRET_LEN)) <= 0)
		fail("the post is refused");
	dup2(pipes[TO_CHILD][0], 0);
	dup2(pipes[FROM_CHILD][1], 1);
	for (int fd = 3; fd < 200; fd++)
		fcntl(fd, F_SETFD, 0);
	close(pipes[TO_CHILD][1]);
	execl(program, "victim", (char *)NULL);
	fail("exec: %s", strerror(errno));
}

static void show(const struct scene *scene, bool reads)
{
	int pair[2], pipes[2][2], connection, status;
	pid_t child;
	char text[80] = "", want[80];
	long got;

	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || pipe(pipes[0]) || pipe(pipes[1]))
		fail("socketpair: %s", strerror(errno));
	child = fork();
	if (child == 0) {
		close(pair[0]);
		become(scene->peer);
		become_program(pair[1], pipes, reads);
	}
	close(pair[1]);
	close(pipes[TO_CHILD][0]);
	close(pipes[FROM_CHILD][1]);
	connection = adma_attach(pair[0]);
	if (connection < 0)
		fail("attach: %s", strerror(-connection));
	expect_engine(connection, scene->engine);
	if (read(pipes[FROM_CHILD][0], text, sizeof(text) - 1) <= 0)
		fail("the program does not begin");
	snprintf(want, sizeof(want), "ready %d", scene->becomes);
	if (strcmp(text, want)) {
		clean_up();
		cannot_be_shown("programs with rights of their own are not heeded here");
	}
	for (size_t i = 0; i < SECRET_LEN; i++)
		room[i] = 1;
	adma_cookie_t cookie = reads ? adma_iwrite(connection, (void *)room, SECRET_LEN) :
				       adma_iread(connection, (void *)room, SECRET_LEN);

	got = cookie < 0 ? cookie : adma_wait_for(cookie, scene->ends ? 60000 : 300);
	/* A writer may be done when its bytes lie in shared memory. */
	if (scene->ends ? got != -ECONNRESET : !reads && got >= 0)
		fail("a message to another program is %ld", got);
	for (size_t i = 0; i < SECRET_LEN; i++)
		if (room[i] != 1)
			fail("byte %zu of another program was read", i);
	close(pipes[TO_CHILD][1]);
	if (waitpid(child, &status, 0) != child || status)
		fail("%s was touched: status %#x", "another program", status);
	close(pipes[FROM_CHILD][0]);
	adma_close(connection);
}

static void show_both(const struct scene *scene, const char *path)
{
	pid_t child;
	int status;

	if (getuid())
		cannot_be_shown("only root can become others");
	copy_program(path, scene->mode, scene->capable);
	child = fork();
	if (child == 0) {
		become(scene->server);
		show(scene, true);
		show(scene, false);
		exit(0);
	}
	waitpid(child, &status, 0);
	clean_up();
	exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

/* ---- a number that is given to another process ------------------------------------------- */

static int post_and_end(int connection)
{
	if (adma_iread(connection, (void *)SECRET_AT, SECRET_LEN) <= 0)
		fail("the post is refused");
	/* Somebody keeps the descriptors, so that the end is not heard by them. */
	if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, 0);
		sleep(3);
		_exit(0);
	}
	_exit(0);
}

static void reused(void)
{
	pid_t child;
	int connection = with_child(post_and_end, &child), status, pipes[2];
	struct clone_args args = {
		.set_tid = (uint64_t)&child, .set_tid_size = 1, .exit_signal = SIGCHLD,
	};

	for (size_t i = 0; i < SECRET_LEN; i++)
		room[i] = 1;
	if (pipe(pipes))
		fail("pipe: %s", strerror(errno));
	/* What the stranger has is what a fork of us has at that place. */
	unsigned char *own = lay_down_secret();

	waitpid(child, &status, 0);
	pid_t stranger = syscall(SYS_clone3, &args, sizeof(args));

	if (stranger == 0) {
		char byte;

		close(pipes[1]);
		while (read(pipes[0], &byte, 1) > 0)
			;
		_exit(is_untouched(own) ? 0 : TOUCHED);
	}
	if (stranger != child)
		cannot_be_shown("process numbers cannot be chosen here");
	long got = adma_write(connection, (void *)room, SECRET_LEN);

	close(pipes[1]);
	waitpid(stranger, &status, 0);
	if (status)
		fail("the new process with that number was touched: %#x", status);
	EXPECT(got, -ECONNRESET);
}

/* ---- a peer that becomes another program while bytes are on their way --------------------- */

static void raced(const char *path)
{
	for (int round = 0; round < 100; round++) {
		int pair[2], pipes[2][2], status;
		char text[80];

		if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || pipe(pipes[0]) || pipe(pipes[1]))
			fail("socketpair: %s", strerror(errno));
		pid_t child = fork();

		if (child == 0) {
			int connection = adma_attach(pair[1]);
			unsigned char *own = lay_down_secret();

			if (adma_iread(connection, own, SECRET_LEN) <= 0)
				fail("the post is refused");
			EXPECT(adma_write(connection, "now", 3), 3);
			dup2(pipes[TO_CHILD][0], 0);
			dup2(pipes[FROM_CHILD][1], 1);
			close(pipes[TO_CHILD][1]);
			double begun = seconds();

			while (seconds() - begun < round % 25 * 20e-6)
				;
			execl(path, "victim", (char *)NULL);
			fail("exec: %s", strerror(errno));
		}
		close(pair[1]);
		close(pipes[TO_CHILD][0]);
		close(pipes[FROM_CHILD][1]);
		int connection = adma_attach(pair[0]);

		EXPECT(adma_read(connection, text, 3), 3);
		long got = adma_write(connection, (void *)room, SECRET_LEN);

		if (got != SECRET_LEN && got != -ECONNRESET)
			fail("a message in mid-exec is %ld", got);
		bool begins = read(pipes[FROM_CHILD][0], text, sizeof(text)) > 0;

		close(pipes[TO_CHILD][1]);
		if (waitpid(child, &status, 0) != child || status || !begins)
			fail("round %d: the new program was touched: %#x", round, status);
		close(pipes[FROM_CHILD][0]);
		close(pair[0]);
		adma_close(connection);
	}
}

/* ---- a peer that changes its user --------------------------------------------------------- */

static int in_two[2]; /* tells the other process to go on */

static void tell(void)
{
	if (write(in_two[1], "", 1) != 1)
		fail("write");
}

static void await_telling(void)
{
	char byte;

	if (read(in_two[0], &byte, 1) != 1)
		fail("read");
}

/* Becomes another user, and says so not by the connection. */
static void change(int connection)
{
	EXPECT(adma_read(connection, (void *)room, 64 * KIB), 64 * KIB);
	become(SOMEBODY);
	tell();
}

/* An equal that will be none. */
static int with_changing(int (*other)(int connection), pid_t *child)
{
	if (getuid())
		cannot_be_shown("only root can become others");
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, in_two))
		fail("socketpair");
	int connection = with_child(other, child);

	expect_engine(connection, "process_vm, one copy, both processes copy");
	EXPECT(adma_write(connection, (void *)room, 64 * KIB), 64 * KIB);
	await_telling();
	/* It is looked for that every few milliseconds. */
	usleep(100000);
	return connection;
}

static int change_and_read(int connection)
{
	change(connection);
	EXPECT(adma_read(connection, (void *)room, 8 * MIB), -ECONNRESET);
	EXPECT(adma_write(connection, (void *)room, 8 * MIB), -ECONNRESET);
	return 0;
}

/* The connection ends with that, on both sides. */
static void changed(void)
{
	pid_t child;
	int connection = with_changing(change_and_read, &child);

	filter_call(SYS_process_vm_readv, SECCOMP_RET_KILL_PROCESS);
	filter_call(SYS_process_vm_writev, SECCOMP_RET_KILL_PROCESS);
	EXPECT(adma_write(connection, (void *)room, 8 * MIB), -ECONNRESET);
	EXPECT(adma_read(connection, (void *)room, 8 * MIB), -ECONNRESET);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
}

/* Blocks of the other process that are mapped here to be written. */
static int foreign_blocks(byte *own)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	char line[400], rights[8];
	int found = 0;

	while (fgets(line, sizeof(line), maps))
		if (strstr(line, "memfd:adma-block") &&
		    sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 && rights[1] == 'w')
			found += (unsigned long)own < from || (unsigned long)own >= to;
	fclose(maps);
	return found;
}

static int change_and_look(int connection)
{
	byte *block = adma_alloc(MIB);
	int before = foreign_blocks(block);

	change(connection);
	EXPECT(adma_read(connection, (void *)block, 64 * KIB), -ECONNRESET);
	EXPECT(foreign_blocks(block), before);
	return 0;
}

/* Nothing more is shown to it, to write. */
static void changed_block(void)
{
	pid_t child;
	int connection = with_changing(change_and_look, &child);
	byte *block = adma_alloc(MIB);

	EXPECT(adma_write(connection, (void *)block, 64 * KIB), -ECONNRESET);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
}

/* ---- a peer that claims pieces and copies nothing ----------------------------------------- */

static byte *region(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[400];
	unsigned long from;

	while (fgets(line, sizeof(line), maps))
		if (strstr(line, "memfd:adma ") && sscanf(line, "%lx-", &from) == 1) {
			fclose(maps);
			return (byte *)from;
		}
	fail("no region found");
}

/* What is claimed: what was not lent, what was, pieces that never end, what others have borrowed. */
static enum { LIES, LENT, UNFINISHED, ELSEWHERE } lies;

/*
 * Claims the first message of either lane that has this length: from buffer to buffer, in two pieces
 * or four, all of which the writer has finished, or none. Answers its post.
 */
static volatile uint32_t *claim_pieces(bool finished)
{
	volatile uint32_t *post = NULL;

	for (byte *at = region(); !post; at += 128)
		if (*(volatile uint64_t *)(at + 8) == MIB && *(volatile uint32_t *)at == 1)
			post = (volatile uint32_t *)at;
	for (uint64_t back = 1; back <= 4; back++) {
		post[8] = finished ? back : 0;
		*(volatile uint64_t *)((byte *)post + 256) = back << 12;
	}
	return post;
}

static int claim(int connection)
{
	become(SOMEBODY);
	room = lies != LIES ? adma_alloc(8 * MIB) : message_memory(8 * MIB);
	if (lies != LIES)
		EXPECT(adma_lend(connection, NULL), 0);
	if (adma_iwrite(connection, (void *)room, MIB) <= 0)
		fail("the post is refused");
	claim_pieces(lies != UNFINISHED)[1] = 2;
	EXPECT(adma_write(connection, "now", 3), 3);
	sleep_ms(200000); /* killed before */
	return 0;
}

/* The first message of the lane, of which it says that it has copied everything. */
static int change_and_claim(int connection)
{
	change(connection);
	if (adma_iwrite(connection, (void *)room, MIB) <= 0)
		fail("the post is refused");
	claim_pieces(true);
	tell();
	sleep_ms(3000);
	return 0;
}

/* And nothing is believed. */
static void changed_claims(void)
{
	pid_t child;
	int connection = with_changing(change_and_claim, &child);

	await_telling();
	EXPECT(adma_read(connection, (void *)room, MIB), -ECONNRESET);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	EXPECT(adma_close(connection), 0);
}

static int with_somebody(int (*other)(int connection), pid_t *child)
{
	int pair[2];

	if (getuid())
		cannot_be_shown("only root can become others");
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair))
		fail("socketpair");
	*child = fork();
	if (*child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		become(SOMEBODY);
		exit(other(adma_attach(pair[1])));
	}
	int connection = adma_attach(pair[0]);

	expect_engine(connection, "shared memory, two copies");
	return connection;
}

static int borrow(int connection)
{
	char go;

	EXPECT(adma_lend(connection, NULL), 0);
	return adma_read(connection, &go, 1);
}

static void claimed(void)
{
	pid_t child, borrower = 0;
	long got;
	int connection = with_somebody(claim, &child), other = 0;

	if (lies == ELSEWHERE) {
		other = with_somebody(borrow, &borrower);
		room = adma_alloc(8 * MIB);
		EXPECT(adma_lend(other, (void *)room), 0);
		EXPECT(adma_lend(connection, NULL), 0);
	} else if (lies != LIES) {
		room = adma_alloc(8 * MIB);
		EXPECT(adma_lend(connection, (void *)room), 0);
	}
	for (size_t i = 0; i < 8 * MIB; i++)
		room[i] = 1;
	adma_cookie_t cookie = adma_iread(connection, (void *)room, MIB);

	sleep_ms(300);
	/* From a block, which this side can map, it would have copied itself. */
	long wanted = lies == LENT ? (long)MIB : lies == UNFINISHED ? -ETIMEDOUT : -EPROTO;
	bool any_error = lies == LIES && !getenv("BLOCKS");

	got = adma_wait_for(cookie, any_error || wanted == -ETIMEDOUT ? 500 : 60000);
	if (any_error ? got >= 0 : got != wanted)
		fail("%ld bytes are said to be there", got);
	if (lies != LIES)
		expect_only(room, 8 * MIB, 1, "claimed");
	if (lies == UNFINISHED) {
		double begun = seconds();

		EXPECT(adma_close(connection), -ETIMEDOUT);
		if (seconds() - begun > 30)
			fail("closing took %.1f s", seconds() - begun);
	}
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	EXPECT(adma_close(connection), 0);
	if (borrower) {
		EXPECT(adma_close(other), 0);
		waitpid(borrower, NULL, 0);
	}
}

/* The claims of the first message that this process has posted with this length. */
static volatile uint64_t *claims_of(size_t len, unsigned from_cell)
{
	for (byte *at = region();; at += 128)
		if (*(volatile uint64_t *)(at + 8) == len && *(volatile uint32_t *)at == 1)
			return (volatile uint64_t *)(at + 256 - from_cell);
}

/* Says all the time that it has begun a piece of either message, and never ends one. */
static int begin_forever(int connection)
{
	EXPECT(adma_iwrite(connection, (void *)room, MIB) > 0, 1);
	EXPECT(adma_iread(connection, (void *)(room + MIB), 2 * MIB) > 0, 1);
	volatile uint64_t *claims[] = { claims_of(MIB, 0), claims_of(2 * MIB, 128) };

	EXPECT(adma_write(connection, "go", 2), 2);
	while (true)
		*claims[0] = *claims[1] = 1 << 12 | 1;
	return 0;
}

/* Who can touch no buffer holds up nobody who closes, before or after his posts. */
static void closed(void)
{
	for (int first = 0; first < 2; first++) {
		pid_t child;
		int connection = with_somebody(begin_forever, &child);
		double begun;

		sleep_ms(first ? 300 : 0);
		EXPECT(adma_iread(connection, (void *)room, 4 * MIB) > 0, 1);
		EXPECT(adma_iwrite(connection, (void *)room, 4 * MIB) > 0, 1);
		sleep_ms(first ? 0 : 300);
		begun = seconds();
		EXPECT(adma_close(connection), 0);
		if (seconds() - begun > 15) /* with ADMA_IPC_TIMEOUT=20 */
			fail("closing took %.1f s", seconds() - begun);
		EXPECT(adma_close(connection), -EBADF);
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
}

int main(int argc, char **argv)
{
	static const char both[] = "process_vm, one copy, both processes copy";
	static const char none[] = "shared memory, two copies";
	static const struct { const char *name; struct scene scene; } scenes[] = {
		{ "set_user_id", { 0, SOMEBODY, 04755, false, 0, false, none } },
		{ "set_user_id_same", { SOMEBODY, SOMEBODY, 04755, false, 0, false, both } },
		{ "capability", { 0, SOMEBODY, 0755, true, SOMEBODY, false, none } },
		{ "capability_same", { SOMEBODY, SOMEBODY, 0755, true, SOMEBODY, false, both } },
		{ "exec", { 0, 0, 0755, false, 0, true, both } },
		{ "exec_same", { SOMEBODY, SOMEBODY, 0755, false, SOMEBODY, true, both } },
	};
	const char *what = argc > 2 ? argv[1] : "";

	room = message_memory(8 * MIB);
	alarm(200);
	for (unsigned i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
		if (!strcmp(what, scenes[i].name))
			show_both(&scenes[i].scene, argv[2]);
	if (!strcmp(what, "reused"))
		reused();
	else if (!strcmp(what, "raced"))
		raced(argv[2]);
	else if (!strcmp(what, "changed"))
		changed();
	else if (!strcmp(what, "closed"))
		closed();
	else if (!strcmp(what, "changed_block"))
		changed_block();
	else if (!strcmp(what, "changed_claims"))
		changed_claims();
	else if (!strncmp(what, "claimed", 7)) {
		static const char *const all[] = { "", "_lent", "_unfinished", "_elsewhere" };

		while (strcmp(what + 7, all[lies]))
			lies++;
		claimed();
	}
	else
		fail("no test is called %s", what);
	return 0;
}
