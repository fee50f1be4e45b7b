/*
 * More files of strangers wait to be closed than of all users may, so nobody new is let in. A server
 * that polls its listener, where somebody waits, is told so; but not as often as it can ask.
 */
#include "ipc_lingering.h"
#include <sys/resource.h>

/* Who holds up the threads that close files, who brings many, and who is refused and then waits. */
enum { REFUSED = 1000, CLIENTS = HOLDERS + 1 + REFUSED };

/* In a second. Without a pause it is told some 100,000 times. */
enum { TOO_OFTEN = 1000 };

static char name[60];

static void keep_coming(int first_are_there)
{
	send_files_that_wait(name, 1);
	send_byte(first_are_there);
	for (;;) /* each waits until there is room in the listener's queue */
		say(plain_client(name), "x", 1, NULL, 0);
}

int main(void)
{
	struct rlimit enough = { 4096, 4096 };
	int told = 0, first[2];
	char word;

	alarm(100);
	if (setrlimit(RLIMIT_NOFILE, &enough) || pipe(first))
		cannot_be_shown("too few descriptors");
	snprintf(name, sizeof(name), "@adma-swamped-%d", getpid());
	int listener = adma_listen(name);
	struct pollfd queue = { .fd = listener, .events = POLLIN };
	pid_t child = fork_child();

	if (child == 0)
		keep_coming(first[1]);
	close(first[1]);
	if (read(first[0], &word, 1) != 1)
		end_like(child);
	for (int i = 0; i < CLIENTS; i++)
		if (adma_accept(listener) >= 0)
			fail("a client that says nonsense is accepted");
	for (double begun = seconds(); seconds() - begun < 1; told++) {
		EXPECT(poll(&queue, 1, 60000), 1);
		EXPECT(adma_accept(listener), -EMFILE);
	}
	if (told > TOO_OFTEN)
		fail("told %d times in a second that nobody is let in", told);
	kill_child(child);
	return 0;
}
