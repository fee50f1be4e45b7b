/* Tests a peer that is stopped, between messages and in the middle of a piece: messages that do not
 * need it go on, waits keep to their limits, and no buffer is touched after closing. The scene
 * frozen wants ADMA_IPC_TIMEOUT=1.
 */
#include "ipc_echo.h"
#include "ipc_filter.h"

/* ---- the other process is stopped --------------------------------------------------- */

static void expect_stop(pid_t child)
{
    int status;
    if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status))
        wrong("it did not stop: %#x", status);
}

/* Both have posted, so nothing is needed of it: we pull its message and push ours. */
static void stopped(void)
{
    PEER(connection) {
        fill(room, 8 * MIB, 7);
        adma_cookie_t written = adma_iwrite(connection, (void *)room, 8 * MIB);
        adma_cookie_t read = adma_iread(connection, (void *)(room + 8 * MIB), 8 * MIB);
        raise(SIGSTOP);
        EXPECT(adma_wait(written), 8 * MIB);
        EXPECT(adma_wait(read), 8 * MIB);
        expect_content(room + 8 * MIB, 8 * MIB, 9, "read by the stopped process");
    }
    need_engine(connection, getenv("ENGINE") ?: "process_vm");
    expect_stop(child);
    fill(room + 8 * MIB, 8 * MIB, 9);
    EXPECT(adma_read(connection, (void *)room, 8 * MIB), 8 * MIB);
    expect_content(room, 8 * MIB, 7, "written by the stopped process");
    EXPECT(adma_write(connection, (void *)(room + 8 * MIB), 8 * MIB), 8 * MIB);
    /* Small messages work too. */
    EXPECT(adma_write(connection, (void *)room, 10), 10);
    kill(child, SIGCONT);
    expect_good_end(child);
}

/* Stops in the middle of a piece: it is claimed, and not copied yet. */
static void stop_in_call(int signal, siginfo_t *about, void *context)
{
    raise(SIGSTOP);
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
}

static int stop_in_piece(int connection)
{
    trap_call(SYS_process_vm_readv, stop_in_call);
    long got = adma_read(connection, (void *)room, 8 * MIB);
    if (got == 8 * MIB)
        expect_content(room, 8 * MIB, 4, "read by a process stopped in a piece");
    _exit(got == 8 * MIB ? 8 : got == -EPIPE ? 0 : 1);
}

static void expect_end(pid_t child, int want)
{
    int status;
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != want)
        wrong("the other process ended with status %#x, want %d", status, want);
}

static volatile pid_t waiter;

static void *wait_and_expect_ebadf(void *cookie)
{
    waiter = gettid();
    EXPECT(adma_wait(*(adma_cookie_t *)cookie), -EBADF);
    return NULL;
}

/* Waits until that thread sleeps, which it does only inside adma_wait. */
static void expect_waiter(void)
{
    char path[60], text[200] = "";
    while (!waiter)
        sched_yield();
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", waiter);
    while (!strstr(text, ") S ")) {
        int fd = open(path, O_RDONLY);
        long got = read(fd, text, sizeof(text) - 1);
        close(fd);
        if (got <= 0)
            cannot("no /proc");
        text[got] = 0;
    }
    waiter = 0;
}

/* Calls with a peer that is stopped in a piece; ADMA_IPC_TIMEOUT is 1. */
static void stopped_in_piece(int signal, bool closes, bool threaded)
{
    pthread_t thread = 0;
    int status, connection;
    adma_cookie_t cookie;
    fill(room, 8 * MIB, 4);
    for (int tries = 0;; tries++) {
        connection = with_child(stop_in_piece);
        need_engine(connection, "process_vm");
        cookie = adma_iwrite(connection, (void *)room, 8 * MIB);
        EXPECT(waitpid(child, &status, WUNTRACED), child);
        if (WIFSTOPPED(status))
            break;
        /* This process has copied all of it, before the other one was at its first piece. */
        if (tries == 100 || !WIFEXITED(status) || WEXITSTATUS(status) != 8)
            wrong("it did not stop: %#x", status);
        EXPECT(adma_wait(cookie), 8 * MIB);
        EXPECT(adma_close(connection), 0);
    }
    double begun = seconds();
    EXPECT(adma_wait_for(cookie, 200), -ETIMEDOUT);
    expect_seconds(begun, 0.199, 20, "a limit of 200 ms");
    EXPECT(adma_wait_for(cookie, 0), -ETIMEDOUT);
    EXPECT(adma_check(cookie), -EINPROGRESS);
    if (threaded) {
        thread = start(wait_and_expect_ebadf, (long)&cookie);
        expect_waiter();
    }
    if (closes) {
        begun = seconds();
        EXPECT(adma_close(connection), -ETIMEDOUT);
        expect_seconds(begun, 0.99, 9, "closing");
        EXPECT(adma_write(connection, (void *)room, 10), -EBADF);
        EXPECT(adma_read(connection, (void *)room, 10), -EBADF);
        EXPECT(adma_iread(connection, (void *)room, 10), -EBADF);
    }
    kill(child, signal);
    if (threaded)
        pthread_join(thread, NULL);
    if (!closes)
        EXPECT(adma_wait_for(cookie, 20000), signal == SIGCONT ? 8 * (long)MIB : -ECONNRESET);
    EXPECT(adma_close(connection), 0);
    EXPECT(adma_close(connection), -EBADF);
    if (signal == SIGCONT)
        expect_end(child, closes ? 0 : 8);
    else
        waitpid(child, &status, 0);
}

static void frozen(void)
{
    stopped_in_piece(SIGCONT, false, false);
    stopped_in_piece(SIGKILL, false, false);
    stopped_in_piece(SIGCONT, true, false);
    stopped_in_piece(SIGKILL, true, false);
    stopped_in_piece(SIGCONT, true, true);
    stopped_in_piece(SIGKILL, true, true);
}

/* ---- both close ------------------------------------------------------------------------ */

/* Shared by both processes: the other is in the middle of a piece, and has left it. */
static volatile struct { int inside, closing, left; } *piece;

static void linger_in_call(int signal, siginfo_t *about, void *context)
{
    piece->inside = 1;
    while (!piece->closing)
        sleep_ms(1);
    sleep_ms(600);
    piece->left = 1;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = -EPERM;
}

static void *close_meanwhile(void *connection)
{
    while (!piece->inside)
        sleep_ms(1);
    piece->closing = 1;
    EXPECT(adma_close((int)(long)connection), 0);
    return NULL;
}

/* The buffer is ours again when closing returns, even if the other side closes just then. */
static void both_close(void)
{
    piece = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    PEER(connection) {
        pthread_t thread = start(close_meanwhile, connection);
        trap_call(SYS_process_vm_writev, linger_in_call);
        EXPECT(adma_write(connection, (void *)room, 8 * MIB), -EBADF);
        pthread_join(thread, NULL);
    }
    need_engine(connection, "process_vm");
    if (adma_iread(connection, (void *)room, 8 * MIB) < 0)
        wrong("iread");
    while (!piece->closing)
        sleep_ms(1);
    sleep_ms(100); /* now it is closing, too */
    EXPECT(adma_close(connection), 0);
    if (!piece->left)
        wrong("closed while the other process was about to write into the buffer");
    expect_good_end(child);
}

PROGRAM(make_room(),
        { "stopped", stopped }, { "frozen", frozen }, { "both_close", both_close })
