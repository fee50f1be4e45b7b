/* Tests listeners: paths and abstract names, two at one path, closed or interrupted in adma_accept.
 * Second words: interrupted [silent]. The scene closed_meanwhile wants ADMA_IPC_TIMEOUT=1.
 */
#include "ipc_echo.h"
#include <sys/file.h>

static void at(const char *path)
{
    int listener = made(adma_listen(path));
    for (int round = 0; round < 3; round++) {
        CHILD(client)
            exit(echo(made(adma_connect(path))));
        struct pollfd ready = { .fd = listener, .events = POLLIN };
        if (poll(&ready, 1, 60000) != 1)
            wrong("a listener can be polled");
        int connection = made(adma_accept(listener));
        ask_echo(connection, 1000);
        ask_echo(connection, MIB);
        finish(connection, client);
    }
    EXPECT(adma_close(listener), 0);
}

static void listened(void)
{
    const char *path = make_path();
    char longest[300];
    EXPECT(adma_connect(path), -ENOENT);
    at(path);
    EXPECT(adma_connect(path), -ECONNREFUSED);
    at(path); /* the left-over file is replaced */
    unlink(path);
    /* No other file is replaced, not even an empty one, and no link. */
    close(open(path, O_CREAT | O_WRONLY, 0600));
    EXPECT(adma_listen(path), -EADDRINUSE);
    EXPECT(access(path, W_OK), 0);
    unlink(path);
    EXPECT(symlink("nowhere", path), 0);
    EXPECT(adma_listen(path), -EADDRINUSE);
    remove_path();
    at(own_name());
    memset(longest, 'x', sizeof(longest));
    longest[sizeof(longest) - 1] = 0;
    EXPECT(adma_listen(longest), -ENAMETOOLONG);
    EXPECT(adma_listen(""), -ENOENT);
    EXPECT(adma_accept(0), -ENOTSOCK);
    EXPECT(adma_attach(-1), -EBADF);
    EXPECT(adma_attach(1000000), -EBADF);
    /* A client of another protocol. */
    int pair[2];
    make_pair(SOCK_STREAM, pair);
    if (write(pair[1], longest, 200) != 200)
        wrong("write");
    EXPECT(adma_attach(pair[0]), -EPROTO);
    close(pair[1]);
    int gone = adma_attach(pair[0]);
    if (gone != -ECONNRESET && gone != -EPIPE && gone != -EPROTO)
        wrong("attach to a closed end: %d", gone);
}

static pthread_barrier_t begin, end;
static int both[2];

static void *compete(void *unused)
{
    for (int round = 0; round < 1000; round++) {
        pthread_barrier_wait(&begin);
        both[1] = adma_listen(own_path);
        pthread_barrier_wait(&end);
    }
    return unused;
}

/* Of two processes that listen at one path one succeeds; also if there is a stale file. */
static void together(void)
{
    make_path();
    pthread_barrier_init(&begin, NULL, 2);
    pthread_barrier_init(&end, NULL, 2);
    pthread_t thread = start(compete, 0);
    for (int round = 0; round < 1000; round++) {
        pthread_barrier_wait(&begin);
        both[0] = adma_listen(own_path);
        pthread_barrier_wait(&end);
        int one = both[0] > 0 ? 0 : 1;
        if (both[one] <= 0 || both[1 - one] != -EADDRINUSE)
            wrong("round %d: %d and %d", round, both[0], both[1]);
        close(both[one]);
        if (round % 2)
            unlink(own_path);
    }
    pthread_join(thread, NULL);
    remove_path();
}

static void nothing(int signal)
{
}

/* Interrupts without a client, or with a silent one. */
static void interrupted(void)
{
    struct sigaction action = { .sa_handler = nothing };
    int listener = adma_listen(own_name()), client = variant ? plain_client(own_name()) : -1;
    sigaction(SIGALRM, &action, NULL);
    ualarm(50000, 50000); /* the first may come too early */
    for (int i = 0; i < 3; i++)
        EXPECT(adma_accept(listener), -EINTR);
    ualarm(0, 0);
    close(client);
    EXPECT(adma_close(listener), 0);
}

static void *accept_one(void *listener)
{
    return (void *)(long)adma_accept((int)(long)listener);
}

/* Accepting does not go on with another file of that number. */
static void closed_meanwhile(void)
{
    char other_name[70];
    snprintf(other_name, sizeof(other_name), "%s-other", own_name());
    int listener = adma_listen(own_name()), other = adma_listen(other_name);
    struct pollfd queue = { .fd = listener, .events = POLLIN };
    plain_client(own_name());
    plain_client(other_name);
    pthread_t thread = start(accept_one, listener);
    while (poll(&queue, 1, 0)) /* until it is taken out */
        sleep_ms(1);
    EXPECT(adma_close(listener), 0);
    while (dup2(other, listener) < 0) /* the service thread may just be opening a file (adma_read(3)) */
        EXPECT(errno, EBUSY);
    EXPECT(result_of(thread), -EBADF);
    EXPECT(poll(&queue, 1, 0), 1);
    EXPECT(adma_close(other), 0);
}

/* The file exists, and its server has not called listen() yet: clients wait for that. */
static void bound(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    strcpy(address.sun_path, make_path());
    int folder = open(own_folder, O_RDONLY), server = socket(AF_UNIX, SOCK_STREAM, 0);
    EXPECT(flock(folder, LOCK_EX), 0);
    EXPECT(bind(server, (void *)&address, sizeof(address)), 0);
    CHILD(client)
        EXPECT(adma_close(made(adma_connect(own_path))), 0);
    usleep(200000);
    EXPECT(listen(server, 8), 0);
    EXPECT(flock(folder, LOCK_UN), 0);
    EXPECT(adma_close(made(adma_attach(accept(server, NULL, NULL)))), 0);
    expect_good_end(client);
    remove_path();
}

static volatile bool served;

static void *arm_all_the_time(void *connection)
{
    while (!served)
        EXPECT(adma_arm((int)(long)connection), 0);
    return NULL;
}

/* A thread that serves another connection ends greetings, and wakes the one that accepts. */
static void beside(void)
{
    int listener = adma_listen(own_name()), ends[2];
    connect_both(ends);
    pthread_t thread = start(arm_all_the_time, ends[0]);
    for (int round = 0; round < 50; round++) {
        double begun = seconds();
        CHILD(client)
            EXPECT(adma_close(connect_patiently(own_name())), 0);
        EXPECT(adma_close(made(adma_accept_for(listener, 40000))), 0);
        expect_seconds(begun, 0, 30, "accepting");
        expect_good_end(client);
    }
    served = true;
    pthread_join(thread, NULL);
}

PROGRAM(make_room(); own_name(),
        { "listen", listened }, { "together", together }, { "bound", bound },
        { "interrupted", interrupted },
        { "closed_meanwhile", closed_meanwhile }, { "beside", beside })
