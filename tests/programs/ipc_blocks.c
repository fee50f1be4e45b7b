/*
 * Memory of adma_alloc: what becomes of it when the program forks, frees it and allocates
 * anew, or closes descriptors that it does not know.
 *
 * usage: ipc_blocks case
 */
#include "ipc.h"
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>

enum { SIZE = 300000, BLOCKS = 100 };

static void *new_block(size_t size)
{
	void *block = adma_alloc(size);

	if (!block)
		fail("no block of %zu bytes", size);
	for (size_t at = 0; at < size; at += 1000)
		if (((byte *)block)[at])
			fail("a new block is not all zeros");
	return block;
}

/* Sends back what it gets, from and into blocks of its own, until the connection is closed. */
static int echo(int connection)
{
	void *block = new_block(SIZE);
	ssize_t got;

	while ((got = adma_read(connection, block, SIZE)) > 0)
		EXPECT(adma_write(connection, block, got), got);
	EXPECT(got, 0);
	EXPECT(adma_free(block), 0);
	EXPECT(adma_close(connection), 0);
	return 0;
}

static void ask(int connection, byte *data, unsigned message)
{
	fill(data, SIZE, message);
	EXPECT(adma_write(connection, (void *)data, SIZE), SIZE);
	memset((void *)data, 0, SIZE);
	EXPECT(adma_read(connection, (void *)data, SIZE), SIZE);
	expect_content(data, SIZE, message, "echo");
}

static void done(int connection, pid_t child)
{
	EXPECT(adma_close(connection), 0);
	expect_good_end(child);
}

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
	if (adma_alloc(SIZE_MAX) || adma_alloc(SIZE_MAX / 2))
		fail("a block larger than the address space");
	EXPECT(errno, 12345);
}

/* Addresses and descriptors come again; more blocks than the other side keeps mapped. */
static void reused(void)
{
	pid_t child;
	int connection = with_child(echo, &child);
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
	done(connection, child);
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
static void returned(bool close_it)
{
	enum { LARGE = 4 * 1024 * 1024 };
	pid_t child;
	int connection = with_child(echo, &child);
	int number = dup(0);
	close(number);
	byte *block = new_block(LARGE);
	int kept = dup(number);

	mlock((void *)block, SIZE); /* what is locked is freed as well */
	ask(connection, block + LARGE - SIZE, 1);
	if (close_it)
		close(number);
	EXPECT(pages_of(kept), LARGE / PAGE);
	EXPECT(adma_free((void *)block), 0);
	EXPECT(pages_of(kept), 0);
	done(connection, child);
}

/* A child shares its parent's blocks, and cannot free them. */
static void forked(bool bare)
{
	pid_t child;
	int connection = with_child(echo, &child);
	byte *block = new_block(SIZE);

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
			int own = with_child(echo, &grandchild);

			ask(own, block, 2);
			ask(own, new_block(SIZE), 3);
			done(own, grandchild);
		}
		_exit(0);
	}
	expect_good_end(mine);
	if (bare && block[0] != (content(1, 0) ^ 0xff))
		fail("the child's byte is not there");
	ask(connection, block, 4);
	EXPECT(adma_free((void *)block), 0);
	done(connection, child);
}

/* The program closes what it does not know; the numbers go to other blocks, and other files. */
static void closed(void)
{
	pid_t child;
	int connection = with_child(echo, &child);
	int before = dup(0);
	close(before);
	byte *first = new_block(SIZE);
	int after = dup(0);
	close(after);

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
	done(connection, child);
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
	pid_t child;
	int connection = with_child(read_into_a_hole, &child);
	byte *block = new_block(SIZE);

	EXPECT(adma_write(connection, (void *)block, SIZE), -EFAULT);
	ask(connection, block, 1);
	done(connection, child);
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

/* Limits of the system are answers, and nobody is killed. */
static void limited(void)
{
	int pair[2];

	errno = 12345;
	limit(RLIMIT_FSIZE, 100000);
	if (adma_alloc(SIZE))
		fail("a block larger than files may be");
	EXPECT(adma_free(new_block(10000)), 0);
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	EXPECT(adma_attach(pair[0]), -EFBIG);
	limit(RLIMIT_FSIZE, RLIM_INFINITY);

	limit(RLIMIT_AS, 1536 * MIB);
	if (adma_alloc(2048 * MIB))
		fail("a block larger than the address space may be");
	EXPECT(adma_free(new_block(SIZE)), 0);
	limit(RLIMIT_AS, RLIM_INFINITY);

	int next = dup(0);

	close(next);
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
	int next = dup(0);

	close(next);
	limit(RLIMIT_NOFILE, next);
	EXPECT(adma_read(connection, block, SIZE), SIZE);
	EXPECT(adma_write(connection, block, SIZE), SIZE);
	EXPECT(adma_free(block), 0);
	EXPECT(adma_close(connection), 0);
	return 0;
}

/* Who cannot take the descriptor of a block copies all the same. */
static void no_descriptors(void)
{
	pid_t child;
	int connection = with_child(echo_without_descriptors, &child);
	byte *block = new_block(SIZE);

	ask(connection, block, 1);
	done(connection, child);
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
	pid_t child;
	int connection = with_child(echo, &child);
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
	done(connection, child);
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

	socketpair(AF_UNIX, SOCK_STREAM, 0, pair_of_mine);
	pthread_create(&thread, NULL, echo_here, NULL);
	int connection = adma_attach(pair_of_mine[0]);
	byte *block = new_block(SIZE);

	for (unsigned i = 0; i < 20; i++)
		ask(connection, block, i);
	EXPECT(adma_free((void *)block), 0);
	EXPECT(adma_close(connection), 0);
	pthread_join(thread, NULL);
}

/* ---- lies ----------------------------------------------------------------------------- */

/* What the region says of one of our posts; as in src/ipc/region.rs. */
struct post {
	uint32_t number, kind;
	uint64_t len, at, post;
	uint32_t finished, reserved;
	uint64_t block, block_offset, reserved_too;
};

/* The latest with this buffer. */
static volatile struct post *find_post(const void *buffer)
{
	volatile struct post *latest = NULL;
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long from, to;
	char line[400];

	while (fgets(line, sizeof(line), maps)) {
		if (!strstr(line, "memfd:adma ") || sscanf(line, "%lx-%lx", &from, &to) != 2)
			continue;
		fclose(maps);
		for (unsigned long at = from; at < to; at += 128) {
			volatile struct post *post = (void *)at;

			if (post->at == (uintptr_t)buffer && post->len == SIZE &&
			    (!latest || post->number > latest->number))
				latest = post;
		}
		if (!latest)
			fail("no post found");
		return latest;
	}
	fail("no region found");
}

static int some_memory(off_t size, unsigned seals, bool pages)
{
	int memory = memfd_create("lie", MFD_ALLOW_SEALING);

	if (memory < 0 || ftruncate(memory, size) || (pages && fallocate(memory, 0, 0, size)) ||
	    fcntl(memory, F_ADD_SEALS, seals))
		fail("no memory: %s", strerror(errno));
	return memory;
}

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, LIES = 9 };

/* The socket that descriptors of blocks travel over: the only one here. */
static int bell(void)
{
	for (int fd = 3; fd < 100; fd++) {
		int domain = 0;
		socklen_t len = sizeof(domain);

		if (!getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &len) && domain == AF_UNIX)
			return fd;
	}
	fail("no socket found");
}

/* As the library says that a block comes. */
static void show(uint64_t serial, int memory)
{
	char record[13] = { 2 }, beside[CMSG_SPACE(sizeof(int))] = "";
	struct iovec piece = { record, sizeof(record) };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1, .msg_control = beside,
				  .msg_controllen = sizeof(beside) };
	struct cmsghdr *c = CMSG_FIRSTHDR(&message);

	memcpy(record + 1, &serial, sizeof(serial));
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(c), &memory, sizeof(int));
	EXPECT(sendmsg(bell(), &message, 0), sizeof(record));
}

static int read_only(int memory)
{
	char path[40];

	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory);
	return open(path, O_RDONLY);
}

static void tell(int lie, volatile struct post *post)
{
	int memory = -1;

	switch (lie) {
	case 0: /* the truth */
		return;
	case 1: /* could be made smaller later */
		memory = some_memory(SIZE, F_SEAL_GROW | F_SEAL_SEAL, true);
		break;
	case 2:
		memory = some_memory(SIZE, SEALS | F_SEAL_WRITE, true);
		break;
	case 3:
		memory = some_memory(SIZE, 0, true);
		break;
	case 4: /* half of the other's address space, and no page in it */
		memory = some_memory(1l << 46, SEALS, false);
		break;
	case 5: /* not to be written */
		memory = read_only(some_memory(SIZE, SEALS, true));
		break;
	case 6: /* one that never comes */
		break;
	case 7:
		post->block_offset = 1l << 40;
		return;
	case 8:
		post->block_offset = 1ul << 63;
		return;
	}
	post->block += 1000 * lie;
	if (memory >= 0)
		show(post->block, memory);
}

static int told[2]; /* a pipe: there is a lie */

/* What is posted truly but for the block. */
static int lie(int connection)
{
	byte *block = new_block(SIZE);
	char go;

	for (int i = 0; i < LIES; i++) {
		fill(block, SIZE, i);
		adma_cookie_t cookie = adma_iwrite(connection, (void *)block, SIZE);
		volatile struct post *post = find_post((void *)block);

		tell(i, post);
		EXPECT(write(told[1], "", 1), 1);
		/* Only the other side copies. */
		EXPECT(adma_read(connection, &go, 1), 1);
		EXPECT(adma_wait(cookie), SIZE);
	}
	return echo(connection);
}

/* How many there are of memory behind descriptors. */
static int mappings(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[400];
	int count = 0;

	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "(deleted)") != NULL;
	fclose(maps);
	return count;
}

/* A block that is not what it should be is not mapped, and the message arrives. */
static void lied_to(void)
{
	if (pipe(told))
		fail("pipe: %s", strerror(errno));
	pid_t child;
	int connection = with_child(lie, &child);
	byte *block = new_block(SIZE);
	char go = 0;

	for (int i = 0; i < LIES; i++) {
		EXPECT(read(told[0], &go, 1), 1);
		int before = mappings();

		EXPECT(adma_read(connection, (void *)block, SIZE), SIZE);
		expect_content(block, SIZE, i, "lie");
		if (mappings() != before + (i == 0))
			fail("lie %d: %d mappings, then %d", i, before, mappings());
		EXPECT(adma_write(connection, &go, 1), 1);
	}
	ask(connection, block, 77);
	done(connection, child);
}

/* Takes the pages of its block away all the time, while messages come and go. */
static int punch(int connection)
{
	int memory = dup(0);
	close(memory);
	void *block = new_block(SIZE);
	adma_cookie_t cookie;

	for (unsigned i = 0; i < 200; i++) {
		cookie = i % 2 ? adma_iwrite(connection, block, SIZE)
			       : adma_iread(connection, block, SIZE);
		while (adma_wait_for(cookie, 0) == -ETIMEDOUT)
			if (fallocate(memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE))
				fail("fallocate: %s", strerror(errno));
	}
	return echo(connection);
}

/* Of what arrives its sender is the master; but it does arrive. */
static void punched(void)
{
	pid_t child;
	int connection = with_child(punch, &child);
	byte *block = new_block(SIZE);

	for (unsigned i = 0; i < 200; i++)
		EXPECT(i % 2 ? adma_read(connection, (void *)block, SIZE)
			     : adma_write(connection, (void *)block, SIZE), SIZE);
	ask(connection, block, 1);
	done(connection, child);
}

/* A block that is mapped to be read only, and nothing else. */
static int mapped_to_read(void)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[400];
	int count = 0;

	while (fgets(line, sizeof(line), maps))
		count += strstr(line, "r--s") && strstr(line, "adma-block (deleted)");
	fclose(maps);
	return count;
}

/*
 * Blocks of another user are mapped by their reader, which cannot write them; nobody else gets
 * any. Its pages stay, whatever their owner does.
 */
static int echo_as_nobody(int connection)
{
	int result = echo(connection);

	if (mapped_to_read() != 0)
		fail("blocks stay mapped");
	return result;
}

static void strange(void)
{
	int pair[2], connection;

	if (getuid())
		cannot_be_shown("not root");
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	pid_t child = fork();

	if (child == 0) {
		if (setresuid(65534, 65534, 65534))
			cannot_be_shown("cannot become another user");
		exit(echo_as_nobody(adma_attach(pair[1])));
	}
	close(pair[1]);
	connection = adma_attach(pair[0]);
	expect_engine(connection, "shared memory, two copies");
	byte *block = new_block(SIZE);
	int before = mappings();

	for (unsigned i = 0; i < 5; i++)
		ask(connection, block, i);
	EXPECT(mappings(), before + 1);
	EXPECT(mapped_to_read(), 1);
	done(connection, child);
	EXPECT(mappings(), before - 1);
}

/* ---- lending -------------------------------------------------------------------------- */

/* A process of another user at the other end. */
static int with_stranger(int (*other)(int connection), pid_t *child)
{
	int pair[2], connection;

	if (getuid())
		cannot_be_shown("not root");
	socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
	*child = fork();
	if (*child == 0) {
		close(pair[0]);
		if (setresuid(65534, 65534, 65534))
			fail("cannot become another user");
		prctl(PR_SET_PDEATHSIG, SIGKILL); /* which goes with the user */
		connection = adma_attach(pair[1]);
		close(pair[1]);
		exit(other(connection));
	}
	close(pair[1]);
	connection = adma_attach(pair[0]);
	close(pair[0]);
	expect_engine(connection, "shared memory, two copies");
	return connection;
}

static int step[2]; /* a pipe from the borrower: one more is done */

/* Writes to who does nothing for it: into what was lent, and not into anything else. */
static int borrow(int connection)
{
	byte *block = new_block(SIZE);
	char go;

	EXPECT(adma_lend(connection, NULL), 0);
	EXPECT(adma_lend(connection, NULL), 0);
	EXPECT(adma_read(connection, &go, 1), 1);
	fill(block, SIZE, 1);
	EXPECT(adma_write(connection, (void *)block, SIZE), SIZE);
	EXPECT(write(step[1], "", 1), 1);
	for (unsigned i = 2; i < 5; i++) {
		EXPECT(adma_read(connection, &go, 1), 1);
		fill(block, SIZE, i);
		adma_cookie_t cookie = adma_iwrite(connection, (void *)block, SIZE);

		EXPECT(adma_wait_for(cookie, 50), -ETIMEDOUT);
		EXPECT(write(step[1], "", 1), 1);
		EXPECT(adma_wait(cookie), SIZE);
	}
	return echo(connection);
}

static void lent(void)
{
	pid_t child;
	char go = 0;
	int number = dup(0);

	close(number);
	byte *block = new_block(2 * SIZE);
	size_t whole = (2 * SIZE + PAGE - 1) / PAGE * PAGE;
	byte *other = new_block(SIZE), *any = pages_between_guards(SIZE);

	if (pipe(step))
		fail("pipe: %s", strerror(errno));
	int connection = with_stranger(borrow, &child);

	memset((void *)block, 0xee, whole);
	EXPECT(adma_lend(connection, (void *)block), 0);
	EXPECT(adma_lend(connection, (void *)block), -EBUSY);
	/* Its pages stay now, and nobody maps it anew to write. */
	EXPECT(fallocate(number, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE), -1);
	if (mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, number, 0) != MAP_FAILED)
		fail("a block that was lent can be mapped by anybody");

	/* This process does nothing: the other one copies all of it. */
	adma_cookie_t cookie = adma_iread(connection, (void *)(block + 1000), SIZE);

	EXPECT(adma_write(connection, &go, 1), 1);
	EXPECT(read(step[0], &go, 1), 1);
	expect_content(block + 1000, SIZE, 1, "lent");
	EXPECT(adma_wait(cookie), SIZE);
	expect_only(block, 1000, 0xee, "before");
	expect_only(block + 1000 + SIZE, whole - 1000 - SIZE, 0xee, "behind");

	/* What was not lent this process copies itself, also where only the end was not. */
	byte *buffers[] = { other, any, block + whole - 1000 };

	if (mmap((void *)(block + whole), SIZE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED)
		buffers[2] = any; /* something else is there */
	for (unsigned i = 0; i < 3; i++) {
		cookie = adma_iread(connection, (void *)buffers[i], SIZE);
		EXPECT(adma_write(connection, &go, 1), 1);
		EXPECT(read(step[0], &go, 1), 1);
		EXPECT(adma_wait(cookie), SIZE);
		expect_content(buffers[i], SIZE, i + 2, "not lent");
	}
	for (unsigned i = 0; i < 5; i++)
		ask(connection, block + i, 10 + i);
	EXPECT(adma_free((void *)block), 0);
	done(connection, child);
}

/* Takes nothing in until it is told so. */
static int never_borrow(int connection)
{
	char go;

	EXPECT(read(step[0], &go, 1), 1);
	return echo(connection);
}

static void not_lent(void)
{
	pid_t child;
	byte *block = new_block(SIZE), *second = new_block(SIZE);

	if (pipe(step))
		fail("pipe: %s", strerror(errno));
	int connection = with_child(echo, &child);

	/* An equal needs none of it. */
	EXPECT(adma_lend(connection, (void *)block), 0);
	EXPECT(adma_lend(connection, NULL), 0);
	ask(connection, block, 1);
	EXPECT(adma_lend(connection, (void *)(block + PAGE)), -EINVAL);
	EXPECT(adma_lend(connection, &child), -EINVAL);
	EXPECT(adma_lend(connection + 1, (void *)block), -EBADF);
	done(connection, child);

	connection = with_stranger(echo, &child);
	EXPECT(adma_lend(connection, (void *)block), -EBUSY); /* the equal has it */
	ask(connection, second, 2);
	EXPECT(adma_lend(connection, (void *)second), -EBUSY); /* this one has it */
	ask(connection, block, 3);
	kill(child, SIGKILL);
	waitpid(child, NULL, 0);
	EXPECT(adma_lend(connection, new_block(SIZE)), -ECONNRESET);
	EXPECT(adma_close(connection), 0);

	/* Who does not take it has not got it; in time, and messages go on. */
	connection = with_stranger(never_borrow, &child);
	byte *third = new_block(SIZE);
	double begun = seconds();

	EXPECT(adma_lend(connection, (void *)third), -ETIMEDOUT);
	if (seconds() - begun > 10) /* with ADMA_IPC_TIMEOUT=1 */
		fail("lending took %.1f s", seconds() - begun);
	/* Nothing is lent before it has heard that this does not count. */
	EXPECT(adma_lend(connection, (void *)third), -ETIMEDOUT);
	EXPECT(write(step[1], "", 1), 1);
	EXPECT(adma_lend(connection, (void *)third), -EBUSY);
	ask(connection, third, 4);
	done(connection, child);
}

/* Is late once, then too early, then in time. */
static int lend_late(int connection)
{
	char go;

	EXPECT(read(step[0], &go, 1), 1);
	EXPECT(adma_lend(connection, new_block(SIZE)), 0);
	EXPECT(adma_lend(connection, new_block(SIZE)), -ETIMEDOUT);
	EXPECT(adma_write(connection, &go, 1), 1);
	EXPECT(adma_lend(connection, new_block(SIZE)), 0);
	EXPECT(adma_lend(connection, NULL), 0);
	return echo(connection);
}

/* Whoever has come in vain, the next two calls of both sides meet. */
static void lent_late(void)
{
	pid_t child;
	char go = 0;

	if (pipe(step))
		fail("pipe: %s", strerror(errno));
	int connection = with_stranger(lend_late, &child);

	EXPECT(adma_lend(connection, new_block(SIZE)), -ETIMEDOUT);
	EXPECT(write(step[1], "", 1), 1);
	EXPECT(adma_lend(connection, new_block(SIZE)), 0);
	EXPECT(adma_read(connection, &go, 1), 1);
	EXPECT(adma_lend(connection, NULL), 0);
	byte *block = new_block(SIZE);

	EXPECT(adma_lend(connection, (void *)block), 0);
	ask(connection, block, 1);
	done(connection, child);
}

static void returned_open(void)
{
	returned(false);
}

static void returned_closed(void)
{
	returned(true);
}

static void plain_fork(void)
{
	forked(false);
}

static void bare_fork(void)
{
	forked(true);
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";
	static const struct {
		const char *name;
		void (*run)(void);
	} all[] = {
		{ "freed", freed }, { "reused", reused }, { "returned", returned_open },
		{ "returned_closed", returned_closed }, { "fork", plain_fork },
		{ "bare_fork", bare_fork }, { "closed", closed }, { "hole", hole },
		{ "interrupted", interrupted }, { "limited", limited },
		{ "no_descriptors", no_descriptors }, { "standard", standard },
		{ "straddling", straddling }, { "alone", alone }, { "lied_to", lied_to },
		{ "punched", punched }, { "strange", strange }, { "lent", lent },
		{ "not_lent", not_lent }, { "lent_late", lent_late },
	};

	for (unsigned i = 0; i < sizeof(all) / sizeof(all[0]); i++)
		if (!strcmp(name, all[i].name)) {
			all[i].run();
			return 0;
		}
	fail("no such case: %s", name);
}
