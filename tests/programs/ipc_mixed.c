/* Stress test of one connection: in both processes threads write, read, and make and free blocks.
 * Buffers lie in blocks that come and go, or in ordinary memory. All bytes are checked, and those
 * beside them.
 *
 * usage: ipc_mixed seed
 */
#include "ipc.h"

enum { WRITERS = 2, READERS = 2, EACH = 150, TOTAL = WRITERS * EACH, KEPT = 4, BESIDE = 64 };
enum { MOST = 5 * 1024 * 1024 };

/* Beginning of a message; its bytes follow from it. */
struct head {
    uint32_t message, len;
};

static int connection;
static unsigned seed;
static atomic_int claimed, over;

/* ---- chance ----------------------------------------------------------------------------- */

static unsigned chance(uint64_t *state, unsigned below)
{
    return next_random(state) % below;
}

/* Returns a size of any kind: eager, one piece, several, and streaming stores. */
static size_t some_size(uint64_t *state)
{
    static const unsigned kinds[] = { 4096, 30000, 70000, 70000, 300000, 300000, MIB, MOST };
    return sizeof(struct head) + chance(state, kinds[chance(state, 8)] - sizeof(struct head));
}

/* ---- buffers ---------------------------------------------------------------------------- */

struct memory {
    byte *at;
    size_t size;
    bool is_block;
};

static void give_up(struct memory *memory)
{
    if (memory->is_block)
        EXPECT(adma_free((void *)memory->at), 0);
    else
        free((void *)memory->at);
}

static void renew(struct memory *memory, size_t least, uint64_t *state)
{
    give_up(memory);
    memory->size = least + 2 * BESIDE + chance(state, 20000);
    memory->is_block = chance(state, 4) > 0;
    memory->at = memory->is_block ? adma_alloc(memory->size) : malloc(memory->size);
    if (!memory->at)
        wrong("no memory");
}

/* Returns room for len bytes, with some beside it, in memory that is often reused. */
static byte *some_room(struct memory *kept, size_t len, uint64_t *state)
{
    struct memory *memory = &kept[chance(state, KEPT)];
    if (memory->size < len + 2 * BESIDE || chance(state, 4) == 0)
        renew(memory, len, state);
    return memory->at + BESIDE + chance(state, memory->size - len - 2 * BESIDE + 1);
}

static void give_all_up(struct memory *kept)
{
    for (int i = 0; i < KEPT; i++)
        give_up(&kept[i]);
}

/* ---- threads ---------------------------------------------------------------------------- */

static void *write_some(void *number)
{
    uint64_t state = seed * 100 + (long)number;
    struct memory kept[KEPT] = { 0 };
    for (unsigned i = 0; i < EACH; i++) {
        size_t len = some_size(&state);
        byte *data = some_room(kept, len, &state);
        struct head head = { chance(&state, 1u << 31), len };
        fill(data, len, head.message);
        memcpy((void *)data, &head, sizeof(head));
        ssize_t sent = chance(&state, 2)
            ? adma_write(connection, (void *)data, len)
            : adma_wait(adma_iwrite(connection, (void *)data, len));
        if (sent <= 0 || sent > (ssize_t)len)
            wrong("seed %u: a write of %zu bytes is %zd", seed, len, sent);
    }
    give_all_up(kept);
    return NULL;
}

static void expect_message(byte *data, size_t room, ssize_t got)
{
    struct head head;
    memcpy(&head, (void *)data, sizeof(head));
    size_t want = head.len < room ? head.len : room;
    if (got != (head.len <= room ? (ssize_t)want : -EMSGSIZE))
        wrong("seed %u: a read of %zu bytes is %zd, of a message of %u", seed, room, got, head.len);
    for (size_t at = sizeof(head); at < want; at++)
        if (data[at] != content(head.message, at))
            wrong("seed %u: byte %zu of %u is %#x, want %#x", seed, at, head.len, data[at],
                  content(head.message, at));
    expect_only(data - BESIDE, BESIDE, 0xee, "before");
    expect_only(data + want, room - want + BESIDE, 0xee, "behind");
}

/* Returns false for a message that was there first and is longer than the room: it stays. */
static bool read_one(struct memory *kept, uint64_t *state)
{
    /* Now and then too short. */
    size_t room = chance(state, 8) ? MOST : some_size(state);
    byte *data = some_room(kept, room, state);
    memset((void *)(data - BESIDE), 0xee, room + 2 * BESIDE);
    adma_cookie_t cookie;
    ssize_t got = chance(state, 2)
        ? adma_read(connection, (void *)data, room)
        : (cookie = adma_iread(connection, (void *)data, room)) < 0
        ? cookie : adma_wait(cookie);
    if (got == -EMSGSIZE && data[0] == 0xee && data[1] == 0xee && data[7] == 0xee) {
        expect_only(data - BESIDE, room + 2 * BESIDE, 0xee, "too short");
        return false;
    }
    expect_message(data, room, got);
    return true;
}

static void *read_some(void *number)
{
    uint64_t state = seed * 100 + (long)number + 50;
    struct memory kept[KEPT] = { 0 };
    while (atomic_fetch_add(&claimed, 1) < TOTAL)
        while (!read_one(kept, &state))
            ;
    give_all_up(kept);
    return NULL;
}

/* Descriptor numbers and addresses change hands all the time. */
static void *make_and_free(void *number)
{
    uint64_t state = seed * 100 + (long)number + 90;
    struct memory kept[KEPT] = { 0 };
    while (!atomic_load(&over)) {
        some_room(kept, some_size(&state) % 500000, &state);
        usleep(200);
    }
    give_all_up(kept);
    return NULL;
}

static int talk(int with)
{
    void *(*const work[])(void *) = { write_some, write_some, read_some, read_some };
    pthread_t threads[WRITERS + READERS], other;
    connection = with;
    other = start(make_and_free, 0);
    for (int i = 0; i < WRITERS + READERS; i++)
        threads[i] = start(work[i], i);
    join_all(threads, WRITERS + READERS);
    atomic_store(&over, 1);
    pthread_join(other, NULL);
    return 0;
}

static int talk_as_the_other(int with)
{
    seed += 1000000;
    return talk(with);
}

int main(int argc, char **argv)
{
    seed = argc > 1 ? atoi(argv[1]) : 1;
    alarm(200);
    connection = with_child(talk_as_the_other);
    talk(connection);
    finish_after(connection, child);
    return 0;
}
