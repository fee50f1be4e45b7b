/* Tests that a thread that waits on one connection serves all others, with patterns that would
 * deadlock otherwise. Run with ADMA_IPC_ENGINE=shm, where a message needs both sides. Second words:
 * ring [write_first], neighbours [write].
 */
#include "ipc_faults.h"
#include "ipc_filter.h"

enum { PROCESSES = 4, ROUNDS = 5 };

static const size_t sizes[] = { 10, 5000, 3 * MIB + 5, 10 * MIB };

/* ---- a ring of processes ------------------------------------------------------------- */

/* Each process writes to the next one and reads from the one before. */
static void turn(int before, int after, int number, bool write_first)
{
    byte *mine = pages_between_guards(10 * MIB), *theirs = pages_between_guards(10 * MIB);
    int neighbour = (number + PROCESSES - 1) % PROCESSES;
    for (int round = 0; round < ROUNDS; round++)
        for (unsigned i = 0; i < COUNT(sizes); i++) {
            size_t size = sizes[i];
            fill(mine, size, number + round);
            adma_cookie_t written = adma_iwrite(after, (void *)mine, size);
            if (write_first) {
                adma_cookie_t read = adma_iread(before, (void *)theirs, size);
                EXPECT(adma_wait(written), size);
                EXPECT(adma_wait(read), size);
            } else {
                EXPECT(adma_read(before, (void *)theirs, size), size);
                EXPECT(adma_wait(written), size);
            }
            expect_content(theirs, size, neighbour + round, "ring");
        }
}

static void one_of_ring(int pairs[PROCESSES][2], int number, bool write_first)
{
    /* pairs[i] leads from i to the next one; greetings need both sides at the same time. */
    int *from = pairs[(number + PROCESSES - 1) % PROCESSES], *to = pairs[number];
    int before, after;
    if (number % 2) {
        before = attach_and_close(from[1]);
        after = attach_and_close(to[0]);
    } else {
        after = attach_and_close(to[0]);
        before = attach_and_close(from[1]);
    }
    turn(before, after, number, write_first);
    /* Closes only when the others have read everything. */
    EXPECT(adma_write(after, "end", 3), 3);
    EXPECT(adma_read(before, &(char[4]){ 0 }, 4), 3);
    EXPECT(adma_close(after), 0);
    EXPECT(adma_close(before), 0);
}

static void ring(void)
{
    int pairs[PROCESSES][2];
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++)
        make_pair(SOCK_STREAM, pairs[i]);
    for (int i = 0; i < PROCESSES; i++) {
        CHILD(one)
            one_of_ring(pairs, i, variant);
        children[i] = one;
    }
    for (int i = 0; i < PROCESSES; i++)
        expect_good_end(children[i]);
}

/* ---- threads ------------------------------------------------------------------------- */

static int told[2]; /* a pipe from the reader to the process that answers */

static int read_and_tell(int connection)
{
    byte *room = pages_between_guards(8 * MIB);
    EXPECT(adma_read(connection, (void *)room, 8 * MIB), 8 * MIB);
    expect_content(room, 8 * MIB, 3, "read while its writer's process waits elsewhere");
    send_byte(told[1]);
    return 0;
}

static void *wait_for_answer(void *connection)
{
    EXPECT(adma_read((int)(long)connection, &(char[4]){ 0 }, 4), 3);
    return NULL;
}

/* The thread that sleeps has not seen the message that needs it: it was posted later, on
 * another connection, by a thread that does not wait. */
static void asleep_for(long pause_ms)
{
    byte *room = pages_between_guards(8 * MIB);
    pid_t reader;
    make_pipe(told);
    int large = with_process(read_and_tell, &reader);
    PEER(small) {
        await_byte(told[0]);
        EXPECT(adma_write(small, "now", 3), 3);
    }
    fill(room, 8 * MIB, 3);
    pthread_t thread = start(wait_for_answer, small);
    sleep_ms(pause_ms);
    adma_cookie_t written = adma_iwrite(large, (void *)room, 8 * MIB);
    pthread_join(thread, NULL);
    EXPECT(adma_wait(written), 8 * MIB);
    finish_after(large, reader);
    finish_after(small, child);
}

static void asleep(void)
{
    for (long pause = 0; pause <= 20; pause += 5)
        asleep_for(pause);
}

static void *wait_long(void *connection)
{
    /* Ends with the process. */
    adma_read((int)(long)connection, &(char[4]){ 0 }, 4);
    return NULL;
}

/* Two threads sleep; the one that serves all connections stops waiting, and the other one has to
 * take over. */
static void handed_on(void)
{
    byte *room = pages_between_guards(8 * MIB);
    pid_t reader, first;
    make_pipe(told);
    int large = with_process(read_and_tell, &reader);
    int ends = fork_connected(&first);
    if (first == 0) {
        sleep_ms(100);
        EXPECT(adma_write(ends, "end", 3), 3);
        pause();
    }
    PEER(stays)
        pause();
    fill(room, 8 * MIB, 3);
    /* Both are asleep when it is posted, so either may have taken it. */
    pthread_t thread = start(wait_for_answer, ends);
    start(wait_long, stays);
    sleep_ms(20);
    kill(reader, SIGSTOP);
    adma_cookie_t written = adma_iwrite(large, (void *)room, 8 * MIB);
    pthread_join(thread, NULL);
    kill(reader, SIGCONT);
    /* Only the thread that still sleeps is left to help the reader. */
    expect_good_end(reader);
    EXPECT(adma_wait(written), 8 * MIB);
    kill(first, SIGKILL);
    kill(child, SIGKILL);
    _exit(0);
}

/* ---- neighbours ----------------------------------------------------------------------- */

/* A thread that waits on one connection copies what another thread waits for, which has to be
 * woken. A message has two pieces, and a page of the one that is claimed first comes later than a
 * short sleep ends. No sleep may last until a limit that hides it. The waiting thread begins when
 * the other one is at that page, so the other one ends every message. */
enum { MESSAGES = 3, LATE_MS = 30 };
#define LARGE (MIB / 2)

static int late_pages;
static volatile int by_other_thread;

static void *make_late_pages(void *nothing)
{
    struct uffd_msg message;
    while (read(late_pages, &message, sizeof(message)) == sizeof(message)) {
        struct uffdio_zeropage page = {
            .range = { message.arg.pagefault.address & -4096UL, 4096 }
        };
        if ((pid_t)message.arg.pagefault.feat.ptid == getpid())
            wrong("the thread that waits has copied it itself");
        by_other_thread++;
        sleep_ms(LATE_MS);
        MUST(!ioctl(late_pages, UFFDIO_ZEROPAGE, &page));
    }
    return nothing;
}

/* Polls all the time, and so is the first to see that there is something to do. */
static void *look_after_everything(void *connection)
{
    char bytes[4];
    adma_cookie_t cookie = adma_iread((int)(long)connection, bytes, 4);
    long got;
    while ((got = adma_check(cookie)) == -EINPROGRESS)
        ;
    EXPECT(got, 3);
    return NULL;
}

/* Posts, and stays outside the library while the other side does everything. */
static void post_large(int connection, byte *room, bool writes)
{
    char more = 1;
    while (more) {
        sleep_ms(5);
        adma_cookie_t cookie = post(connection, room, LARGE, writes);
        EXPECT(read(told[0], &more, 1), 1);
        EXPECT(adma_wait(cookie), LARGE);
    }
}

static void transfer_large(int connection, byte *room, bool writes)
{
    /* Readers begin at the front, and writers at the back. */
    byte *late = writes ? room + LARGE - 8 * 4096 : room + 8 * 4096;
    late_pages = withhold_pages(late, PAGE);
    start(make_late_pages, 0);
    for (int i = 1; i <= MESSAGES; i++) {
        char more = i < MESSAGES;
        madvise((void *)late, 4096, MADV_DONTNEED);
        adma_cookie_t cookie = post(connection, room, LARGE, writes);
        while (by_other_thread < i)
            sleep_ms(1);
        double begun = seconds();
        EXPECT(adma_wait(cookie), LARGE);
        expect_seconds(begun, 0, 3.8, "a message"); /* the longest sleep is four seconds */
        EXPECT(write(told[1], &more, 1), 1);
    }
}

/* From now on only the child copies, so messages need it. The child writes this one without a pause:
 * its chunks all have room. */
#define SHORT (LARGE / 4)

static int tried[2]; /* a pipe from the parent, which reads the other one later */

static void lose_rights(int connection, byte *room, bool loses)
{
    adma_cookie_t cookie;
    if (!loses) {
        cookie = adma_iwrite(connection, (void *)room, SHORT);
        EXPECT(cookie > 0, 1);
        await_byte(tried[0]);
        EXPECT(adma_wait(cookie), SHORT);
        return;
    }
    filter_reach(SECCOMP_RET_ERRNO | EPERM);
    cookie = adma_iread(connection, (void *)room, SHORT);
    EXPECT(adma_wait(cookie), SHORT); /* by a writer that does not call */
    send_byte(tried[1]);
}

static void neighbours(void)
{
    bool child_writes = variant;
    int pairs[2][2];
    byte *room = pages_between_guards(LARGE);
    expect_pages_can_be_withheld();
    make_pipe(told);
    make_pipe(tried);
    for (int i = 0; i < 2; i++)
        make_pair(SOCK_STREAM, pairs[i]);
    pid_t child = fork_child();
    int small = attach_and_close(pairs[0][child == 0]);
    int large = attach_and_close(pairs[1][child == 0]);
    lose_rights(large, room, child != 0);
    if (child == 0) {
        pthread_t thread = start(look_after_everything, small);
        transfer_large(large, room, child_writes);
        pthread_join(thread, NULL);
        exit(0);
    }
    post_large(large, room, !child_writes);
    EXPECT(adma_write(small, "end", 3), 3);
    expect_good_end(child);
}

/* ---- event loops ----------------------------------------------------------------------- */

/* adma_arm returns 1 for an end that only adma_check brings about, as often as it is called. */
static void cancelled(void)
{
    byte *data = pages_between_guards(MIB), *room = pages_between_guards(MIB);
    int ends[2];
    connect_both(ends);
    for (int by_reader = 0; by_reader < 2; by_reader++) {
        adma_cookie_t cookies[2];
        ssize_t end;
        /* The service thread may have moved all of the message before. */
        for (int late = 0;; late++) {
            cookies[0] = adma_iwrite(ends[0], (void *)data, MIB);
            cookies[1] = adma_iread(ends[1], (void *)room, MIB);
            end = adma_cancel(cookies[by_reader]);
            if (end != MIB || late == 100)
                break;
            EXPECT(adma_wait(cookies[1 - by_reader]), MIB);
        }
        EXPECT(end, -ECANCELED);
        for (int turn = 0; turn < 3; turn++)
            EXPECT(adma_arm(ends[1 - by_reader]), 1);
        EXPECT(adma_check(cookies[1 - by_reader]), -ECANCELED);
        EXPECT(adma_arm(ends[1 - by_reader]), 0);
    }
}

PROGRAM((void)0,
        { "ring", ring }, { "asleep", asleep }, { "handed_on", handed_on },
        { "neighbours", neighbours }, { "cancelled", cancelled })
