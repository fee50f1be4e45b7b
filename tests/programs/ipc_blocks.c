/*
 * Tests adma_alloc memory across fork, free and reuse, with closed descriptors, and at limits.
 *
 * usage: ipc_blocks freed|reused|returned [closed]|fork [bare]|closed|hole|interrupted|limited|
 *        no_descriptors|standard|straddling|alone
 */
#include "ipc_blocks.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>

/* What is no block, or not any more, cannot be freed. */
static void freed(void)
{
	char *block = new_block(10000);

	EXPECT(adma_free(NULL), 0);
	EXPECT(adma_free(&block), -EINVAL);
	EXPECT(adma_free(block + 4096), -EINVAL);
	EXPECT(adma_free(block), 0);
	EXPECT(adma_free(block), -EINVAL);
	EXPECT(adma_free(new_block(0)), 0);
	errno = 12345;
	if (adma_alloc(SIZE_MAX) || adma_alloc(SIZE_MAX / 2) || adma_alloc(1ul << 46))
		fail("a block larger than the machine");
	EXPECT(errno, 12345);
}

/* Addresses and descriptors come again; more blocks than the other side keeps mapped. */
static void reused(void)
{
	int connection = with_child(echo);
	enum { BLOCKS = 100 };
	byte *blocks[BLOCKS];

	for (unsigned round = 0; round < 300; round++) {
		byte *block = new_block(SIZE);

		ask(connection, block, round);
		EXPECT(adma_free((void *)block), 0);
	}
	for (unsigned i = 0; i < BLOCKS; i++)
		blocks[i] = new_block(SIZE);
	for (unsigned i = 0; i < 3 * BLOCKS; i++)
		ask(connection, blocks[i * 7 % BLOCKS], i);
	finish(connection, child);
}

static long pages_of(int memory)
{
	struct stat is;

	if (fstat(memory, &is))
		fail("fstat: %s", strerror(errno));
	return is.st_blocks / (PAGE / 512);
}

/*
 * A block that was freed takes no memory, though the other side has it mapped; also if the
 * program has closed its descriptor.
 */
static void returned(void)
{
	enum { LARGE = 4 * 1024 * 1024 };
	int connection = with_child(echo);
	int number = next_descriptor();
	byte *block = new_block(LARGE);
	int kept = dup(number);

	mlock((void *)block, SIZE); /* what is locked is freed as well */
	ask(connection, block + LARGE - SIZE, 1);
	if (variant)
		close(number);
	EXPECT(pages_of(kept), LARGE / PAGE);
	EXPECT(adma_free((void *)block), 0);
	EXPECT(pages_of(kept), 0);
	finish(connection, child);
}

/* A child shares its parent's blocks, and cannot free them. */
static void forked(void)
{
	int connection = with_child(echo);
	byte *block = new_block(SIZE);
	bool bare = variant;

	ask(connection, block, 1);
	pid_t mine = bare ? syscall(SYS_fork) : fork();
	if (mine == 0) {
		expect_content(block, SIZE, 1, "the parent's block in the child");
		if (adma_free((void *)block) != -EINVAL)
			_exit(2);
		block[0] ^= 0xff;
		/* Its own connection carries what lies in the parent's block, and in its own. */
		if (!bare) {
			pid_t grandchild;
			int own = with_process(echo, &grandchild);

			ask(own, block, 2);
			ask(own, new_block(SIZE), 3);
			finish(own, grandchild);
		}
		_exit(0);
	}
	expect_good_end(mine);
	if (bare && block[0] != (content(1, 0) ^ 0xff))
		fail("the child's byte is not there");
	ask(connection, block, 4);
	EXPECT(adma_free((void *)block), 0);
	finish(connection, child);
}

/* The program closes what it does not know; the numbers go to other blocks, and other files. */
static void closed(void)
{
	int connection = with_child(echo);
	int before = next_descriptor();
	byte *first = new_block(SIZE);
	int after = next_descriptor();

	if (after <= before)
		fail("a block has a descriptor: %d is free before, %d after", before, after);
	close(before);
	byte *second = new_block(SIZE);

	fill(second, SIZE, 99);
	ask(connection, first, 1);
	expect_content(second, SIZE, 99, "the other block");
	ask(connection, second, 2);
	EXPECT(adma_free((void *)first), 0);
	ask(connection, second, 3);
	close(before);
	if (dup(0) != before)
		fail("the number is not free");
	EXPECT(adma_free((void *)second), 0);
	if (fcntl(before, F_GETFD) < 0)
		fail("a descriptor of the program was closed");
	finish(connection, child);
}

static int read_into_a_hole(int connection)
{
	byte *room = pages_between_guards(SIZE);

	munmap((char *)room + 200 * KIB, 4 * KIB);
	EXPECT(adma_read(connection, (void *)room, SIZE), -EFAULT);
	return echo(connection);
}

/* A buffer that is not mapped is told as ever, if only the other one is a block. */
static void hole(void)
{
	int connection = with_child(read_into_a_hole);
	byte *block = new_block(SIZE);

	EXPECT(adma_write(connection, (void *)block, SIZE), -EFAULT);
	ask(connection, block, 1);
	finish(connection, child);
}

/* ---- limits --------------------------------------------------------------------------- */

static void limit(int what, rlim_t most)
{
	struct rlimit limits = { most, RLIM_INFINITY };

	if (what == RLIMIT_NOFILE)
		getrlimit(what, &limits);
	limits.rlim_cur = most;
	if (setrlimit(what, &limits))
		fail("setrlimit: %s", strerror(errno));
}

static volatile int alarms;

static void count_alarm(int signal)
{
	(void)signal;
	alarms++;
}

/* A signal that comes all the time does not keep a large block from being made. */
static void interrupted(void)
{
	struct itimerval often = { { 0, 2000 }, { 0, 2000 } }, never = { 0 };

	signal(SIGALRM, count_alarm);
	setitimer(ITIMER_REAL, &often, NULL);
	byte *block = adma_alloc(64 * MIB);
	setitimer(ITIMER_REAL, &never, NULL);
	if (!block)
		fail("no block while signals come");
	if (!alarms)
		cannot_be_shown("this machine makes a block faster than signals come");
	EXPECT(adma_free((void *)block), 0);
}

/* A limit of the system is an error, not a kill. */
static void limited(void)
{
	int pair[2], ends[2];

	errno = 12345;
	limit(RLIMIT_FSIZE, 100000);
	if (adma_alloc(SIZE))
		fail("a block larger than files may be");
	EXPECT(adma_free(new_block(10000)), 0);
	make_pair(SOCK_STREAM, pair);
	attach_both(pair, ends); /* the one that makes the region is told */
	EXPECT(ends[0] == -EFBIG || ends[1] == -EFBIG, 1);
	limit(RLIMIT_FSIZE, RLIM_INFINITY);

	limit(RLIMIT_AS, 1536 * MIB);
	if (adma_alloc(2048 * MIB))
		fail("a block larger than the address space may be");
	EXPECT(adma_free(new_block(SIZE)), 0);
	limit(RLIMIT_AS, RLIM_INFINITY);

	int next = next_descriptor();

	limit(RLIMIT_NOFILE, next);
	if (adma_alloc(SIZE))
		fail("a block without a descriptor");
	limit(RLIMIT_NOFILE, next + 10);
	EXPECT(adma_free(new_block(SIZE)), 0);
	EXPECT(errno, 12345);
}

static int echo_without_descriptors(int connection)
{
	void *block = new_block(SIZE);
	int next = next_descriptor();

	limit(RLIMIT_NOFILE, next);
	EXPECT(adma_read(connection, block, SIZE), SIZE);
	EXPECT(adma_write(connection, block, SIZE), SIZE);
	EXPECT(adma_free(block), 0);
	EXPECT(adma_close(connection), 0);
	return 0;
}

/* A block that cannot be opened for want of a descriptor is copied another way. */
static void no_descriptors(void)
{
	int connection = with_child(echo_without_descriptors);
	byte *block = new_block(SIZE);

	ask(connection, block, 1);
	finish(connection, child);
}

/* What a program writes to a standard output that it has closed does not land in a block. */
static void standard(void)
{
	close(0);
	close(1);
	byte *other = new_block(SIZE), *block = new_block(SIZE);

	if (write(1, "spoiled", 7) > 0)
		fail("the standard output has become a block");
	expect_only(block, SIZE, 0, "block");
	EXPECT(adma_free((void *)block), 0);
	EXPECT(adma_free((void *)other), 0);
}

/* ---- places --------------------------------------------------------------------------- */

/* Messages that begin in a block and end behind it go as from any memory. */
static void straddling(void)
{
	int connection = with_child(echo);
	size_t whole = (SIZE + PAGE - 1) / PAGE * PAGE;
	byte *block = new_block(whole), *below = new_block(whole);

	if (below + whole != block)
		cannot_be_shown("two blocks that do not lie side by side");
	ask(connection, block - 1000, 1);
	ask(connection, block - SIZE + 1, 2);
	ask(connection, below, 3);
	EXPECT(adma_free((void *)block), 0);
	if (mmap((void *)block, whole, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) != block)
		fail("no memory behind the block");
	ask(connection, block - 1000, 4);
	ask(connection, block, 5);
	EXPECT(adma_free((void *)below), 0);
	finish(connection, child);
}

static int pair_of_mine[2];

static void *echo_here(void *unused)
{
	echo(adma_attach(pair_of_mine[1]));
	return unused;
}

/* A process connected to itself. */
static void alone(void)
{
	pthread_t thread;

	make_pair(SOCK_STREAM, pair_of_mine);
	pthread_create(&thread, NULL, echo_here, NULL);
	int connection = adma_attach(pair_of_mine[0]);
	byte *block = new_block(SIZE);

	for (unsigned i = 0; i < 20; i++)
		ask(connection, block, i);
	EXPECT(adma_free((void *)block), 0);
	EXPECT(adma_close(connection), 0);
	pthread_join(thread, NULL);
}

PROGRAM((void)0,
	{ "freed", freed }, { "reused", reused }, { "returned", returned },
	{ "fork", forked }, { "closed", closed }, { "hole", hole },
	{ "interrupted", interrupted }, { "limited", limited },
	{ "no_descriptors", no_descriptors }, { "standard", standard },
	{ "straddling", straddling }, { "alone", alone })
