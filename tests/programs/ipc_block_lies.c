/*
 * Posts that name wrong blocks, and blocks whose pages are taken away: only sealed memory is mapped,
 * no process is ended, and messages arrive.
 *
 * usage: ipc_block_lies lied_to|punched
 */
#include "ipc_blocks.h"
#include "ipc_inside.h"
#include <fcntl.h>
#include <sys/stat.h>

/* The latest with this buffer. */
static volatile struct post *find_post(const void *buffer)
{
	volatile struct post *latest = NULL;
	size_t size;
	byte *from = region(&size);

	for (volatile struct post *post = (void *)from; (byte *)post < from + size; post++)
		if (post->at == (uintptr_t)buffer && post->len == SIZE &&
		    (!latest || post->number > latest->number))
			latest = post;
	if (!latest)
		fail("no post found");
	return latest;
}

static int some_memory(off_t size, unsigned seals, bool pages)
{
	int memory = memfd_create("lie", MFD_ALLOW_SEALING);

	if (memory < 0 || ftruncate(memory, size) || (pages && fallocate(memory, 0, 0, size)) ||
	    fcntl(memory, F_ADD_SEALS, seals))
		fail("no memory: %s", strerror(errno));
	return memory;
}

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL };

/* Names a descriptor as the library names a block: number and file. */
static uint64_t name_of(int memory)
{
	struct stat file;

	if (fstat(memory, &file))
		fail("fstat: %s", strerror(errno));
	return (uint64_t)memory << 40 | ((file.st_ino ^ (uint64_t)file.st_dev << 32) & ((1ul << 39) - 1));
}

/* Posts that are not what they should be; the first is. */
static const struct {
	off_t size;
	unsigned seals;
	bool pages;
	int wrong_file;
	uint64_t offset;
} lies[] = {
	{ .size = 0 },
	{ .size = SIZE, .seals = F_SEAL_GROW | F_SEAL_SEAL, .pages = true }, /* could be made smaller later */
	{ .size = SIZE, .seals = SEALS | F_SEAL_WRITE, .pages = true },
	{ .size = SIZE, .seals = 0, .pages = true },
	{ .size = 1l << 46, .seals = SEALS, .pages = false }, /* half of the address space, and no page in it */
	{ .size = SIZE, .seals = SEALS, .pages = true, .wrong_file = 1 }, /* the number of another file */
	{ .offset = 1l << 40 },
	{ .offset = 1ul << 63 },
};

enum { LIES = sizeof(lies) / sizeof(lies[0]) };

static void tell(int lie, volatile struct post *post)
{
	if (lies[lie].size) {
		int memory = some_memory(lies[lie].size, lies[lie].seals, lies[lie].pages);

		post->block = name_of(memory) ^ lies[lie].wrong_file;
	}
	if (lies[lie].offset)
		post->block_offset = lies[lie].offset;
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
		send_byte(told[1]);
		/* Only the other side copies. */
		EXPECT(adma_read(connection, &go, 1), 1);
		EXPECT(adma_wait(cookie), SIZE);
	}
	return echo(connection);
}

/* A block that is not what it should be is not mapped, and the message arrives. */
static void lied_to(void)
{
	make_pipe(told);
	int connection = with_child(lie);
	byte *block = new_block(SIZE);
	char go = 0;

	for (int i = 0; i < LIES; i++) {
		await_byte(told[0]);
		int before = mappings("", "(deleted)");

		EXPECT(adma_read(connection, (void *)block, SIZE), SIZE);
		expect_content(block, SIZE, i, "lie");
		EXPECT(mappings("", "(deleted)") - before, i == 0);
		EXPECT(adma_write(connection, &go, 1), 1);
	}
	ask(connection, block, 77);
	finish(connection, child);
}

/* Takes the pages of its block away all the time, while messages come and go. */
static int punch(int connection)
{
	int memory = next_descriptor();
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
	int connection = with_child(punch);
	byte *block = new_block(SIZE);

	for (unsigned i = 0; i < 200; i++)
		EXPECT(i % 2 ? adma_read(connection, (void *)block, SIZE)
			     : adma_write(connection, (void *)block, SIZE), SIZE);
	ask(connection, block, 1);
	finish(connection, child);
}

PROGRAM((void)0,
	{ "lied_to", lied_to }, { "punched", punched })
