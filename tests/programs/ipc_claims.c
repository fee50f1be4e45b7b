/*
 * A stranger that claims pieces of messages, and copies nothing: no byte is believed to be there
 * that it could not have written, and it holds up nobody who closes.
 *
 * usage: ipc_claims claimed [lent|unfinished|elsewhere]|closed; closed with ADMA_IPC_TIMEOUT=20
 */
#include "ipc_inside.h"

static byte *room; /* 8 MiB */

/* What is claimed: what was not lent, what was, pieces that never end, what others have borrowed. */
static enum { LIES, LENT, UNFINISHED, ELSEWHERE } lies;

static int claim(int connection)
{
	room = lies != LIES ? adma_alloc(8 * MIB) : message_memory(8 * MIB);
	if (lies != LIES)
		EXPECT(adma_lend(connection, NULL), 0);
	if (adma_iwrite(connection, (void *)room, MIB) <= 0)
		fail("the post is refused");
	claim_pieces(MIB, lies != UNFINISHED)->kind = 2;
	EXPECT(adma_write(connection, "now", 3), 3);
	sleep_ms(200000); /* killed before */
	return 0;
}

static int borrow(int connection)
{
	char go;

	EXPECT(adma_lend(connection, NULL), 0);
	return adma_read(connection, &go, 1);
}

static void claimed(void)
{
	pid_t child, borrower = 0;
	long got;

	if (variant)
		lies = !strcmp(variant, "lent") ? LENT :
		       !strcmp(variant, "unfinished") ? UNFINISHED : ELSEWHERE;
	int connection = with_stranger(claim, &child), other = 0;

	if (lies == ELSEWHERE) {
		other = with_stranger(borrow, &borrower);
		room = adma_alloc(8 * MIB);
		EXPECT(adma_lend(other, (void *)room), 0);
		EXPECT(adma_lend(connection, NULL), 0);
	} else if (lies != LIES) {
		room = adma_alloc(8 * MIB);
		EXPECT(adma_lend(connection, (void *)room), 0);
	}
	memset((void *)room, 1, 8 * MIB);
	adma_cookie_t cookie = adma_iread(connection, (void *)room, MIB);

	sleep_ms(300);
	/* From a block, which this side can map, it would have copied itself. */
	long wanted = lies == LENT ? (long)MIB : lies == UNFINISHED ? -ETIMEDOUT : -EPROTO;
	bool any_error = lies == LIES && !getenv("BLOCKS");

	got = adma_wait_for(cookie, any_error || wanted == -ETIMEDOUT ? 500 : 60000);
	if (any_error ? got >= 0 : got != wanted)
		fail("%ld bytes are said to be there", got);
	if (lies != LIES)
		expect_only(room, 8 * MIB, 1, "claimed");
	if (lies == UNFINISHED) {
		double begun = seconds();

		EXPECT(adma_close(connection), -ETIMEDOUT);
		if (seconds() - begun > 30)
			fail("closing took %.1f s", seconds() - begun);
	}
	kill_child(child);
	EXPECT(adma_close(connection), 0);
	if (borrower) {
		EXPECT(adma_close(other), 0);
		waitpid(borrower, NULL, 0);
	}
}

/* Says all the time that it has begun a piece of either message, and never ends one. */
static int begin_forever(int connection)
{
	EXPECT(adma_iwrite(connection, (void *)room, MIB) > 0, 1);
	EXPECT(adma_iread(connection, (void *)(room + MIB), 2 * MIB) > 0, 1);
	volatile uint64_t *claims[] = { (void *)(first_post(MIB) + 2),
					(void *)(first_post(2 * MIB) + 1) };

	EXPECT(adma_write(connection, "go", 2), 2);
	while (true)
		*claims[0] = *claims[1] = 1 << 12 | 1;
	return 0;
}

/* Who can touch no buffer holds up nobody who closes, before or after his posts. */
static void closed(void)
{
	for (int first = 0; first < 2; first++) {
		pid_t child;
		int connection = with_stranger(begin_forever, &child);
		double begun;

		sleep_ms(first ? 300 : 0);
		EXPECT(adma_iread(connection, (void *)room, 4 * MIB) > 0, 1);
		EXPECT(adma_iwrite(connection, (void *)room, 4 * MIB) > 0, 1);
		sleep_ms(first ? 0 : 300);
		begun = seconds();
		EXPECT(adma_close(connection), 0);
		if (seconds() - begun > 15) /* with ADMA_IPC_TIMEOUT=20 */
			fail("closing took %.1f s", seconds() - begun);
		EXPECT(adma_close(connection), -EBADF);
		kill_child(child);
	}
}

int main(int argc, char **argv)
{
	static const struct mode all[] = {
		{ "claimed", claimed }, { "closed", closed }, { 0 }
	};

	room = message_memory(8 * MIB);
	alarm(200);
	return run_mode(argc, argv, all);
}
