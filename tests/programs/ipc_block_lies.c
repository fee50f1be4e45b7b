/*
 * A process that lies about its blocks, or takes their pages away: nothing is mapped that is not
 * what it should be, nobody is ended, and messages arrive.
 *
 * usage: ipc_block_lies lied_to|punched
 */
#include "ipc_blocks.h"
#include "ipc_inside.h"
#include <fcntl.h>

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

enum { SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL, LIES = 9 };

/* As the library says that a block comes. */
static void show(uint64_t serial, int memory)
{
	char record[13] = { 2 };

	memcpy(record + 1, &serial, sizeof(serial));
	EXPECT(send_with(doorbell(), record, sizeof(record), &memory, 1, 0), sizeof(record));
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
	pid_t child;
	int connection = with_child(lie, &child);
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
	pid_t child;
	int connection = with_child(punch, &child);
	byte *block = new_block(SIZE);

	for (unsigned i = 0; i < 200; i++)
		EXPECT(i % 2 ? adma_read(connection, (void *)block, SIZE)
			     : adma_write(connection, (void *)block, SIZE), SIZE);
	ask(connection, block, 1);
	finish(connection, child);
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "lied_to", lied_to }, { "punched", punched }, { 0 }
	};

	return run_mode(argc, argv, all);
}
