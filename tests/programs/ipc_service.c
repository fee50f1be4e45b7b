/* Tests the thread that serves connections: messages arrive while their program computes, listeners can
 * be polled, limits hold under a flood of clients; and the thread is in the way of nothing: it ends
 * with the last connection, steps aside for unshare, and is not missed where the system refuses it.
 */
#include "ipc_filter.h"

#define LARGE (8 * MIB)

static byte *room, *other;

static void await_threads(long count)
{
    for (double begun = seconds(); entries_of("/proc/self/task") - 2 != count; sleep_ms(5))
        if (seconds() - begun > 20)
            wrong("%ld threads, want %ld", entries_of("/proc/self/task") - 2, count);
}

/* ---- progress -------------------------------------------------------------------------- */

/* Posts, and makes no call until the other side says so. */
static void post_and_compute(int connection, bool writes, int told)
{
    adma_cookie_t cookie = post(connection, room, LARGE, writes);
    await_byte(told);
    EXPECT(adma_wait(cookie), LARGE);
}

static void computes(void)
{
    int told[2];
    make_pipe(told);
    fill(room, LARGE, 3);
    PEER(connection) {
        post_and_compute(connection, true, told[0]);
        post_and_compute(connection, false, told[0]);
        post_and_compute(connection, true, told[0]);
    }
    EXPECT(adma_read(connection, (void *)other, LARGE), LARGE);
    expect_content(other, LARGE, 3, "read while its writer computes");
    send_byte(told[1]);
    EXPECT(adma_write(connection, (void *)other, LARGE), LARGE);
    send_byte(told[1]);
    /* Neither side calls. */
    memset((void *)other, 0, LARGE);
    adma_cookie_t cookie = adma_iread(connection, (void *)other, LARGE);
    for (double begun = seconds(); adma_copied(cookie) != LARGE; sleep_ms(1))
        if (seconds() - begun > 20)
            wrong("%zd bytes are there", adma_copied(cookie));
    expect_content(other, LARGE, 3, "read while both compute");
    EXPECT(adma_check(cookie), LARGE);
    send_byte(told[1]);
    expect_good_end(child);
}

/* The thread is made once, whatever a program calls first, and in the child of a fork again. */
static void once(void)
{
    for (int forks = 0; forks < 2; forks++) {
        int listener = adma_listen(forks ? make_path() : own_name());
        made(adma_event_fd(listener));
        EXPECT(adma_arm(listener), 0);
        long threads = entries_of("/proc/self/task") - 2;
        if (threads > 2) /* fewer: on a slow machine it has ended, for want of clients */
            wrong("%ld threads", threads);
        if (forks == 0 && (child = fork_child()) != 0) {
            expect_good_end(child);
            return;
        }
    }
    exit(0);
}

/* A server that knows nothing but poll and a nonblocking listener. */
static void polled(void)
{
    enum { CLIENTS = 5 };
    int listener = adma_listen(make_path());
    struct pollfd queue = { .fd = listener, .events = POLLIN };
    EXPECT(fcntl(listener, F_SETFL, O_NONBLOCK), 0);
    CHILD(clients)
        for (int i = 0; i < CLIENTS; i++)
            EXPECT(adma_close(connect_patiently(own_path)), 0);
    for (int met = 0; met < CLIENTS;) {
        int connection;
        EXPECT(poll(&queue, 1, 20000), 1);
        while ((connection = adma_accept(listener)) >= 0) {
            EXPECT(adma_close(connection), 0);
            met++;
        }
        EXPECT(connection, -EAGAIN);
    }
    expect_good_end(clients);
    remove_path();
}

/* Clients come and go as fast as they can. */
static void flood(void)
{
    pid_t clients[4];
    int listener = adma_listen(own_name());
    EXPECT(fcntl(listener, F_SETFL, O_NONBLOCK), 0);
    for (unsigned i = 0; i < COUNT(clients); i++) {
        CHILD(one)
            for (;;)
                close(try_client(own_name(), SOCK_NONBLOCK));
        clients[i] = one;
    }
    sleep_ms(100);
    for (int i = 0; i < 5; i++) {
        double begun = seconds();
        EXPECT(adma_accept(listener), -EAGAIN);
        expect_seconds(begun, 0, 2, "a call that must not wait");
        begun = seconds();
        EXPECT(adma_accept_for(listener, 100), -ETIMEDOUT);
        expect_seconds(begun, 0.1, 2.5, "a tenth of a second");
        begun = seconds();
        (void)!adma_arm(listener);
        expect_seconds(begun, 0, 2, "arming");
    }
    for (unsigned i = 0; i < COUNT(clients); i++)
        kill_child(clients[i]);
}

enum { GREET = 512, QUEUE = 129 }; /* that may greet at once, and that a listener's queue takes */

/* Returns what is wrong with a server that has as many silent clients as it takes: it spins, or waits. */
static void expect_patience(int listener)
{
    struct pollfd news = { .fd = adma_event_fd(listener), .events = POLLIN };
    struct timespec used;
    int looks = 0;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    double before = used.tv_sec + used.tv_nsec * 1e-9;
    for (double end = seconds() + 0.3; seconds() < end; looks++) {
        double begun = seconds();
        EXPECT(adma_accept(listener), -EAGAIN);
        (void)!adma_arm(listener);
        expect_seconds(begun, 0, 2, "two calls that must not wait");
        poll(&news, 1, 50);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    if (looks > 100 || used.tv_sec + used.tv_nsec * 1e-9 - before > 0.15)
        wrong("a full server spins: %d looks, %.3f s", looks, used.tv_sec + used.tv_nsec * 1e-9 - before);
}

/* More silent clients come than may greet at once: those younger than a second keep their places, and
 * an honest one is served when the others are older. */
static void crowded(void)
{
    int listener = adma_listen(own_name()), told[2];
    limit_to(RLIMIT_NOFILE, 8192);
    EXPECT(fcntl(listener, F_SETFL, O_NONBLOCK), 0);
    make_pipe(told);
    CHILD(silent) {
        struct pollfd all[GREET + QUEUE];
        double since[GREET + QUEUE];
        for (int i = 0; i < GREET + QUEUE; i++) {
            all[i].events = 0;
            since[i] = seconds();
            while ((all[i].fd = try_client(own_name(), SOCK_NONBLOCK)) < 0)
                sleep_ms(1);
        }
        send_byte(told[1]);
        for (bool any_young = true; any_young; sleep_ms(10)) {
            any_young = false;
            poll(all, GREET + QUEUE, 0);
            for (int i = 0; i < GREET + QUEUE; i++) {
                bool is_young = seconds() - since[i] < 1;
                if (is_young && all[i].revents & (POLLHUP | POLLERR))
                    wrong("client %d was reset after %.3f s", i, seconds() - since[i]);
                any_young |= is_young;
            }
        }
        send_byte(told[1]);
        pause();
    }
    struct pollfd full = { .fd = told[0], .events = POLLIN };
    while (!poll(&full, 1, 1)) {
        EXPECT(adma_accept(listener), -EAGAIN);
        (void)!adma_arm(listener);
    }
    await_byte(told[0]);
    expect_patience(listener);
    CHILD(honest)
        EXPECT(adma_close(made(adma_connect_for(own_name(), 60000))), 0);
    EXPECT(adma_close(made(adma_accept_for(listener, 60000))), 0);
    expect_good_end(honest);
    await_byte(told[0]);
    kill_child(silent);
}

static void *come(void *unused)
{
    EXPECT(adma_close(made(adma_connect_for(own_name(), 60000))), 0);
    return unused;
}

/* A thousand clients come at one moment to a server with an event loop. */
static void thousand(void)
{
    enum { PROCESSES = 10, THREADS = 100 };
    int listener = adma_listen(own_name()), connection;
    struct pollfd news = { .fd = adma_event_fd(listener), .events = POLLIN };
    pid_t clients[PROCESSES];
    limit_to(RLIMIT_NOFILE, 8192);
    EXPECT(fcntl(listener, F_SETFL, O_NONBLOCK), 0);
    for (int i = 0; i < PROCESSES; i++) {
        CHILD(one) {
            pthread_t threads[THREADS];
            for (int t = 0; t < THREADS; t++)
                threads[t] = start(come, 0);
            for (int t = 0; t < THREADS; t++)
                pthread_join(threads[t], NULL);
        }
        clients[i] = one;
    }
    for (int met = 0; met < PROCESSES * THREADS;) {
        for (int again = 1; again > 0;) /* as many as it takes, before the first is accepted */
            again = adma_arm(listener) > 0 && again < 20 ? again + 1 : 0;
        while ((connection = adma_accept(listener)) >= 0) {
            EXPECT(adma_close(connection), 0);
            met++;
        }
        EXPECT(connection, -EAGAIN);
        if (met < PROCESSES * THREADS && adma_arm(listener) == 0)
            EXPECT(poll(&news, 1, 20000), 1);
    }
    for (int i = 0; i < PROCESSES; i++)
        expect_good_end(clients[i]);
}

/* ---- the thread ------------------------------------------------------------------------- */

static void ends(void)
{
    int both[2];
    await_threads(1);
    for (int round = 0; round < 2; round++) {
        connect_both(both);
        EXPECT(adma_close(both[0]), 0);
        EXPECT(adma_close(both[1]), 0);
        await_threads(1);
    }
}

/* The main thread ends with a connection open, and no thread of the program is left. */
static void last(void)
{
    PEER(connection) {
        EXPECT(adma_write(connection, "now", 3), 3);
        pthread_exit(NULL);
    }
    EXPECT(adma_read(connection, &(char[4]){ 0 }, 4), 3);
    EXPECT(adma_read_for(connection, &(char[4]){ 0 }, 4, 20000), -ECONNRESET);
    expect_good_end(child);
}

static void alone(void)
{
    int told[2];
    make_pipe(told);
    fill(room, LARGE, 3);
    PEER(connection) {
        post_and_compute(connection, true, told[0]);
        if (unshare(CLONE_NEWUSER))
            errno == EINVAL ? wrong("unshare: %m") : cannot("unshare: %s", strerror(errno));
        EXPECT(adma_write(connection, "now", 3), 3);
        await_byte(told[0]);
    }
    EXPECT(adma_read(connection, (void *)other, LARGE), LARGE);
    send_byte(told[1]);
    long got = adma_read(connection, &(char[4]){ 0 }, 4);
    send_byte(told[1]);
    int status;
    EXPECT(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        cannot("no user namespaces");
    EXPECT(status, 0);
    EXPECT(got, 3);
}

/* The system gives no thread: calls do its work. */
static void refused(void)
{
    int told[2];
    make_pipe(told);
    fill(room, LARGE, 3);
    int pair[2];
    make_pair(SOCK_STREAM, pair);
    child = fork_child();
    filter_calls((int[]){ SYS_clone, SYS_clone3, -1 }, SECCOMP_RET_ERRNO | EAGAIN, 0);
    int connection = attach_and_close(pair[child == 0]);
    EXPECT(adma_event_fd(connection), -EAGAIN);
    if (child == 0) {
        for (int i = 0; i < 3; i++) {
            adma_cookie_t cookie = adma_iwrite(connection, (void *)room, LARGE);
            long got;
            while ((got = adma_check(cookie)) == -EINPROGRESS)
                ;
            EXPECT(got, LARGE);
        }
        EXPECT(adma_read(connection, &(char[4]){ 0 }, 4), 3);
        exit(0);
    }
    for (int i = 0; i < 3; i++)
        EXPECT(adma_read(connection, (void *)other, LARGE), LARGE);
    expect_content(other, LARGE, 3, "read without the thread");
    EXPECT(adma_write(connection, "end", 3), 3);
    expect_good_end(child);
    EXPECT(adma_read(connection, (void *)other, LARGE), -ECONNRESET);
    EXPECT(entries_of("/proc/self/task"), 3);
}

PROGRAM(room = pages_between_guards(LARGE); other = pages_between_guards(LARGE); own_name(),
        { "computes", computes }, { "once", once }, { "polled", polled }, { "flood", flood },
        { "crowded", crowded }, { "thousand", thousand }, { "ends", ends },
        { "last", last }, { "alone", alone }, { "refused", refused })
