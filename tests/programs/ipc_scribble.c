/*
 * A peer that scribbles over the region of its connection: nothing is written here but into
 * posted buffers. (ipc_fuzz.c lies with more wit, and takes longer.)
 *
 * usage: ipc_scribble
 */
#include "ipc_inside.h"

static unsigned seed;

static int scribble(int connection)
{
	size_t size;
	byte *all = region(&size);
	unsigned state = seed;
	byte *room = state % 2 ? pages_between_guards(MIB) : adma_alloc(MIB);
	adma_cookie_t cookie;

	/* Some honest posts first, so that the other side has something to work with. */
	for (int i = 0; i < 8; i++) {
		cookie = adma_iwrite(connection, (void *)room, i % 2 ? 100 : MIB);
		cookie = adma_iread(connection, (void *)room, MIB);
	}
	(void)cookie;
	for (int i = 0; i < 400000; i++) {
		state = state * 1664525 + 1013904223;
		/* Mostly where the words are, and values that are nearly right. */
		size_t where = state % 4 ? (state >> 5) % (256 * 1024) : (state >> 3) % size;
		size_t at = where & ~3ul;

		if (state & 1)
			*(volatile uint32_t *)(all + at) = state >> 16;
		else if (state & 2)
			*(volatile uint32_t *)(all + at) += (state >> 20) % 3;
		else
			*(volatile uint64_t *)(all + (at & ~7ul)) = (uint64_t)state << 32 | state;
	}
	_exit(0);
}

/* Buffers between guard pages, and patterns before and after: nothing else is written. */
int main(void)
{
	for (unsigned round = 0; round < 60; round++) {
		pid_t child;

		seed = round * 7919 + 1;
		int connection = with_child(scribble, &child);
		/* In every second round both have blocks. */
		byte *mine = round % 2 ? adma_alloc(3 * MIB) : pages_between_guards(3 * MIB);

		memset((void *)mine, 0xee, 3 * MIB);
		alarm(200);
		for (int i = 0; i < 400; i++) {
			size_t size = i % 3 == 0 ? 1000 : i % 3 == 1 ? 10000 : MIB;
			long got = i % 2 ? adma_read(connection, (void *)(mine + MIB), size)
					 : adma_write(connection, (void *)(mine + MIB), size);

			if (got > (long)size)
				fail("%ld bytes of %zu", got, size);
			if (got == -ECONNRESET || got == -EPROTO || got == -EPIPE)
				break;
		}
		expect_only(mine, MIB, 0xee, "hostile");
		expect_only(mine + 2 * MIB, MIB, 0xee, "hostile");
		EXPECT(adma_close(connection), 0);
		waitpid(child, NULL, 0);
		if (round % 2)
			EXPECT(adma_free((void *)mine), 0);
		else
			release_pages_between_guards(mine, 3 * MIB);
	}
	return 0;
}
