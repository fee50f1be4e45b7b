/*
 * Blocks between two users: the reader maps them to read and nothing else, and only what was lent
 * is written by the other.
 *
 * usage: ipc_lending strange|lent|not_lent|lent_late; not_lent with ADMA_IPC_TIMEOUT=1, lent_late
 * with 4
 */
#include "ipc_blocks.h"
#include <fcntl.h>

/* ---- a block that was not lent ------------------------------------------------------------- */

static int mapped_to_read(void)
{
	return mappings("r--s", "adma-block (deleted)");
}

static int echo_and_let_go(int connection)
{
	echo(connection);
	EXPECT(mapped_to_read(), 0); /* none stays */
	return 0;
}

/*
 * Blocks of another user are mapped by their reader, which cannot write them; nobody else gets
 * any. Its pages stay, whatever their owner does.
 */
static void strange(void)
{
	pid_t child;
	int connection = with_stranger(echo_and_let_go, &child);
	byte *block = new_block(SIZE);
	int before = mappings("", "(deleted)");

	for (unsigned i = 0; i < 5; i++)
		ask(connection, block, i);
	EXPECT(mappings("", "(deleted)"), before + 1);
	EXPECT(mapped_to_read(), 1);
	finish(connection, child);
	EXPECT(mappings("", "(deleted)"), before - 1);
}

/* ---- lending -------------------------------------------------------------------------- */

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
	send_byte(step[1]);
	for (unsigned i = 2; i < 5; i++) {
		EXPECT(adma_read(connection, &go, 1), 1);
		fill(block, SIZE, i);
		adma_cookie_t cookie = adma_iwrite(connection, (void *)block, SIZE);

		EXPECT(adma_wait_for(cookie, 50), -ETIMEDOUT);
		send_byte(step[1]);
		EXPECT(adma_wait(cookie), SIZE);
	}
	return echo(connection);
}

static void lent(void)
{
	pid_t child;
	char go = 0;
	int number = next_descriptor();
	byte *block = new_block(2 * SIZE);
	size_t whole = (2 * SIZE + PAGE - 1) / PAGE * PAGE;
	byte *other = new_block(SIZE), *any = pages_between_guards(SIZE);

	make_pipe(step);
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
	await_byte(step[0]);
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
		await_byte(step[0]);
		EXPECT(adma_wait(cookie), SIZE);
		expect_content(buffers[i], SIZE, i + 2, "not lent");
	}
	for (unsigned i = 0; i < 5; i++)
		ask(connection, block + i, 10 + i);
	EXPECT(adma_free((void *)block), 0);
	finish(connection, child);
}

/* Takes nothing in until it is told so. */
static int never_borrow(int connection)
{
	await_byte(step[0]);
	return echo(connection);
}

static void not_lent(void)
{
	pid_t child;
	byte *block = new_block(SIZE), *second = new_block(SIZE);

	make_pipe(step);
	int connection = with_child(echo, &child);

	/* An equal needs none of it. */
	EXPECT(adma_lend(connection, (void *)block), 0);
	EXPECT(adma_lend(connection, NULL), 0);
	ask(connection, block, 1);
	EXPECT(adma_lend(connection, (void *)(block + PAGE)), -EINVAL);
	EXPECT(adma_lend(connection, &child), -EINVAL);
	EXPECT(adma_lend(connection + 1, (void *)block), -EBADF);
	finish(connection, child);

	connection = with_stranger(echo, &child);
	EXPECT(adma_lend(connection, (void *)block), -EBUSY); /* the equal has it */
	ask(connection, second, 2);
	EXPECT(adma_lend(connection, (void *)second), -EBUSY); /* this one has it */
	ask(connection, block, 3);
	kill_child(child);
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
	send_byte(step[1]);
	EXPECT(adma_lend(connection, (void *)third), -EBUSY);
	ask(connection, third, 4);
	finish(connection, child);
}

/* Is late once, then too early, then in time. */
static int lend_late(int connection)
{
	char go = 0;

	await_byte(step[0]);
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

	make_pipe(step);
	int connection = with_stranger(lend_late, &child);

	EXPECT(adma_lend(connection, new_block(SIZE)), -ETIMEDOUT);
	send_byte(step[1]);
	EXPECT(adma_lend(connection, new_block(SIZE)), 0);
	EXPECT(adma_read(connection, &go, 1), 1);
	EXPECT(adma_lend(connection, NULL), 0);
	byte *block = new_block(SIZE);

	EXPECT(adma_lend(connection, (void *)block), 0);
	ask(connection, block, 1);
	finish(connection, child);
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "strange", strange }, { "lent", lent }, { "not_lent", not_lent },
		{ "lent_late", lent_late }, { 0 }
	};

	return run_mode(argc, argv, all);
}
