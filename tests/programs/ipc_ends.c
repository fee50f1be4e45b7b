/* Tests the ends of a connection: fork, exec, exit, adma_close, and closed descriptors; and what is
 * left of it then.
 */
#include "ipc_echo.h"
#include "older.h"

/* ---- the first thread leaves ------------------------------------------------------------- */

static void *echo_in_thread(void *connection)
{
    if (echo((int)(long)connection))
        wrong("echo without the first thread");
    return NULL;
}

/* The system finds no memory by such a process's pid, but it lives. */
static void first_thread(void)
{
    PEER(connection) {
        start(echo_in_thread, connection);
        pthread_exit(NULL);
    }
    sleep_ms(50);
    for (int i = 0; i < 5; i++) {
        ask_echo(connection, 100);
        ask_echo(connection, 10000);
        ask_echo(connection, 4 * MIB);
    }
    finish(connection, child);
}

/* ---- fork, exec ---------------------------------------------------------------------- */

static void forked(void)
{
    int connection = with_child(echo);
    adma_cookie_t cookie = adma_iread(connection, (void *)room, 100);
    CHILD(mine) {
        EXPECT(adma_write(connection, (void *)room, 10), -EPERM);
        EXPECT(adma_read(connection, (void *)room, 10 * MIB), -EPERM);
        EXPECT(adma_iwrite(connection, (void *)room, 10), -EPERM);
        EXPECT(adma_wait(cookie), -EPERM);
        EXPECT(adma_close(connection), -EPERM);
        /* The child's own connections work. */
        pid_t grandchild;
        int own = with_process(echo, &grandchild);
        ask_echo(own, 100);
        ask_echo(own, 3 * MIB);
        EXPECT(adma_write(connection, (void *)room, 10), -EPERM);
        finish(own, grandchild);
    }
    expect_good_end(mine);
    EXPECT(adma_write(connection, (void *)(room + MIB), 10), 10);
    EXPECT(adma_wait(cookie), 10);
    ask_echo(connection, 100);
    ask_echo(connection, 3 * MIB);
    /* A raw fork runs no handlers. */
    cookie = adma_iread(connection, (void *)(room + MIB), 3 * MIB);
    mine = syscall(SYS_fork);
    if (mine == 0) {
        alarm(200);
        EXPECT(adma_write(connection, (void *)room, 10), -EPERM);
        EXPECT(adma_wait(cookie), -EPERM);
        EXPECT(adma_wait_for(cookie, 10), -EPERM);
        EXPECT(adma_check(cookie), -EPERM);
        _exit(0);
    }
    expect_good_end(mine);
    EXPECT(adma_write(connection, (void *)room, 3 * MIB), 3 * MIB);
    EXPECT(adma_wait(cookie), 3 * MIB);
    ask_echo(connection, 3 * MIB);
    finish(connection, child);
}

/* A child that outlives its parent must not hide the parent's end. */
static void orphaned(void)
{
    int lives[2], may_end[2]; /* pipes; the orphan has the other ends */
    char byte;
    make_pipe(lives);
    make_pipe(may_end);
    PEER(connection) {
        close(lives[0]);
        close(may_end[1]);
        if (fork() == 0)
            _exit(read(may_end[0], &byte, 1) < 0);
        _exit(0);
    }
    struct pollfd end = { .fd = lives[0] };
    close(lives[1]);
    close(may_end[0]);
    /* However long that takes: it was not the orphan's end that was seen. */
    EXPECT(adma_read(connection, (void *)room, 10), -ECONNRESET);
    EXPECT(poll(&end, 1, 0), 0);
    close(may_end[1]);
    expect_good_end(child);
}

static void executed(void)
{
    PEER(connection)
        execlp("sleep", "sleep", "3", NULL);
    EXPECT(adma_read(connection, (void *)room, 10), -ECONNRESET);
    EXPECT(adma_write(connection, (void *)room, 10), -ECONNRESET);
    kill(child, SIGKILL);
}

/* ---- closing ------------------------------------------------------------------------- */

static void closed(void)
{
    PEER(connection) {
        EXPECT(adma_write(connection, (void *)room, 100), 100);
        adma_iwrite(connection, (void *)room, MIB);
        EXPECT(adma_close(connection), 0);
    }
    expect_good_end(child);
    EXPECT(adma_read(connection, (void *)room, 1000), 100);
    EXPECT(adma_read(connection, (void *)room, MIB), -EPIPE);
    EXPECT(adma_read(connection, (void *)room, 10), -EPIPE);
    EXPECT(adma_write(connection, (void *)room, 10), -EPIPE);
    EXPECT(adma_write(connection, (void *)room, MIB), -EPIPE);
    EXPECT(adma_iwrite(connection, (void *)room, MIB), -EPIPE);
    EXPECT(adma_close(connection), 0);
    EXPECT(adma_close(connection), -EBADF);
    EXPECT(adma_close(0), -EBADF);
    EXPECT(adma_close(-1), -EBADF);
}

/* ---- what is left ---------------------------------------------------------------------- */

/* Descriptors and memory are released. */
static void again(void)
{
    long before = 0;
    for (int round = 0; round < 200; round++) {
        int connection = with_child(echo);
        ask_echo(connection, round % 2 ? 10 : 100000);
        finish(connection, child);
        if (round == 0)
            before = entries_of("/proc/self/fd");
    }
    expect_descriptors(before);
}

enum { FILES = 30 };

/* Files of one process look alike, as do all processes and events in older kernels. */
enum { NOTHING, PROCESSES, SOCKETS };

static void open_two(int kind, int two[2])
{
    for (int i = 0; i < 2; i++)
        two[i] = kind == PROCESSES ? syscall(SYS_pidfd_open, child, 0)
                 : kind == NOTHING ? open("/dev/null", O_RDONLY)
                                   : -1;
    if (kind == SOCKETS)
        make_pair(SOCK_STREAM, two);
}

static void expect_open(const int files[FILES])
{
    for (int i = 0; i < FILES; i++)
        if (fcntl(files[i], F_GETFD) < 0)
            wrong("a file of the program was closed: %d", files[i]);
}

/* Checks that nothing was sent there, and that it can be used. */
static void expect_quiet(const int files[FILES])
{
    for (int i = 0; i < FILES; i++) {
        char byte;
        EXPECT(recv(files[i], &byte, 1, MSG_DONTWAIT), -1);
        EXPECT(errno, EAGAIN);
        EXPECT(send(files[i], "x", 1, MSG_NOSIGNAL), 1);
        EXPECT(recv(files[i ^ 1], &byte, 1, 0), 1);
    }
}

static void close_all_and_open(int kind)
{
    int connection = with_child(echo), files[FILES];
    void *block = adma_alloc(100000);
    ask_echo(connection, 100000);
    if (close_descriptors(3))
        cannot("no close_range in this kernel");
    for (int i = 0; i < FILES; i += 2)
        open_two(kind, files + i);
    CHILD(mine)
        expect_open(files);
    expect_good_end(mine);
    EXPECT(adma_close(connection), 0);
    EXPECT(adma_free(block), 0);
    expect_open(files);
    if (kind == SOCKETS)
        expect_quiet(files);
    for (int i = 0; i < FILES; i++)
        close(files[i]); /* the next time they have the same numbers */
    kill_child(child);
}

/* Daemons close all descriptors; files that they open then are theirs, and their children's. */
static void all_closed(void)
{
    for (int kind = NOTHING; kind <= SOCKETS; kind++)
        close_all_and_open(kind);
}

PROGRAM(make_room(),
        { "first_thread", first_thread }, { "fork", forked }, { "orphan", orphaned },
        { "exec", executed }, { "close", closed }, { "again", again },
        { "all_closed", all_closed })
