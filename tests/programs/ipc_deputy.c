/*
 * Tests that a peer cannot make this process reach into another program: it posts an address, and
 * then executes that program or leaves its process number to it.
 *
 * usage: ipc_deputy set_user_id_same|capability_same|exec[_same]|reused|raced VICTIM; the last
 * is the path of ipc_victim
 */
#include "ipc_heir.h"
#include "ipc_victim.h"
#include <fcntl.h>
#include <linux/capability.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/xattr.h>

enum { TO_CHILD, FROM_CHILD };

static byte *room; /* 8 MiB */

/* ---- programs with rights of their own ------------------------------------------------- */

static char folder[] = "/tmp/adma-deputy-XXXXXX", program[100];

static void clean_up(void)
{
	unlink(program);
	rmdir(folder);
}

/* A copy in a place that all users can reach. */
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

/* Becomes that program, with the other ends of these pipes. */
static void exec_victim(const char *path, int pipes[2][2])
{
	dup2(pipes[TO_CHILD][0], 0);
	dup2(pipes[FROM_CHILD][1], 1);
	close(pipes[TO_CHILD][1]);
	execl(path, "victim", (char *)NULL);
	fail("exec: %s", strerror(errno));
}

static void make_pipes(int pipes[2][2])
{
	make_pipe(pipes[TO_CHILD]);
	make_pipe(pipes[FROM_CHILD]);
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
	int connection = made(adma_attach(socket));

	if ((reads ? adma_iread(connection, (void *)SECRET_AT, SECRET_LEN) :
		     adma_iwrite(connection, (void *)SECRET_AT, SECRET_LEN)) <= 0)
		fail("the post is refused");
	for (int fd = 3; fd < 200; fd++)
		fcntl(fd, F_SETFD, 0);
	exec_victim(program, pipes);
}

static void show(const struct scene *scene, bool reads)
{
	int pair[2], pipes[2][2], connection, status;
	pid_t child;
	char text[80] = "", want[80];
	long got;

	make_pair(SOCK_STREAM, pair);
	make_pipes(pipes);
	child = fork_child();
	if (child == 0) {
		close(pair[0]);
		become_user(scene->peer);
		become_program(pair[1], pipes, reads);
	}
	close(pair[1]);
	close(pipes[TO_CHILD][0]);
	close(pipes[FROM_CHILD][1]);
	connection = made(adma_attach(pair[0]));
	expect_engine(connection, scene->engine);
	if (read(pipes[FROM_CHILD][0], text, sizeof(text) - 1) <= 0)
		fail("the program does not begin");
	snprintf(want, sizeof(want), "ready %d", scene->becomes);
	if (strcmp(text, want)) {
		clean_up();
		cannot_be_shown("programs with rights of their own are not heeded here");
	}
	memset((void *)room, 1, SECRET_LEN);
	adma_cookie_t cookie = reads ? adma_iwrite(connection, (void *)room, SECRET_LEN) :
				       adma_iread(connection, (void *)room, SECRET_LEN);

	got = cookie < 0 ? cookie : adma_wait_for(cookie, scene->ends ? 60000 : 300);
	/* A writer may be done when its bytes lie in shared memory. */
	if (scene->ends ? got != -ECONNRESET : !reads && got >= 0)
		fail("a message to another program is %ld", got);
	expect_only(room, SECRET_LEN, 1, "another program was read");
	close(pipes[TO_CHILD][1]);
	if (waitpid(child, &status, 0) != child || status)
		fail("another program was touched: status %#x", status);
	close(pipes[FROM_CHILD][0]);
	adma_close(connection);
}

static void show_both(const struct scene *scene)
{
	pid_t child;
	int status;

	root_only();
	copy_program(variant, scene->mode, scene->capable);
	child = fork_child();
	if (child == 0) {
		become_user(scene->server);
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
	/* Another process keeps the descriptors, so they do not tell of the end. */
	if (fork() == 0) {
		prctl(PR_SET_PDEATHSIG, 0);
		sleep(3);
		_exit(0);
	}
	_exit(0);
}

static void reused(void)
{
	int connection = with_child(post_and_end), status, pipes[2];

	memset((void *)room, 1, SECRET_LEN);
	make_pipe(pipes);
	/* What the stranger has is what a fork of us has at that place. */
	unsigned char *own = lay_down_secret();

	pid_t stranger = fork_heir(child);

	if (stranger == 0) {
		char byte;

		close(pipes[1]);
		while (read(pipes[0], &byte, 1) > 0)
			;
		_exit(is_untouched(own) ? 0 : TOUCHED);
	}
	long got = adma_write(connection, (void *)room, SECRET_LEN);

	close(pipes[1]);
	waitpid(stranger, &status, 0);
	if (status)
		fail("the new process with that number was touched: %#x", status);
	EXPECT(got, -ECONNRESET);
}

/* ---- a peer that becomes another program while bytes are on their way --------------------- */

static void raced(void)
{
	for (int round = 0; round < 100; round++) {
		int pair[2], pipes[2][2], status;
		char text[80];

		make_pair(SOCK_STREAM, pair);
		make_pipes(pipes);
		pid_t child = fork_child();

		if (child == 0) {
			int connection = adma_attach(pair[1]);
			unsigned char *own = lay_down_secret();

			if (adma_iread(connection, own, SECRET_LEN) <= 0)
				fail("the post is refused");
			EXPECT(adma_write(connection, "now", 3), 3);
			double begun = seconds();

			while (seconds() - begun < round % 25 * 20e-6)
				;
			exec_victim(variant, pipes);
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

int main(int argc, char **argv)
{
	static const char both[] = "process_vm, one copy, both processes copy";
	static const struct { const char *name; struct scene scene; } scenes[] = {
		{ "set_user_id_same", { STRANGER, STRANGER, 04755, false, 0, false, both } },
		{ "capability_same", { STRANGER, STRANGER, 0755, true, STRANGER, false, both } },
		{ "exec", { 0, 0, 0755, false, 0, true, both } },
		{ "exec_same", { STRANGER, STRANGER, 0755, false, STRANGER, true, both } },
	};
	static const struct mode others[] = { { "reused", reused }, { "raced", raced }, { 0 } };

	if (argc != 3)
		fail("no victim is named");
	variant = argv[2];
	room = message_memory(8 * MIB);
	alarm(200);
	for (unsigned i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++)
		if (!strcmp(argv[1], scenes[i].name))
			show_both(&scenes[i].scene);
	return run_mode(argc, argv, others);
}
