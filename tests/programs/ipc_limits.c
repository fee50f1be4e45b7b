/* Tests limits: full tables of messages and connections, no room for eager messages, no
 * descriptors, no pages behind a buffer, no heap. The scene missing_shared wants
 * ADMA_IPC_ENGINE=shm.
 */
#include "ipc_echo.h"

/* ---- places ---------------------------------------------------------------------------------- */

static void full(void)
{
    int connection = with_child(echo);
    static adma_cookie_t cookies[256];
    int good = 0;
    /* More reads than fit: the table is full, and nothing crashes. */
    for (int i = 0; i < 1000000; i++) {
        adma_cookie_t cookie = adma_iread(connection, (void *)room, 10);
        if (cookie > 0 && good < 256)
            cookies[good++] = cookie;
        else if (cookie != -EAGAIN)
            wrong("iread %d is %ld", i, (long)cookie);
    }
    EXPECT(good, 256);
    EXPECT(adma_read(connection, (void *)room, 10), -EAGAIN);
    for (int i = 0; i < 256; i++)
        EXPECT(adma_write(connection, (void *)(room + MIB), 10), 10);
    for (int i = 255; i >= 0; i--)
        EXPECT(adma_wait(cookies[i]), 10);
    ask_echo(connection, MIB);
    finish(connection, child);
}

/* A cookie that is not waited for blocks the 256th message after it. */
static void late_cookie(void)
{
    int connection = with_child(echo);
    adma_cookie_t late = adma_iread(connection, (void *)room, 10);
    EXPECT(adma_write(connection, (void *)room, 10), 10);
    for (int i = 0; i < 255; i++) {
        EXPECT(adma_write(connection, (void *)room, 10), 10);
        EXPECT(adma_read(connection, (void *)room, 10), 10);
    }
    EXPECT(adma_read(connection, (void *)room, 10), -EAGAIN);
    EXPECT(adma_iread(connection, (void *)room, 10), -EAGAIN);
    EXPECT(adma_wait(late), 10);
    ask_echo(connection, 10);
    finish(connection, child);
}

static void table(void)
{
    enum { PAIRS = 2048 };
    static int ends[PAIRS][2], refused[2];
    limit_to(RLIMIT_NOFILE, 8 * PAIRS);
    for (int i = 0; i < PAIRS; i++) {
        connect_both(ends[i]); /* two places of the table */
        if (ends[i][0] < 0 || ends[i][1] < 0)
            wrong("pair %d: %d, %d", i, ends[i][0], ends[i][1]);
    }
    long files_open = entries_of("/proc/self/fd");
    for (int i = 0; i < 3; i++) {
        connect_both(refused);
        EXPECT(refused[0], -EMFILE);
        EXPECT(refused[1], -EMFILE);
    }
    expect_descriptors(files_open);
    /* The others work, the last ones and those that reuse places. */
    for (int i = 0; i < PAIRS; i += 500) {
        EXPECT(adma_close(ends[i][0]), 0);
        EXPECT(adma_close(ends[i][1]), 0);
        EXPECT(adma_write(ends[i][0], (void *)room, 10), -EBADF);
        connect_both(ends[i]);
    }
    for (int i = 0; i < PAIRS; i += 100) {
        EXPECT(adma_write(ends[i][0], (void *)room, 10), 10);
        EXPECT(adma_read(ends[i][1], (void *)room, 10), 10);
    }
}

/* ---- what a connection costs ------------------------------------------------------------------ */

/* Returns the KiB of this process's own and shared memory that were touched, without files. */
static long touched_kib(void)
{
    char line[100];
    long sum = 0;
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof(line), status))
        if (!strncmp(line, "RssAnon:", 8) || !strncmp(line, "RssShmem:", 9))
            sum += atol(strchr(line, ':') + 1);
    fclose(status);
    return sum;
}

/* A thousand clients keep to two descriptors and 32 KiB each while they are idle, and work then. */
static void cost(void)
{
    enum { CLIENTS = 1000 };
    static int here[CLIENTS];
    char text[2000] = "", *name = own_name();
    int listener = made(adma_listen(name)), go[2];
    limit_to(RLIMIT_NOFILE, 4096);
    make_pipe(go);
    CHILD(client) {
        for (int i = 0; i < CLIENTS; i++)
            here[i] = made(adma_connect_for(name, 60000));
        await_byte(go[0]);
        for (int i = 0; i < CLIENTS; i++)
            EXPECT(adma_write(here[i], text, sizeof(text)), sizeof(text));
        for (int i = 0; i < CLIENTS; i++)
            EXPECT(adma_read(here[i], text, sizeof(text)), sizeof(text));
    }
    here[0] = made(adma_accept_for(listener, 60000));
    expect_engine(here[0], "process_vm");
    long files = entries_of("/proc/self/fd"), kib = touched_kib();
    for (int i = 1; i < CLIENTS; i++)
        here[i] = made(adma_accept_for(listener, 60000));
    files = entries_of("/proc/self/fd") - files;
    kib = touched_kib() - kib;
    if (files > 2 * CLIENTS || kib > 32 * CLIENTS)
        wrong("%d idle connections take %ld descriptors and %ld KiB", CLIENTS, files, kib);
    printf("%d idle connections: %ld descriptors, %ld KiB\n", CLIENTS - 1, files, kib);
    send_byte(go[1]);
    for (int i = 0; i < CLIENTS; i++)
        EXPECT(adma_read(here[i], text, sizeof(text)), sizeof(text));
    for (int i = 0; i < CLIENTS; i++)
        EXPECT(adma_write(here[i], text, sizeof(text)), sizeof(text));
    expect_good_end(client);
    if (touched_kib() > 64 * 1024)
        wrong("%d connections take %ld KiB", CLIENTS, touched_kib());
    printf("after 2 messages of each: %ld KiB in all\n", touched_kib());
}

/* ---- unread eager messages ------------------------------------------------------------------ */

static int write_first(int connection)
{
    /* As many as the header says, first by bytes and then by number; at odd places. */
    for (int round = 0; round < 100; round++) {
        for (int i = 0; i < 16; i++)
            EXPECT(adma_write(connection, (void *)room, 4096), 4096);
        for (int i = 0; i < 16; i++)
            EXPECT(adma_read(connection, (void *)room, 4096), 4096);
        for (int i = 0; i < 256; i++)
            EXPECT(adma_write(connection, (void *)room, 150 + round), 150 + round);
        for (int i = 0; i < 256; i++)
            EXPECT(adma_read(connection, (void *)room, 4096), 150 + round);
    }
    return 0;
}

static void unread(void)
{
    int connection = with_child(write_first);
    write_first(connection);
    finish_after(connection, child);
    /* Beyond that the writer waits, and nothing is lost. */
    PEER(late) {
        usleep(200000);
        for (int i = 0; i < 1000; i++)
            EXPECT(adma_read(late, (void *)room, 4096), 4096);
    }
    for (int i = 0; i < 1000; i++)
        EXPECT(adma_write(late, (void *)room, 4096), 4096);
    finish_after(late, child);
}

/* ---- descriptors ---------------------------------------------------------------------------- */

static int attach_only(int socket_fd)
{
    int connection = adma_attach(socket_fd);
    return connection < 0 ? connection : adma_close(connection);
}

/* With few descriptors left it works, or reports that they are too few. */
static void descriptors(void)
{
    int worked = 0;
    for (unsigned limit = 3; limit < 20; limit++) {
        int pair[2], result, status;
        make_pair(SOCK_STREAM, pair);
        CHILD(other) { /* is not told that the limited one has died */
            close(pair[0]);
            result = attach_only(pair[1]);
            if (result && result != -ENOBUFS && result != -EPIPE)
                wrong("the other end of one with %u descriptors: %s", limit, strerror(-result));
        }
        CHILD(limited) {
            close(pair[1]);
            limit_to(RLIMIT_NOFILE, limit);
            result = attach_only(pair[0]);
            if (result && result != -EMFILE)
                wrong("with %u descriptors: %s", limit, strerror(-result));
            _exit(result ? 2 : 3);
        }
        close(pair[0]);
        close(pair[1]);
        if (waitpid(limited, &status, 0) != limited || !WIFEXITED(status) ||
            WEXITSTATUS(status) < 2)
            wrong("with %u descriptors: status %#x", limit, status);
        worked += WEXITSTATUS(status) == 3;
        expect_good_end(other);
    }
    if (worked == 0 || worked == 17)
        wrong("%d of 17 limits are enough", worked);
}

/* ---- memory that is not there -------------------------------------------------------------- */

/* One page is missing in the middle of this side's buffers. */
static void missing(void)
{
    PEER(connection) {
        need_engine(connection, "process_vm");
        EXPECT(adma_write(connection, (void *)room, 4 * MIB), -EFAULT);
        EXPECT(adma_read(connection, (void *)room, 4 * MIB), -EFAULT);
        EXPECT(adma_read(connection, (void *)room, 4 * MIB), 4 * MIB);
    }
    need_engine(connection, "process_vm");
    mprotect((void *)(room + 2 * MIB), PAGE, PROT_NONE);
    EXPECT(adma_read(connection, (void *)room, 4 * MIB), -EFAULT);
    EXPECT(adma_write(connection, (void *)room, 4 * MIB), -EFAULT);
    mprotect((void *)(room + 2 * MIB), PAGE, PROT_READ | PROT_WRITE);
    /* The connection goes on. */
    EXPECT(adma_write(connection, (void *)room, 4 * MIB), 4 * MIB);
    finish_after(connection, child);
}

/* With ADMA_IPC_ENGINE=shm such a process dies as in memcpy, and the other notices. */
static void missing_shared(void)
{
    int status;
    PEER(connection) {
        mprotect((void *)(room + 2 * MIB), PAGE, PROT_NONE);
        adma_write(connection, (void *)room, 4 * MIB);
    }
    EXPECT(adma_read(connection, (void *)room, 4 * MIB), -ECONNRESET);
    if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV)
        wrong("the other process ended with status %#x", status);
    EXPECT(adma_close(connection), 0);
}

/* ---- no memory left for the library --------------------------------------------------------- */

static int write_later(int connection)
{
    sleep_ms(200);
    EXPECT(adma_write(connection, (void *)room, 100), 100);
    EXPECT(adma_read(connection, (void *)room, 4 * MIB), 4 * MIB);
    EXPECT(adma_write(connection, (void *)room, 4 * MIB), 4 * MIB);
    EXPECT(adma_read(connection, (void *)room, 1), 1);
    return 0;
}

static void *wait_too(void *connection)
{
    EXPECT(adma_read((int)(long)connection, (void *)(room + 8 * MIB), 100), 100);
    return NULL;
}

/* Waiting works: long sleeps, with threads and with other connections. */
static void no_heap(void)
{
    pid_t children[3];
    int connections[3];
    for (int i = 0; i < 3; i++)
        connections[i] = with_process(write_later, &children[i]);
    /* A message of another thread, and a connection that no thread waits on. */
    pthread_t thread = start(wait_too, connections[1]);
    adma_cookie_t later = adma_iread(connections[2], (void *)(room + 9 * MIB), 100);
    int pair[2], listener = adma_listen(own_name());
    make_pair(SOCK_STREAM, pair);
    plain_client(own_name());
    sleep_ms(50);
    limit_to(RLIMIT_DATA, 0);
    limit_to(RLIMIT_AS, 0);
    for (size_t size = MIB; size >= 8; size /= 2)
        while (malloc(size))
            ;
    /* Nothing new can be started. */
    EXPECT(adma_attach(pair[0]), -ENOMEM);
    EXPECT(adma_connect(own_name()), -ENOMEM);
    EXPECT(adma_accept(listener), -ENOMEM);
    if (adma_alloc(100))
        wrong("there is memory");
    EXPECT(adma_read(connections[0], (void *)room, 100), 100);
    EXPECT(adma_wait_for(later, 20000), 100);
    pthread_join(thread, NULL);
    for (int i = 0; i < 3; i++) {
        adma_cookie_t cookie = adma_iwrite(connections[i], (void *)room, 4 * MIB);
        EXPECT(adma_wait_for(cookie, 20000), 4 * MIB);
        cookie = adma_iread(connections[i], (void *)room, 4 * MIB);
        while (adma_check(cookie) == -EINPROGRESS)
            ;
        EXPECT(adma_write(connections[i], (void *)room, 1), 1);
    }
    for (int i = 0; i < 3; i++) {
        expect_good_end(children[i]);
        EXPECT(adma_close(connections[i]), 0);
    }
}

/* ADMA_IPC_EAGER=128: so much is taken before it is read, and a byte more is not. */
static void raised(void)
{
    int ends[2];
    connect_both(ends);
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 2; i++)
            EXPECT(adma_write_for(ends[i], (void *)room, 128 * KIB, 60000), 128 * KIB);
        EXPECT(adma_write_for(ends[0], (void *)room, 128 * KIB + 1, 20), -ETIMEDOUT);
        for (int i = 0; i < 2; i++)
            EXPECT(adma_read(ends[i], (void *)room, 128 * KIB), 128 * KIB);
        /* The next ones lie elsewhere in the room. */
        EXPECT(adma_write(ends[0], (void *)room, 50 * KIB), 50 * KIB);
        EXPECT(adma_read(ends[1], (void *)room, 50 * KIB), 50 * KIB);
    }
}

PROGRAM(make_room(),
        { "late_cookie", late_cookie }, { "full", full }, { "table", table }, { "cost", cost },
        { "unread", unread }, { "raised", raised }, { "descriptors", descriptors }, { "missing", missing },
        { "missing_shared", missing_shared }, { "no_heap", no_heap })
