/* Sends messages of every size, in every order of posting, both ways; bytes beside the buffers stay.
 *
 * usage: ipc_messages [engine] [largest size]|unequal (lengths that differ)
 */
#include "ipc.h"

static const size_t sizes[] = {
    1, 2, 63, 64, 65, 1000, 4095, 4096, 4097, 8192, 16384, 32767, 32768, 32769, 65535, 65536,
    65537, 262144, 262145, MIB - 1, MIB, MIB + 1, 3 * MIB + 17, 16 * MIB, 64 * MIB,
};
enum { SIZES = COUNT(sizes), MARGIN = 4096, ORDERS = 4 };

static size_t largest = 64 * MIB;

/* Late side: none, the reader, the writer; or both post before either waits. */
static const char *const orders[ORDERS] = { "at once", "writer first", "reader first",
                                            "both posted" };

/* Writes or reads one message, whose side may be late. */
static void transfer(int connection, byte *data, size_t size, unsigned message, int order, bool writes)
{
    if (order == (writes ? 2 : 1))
        sleep_ms(message % 4 * 2);
    if (order == 3) {
        adma_cookie_t cookie = post(connection, data, size, writes);
        if (cookie <= 0)
            wrong("a post is %ld", (long)cookie);
        sleep_ms(1);
        EXPECT(adma_wait(cookie), size);
        EXPECT(adma_wait(cookie), -EINVAL);
    } else if (writes) {
        EXPECT(adma_write(connection, (void *)data, size), size);
    } else {
        EXPECT(adma_read(connection, (void *)data, size), size);
    }
}

/* Reads one message into the middle of a buffer and checks all of it. */
static void read_one(int connection, byte *room, size_t size, unsigned message, int order)
{
    byte *data = room + MARGIN;
    const char *what = orders[order];
    memset((void *)room, 0xee, size + 2 * MARGIN);
    transfer(connection, data, size, message, order, false);
    expect_content(data, size, message, what);
    expect_only(room, MARGIN, 0xee, what);
    expect_only(data + size, MARGIN, 0xee, what);
}

static void write_one(int connection, byte *room, size_t size, unsigned message, int order)
{
    fill(room, size, message);
    transfer(connection, room, size, message, order, true);
    expect_content(room, size, message, "source");
}

static void all(int connection, bool first)
{
    byte *room = message_memory(largest + 2 * MARGIN);
    unsigned message = 0;
    for (int order = 0; order < ORDERS; order++)
        for (int i = 0; i < SIZES && sizes[i] <= largest; i++)
            for (int way = 0; way < 2; way++, message++)
                if ((way == 0) == first)
                    write_one(connection, room, sizes[i], message, order);
                else
                    read_one(connection, room, sizes[i], message, order);
}

/* ---- lengths that differ -------------------------------------------------------------- */

static const struct { size_t sent, wanted; } lengths[] = {
    { 10, 4 }, { 4, 10 }, { MIB, 70000 }, { 70000, MIB }, { MIB, 0 }, { 0, MIB },
    { MIB, 1 }, { 100001, 100000 }, { 99999, 100000 }, { 3 * MIB + 5, 2 * MIB + 3 },
    { 40000, 33000 }, { 33000, 40000 }, { MIB, 20 * KIB },
};
enum { LENGTHS = COUNT(lengths) };

/* A message that is longer than its buffer is reported: if it was posted first it stays, if the
 * read was, its beginning is in the buffer, and its writer knows. */
static int unequal(void)
{
    byte *room = pages_between_guards(4 * MIB), *data = room + MARGIN;
    int turn[2]; /* a pipe: the writer may go on */
    make_pipe(turn);
    PEER(connection)
        for (unsigned i = 0; i < 2 * LENGTHS; i++) {
            size_t sent = lengths[i / 2].sent, wanted = lengths[i / 2].wanted;
            bool cut = i % 2 && sent > wanted;
            await_byte(turn[0]);
            fill(room, sent, i);
            adma_cookie_t cookie = adma_iwrite(connection, (void *)room, sent);
            EXPECT(adma_wait(cookie), cut ? wanted : sent);
        }
    for (unsigned i = 0; i < 2 * LENGTHS; i++) {
        size_t sent = lengths[i / 2].sent, wanted = lengths[i / 2].wanted;
        size_t count = sent < wanted ? sent : wanted;
        long result = sent > wanted ? -EMSGSIZE : (long)sent;
        memset((void *)room, 0xee, wanted + 2 * MARGIN);
        EXPECT(adma_next(connection), -EAGAIN);
        if (i % 2) {
            adma_cookie_t cookie = adma_iread(connection, (void *)data, wanted);
            send_byte(turn[1]);
            EXPECT(adma_wait(cookie), result);
        } else {
            send_byte(turn[1]);
            while (adma_next(connection) == -EAGAIN)
                sched_yield();
            EXPECT(adma_next(connection), sent);
            EXPECT(adma_read(connection, (void *)data, wanted), result);
            if (result < 0) {
                expect_only(room, wanted + 2 * MARGIN, 0xee, "untouched");
                EXPECT(adma_read(connection, (void *)data, sent), sent);
                expect_content(data, sent, i, "the message that stayed");
                continue;
            }
        }
        expect_content(data, count, i, "the shorter length");
        expect_only(room, MARGIN, 0xee, "before");
        expect_only(data + count, wanted - count + MARGIN, 0xee, "behind");
    }
    finish(connection, child);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "unequal"))
        return unequal();
    if (argc > 2)
        largest = strtoul(argv[2], NULL, 0);
    PEER(connection) {
        all(connection, false);
        EXPECT(adma_read(connection, &connection, 4), -EPIPE);
        EXPECT(adma_close(connection), 0);
    }
    if (argc > 1)
        expect_engine(connection, argv[1]);
    all(connection, true);
    errno = 12345;
    EXPECT(adma_close(connection), 0);
    EXPECT(errno, 12345);
    EXPECT(adma_write(connection, argv, 1), -EBADF);
    expect_good_end(child);
    return 0;
}
