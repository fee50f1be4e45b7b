/* Two processes that send blocks of adma_alloc to and fro. */
#ifndef IPC_BLOCKS_H
#define IPC_BLOCKS_H
#include "ipc.h"

enum { SIZE = 300000 };

static inline void *new_block(size_t size)
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
static inline int echo(int connection)
{
	void *block = new_block(SIZE);
	ssize_t got;

	while ((got = adma_read(connection, block, SIZE)) > 0)
		EXPECT(adma_write(connection, block, got), got);
	EXPECT(got, -EPIPE);
	EXPECT(adma_free(block), 0);
	EXPECT(adma_close(connection), 0);
	return 0;
}

static inline void ask(int connection, byte *data, unsigned message)
{
	fill(data, SIZE, message);
	EXPECT(adma_write(connection, (void *)data, SIZE), SIZE);
	memset((void *)data, 0, SIZE);
	EXPECT(adma_read(connection, (void *)data, SIZE), SIZE);
	expect_content(data, SIZE, message, "echo");
}

/* The number that the next descriptor gets, which a block has one of. */
static inline int next_descriptor(void)
{
	int number = dup(0);

	close(number);
	return number;
}
#endif
