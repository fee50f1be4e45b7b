/*
 * Processes are known by their numbers, which others can have had before: whoever gets the number
 * of one that has ended is not taken for it, and those who live are known all the same.
 *
 * usage: ipc_numbers given_away [root]|bell_of_ended|living
 */
#include "ipc_filter.h"
#include "ipc_heir.h"
#include "ipc_liar.h"

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

	put_filter(filter, sizeof(filter) / sizeof(filter[0]));
}

/* A process says everything and ends; another has its number when that is heard. */
static void given_away(void)
{
	struct liar liar = { 0 };
	int pair[2];
	bool of_root = variant;

	root_only();
	make_pair(SOCK_STREAM, pair);
	setsockopt(pair[1], SOL_SOCKET, SO_PASSCRED, (int[]){ 1 }, sizeof(int));
	pid_t sender = fork_child();

	if (sender == 0) {
		if (!of_root)
			become_user(STRANGER);
		prepare(&liar, pair[1]);
		say_hello(&liar, liar.bell[1], sizeof(liar.mine));
		liar.mine.equal = 1;
		say_step(&liar, READY);
		liar.mine.blocks = 1;
		say_step(&liar, VERDICT);
		_exit(0);
	}
	pid_t heir = fork_heir(sender);

	while (heir == 0)
		pause();
	pid_t watcher = fork_child();

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
	expect_good_end(watcher);
}

/* A process has the number of another one, which has made its doorbell and ended. */
static void bell_of_ended(void)
{
	struct clone_args args = { .flags = CLONE_FILES, .exit_signal = SIGCHLD };
	static int bell[2];
	int pair[2], status;

	root_only();
	make_pair(SOCK_STREAM, pair);
	bell[0] = dup(pair[0]);
	bell[1] = dup(pair[0]);
	pid_t maker = syscall(SYS_clone3, &args, sizeof(args));

	if (maker == 0) {
		int own[2];

		make_pair(SOCK_SEQPACKET, own);
		_exit(dup2(own[0], bell[0]) < 0 || dup2(own[1], bell[1]) < 0);
	}
	pid_t heir = fork_heir(maker);

	if (heir == 0) {
		struct liar liar = { 0 };

		close(pair[0]);
		become_user(STRANGER);
		prepare(&liar, pair[1]);
		say_hello(&liar, bell[1], sizeof(liar.mine));
		hear(&liar);
		say_rest(&liar);
		_exit(0);
	}
	close(pair[1]);
	if (getsockopt(pair[0], SOL_SOCKET, 77 /* SO_PEERPIDFD */, &status,
		       &(socklen_t){ sizeof(status) }))
		cannot_be_shown("the kernel has no SO_PEERPIDFD");
	EXPECT(adma_attach(pair[0]), -EPROTO);
	close(pair[0]);
	waitpid(heir, &status, 0);
}

/* Those who are there are known all the same. */
static void numbers_of_the_living(void)
{
	pid_t child;

	refuse_descriptors_of_processes();
	int connection = with_child(read_one, &child);

	expect_engine(connection, "process_vm, one copy, both processes copy");
	finish(connection, child);
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "given_away", given_away }, { "bell_of_ended", bell_of_ended },
		{ "living", numbers_of_the_living }, { 0 }
	};

	return run_liar(argc, argv, all);
}
