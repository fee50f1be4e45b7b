/* Tests clients that say nothing, have pages that do not come or are many, and listeners that do
 * not accept: other clients are served, limits hold, and no descriptor is left. Second words:
 * stuck_page [proven]. ADMA_IPC_TIMEOUT is 12 for stalled, 1 for queue and socket, 2 for crowd,
 * closed and limit.
 */
#include "ipc_faults.h"
#include "ipc_inside.h"

/* Makes a nonblocking listener, as for a server that polls. */
static int nonblocking_listener(void)
{
    int listener = adma_listen(own_name());
    if (listener < 0 || fcntl(listener, F_SETFL, O_NONBLOCK))
        wrong("no listener: %d", listener);
    return listener;
}

/* Tries again if it was too slow for its place in a crowd, as on a busy machine. */
static void honest_client(void)
{
    int connection = -ECONNRESET;
    for (int tries = 0; tries < 20 && (connection == -ECONNRESET || connection == -ETIMEDOUT); tries++)
        connection = adma_connect(own_name());
    EXPECT(adma_write(made(connection), "good", 4), 4);
    EXPECT(adma_close(connection), 0);
}

/* Accepts until an honest client has come, with no slow call; returns the last error before. */
static int expect_honest(int listener, double longest, const char *meanwhile)
{
    char got[10];
    int error = 0, connection;
    double begun = seconds();
    CHILD(client)
        honest_client();
    for (;; sched_yield()) {
        double before = seconds();
        connection = adma_accept(listener);
        expect_seconds(before, 0, longest, meanwhile);
        expect_seconds(begun, 0, 60, meanwhile);
        if (connection >= 0)
            break;
        error = connection;
    }
    EXPECT(adma_read(connection, got, 10), 4);
    EXPECT(adma_close(connection), 0);
    expect_good_end(client);
    return error;
}

/* ---- clients ----------------------------------------------------------------------------- */

/* Connects as often as it can, again and again. */
static void come_again(void)
{
    enum { MANY = 300 };
    struct pollfd all[MANY];
    for (int i = 0; i < MANY; i++)
        all[i].fd = -1;
    for (;;) {
        for (int i = 0; i < MANY; i++) {
            all[i].events = 0;
            if (all[i].fd < 0)
                all[i].fd = try_client(own_name(), SOCK_NONBLOCK);
        }
        poll(all, MANY, 1);
        for (int i = 0; i < MANY; i++)
            if (all[i].fd >= 0 && all[i].revents & (POLLHUP | POLLERR)) {
                close(all[i].fd);
                all[i].fd = -1;
            }
    }
}

static void crowd(void)
{
    int listener = adma_listen(own_name());
    limit_to(RLIMIT_NOFILE, 4096);
    CHILD(many)
        come_again();
    sleep_ms(500);
    for (int i = 0; i < 3; i++)
        expect_honest(listener, 40, "a crowd is there");
    kill_child(many);
}

static void closed_listeners(void)
{
    int first = adma_listen(own_name());
    EXPECT(adma_accept_for(first, 0), -ETIMEDOUT); /* makes what stays */
    EXPECT(adma_close(first), 0);
    long before = entries_of("/proc/self/fd");
    for (int round = 0; round < 4; round++) {
        int listener = adma_listen(own_name());
        for (int i = 0; i < 10; i++)
            EXPECT(write(plain_client(own_name()), "adma-ipc", 8), 8);
        expect_honest(listener, 40, "silence");
        close(listener);
        for (int fd = 3; fd < 200; fd++) { /* the clients' ends */
            struct sockaddr_un address;
            socklen_t len = sizeof(address);
            if (getpeername(fd, (void *)&address, &len) == 0 && len > 10)
                close(fd);
        }
        strcat(own_name(), "x"); /* its name may not be free yet */
    }
    sleep_ms(2100); /* more than ADMA_IPC_TIMEOUT */
    int listener = adma_listen(own_name());
    expect_honest(listener, 40, "others are closed");
    EXPECT(adma_close(listener), 0);
    expect_descriptors(before);
}

/* A client that says nothing, or not enough, does not keep others from being accepted. */
static void stalled(void)
{
    double begun = seconds();
    int listener = adma_listen(own_name()), silent[3];
    for (int i = 0; i < 3; i++) {
        silent[i] = plain_client(own_name());
        EXPECT(write(plain_client(own_name()), "adma-ipc", 8), 8);
    }
    for (int i = 0; i < 2; i++)
        EXPECT(expect_honest(listener, 40, "others are silent"), 0);
    expect_seconds(begun, 0, 10, "accepting");
    /* Clients that do not greet are dropped, and never reported. */
    EXPECT(adma_accept_for(listener, 13000), -ETIMEDOUT);
    for (int i = 0; i < 3; i++) {
        char hello[200];
        while (recv(silent[i], hello, sizeof(hello), 0) > 0)
            ;
        close(silent[i]);
    }
    EXPECT(adma_close(listener), 0);
}

/* A nonblocking server has clients that say nothing, or not enough. */
static void polled(void)
{
    int listener = nonblocking_listener();
    for (int i = 0; i < 20; i++)
        EXPECT(write(plain_client(own_name()), "adma-ipc", i % 9), i % 9);
    expect_honest(listener, 5, "others are silent"); /* their limit is 10 s */
    EXPECT(adma_accept(listener), -EAGAIN);
}

/* Greets by hand up to its page, which never comes, and sends this secret. */
static int greet_with_page(byte *page)
{
    int client = plain_client(own_name());
    struct greeting theirs, mine;
    EXPECT(setsockopt(client, SOL_SOCKET, SO_PASSCRED, (int[]){ 1 }, sizeof(int)), 0);
    EXPECT(recv(client, &theirs, sizeof(theirs), MSG_WAITALL), sizeof(theirs));
    mine = theirs;
    mine.nonce ^= 1;
    mine.side = GUEST;
    EXPECT(send(client, &mine, sizeof(mine), 0), sizeof(mine));
    EXPECT(recv(client, &theirs, sizeof(theirs), MSG_WAITALL), sizeof(theirs));
    mine.step = PAGE_AT;
    mine.page = (uintptr_t)page;
    EXPECT(send(client, &mine, sizeof(mine), 0), sizeof(mine));
    mine.step = PROOF;
    if (variant) { /* the right secret: it may read the server */
        uint64_t words[6];
        struct iovec here = { words, sizeof(words) };
        struct iovec there = { (void *)theirs.page, sizeof(words) };
        struct ucred server;
        socklen_t len = sizeof(server);
        EXPECT(getsockopt(client, SOL_SOCKET, SO_PEERCRED, &server, &len), 0);
        EXPECT(process_vm_readv(server.pid, &here, 1, &there, 1, 0), sizeof(words));
        memcpy(mine.secret, words + 4, sizeof(mine.secret));
    }
    EXPECT(send(client, &mine, sizeof(mine), 0), sizeof(mine));
    return client;
}

/* Memory that blocks its reader: no memory of an unproven client is read, and proven ones block all
 * helper threads but no other client. */
static void stuck_page(void)
{
    int listener, tell[2];
    long threads = entries_of("/proc/self/task");
    if (variant && is_kept_out())
        cannot("no client is proven here");
    expect_pages_can_be_withheld();
    make_pipe(tell);
    listener = nonblocking_listener();
    CHILD(stuck) {
        byte *page = mmap((void *)0x200000000000, PAGE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (page == MAP_FAILED)
            cannot("no such address");
        withhold_pages(page, PAGE);
        for (int i = 0; i < (variant ? 20 : 3); i++)
            greet_with_page(page);
        send_byte(tell[1]);
        pause();
    }
    struct pollfd told = { .fd = tell[0], .events = POLLIN };
    while (poll(&told, 1, 1) == 0)
        EXPECT(adma_accept(listener), -EAGAIN);
    for (int i = 0; i < 50; i++, sleep_ms(1))
        EXPECT(adma_accept(listener), -EAGAIN);
    if (!variant) /* the one that serves connections */
        EXPECT(entries_of("/proc/self/task"), threads + 1);
    expect_honest(listener, 5, "a page does not come");
    kill_child(stuck);
}

/* A server that polls its listener and has no descriptor left does not spin. */
static void emfile(void)
{
    int listener = nonblocking_listener(), calls = 0;
    EXPECT(adma_accept(listener), -EAGAIN);
    plain_client(own_name());
    limit_to(RLIMIT_NOFILE, entries_of("/proc/self/fd")); /* all are in use, nearly */
    while (dup(0) >= 0)
        ;
    for (double begun = seconds(); seconds() - begun < 0.5; calls++)
        EXPECT(adma_accept(listener), -EMFILE);
    if (calls > 60)
        wrong("%d calls in half a second", calls);
}

/* Checking one cookie takes no longer with many idle streamed connections. */
static void idle(void)
{
    enum { MANY = 1000, LOOKS = 1000 };
    double best = 1;
    char byte;
    limit_to(RLIMIT_NOFILE, 10 * MANY);
    int listener = adma_listen(own_name()), last = 0;
    CHILD(idler) {
        for (int i = 0; i < MANY; i++)
            connect_patiently(own_name());
        pause();
    }
    for (int i = 0; i < MANY; i++)
        last = made(adma_accept(listener));
    adma_cookie_t cookie = adma_iread(last, &byte, 1);
    for (int round = 0; round < 50; round++) {
        double begun = seconds();
        for (int i = 0; i < LOOKS; i++)
            EXPECT(adma_check(cookie), -EINPROGRESS);
        double each = (seconds() - begun) / LOOKS;
        best = each < best ? each : best;
    }
    printf("adma_check with %d idle connections: %.2f us\n", MANY, best * 1e6);
    if (best > 2e-6)
        wrong("a look takes %.2f us", best * 1e6);
    kill_child(idler);
}

/* ---- listeners ---------------------------------------------------------------------------- */

static void *accept_late(void *listener)
{
    sleep_ms(1800);
    for (int i = 0; i < 2; i++)
        accept((int)(long)listener, NULL, NULL);
    return NULL;
}

/* The listener accepts late, and does not greet. */
static void limit(void)
{
    int listener = short_listener(own_name());
    plain_client(own_name());
    start(accept_late, listener);
    double begun = seconds();
    EXPECT(adma_connect(own_name()), -ETIMEDOUT);
    /* A limit of its own for each part would end after 3.8 s at the earliest. */
    expect_seconds(begun, 1.9, 3.7, "a limit of two seconds");
}

/* The client is not accepted at all. */
static void queue(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    int listener = adma_listen(make_path()), left = 1000;
    strcpy(address.sun_path, own_path);
    while (left && connect(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0), (void *)&address,
                           sizeof(address)) == 0)
        left--;
    if (left == 0)
        cannot("the queue of a listener has no end");
    double begun = seconds();
    EXPECT(adma_connect(own_path), -ETIMEDOUT);
    expect_seconds(begun, 0, 9, "connecting");
    /* Its file is not taken for a stale one. */
    EXPECT(adma_listen(own_path), -EADDRINUSE);
    EXPECT(adma_close(listener), 0);
    remove_path();
}

/* ---- the other end -------------------------------------------------------------------------- */

static void silent_socket(void)
{
    double begun = seconds();
    int pair[2];
    make_pair(SOCK_STREAM, pair);
    EXPECT(adma_attach(pair[0]), -ETIMEDOUT);
    expect_seconds(begun, 0.9, 9, "a limit of a second");
}

PROGRAM(own_name(),
        { "crowd", crowd }, { "stalled", stalled }, { "closed", closed_listeners },
        { "limit", limit }, { "queue", queue }, { "socket", silent_socket }, { "polled", polled },
        { "stuck_page", stuck_page }, { "emfile", emfile }, { "idle", idle })
