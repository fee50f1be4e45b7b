/* The inside of a connection, for tests that change it: its region and posts. */
#ifndef IPC_INSIDE_H
#define IPC_INSIDE_H
#include "ipc.h"

/* What the region says of one of our posts, as in src/ipc/memory/region.rs. */
struct post {
	_Alignas(128) uint32_t number;
	uint32_t kind;
	uint64_t len, at, post;
	uint32_t finished, reserved;
	uint64_t block, block_offset, reserved_too;
};

/* Our mapping, by its name in the list of mappings; a block has another name. */
static inline byte *region(size_t *size)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[400];
	unsigned long from, to;

	while (fgets(line, sizeof(line), maps))
		if (strstr(line, "memfd:adma ") && sscanf(line, "%lx-%lx", &from, &to) == 2) {
			fclose(maps);
			*size = to - from;
			return (byte *)from;
		}
	fail("no region found");
}

/* The first message that this process has posted, if it has this length. */
static inline volatile struct post *first_post(size_t len)
{
	size_t size;
	volatile struct post *post = (void *)region(&size);

	while (post->len != len || post->number != 1)
		post++;
	return post;
}

/*
 * Claims the first message of either lane, if it has this length: from buffer to buffer, in two
 * pieces or four, all of which the writer has finished, or none. Answers its post.
 */
static inline volatile struct post *claim_pieces(size_t len, bool finished)
{
	volatile struct post *post = first_post(len);

	for (uint64_t back = 1; back <= 4; back++) {
		post->finished = finished ? back : 0;
		*(volatile uint64_t *)(post + 2) = back << 12;
	}
	return post;
}
#endif
