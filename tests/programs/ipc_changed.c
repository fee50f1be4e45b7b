/*
 * Tests a proven peer that becomes another user: the connection ends for both, it gets no more
 * memory, and its counts are not believed.
 *
 * usage: ipc_changed messages|block|claims
 */
#include "ipc_filter.h"
#include "ipc_inside.h"

static byte *room; /* 8 MiB */
static int told[2]; /* a pipe from the process that has changed */

/* Becomes another user, and says so not by the connection. */
static void change(int connection)
{
	EXPECT(adma_read(connection, (void *)room, 64 * KIB), 64 * KIB);
	become_user(STRANGER);
	send_byte(told[1]);
}

/* An equal that will be none. */
static int with_changing(int (*other)(int connection))
{
	root_only();
	make_pipe(told);
	int connection = with_child(other);

	expect_engine(connection, "process_vm, one copy, both processes copy");
	EXPECT(adma_write(connection, (void *)room, 64 * KIB), 64 * KIB);
	await_byte(told[0]);
	/* It is looked for that every few milliseconds. */
	sleep_ms(100);
	return connection;
}

static int change_and_read(int connection)
{
	change(connection);
	EXPECT(adma_read(connection, (void *)room, 8 * MIB), -ECONNRESET);
	EXPECT(adma_write(connection, (void *)room, 8 * MIB), -ECONNRESET);
	return 0;
}

/* The connection ends with that, on both sides. */
static void changed(void)
{
	int connection = with_changing(change_and_read);

	filter_call(SYS_process_vm_readv, SECCOMP_RET_KILL_PROCESS);
	filter_call(SYS_process_vm_writev, SECCOMP_RET_KILL_PROCESS);
	EXPECT(adma_write(connection, (void *)room, 8 * MIB), -ECONNRESET);
	EXPECT(adma_read(connection, (void *)room, 8 * MIB), -ECONNRESET);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
}

static int change_and_look(int connection)
{
	byte *block = adma_alloc(MIB);
	int before = mappings("rw-s", "memfd:adma-block");

	change(connection);
	EXPECT(adma_read(connection, (void *)block, 64 * KIB), -ECONNRESET);
	EXPECT(mappings("rw-s", "memfd:adma-block"), before);
	return 0;
}

/* Nothing more is shown to it, to write. */
static void changed_block(void)
{
	int connection = with_changing(change_and_look);
	byte *block = adma_alloc(MIB);

	EXPECT(adma_write(connection, (void *)block, 64 * KIB), -ECONNRESET);
	expect_good_end(child);
	EXPECT(adma_close(connection), 0);
}

/*
 * The first message of the lane, of which it says, when it has changed, that it has copied everything.
 * It is posted before: its own library would notice soon, and refuse.
 */
static int change_and_claim(int connection)
{
	EXPECT(adma_read(connection, (void *)room, 64 * KIB), 64 * KIB);
	if (adma_iwrite(connection, (void *)room, MIB) <= 0)
		fail("the post is refused");
	become_user(STRANGER);
	claim_pieces(MIB, true);
	send_byte(told[1]);
	sleep_ms(3000);
	return 0;
}

/* And nothing is believed. */
static void changed_claims(void)
{
	int connection = with_changing(change_and_claim);

	EXPECT(adma_read(connection, (void *)room, MIB), -ECONNRESET);
	kill_child(child);
	EXPECT(adma_close(connection), 0);
}

PROGRAM(room = message_memory(8 * MIB),
	{ "messages", changed }, { "block", changed_block },
	{ "claims", changed_claims })
