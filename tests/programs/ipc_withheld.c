/*
 * Memory that never answers: a file whose lock is never let go, and a page that never comes. Who
 * has to look at it waits for it no longer than its limit, and nobody else does.
 *
 * usage: ipc_withheld locked|page
 */
#include "ipc_faults.h"
#include "ipc_greeting.h"
#include "ipc_hostile.h"
#include "ipc_inside.h"

/* ---- memory whose lock is never let go ------------------------------------------------------ */

/* More than there are threads for what may take long. */
enum { STUCK = 17 };

struct held {
	int memory;
	byte *source;
};

static void *hold(void *it)
{
	struct held *held = it;

	pwrite(held->memory, (void *)held->source, PAGE, 0);
	return NULL;
}

/* Many connections, over each of which memory is lent that cannot be sealed. */
static void lend_what_is_locked(void)
{
	static struct held all[STUCK];
	static const char lend[13] = { 3, 7, [9] = 1 };
	pthread_t thread;

	for (int i = 0; i < STUCK; i++) {
		all[i].memory = memfd_create("held", MFD_ALLOW_SEALING);
		all[i].source = pages_between_guards(PAGE);
		withhold_pages(all[i].source, PAGE);
		if (fallocate(all[i].memory, 0, 0, PAGE) ||
		    fcntl(all[i].memory, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
			fail("no memory: %s", strerror(errno));
	}
	become_user(STRANGER);
	for (int i = 0; i < STUCK; i++)
		pthread_create(&thread, NULL, hold, &all[i]);
	sleep_ms(200); /* until they do */
	for (int i = 0; i < STUCK; i++) {
		made(adma_connect(name));
		send_with(doorbell(), lend, sizeof(lend), &all[i].memory, 1, MSG_DONTWAIT);
	}
}

/* Neither who waits with a limit, on whatever connection, nor another user. */
static void locked(void)
{
	static char data[STUCK][1000];
	int listener = adma_listen(name);
	adma_cookie_t cookies[STUCK];

	expect_pages_can_be_withheld();
	root_only();
	hostile_user = getuid();
	pid_t child = hostile(lend_what_is_locked);

	for (int i = 0; i < STUCK; i++)
		cookies[i] = adma_iread(made(adma_accept(listener)), data[i], sizeof(data[i]));
	await_byte(done[0]);
	double begun = seconds();

	EXPECT(adma_wait_for(cookies[0], 100), -ETIMEDOUT);
	expect_soon(begun, "100 ms");
	hostile_user = STRANGER + 1;
	expect_honest(listener, "locks are held");
	kill_child(child);
}

/* ---- a page that never comes -------------------------------------------------------------- */

/* The page that says that we agree to be reached: alone, where nothing else is. */
static void take_sign_away(void)
{
	char line[300];
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to;

	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx rw-p", &from, &to) == 2 && to - from == PAGE &&
		    from >= 0x100000000000 && from < 0x500000000000) {
			mmap((void *)from, PAGE, PROT_READ | PROT_WRITE,
			     MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
			withhold_pages((byte *)from, PAGE);
			fclose(maps);
			return;
		}
	fail("no page says that we agree");
}

/* Hands a greeting on, with what comes with it; but with a bell of ours, for another's is refused. */
static void hand_on(int from, int to)
{
	char bytes[sizeof(struct greeting)];
	int fds[2], bell[2];
	ssize_t got;

	make_pair(SOCK_SEQPACKET, bell);
	/* A server says the beginning of its first at once, and the rest when it is answered. */
	for (size_t rest = sizeof(bytes); rest; rest -= got) {
		got = take_with(from, bytes, rest, fds);
		if (got <= 0)
			return;
		send_with(to, bytes, got, (int[]){ fds[MEMORY], bell[1] }, fds[MEMORY] < 0 ? 0 : 2, 0);
	}
}

/* An equal, whose page is gone when it says where it is. */
static void without_page(void)
{
	int pair[2], client = plain_client(name);
	pthread_t thread;

	make_pair(SOCK_STREAM, pair);
	setsockopt(client, SOL_SOCKET, SO_PASSCRED, (int[]){ 1 }, sizeof(int));
	pthread_create(&thread, NULL, attach_in_thread, (void *)(long)pair[1]);
	hand_on(pair[0], client);
	hand_on(client, pair[0]);
	struct pollfd second = { .fd = pair[0], .events = POLLIN };

	poll(&second, 1, -1);
	take_sign_away();
	hand_on(pair[0], client);
	/* The server has heard of it, and looks for the page from now on. */
	hand_on(client, pair[0]);
}

static void page(void)
{
	int listener = adma_listen(name);
	double begun;

	expect_pages_can_be_withheld();
	hostile_user = getuid();
	pid_t child = hostile(without_page);

	int error = expect_honest(listener, "a page does not come");

	/* The library over there may give up first, and take the page away. */
	for (begun = seconds(); error != -EPROTO && error != -ETIMEDOUT; error = adma_accept(listener))
		expect_soon(begun, "two seconds");
	kill_child(child);
}

int main(int argc, char **argv)
{
	static const struct mode all[] = { { "locked", locked }, { "page", page }, { 0 } };

	return run_hostile(argc, argv, all);
}
