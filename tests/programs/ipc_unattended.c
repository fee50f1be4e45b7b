/* Tests messages that no thread waits for, while another thread of their process waits elsewhere: it
 * makes them go on. Each scene is a way to lose what the peer has told.
 */
#include "ipc_filter.h"
#include "ipc_inside.h"

#define LARGE (8 * MIB)

/* The peer says so over `small` when it has done its part with `large`. */
static int large, small, to_peer[2];
static byte *room;
static volatile bool over;
static int doorbell; /* the socket of `large`, made last */
static byte *words;  /* the region of `large` */
static size_t size_of_words;

static void *wait_elsewhere(void *nothing)
{
    EXPECT(adma_read(small, &(char[4]){ 0 }, 4), 3);
    over = true;
    return nothing;
}

/* Returns when the thread sleeps long, which begins after two milliseconds. */
static pthread_t start_asleep(void *(*work)(void *))
{
    pthread_t thread = start(work, 0);
    sleep_ms(20);
    return thread;
}

/* Forks the peer, which runs `part`. */
static void begin(void (*part)(void))
{
    int pairs[2][2];
    room = pages_between_guards(LARGE);
    make_pipe(to_peer);
    for (int i = 0; i < 2; i++)
        make_pair(SOCK_STREAM, pairs[i]);
    child = fork_child();
    large = attach_and_close(pairs[0][child == 0]);
    words = region(&size_of_words);
    struct stat state = { 0 };
    for (doorbell = 64; !S_ISSOCK(state.st_mode);)
        fstat(--doorbell, &state);
    small = attach_and_close(pairs[1][child == 0]);
    if (child)
        return;
    part();
    EXPECT(adma_write(small, "end", 3), 3);
    await_byte(to_peer[0]); /* what is eager can be read until then */
    exit(0);
}

/* Waits for the thread that waits elsewhere, and for the message. */
static void end(pthread_t thread, adma_cookie_t cookie)
{
    pthread_join(thread, NULL);
    EXPECT(adma_wait(cookie), LARGE);
    send_byte(to_peer[1]);
    expect_good_end(child);
}

/* ---- threads in other calls ------------------------------------------------------------- */

static void read_large(void)
{
    EXPECT(adma_read(large, (void *)room, LARGE), LARGE);
}

/* A thread asks how far it is, all the time. */
static void asked(void)
{
    begin(read_large);
    pthread_t thread = start_asleep(wait_elsewhere);
    adma_cookie_t cookie = adma_iwrite(large, (void *)room, LARGE);
    while (!over)
        adma_copied(cookie);
    end(thread, cookie);
}

static void read_and_connect(void)
{
    read_large();
    connect_patiently(own_name());
}

static void *accept_one(void *listener)
{
    made(adma_accept((int)(long)listener));
    return wait_elsewhere(NULL);
}

/* The thread that waits accepts. */
static void accepting(void)
{
    int listener = adma_listen(own_name());
    begin(read_and_connect);
    pthread_t thread = start(accept_one, listener);
    sleep_ms(20);
    end(thread, adma_iwrite(large, (void *)room, LARGE));
}

/* ---- wake-ups taken by other threads ---------------------------------------------------- */

static char state_of(pid_t process)
{
    char path[40], state = 0;
    snprintf(path, sizeof(path), "/proc/%d/stat", process);
    FILE *stat = fopen(path, "r");
    MUST(stat && fscanf(stat, "%*d %*s %c", &state) == 1);
    fclose(stat);
    return state;
}

enum { ROUNDS = 20 };

/* Both messages are told by one wake-up. */
static void answer_at_once(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        await_byte(to_peer[0]);
        kill(getppid(), SIGSTOP);
        while (state_of(getppid()) != 'T')
            sleep_ms(1);
        adma_cookie_t cookie = adma_iread(large, (void *)room, LARGE);
        EXPECT(adma_write(large, "now", 3), 3);
        kill(getppid(), SIGCONT);
        EXPECT(adma_wait(cookie), LARGE);
    }
}

static void *read_short(void *nothing)
{
    EXPECT(adma_read(large, &(char[4]){ 0 }, 4), 3);
    return nothing;
}

/* One wake-up tells of two messages; the thread that takes it returns with the other one. */
static void left_by_other(void)
{
    adma_cookie_t cookie = 0;
    begin(answer_at_once);
    pthread_t thread = start(wait_elsewhere, 0);
    for (int i = 0; i < ROUNDS; i++) {
        if (i)
            EXPECT(adma_wait(cookie), LARGE);
        cookie = adma_iwrite(large, (void *)room, LARGE);
        pthread_t beside = start_asleep(read_short);
        send_byte(to_peer[1]);
        pthread_join(beside, NULL);
        while (!over && adma_copied(cookie) < (ssize_t)LARGE)
            sleep_ms(1);
    }
    end(thread, cookie);
}

static void write_rounds(void)
{
    for (int i = 0; i < ROUNDS; i++) {
        await_byte(to_peer[0]);
        sleep_ms(10);
        EXPECT(adma_write(large, "now", 3), 3);
    }
}

static void *arm_always(void *nothing)
{
    struct pollfd one = { .fd = adma_event_fd(large), .events = POLLIN };
    while (adma_arm(large) >= 0)
        poll(&one, 1, 1000);
    return nothing;
}

/* An event loop takes the byte that a thread in adma_read waits for. */
static void beside_event_loop(void)
{
    begin(write_rounds);
    pthread_t loop = start(arm_always, 0);
    for (int i = 0; i < ROUNDS; i++) {
        send_byte(to_peer[1]);
        double begun = seconds();
        EXPECT(adma_read(large, &(char[4]){ 0 }, 4), 3);
        expect_seconds(begun, 0, 3, "a message"); /* the longest sleep is four seconds */
    }
    send_byte(to_peer[1]);
    expect_good_end(child);
    EXPECT(adma_close(large), 0);
    pthread_join(loop, NULL);
}

static void break_protocol(void)
{
    char beside[CMSG_SPACE(sizeof(int))] = "";
    struct iovec bytes = { "now", 3 };
    struct msghdr message = { .msg_iov = &bytes, .msg_iovlen = 1, .msg_control = beside,
                              .msg_controllen = sizeof(beside) };
    struct cmsghdr *descriptor = CMSG_FIRSTHDR(&message);
    *descriptor = (struct cmsghdr){ CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS };
    memcpy(CMSG_DATA(descriptor), &to_peer[0], sizeof(int));
    MUST(sendmsg(doorbell, &message, 0) == 3);
    MUST(send(doorbell, "now", 3, 0) == 3); /* which is not fetched any more */
    sleep_ms(400);
}

/* A socket of a peer that has sent a descriptor stays readable. */
static void broken(void)
{
    begin(break_protocol);
    EXPECT(adma_read(small, &(char[4]){ 0 }, 4), 3);
    double used = (double)clock() / CLOCKS_PER_SEC;
    if (used > 0.1)
        wrong("waiting took %.3f s of CPU time", used);
    send_byte(to_peer[1]);
    expect_good_end(child);
}

/* Says in both lanes that more chunks than there are were produced, all the time. */
static void *scribble(void *nothing)
{
    for (;;)
        for (int lane = 0; lane < 2; lane++)
            *(volatile uint32_t *)(words + 1024 + lane * (size_of_words - 1024) / 2 + 256) = 1 << 30;
    return nothing;
}

static void overcount(void)
{
    start(scribble, 0);
    (void)!adma_iwrite(large, (void *)room, LARGE);
    sleep_ms(20);
    MUST(send(doorbell, "now", 3, 0) == 3);
}

/* One wrong word ends its own connection, and no call on others is held up. */
static void overcounted(void)
{
    int listener = adma_listen(own_name()), others[2];
    byte *other = pages_between_guards(LARGE);
    begin(overcount);
    connect_both(others);
    adma_cookie_t bad = adma_iread(large, (void *)room, LARGE);
    adma_cookie_t good = adma_iread(others[0], (void *)other, LARGE);
    EXPECT(adma_read(small, &(char[4]){ 0 }, 4), 3);
    double begun = seconds();
    EXPECT(adma_check(good), -EINPROGRESS);
    EXPECT(adma_wait_for(good, 50), -ETIMEDOUT);
    EXPECT(adma_read_for(others[1], &(char[4]){ 0 }, 4, 50), -ETIMEDOUT);
    EXPECT(adma_accept_for(listener, 50), -ETIMEDOUT);
    EXPECT(adma_arm(others[0]), 0);
    expect_seconds(begun, 0, 5, "waiting beside a broken connection");
    EXPECT(adma_wait_for(bad, 5000), -EPROTO);
    EXPECT(adma_read(large, (void *)room, LARGE), -EPROTO);
    EXPECT(adma_cancel(good), -ECANCELED);
    send_byte(to_peer[1]);
    expect_good_end(child);
}

/* ---- rights lost meanwhile -------------------------------------------------------------- */

static void lose_right(void)
{
    filter_reach(SECCOMP_RET_ERRNO | EPERM);
}

static void write_later(void)
{
    adma_cookie_t cookie = adma_iwrite(large, (void *)room, LARGE);
    await_byte(to_peer[0]);
    EXPECT(adma_wait(cookie), LARGE);
}

/* A helper thread finds that this process has lost the right; then the message is streamed, by a writer
 * that does not call. */
static void lost_by_us(void)
{
    begin(write_later);
    lose_right();
    pthread_t thread = start_asleep(wait_elsewhere);
    adma_cookie_t cookie = adma_iread(large, (void *)room, LARGE);
    double begun = seconds();
    EXPECT(adma_wait_for(cookie, 20000), LARGE);
    expect_seconds(begun, 0, 3, "a message"); /* the longest sleep is four seconds */
    send_byte(to_peer[1]);
    pthread_join(thread, NULL);
    send_byte(to_peer[1]);
    expect_good_end(child);
}

static void lose_and_read(void)
{
    lose_right();
    await_byte(to_peer[0]);
    read_large();
}

/* The peer loses it when the message is posted. */
static void lost_by_peer(void)
{
    begin(lose_and_read);
    adma_cookie_t cookie = adma_iwrite(large, (void *)room, LARGE);
    pthread_t thread = start_asleep(wait_elsewhere);
    send_byte(to_peer[1]);
    end(thread, cookie);
}

PROGRAM((void)0,
        { "asked", asked }, { "accepting", accepting }, { "left_by_other", left_by_other },
        { "beside_event_loop", beside_event_loop }, { "broken", broken },
        { "overcounted", overcounted },
        { "lost_by_us", lost_by_us }, { "lost_by_peer", lost_by_peer })
