/*
 * Tests that a thread that waits on one connection serves all others, with patterns that would
 * deadlock otherwise. Run with ADMA_IPC_ENGINE=shm, where a message needs both sides.
 *
 * usage: ipc_progress ring [write_first]|asleep|handed_on|neighbours [write]|cancelled
 */
#include "ipc_faults.h"
#include "ipc_filter.h"

enum { PROCESSES = 4, ROUNDS = 5 };

static const size_t sizes[] = { 10, 5000, 3 * MIB + 5, 10 * MIB };

/* ---- a ring of processes ------------------------------------------------------------- */

/* Each process writes to the next one and reads from the one before. */
static void turn(int before, int after, int number, bool write_first)
{
	byte *mine = pages_between_guards(10 * MIB), *theirs = pages_between_guards(10 * MIB);
	int neighbour = (number + PROCESSES - 1) % PROCESSES;

	for (int round = 0; round < ROUNDS; round++)
		for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
			size_t size = sizes[i];

			fill(mine, size, number + round);
			adma_cookie_t written = adma_iwrite(after, (void *)mine, size);

			if (write_first) {
				adma_cookie_t read = adma_iread(before, (void *)theirs, size);

				EXPECT(adma_wait(written), size);
				EXPECT(adma_wait(read), size);
			} else {
				EXPECT(adma_read(before, (void *)theirs, size), size);
				EXPECT(adma_wait(written), size);
			}
			expect_content(theirs, size, neighbour + round, "ring");
		}
}

static int one_of_ring(int pairs[PROCESSES][2], int number, bool write_first)
{
	/* pairs[i] leads from i to the next one; greetings need both sides at the same time. */
	int *from = pairs[(number + PROCESSES - 1) % PROCESSES], *to = pairs[number];
	int before, after;

	if (number % 2) {
		before = attach_and_close(from[1]);
		after = attach_and_close(to[0]);
	} else {
		after = attach_and_close(to[0]);
		before = attach_and_close(from[1]);
	}
	turn(before, after, number, write_first);
	/* Close only when the others have read all. */
	EXPECT(adma_write(after, "end", 3), 3);
	EXPECT(adma_read(before, &(char[4]){ 0 }, 4), 3);
	EXPECT(adma_close(after), 0);
	EXPECT(adma_close(before), 0);
	return 0;
}

static void ring(void)
{
	bool write_first = variant;
	int pairs[PROCESSES][2];
	pid_t children[PROCESSES];

	for (int i = 0; i < PROCESSES; i++)
		make_pair(SOCK_STREAM, pairs[i]);
	for (int i = 0; i < PROCESSES; i++) {
		children[i] = fork_child();
		if (children[i] == 0)
			exit(one_of_ring(pairs, i, write_first));
	}
	for (int i = 0; i < PROCESSES; i++)
		expect_good_end(children[i]);
}

/* ---- threads ------------------------------------------------------------------------- */

static int told[2]; /* a pipe from the reader to the process that answers */

static int read_and_tell(int connection)
{
	byte *room = pages_between_guards(8 * MIB);

	EXPECT(adma_read(connection, (void *)room, 8 * MIB), 8 * MIB);
	expect_content(room, 8 * MIB, 3, "read while its writer's process waits elsewhere");
	send_byte(told[1]);
	return 0;
}

static int answer_when_told(int connection)
{
	await_byte(told[0]);
	EXPECT(adma_write(connection, "now", 3), 3);
	return 0;
}

static void *wait_for_answer(void *connection)
{
	EXPECT(adma_read((int)(long)connection, &(char[4]){ 0 }, 4), 3);
	return NULL;
}

/*
 * The thread that sleeps has not seen the message that needs it: it was posted later, on
 * another connection, by a thread that does not wait.
 */
static void asleep_for(long pause_ms)
{
	byte *room = pages_between_guards(8 * MIB);
	pid_t reader, answerer;
	pthread_t thread;

	make_pipe(told);
	int large = with_process(read_and_tell, &reader);
	int small = with_process(answer_when_told, &answerer);

	fill(room, 8 * MIB, 3);
	pthread_create(&thread, NULL, wait_for_answer, (void *)(long)small);
	sleep_ms(pause_ms);
	adma_cookie_t written = adma_iwrite(large, (void *)room, 8 * MIB);

	pthread_join(thread, NULL);
	EXPECT(adma_wait(written), 8 * MIB);
	expect_good_end(reader);
	expect_good_end(answerer);
	EXPECT(adma_close(large), 0);
	EXPECT(adma_close(small), 0);
}

static void asleep(void)
{
	for (long pause = 0; pause <= 20; pause += 5)
		asleep_for(pause);
}

static void *wait_long(void *connection)
{
	/* Ends with the process. */
	adma_read((int)(long)connection, &(char[4]){ 0 }, 4);
	return NULL;
}

/*
 * Two threads sleep; the one that looks after all connections stops waiting, and the other
 * one has to go on with it.
 */
static int write_three(int connection)
{
	sleep_ms(100);
	EXPECT(adma_write(connection, "end", 3), 3);
	sleep_ms(200000);
	return 0;
}

static int say_nothing(int connection)
{
	(void)connection;
	sleep_ms(200000);
	return 0;
}

static void handed_on(void)
{
	byte *room = pages_between_guards(8 * MIB);
	pid_t reader, first, second;
	pthread_t threads[2];

	make_pipe(told);
	int large = with_process(read_and_tell, &reader);
	int ends = with_process(write_three, &first);
	int stays = with_process(say_nothing, &second);

	fill(room, 8 * MIB, 3);
	/* Both are asleep when it is posted, so either may have taken it. */
	pthread_create(&threads[0], NULL, wait_for_answer, (void *)(long)ends);
	pthread_create(&threads[1], NULL, wait_long, (void *)(long)stays);
	sleep_ms(20);
	kill(reader, SIGSTOP);
	adma_cookie_t written = adma_iwrite(large, (void *)room, 8 * MIB);

	pthread_join(threads[0], NULL);
	kill(reader, SIGCONT);
	/* Only the thread that still sleeps is left to help the reader. */
	expect_good_end(reader);
	EXPECT(adma_wait(written), 8 * MIB);
	kill(first, SIGKILL);
	kill(second, SIGKILL);
	_exit(0);
}

/* ---- neighbours ----------------------------------------------------------------------- */

/*
 * A thread that waits on one connection copies what another thread waits for: that one has to
 * hear of it. A message has two pieces, and a page of the one that is claimed first comes later
 * than a short sleep ends. No sleep may last until a limit that hides it. The waiting thread begins
 * when the other one is at that page, so the other one ends every message.
 */
enum { MESSAGES = 3, LATE_MS = 30 };
#define LARGE (MIB / 2)

static int late_pages;
static volatile int by_other_thread;

static void *make_late_pages(void *nothing)
{
	struct uffd_msg message;

	while (read(late_pages, &message, sizeof(message)) == sizeof(message)) {
		struct uffdio_zeropage page = {
			.range = { message.arg.pagefault.address & -4096UL, 4096 }
		};

		if ((pid_t)message.arg.pagefault.feat.ptid == getpid())
			fail("the thread that waits has copied it itself");
		by_other_thread++;
		sleep_ms(LATE_MS);
		if (ioctl(late_pages, UFFDIO_ZEROPAGE, &page))
			fail("UFFDIO_ZEROPAGE: %s", strerror(errno));
	}
	return nothing;
}

static void comes_late(byte *page)
{
	pthread_t thread;

	late_pages = withhold_pages(page, PAGE);
	pthread_create(&thread, NULL, make_late_pages, NULL);
}

/* Always awake, and so the first to see that there is something to do. */
static void *look_after_everything(void *connection)
{
	char bytes[4];
	adma_cookie_t cookie = adma_iread((int)(long)connection, bytes, 4);
	long got;

	while ((got = adma_check(cookie)) == -EINPROGRESS)
		;
	EXPECT(got, 3);
	return NULL;
}

/* Posts, and is not in the library while the other side does everything. */
static void post_large(int connection, byte *room, bool writes)
{
	char more = 1;

	while (more) {
		sleep_ms(5);
		adma_cookie_t cookie = writes ? adma_iwrite(connection, (void *)room, LARGE) :
						adma_iread(connection, (void *)room, LARGE);

		if (read(told[0], &more, 1) != 1)
			fail("read");
		EXPECT(adma_wait(cookie), LARGE);
	}
}

static void transfer_large(int connection, byte *room, bool writes)
{
	/* Readers begin at the front, and writers at the back. */
	byte *late = writes ? room + LARGE - 8 * 4096 : room + 8 * 4096;

	comes_late(late);
	for (int i = 1; i <= MESSAGES; i++) {
		char more = i < MESSAGES;
		adma_cookie_t cookie;
		double begun;

		madvise((void *)late, 4096, MADV_DONTNEED);
		cookie = writes ? adma_iwrite(connection, (void *)room, LARGE) :
				  adma_iread(connection, (void *)room, LARGE);
		while (by_other_thread < i)
			sleep_ms(1);
		begun = seconds();
		EXPECT(adma_wait(cookie), LARGE);
		if (seconds() - begun > 3.8) /* the longest sleep is four seconds */
			fail("message %d took %.1f s", i, seconds() - begun);
		if (write(told[1], &more, 1) != 1)
			fail("write");
	}
}

/* From now on only the child copies: messages need it. */
static void lose_rights(int connection, byte *room, bool loses)
{
	adma_cookie_t cookie;

	if (!loses) {
		cookie = adma_iwrite(connection, (void *)room, LARGE);
		await_byte(told[0]); /* until the parent has tried */
		EXPECT(adma_wait(cookie), LARGE);
		return;
	}
	while (entries_of("/proc/self/task") > 3) /* "." and "..": helper threads have no filter */
		sleep_ms(10);
	filter_call(SYS_process_vm_readv, SECCOMP_RET_ERRNO | EPERM);
	filter_call(SYS_process_vm_writev, SECCOMP_RET_ERRNO | EPERM);
	cookie = adma_iread(connection, (void *)room, LARGE);
	for (double begun = seconds(); seconds() - begun < 0.3;)
		EXPECT(adma_check(cookie), -EINPROGRESS);
	send_byte(told[1]);
	EXPECT(adma_wait(cookie), LARGE);
}

static void neighbours(void)
{
	bool child_writes = variant;
	int pairs[2][2], small, large;
	byte *room = pages_between_guards(LARGE);
	pthread_t thread;
	pid_t child;

	expect_pages_can_be_withheld();
	make_pipe(told);
	for (int i = 0; i < 2; i++)
		make_pair(SOCK_STREAM, pairs[i]);
	child = fork_child();
	small = attach_and_close(pairs[0][child == 0]);
	large = attach_and_close(pairs[1][child == 0]);
	lose_rights(large, room, child != 0);
	if (child == 0)
		pthread_create(&thread, NULL, look_after_everything, (void *)(long)small);
	if (child == 0) {
		transfer_large(large, room, child_writes);
		pthread_join(thread, NULL);
		exit(0);
	}
	post_large(large, room, !child_writes);
	EXPECT(adma_write(small, "end", 3), 3);
	expect_good_end(child);
}

/* ---- event loops ----------------------------------------------------------------------- */

/* adma_arm says 1 for an end that only adma_check brings about, as often as it is asked. */
static void cancelled(void)
{
	byte *data = pages_between_guards(MIB), *room = pages_between_guards(MIB);
	int pair[2], ends[2];

	make_pair(SOCK_STREAM, pair);
	attach_both(pair, ends);
	for (int by_reader = 0; by_reader < 2; by_reader++) {
		adma_cookie_t cookies[] = { adma_iwrite(ends[0], (void *)data, MIB),
					    adma_iread(ends[1], (void *)room, MIB) };

		EXPECT(adma_cancel(cookies[by_reader]), -ECANCELED);
		for (int turn = 0; turn < 3; turn++)
			EXPECT(adma_arm(ends[1 - by_reader]), 1);
		EXPECT(adma_check(cookies[1 - by_reader]), -ECANCELED);
		EXPECT(adma_arm(ends[1 - by_reader]), 0);
	}
}

PROGRAM((void)0,
	{ "ring", ring }, { "asleep", asleep }, { "handed_on", handed_on },
	{ "neighbours", neighbours }, { "cancelled", cancelled })
