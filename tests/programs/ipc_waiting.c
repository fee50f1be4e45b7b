/* Tests waiting: it takes no CPU time, and its limit holds for a caller that copies all the time,
 * and where pages of the peer do not come. Second words: quiet [beside].
 */
#include "ipc_echo.h"
#include "ipc_faults.h"

/* ---- waiting costs nothing ------------------------------------------------------------ */

/* Also sleeps beside another connection that has an unread message. */
static void quiet(void)
{
    struct rusage before, after;
    pid_t other = 0;
    if (variant) {
        int connection = fork_connected(&other);
        if (other == 0)
            pause();
        if (adma_iwrite(connection, (void *)room, 8 * MIB) <= 0)
            wrong("iwrite");
    }
    PEER(connection) {
        sleep_ms(400);
        EXPECT(adma_write(connection, (void *)room, MIB), MIB);
        EXPECT(adma_read(connection, (void *)room, MIB), MIB);
        sleep_ms(400);
        EXPECT(adma_write(connection, (void *)room, 1), 1);
    }
    fill(room, MIB, 1);
    getrusage(RUSAGE_SELF, &before);
    EXPECT(adma_read(connection, (void *)room, MIB), MIB);
    EXPECT(adma_write(connection, (void *)room, MIB), MIB);
    EXPECT(adma_read(connection, (void *)room, 1), 1);
    getrusage(RUSAGE_SELF, &after);
    long switches = after.ru_nvcsw - before.ru_nvcsw;
    double used = after.ru_utime.tv_sec - before.ru_utime.tv_sec +
                  (after.ru_utime.tv_usec - before.ru_utime.tv_usec) * 1e-6;
    /* Two waits of 400 ms: one short sleep and one long one each; and the copies' own, which
     * are at most one for each chunk of two MiB. */
    if (switches > 100 || used > 0.1 * slower())
        wrong("waiting took %ld switches and %.3f s", switches, used);
    expect_good_end(child);
    if (other)
        kill(other, SIGKILL);
}

/* ---- it has a limit --------------------------------------------------------------------- */

enum { LONG = 2 * 1024 };

/* Returns a large buffer in little memory: a few pages mapped repeatedly. */
static char *long_buffer(void)
{
    int memory = memfd_create("long", 0);
    char *at = mmap(NULL, LONG * MIB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                    -1, 0);
    if (ftruncate(memory, 16 * MIB))
        wrong("ftruncate");
    for (size_t from = 0; from < LONG * MIB; from += 16 * MIB)
        if (mmap(at + from, 16 * MIB, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory,
                 0) == MAP_FAILED)
            wrong("mmap");
    close(memory);
    return at;
}

/* A limit holds even for a caller that copies all the time, except for its current piece. */
static void limit(void)
{
    int waits = 0;
    PEER(connection) {
        EXPECT(adma_iread(connection, long_buffer(), LONG * MIB) > 0, 1);
        EXPECT(adma_write(connection, "posted", 6), 6);
        pause();
    }
    adma_cookie_t cookie = adma_iwrite(connection, long_buffer(), LONG * MIB);
    long got;
    EXPECT(adma_read(connection, (void *)room, 6), 6);
    while ((got = adma_wait_for(cookie, 2)) == -ETIMEDOUT)
        waits++;
    EXPECT(got, LONG * MIB);
    /* A piece is a 64th. */
    if (waits < 10)
        wrong("2 GiB were copied in %d waits of 2 ms", waits);
    kill_child(child);
    EXPECT(adma_close(connection), 0);
}

/* ---- pages that do not come ------------------------------------------------------------ */

static void pages(void)
{
    byte *data = pages_between_guards(MIB);
    int go_on[2], posted[2];
    expect_pages_can_be_withheld();
    make_pipe(go_on);
    make_pipe(posted);
    PEER(connection) { /* its buffer gets pages only when it is told so */
        int faults = withhold_pages(data, MIB);
        adma_cookie_t cookie = adma_iwrite(connection, (void *)data, MIB);
        send_byte(posted[1]);
        await_byte(go_on[0]);
        close(faults);
        EXPECT(adma_wait(cookie), MIB);
    }
    await_byte(posted[0]);
    adma_cookie_t cookie = adma_iread(connection, (void *)data, MIB);
    for (int i = 0; i < 3; i++) {
        double begun = seconds();
        EXPECT(adma_wait_for(cookie, 100), -ETIMEDOUT);
        expect_seconds(begun, 0, 20, "a tenth of a second");
        EXPECT(adma_check(cookie), -EINPROGRESS);
        expect_seconds(begun, 0, 30, "looking");
    }
    send_byte(go_on[1]);
    EXPECT(adma_wait_for(cookie, 20000), MIB);
    expect_only(data, MIB, 0, "what was never written");
    finish_after(connection, child);
}

enum { ROUNDS = 300 };

static void *write_in_steps(void *connection)
{
    for (int round = 0; round < ROUNDS; round++) {
        long result;
        do
            result = adma_write_within((long)connection, (void *)room, MIB, round % 2);
        while (result == -ETIMEDOUT);
        EXPECT(result, MIB);
    }
    return NULL;
}

/* A limit for the beginning of a message loses none, whenever it comes. */
static void within(void)
{
    int ends[2];
    connect_both(ends);
    EXPECT(adma_read_within(ends[0], (void *)room, 10, 20), -ETIMEDOUT);
    EXPECT(adma_write_within(ends[0], (void *)room, MIB, 20), -ETIMEDOUT);
    EXPECT(adma_next(ends[1]), -EAGAIN);
    pthread_t writer = start(write_in_steps, ends[0]);
    for (int round = 0; round < ROUNDS; round++) {
        long result;
        do
            result = adma_read_within(ends[1], (void *)(room + MIB), MIB, round % 3 == 0);
        while (result == -ETIMEDOUT);
        EXPECT(result, MIB);
    }
    pthread_join(writer, NULL);
}

PROGRAM(make_room(),
        { "within", within },
        { "quiet", quiet }, { "limit", limit }, { "pages", pages })
