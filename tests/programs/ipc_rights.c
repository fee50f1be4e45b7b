/*
 * Tests each way to keep a process out of another's memory, and how messages are copied then.
 *
 * usage: ipc_rights NAME, of those in the table `in_two`; or
 *        ipc_rights refused ENGINE|lost [both]|namespaces ENGINE [both]|changed_thread|yama SCOPE
 */
#include "ipc_echo.h"
#include "ipc_filter.h"
#include <fcntl.h>
#include <linux/capability.h>

enum { NOBODY = 65534 };

/* ---- seccomp -------------------------------------------------------------------------- */

static void refuse(int call)
{
	filter_call(call, SECCOMP_RET_ERRNO | EPERM);
}

static int echo_and_lose(int connection)
{
	EXPECT(adma_read(connection, (void *)room, MIB), MIB);
	EXPECT(adma_write(connection, (void *)room, MIB), MIB);
	refuse(SYS_process_vm_readv);
	refuse(SYS_process_vm_writev);
	return echo(connection);
}

/* The right is lost in the middle of a connection: messages go on, another way. */
static void lost(void)
{
	int connection = with_child(echo_and_lose);

	expect_engine(connection, getenv("ENGINE") ?: "process_vm");
	ask_echo(connection, MIB);
	if (variant) { /* both */
		refuse(SYS_process_vm_readv);
		refuse(SYS_process_vm_writev);
	}
	for (int i = 0; i < 5; i++) {
		ask_echo(connection, 8 * MIB);
		ask_echo(connection, 100);
		ask_echo(connection, 10000);
	}
	finish(connection, child);
}

/* Messages of every regime, and the end. */
static void ask_echoes(int connection, const char *engine, pid_t child)
{
	expect_engine(connection, engine);
	for (int i = 0; i < 3; i++) {
		ask_echo(connection, 8 * MIB);
		ask_echo(connection, 100);
		ask_echo(connection, 70000);
	}
	finish(connection, child);
}

/* From the beginning: both sides, or one. */
static void refused(void)
{
	refuse(SYS_process_vm_readv);
	int connection = with_child(echo);

	ask_echoes(connection, variant, child);
}

/* ---- user namespaces ------------------------------------------------------------------ */

static bool both;

/* With one thread only: one that was joined, or is the library's own, leaves soon. */
static void enter_user_namespace(void)
{
	char map[40];
	int len = snprintf(map, sizeof(map), "%d %d 1", getuid(), getuid());

	while (unshare(CLONE_NEWUSER)) {
		if (errno != EINVAL)
			cannot_be_shown("no user namespaces here");
		sleep_ms(10);
	}
	int file = open("/proc/self/uid_map", O_WRONLY);

	EXPECT(write(file, map, len), len); /* the same user, by the same number */
	close(file);
}

/* Two processes in namespaces of their own, or one of them. */
static void namespaces(void)
{
	int pair[2], connection;
	pid_t child;

	make_pair(SOCK_STREAM, pair);
	child = fork_child();
	if (child == 0) {
		enter_user_namespace();
		exit(echo(made(adma_attach(pair[1]))));
	}
	close(pair[1]);
	if (both)
		enter_user_namespace();
	connection = made(adma_attach(pair[0]));
	ask_echoes(connection, variant, child);
}

/* ---- rights that change in mid-connection ------------------------------------------------ */

/* Answers until that ends. */
static int echo_until_reset(int connection)
{
	long got;

	while ((got = adma_read(connection, (void *)room, MIB)) > 0 &&
	       (got = adma_write(connection, (void *)room, got)) > 0)
		;
	return got == -ECONNRESET ? 0 : 3;
}

static void *change_user(void *connection)
{
	char state = 0;
	FILE *stat;

	while (state != 'Z') { /* the first thread */
		sleep_ms(1);
		stat = fopen("/proc/self/stat", "r");
		if (!stat || fscanf(stat, "%*d %*s %c", &state) != 1)
			fail("no /proc/self/stat");
		fclose(stat);
	}
	if (setresuid(NOBODY, NOBODY, NOBODY))
		fail("setresuid: %s", strerror(errno));
	_exit(echo_until_reset((int)(long)connection));
}

/* The system goes on telling of the first thread, which is root's. */
static int leave_to_thread(int connection)
{
	pthread_t thread;

	pthread_create(&thread, NULL, change_user, (void *)(long)connection);
	pthread_exit(NULL);
}

/* The connection ends, for both, when one of them becomes another user. */
static void changed_thread(void)
{
	double begun = seconds();
	long got = 1;

	root_only();
	int connection = with_child(leave_to_thread);

	expect_engine(connection, "process_vm");
	for (size_t len = 100; got > 0 && seconds() - begun < 20; len = MIB + 100 - len) {
		got = adma_write(connection, (void *)room, len);
		if (got > 0)
			got = adma_read(connection, (void *)room, MIB);
	}
	EXPECT(got, -ECONNRESET);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
}

/* ---- two children ---------------------------------------------------------------------- */

/*
 * Two processes of which neither is the other's parent, each after its preparation; the
 * engine that both of them have, and what is said about it.
 */
static void two_children(void (*prepare)(int which), const char *engine, const char *about)
{
	int pair[2];
	pid_t children[2];

	make_pair(SOCK_STREAM, pair);
	for (int i = 0; i < 2; i++) {
		children[i] = fork_child();
		if (children[i])
			continue;
		prepare(i);
		int connection = adma_attach(pair[i]);
		char text[300];

		if (!engine) { /* the second to hear of it may only see the end */
			if (connection != -EACCES && connection != -ECONNRESET && connection != -EPIPE)
				fail("another user is not refused: %d", connection);
			exit(0);
		}
		if (connection < 0)
			fail("attach: %s", strerror(-connection));
		adma_connection_info(connection, text, sizeof(text));
		if (about && !strstr(text, about))
			fail("%s does not say: %s", text, about);
		/* Changes nothing, but is answered only when every thread has heard of it. */
		if (setresuid(-1, -1, -1))
			fail("setresuid: %s", strerror(errno));
		expect_engine(connection, engine);
		if (i == 1)
			exit(echo(connection));
		ask_echo(connection, 100);
		ask_echo(connection, 8 * MIB);
		ask_echo(connection, 70000);
		EXPECT(adma_close(connection), 0);
		exit(0);
	}
	close(pair[0]);
	close(pair[1]);
	for (int i = 0; i < 2; i++) {
		int status;

		waitpid(children[i], &status, 0);
		if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
			exit(77);
		if (status)
			fail("child %d ended with status %#x", i, status);
	}
}

/* ---- process namespaces ---------------------------------------------------------------- */

/* Only children are in a new process namespace: its maker stays and waits. */
static void enter_process_namespace(int which)
{
	pid_t child;

	(void)which;
	if (unshare(CLONE_NEWPID))
		cannot_be_shown("no process namespaces here");
	child = fork_child();
	if (child == 0)
		return;
	end_like(child);
}

static void second_enters_process_namespace(int which)
{
	if (which == 1)
		enter_process_namespace(which);
}

/* ---- processes that must not be traced -------------------------------------------------- */

/* A user without special rights, traceable by its own processes. */
static void become_nobody(bool dumpable)
{
	become_user(NOBODY);
	if (prctl(PR_SET_DUMPABLE, dumpable, 0, 0, 0))
		fail("prctl: %s", strerror(errno));
}

static void nobody(int which)
{
	(void)which;
	become_nobody(true);
}

static void second_is_not_dumpable(int which)
{
	become_nobody(which == 0);
}

static void neither_is_dumpable(int which)
{
	(void)which;
	become_nobody(false);
}

/* As root, whom the kernel would let in. */
static void second_keeps_out(int which)
{
	if (getuid())
		cannot_be_shown("only root may reach such processes");
	if (which == 1 && prctl(PR_SET_DUMPABLE, 0, 0, 0, 0))
		fail("prctl: %s", strerror(errno));
}

/* Of the same user, with fewer capabilities, and none that lets it trace all. */
static void second_is_poorer(int which)
{
	if (getuid())
		cannot_be_shown("only root has capabilities");
	if (which == 1) {
		struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
		struct __user_cap_data_struct data[2];

		if (syscall(SYS_capget, &header, data))
			fail("capget: %s", strerror(errno));
		data[0].effective &= ~(1u << CAP_CHOWN | 1u << CAP_SYS_PTRACE);
		data[0].permitted &= ~(1u << CAP_CHOWN | 1u << CAP_SYS_PTRACE);
		if (syscall(SYS_capset, &header, data))
			fail("capset: %s", strerror(errno));
		prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
	}
}

/* It could become root again. */
static void both_can_change_back(int which)
{
	(void)which;
	if (getuid() || setresuid(NOBODY, NOBODY, 0))
		cannot_be_shown("cannot become another user");
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

static int turns[2], joined[2];

/* Two users whom one namespace has no names for, with all rights there. */
static void nameless_users(int which)
{
	char name[60];
	pid_t owner = getpid();

	root_only();
	if (which == 0) {
		if (setresgid(NOBODY, NOBODY, NOBODY) || setresuid(NOBODY, NOBODY, NOBODY) ||
		    unshare(CLONE_NEWUSER))
			cannot_be_shown("no user namespaces here");
		EXPECT(write(turns[1], &owner, sizeof(owner)), sizeof(owner));
		await_byte(joined[0]);
	} else {
		EXPECT(read(turns[0], &owner, sizeof(owner)), sizeof(owner));
		snprintf(name, sizeof(name), "/proc/%d/ns/user", owner);
		if (setns(open(name, O_RDONLY), CLONE_NEWUSER))
			fail("setns: %s", strerror(errno));
		send_byte(joined[1]);
	}
	prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
}

static void two_users(int which)
{
	root_only();
	become_user(NOBODY - which);
}

/* ---- Yama ------------------------------------------------------------------------------- */

/* Only root may change it, so this is for a guest. */
static void yama(void)
{
	const char *scope = variant;
	int file = open("/proc/sys/kernel/yama/ptrace_scope", O_WRONLY);
	char about[40];
	bool lets_in = *scope == '0';

	if (file < 0 || write(file, scope, 1) != 1)
		cannot_be_shown("no Yama here, or no right to change it");
	close(file);
	snprintf(about, sizeof(about), "Yama is at %s", scope);
	if (*scope == '1' && getenv("ADMA_IPC_PTRACER"))
		lets_in = true;
	if (lets_in)
		two_children(nobody, "process_vm, one copy, both processes copy", NULL);
	else
		two_children(nobody, "shared memory", about);
}

/* They lie on the stack of every thread, the library's too. */
static __thread volatile char own[300 * 1024];

static void *nothing(void *unused)
{
	own[0] = 1;
	return unused;
}

/* Each in two children: what prepares them, the engine, and what is said about it. */
static const char both_copy[] = "process_vm, one copy, both processes copy";
static const char neither_copies[] = "shared memory, two copies";
static const char unseen[] = "cannot be seen from this namespace";

static const struct {
	const char *name;
	void (*prepare)(int which);
	const char *engine, *about;
} in_two[] = {
	{ "pid_namespace", second_enters_process_namespace, neither_copies, NULL },
	{ "pid_namespaces", enter_process_namespace, neither_copies, unseen },
	{ "nobody", nobody, both_copy, NULL },
	{ "dumpable", second_is_not_dumpable, neither_copies, NULL },
	{ "dumpable_both", neither_is_dumpable, neither_copies, NULL },
	{ "keeps_out", second_keeps_out, neither_copies, NULL },
	{ "poorer", second_is_poorer, neither_copies, NULL },
	{ "changeable", both_can_change_back, neither_copies, NULL },
	{ "nameless", nameless_users, NULL, NULL },
	{ "users", two_users, NULL, NULL },
};

int main(int argc, char **argv)
{
	static const struct mode others[] = {
		{ "refused", refused }, { "lost", lost }, { "namespaces", namespaces },
		{ "changed_thread", changed_thread }, { "yama", yama }, { 0 }
	};
	pthread_t first; /* with which the C library unblocks its own signals, and only then */

	if (pthread_create(&first, NULL, nothing, NULL) || pthread_join(first, NULL))
		fail("no thread");
	make_room();
	pthread_atfork(NULL, NULL, make_room);
	alarm(200);
	make_pipe(turns);
	make_pipe(joined);
	both = argc > 3;
	for (unsigned i = 0; i < sizeof(in_two) / sizeof(in_two[0]); i++)
		if (argc > 1 && !strcmp(argv[1], in_two[i].name)) {
			two_children(in_two[i].prepare, in_two[i].engine, in_two[i].about);
			return 0;
		}
	return run_mode(argc, argv, others);
}
