/*
 * Sends three eager messages and three large ones, for the counts of the report at exit.
 */
#include "ipc.h"

static const size_t sizes[] = { 100, 100, 100, 40000, 40000, 4 * MIB };

static int read_all(int connection)
{
	byte *room = message_memory(4 * MIB);

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		EXPECT(adma_read(connection, (void *)room, sizes[i]), sizes[i]);
	return 0;
}

int main(void)
{
	int connection = with_child(read_all);
	byte *room = message_memory(4 * MIB);

	for (unsigned i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		fill(room, sizes[i], i);
		EXPECT(adma_write(connection, (void *)room, sizes[i]), sizes[i]);
	}
	/* A child of the connection's owner has sent nothing. */
	pid_t silent = fork();
	if (silent == 0)
		exit(0);
	expect_good_end(silent);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
	return 0;
}
