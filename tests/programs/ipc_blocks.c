/*
 * Memory of adma_alloc: what becomes of it when the program forks, frees it and allocates
 * anew, or closes descriptors that it does not know.
 *
 * usage: ipc_blocks case
 */
#include "ipc.h"
#include <fcntl.h>
#include <sys/syscall.h>

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

static long resident_pages(void)
{
	FILE *file = fopen("/proc/meminfo", "r");
	char line[100];
	long kib = -1;

	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "Shmem: %ld", &kib) == 1)
			break;
	fclose(file);
	return kib / 4;
}

/* A block that was freed takes no memory, though the other side has it mapped. */
static void returned(void)
{
	enum { LARGE = 256 * 1024 * 1024 };
	pid_t child;
	int connection = with_child(echo, &child);
	byte *block = new_block(LARGE);

	ask(connection, block + LARGE - SIZE, 1);
	long with = resident_pages();
	EXPECT(adma_free((void *)block), 0);
	long without = resident_pages();
	if (with - without < LARGE / PAGE / 2)
		fail("%ld pages before, %ld after the block was freed", with, without);
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

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "";

	if (!strcmp(name, "freed"))
		freed();
	else if (!strcmp(name, "reused"))
		reused();
	else if (!strcmp(name, "returned"))
		returned();
	else if (!strcmp(name, "fork"))
		forked(false);
	else if (!strcmp(name, "bare_fork"))
		forked(true);
	else if (!strcmp(name, "closed"))
		closed();
	else if (!strcmp(name, "hole"))
		hole();
	else
		fail("no such case: %s", name);
	return 0;
}
