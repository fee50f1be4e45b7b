/* Fuzzes greetings and the shared region with random bytes, nearly right ones, descriptors of every
 * kind, and a peer that dies at any moment. Memory outside posted buffers is not written, and waits
 * keep to their limits.
 *
 * usage: ipc_fuzz greeting|region ROUNDS SEED [SECONDS], with ADMA_IPC_TIMEOUT=1; it ends after
 *        SECONDS (180; 0: no limit) and prints how many rounds it did
 */
#include "ipc_inside.h"
#include <sys/eventfd.h>

enum { WHOLE = sizeof(struct greeting) };
#define SLACK 8.0 /* seconds that a busy machine may take */

static uint64_t state;

static uint32_t roll(uint32_t below)
{
    return next_random(&state) % below;
}

/* Memory that no message covers. */
static unsigned char canary[1 << 20];

static void expect_canary(const char *what)
{
    for (size_t at = 0; at < sizeof(canary); at += 8)
        if (*(uint64_t *)(canary + at) != 0xa5a5a5a5a5a5a5a5u)
            wrong("%s: memory of the program was written", what);
}

/* ---- greetings ------------------------------------------------------------------------ */

static struct greeting honest;
static int all_fds[8]; /* the first two are what a host sends */

/* Sends bytes with descriptors, if the other end takes them. */
static void send_with(int to, const void *bytes, size_t len, const int *fds, int count)
{
    char beside[CMSG_SPACE(253 * sizeof(int))] = "";
    struct iovec piece = { (void *)bytes, len };
    struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
    if (count) {
        message.msg_control = beside;
        message.msg_controllen = CMSG_SPACE(count * sizeof(int));
        struct cmsghdr *c = CMSG_FIRSTHDR(&message);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(count * sizeof(int));
        memcpy(CMSG_DATA(c), fds, count * sizeof(int));
    }
    sendmsg(to, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void spoil(char *bytes, size_t len)
{
    for (uint32_t times = roll(4); times; times--)
        bytes[roll(len)] ^= 1 << roll(8);
    if (roll(20) == 0)
        for (size_t at = 0; at < len; at++)
            bytes[at] = roll(256);
}

/* Sends all steps at once: nearly right, in nearly the right order. */
static void lie_in_greeting(int to)
{
    uint32_t steps = roll(8) ? DONE : roll(5), side = roll(8) ? HOST : roll(4);
    for (uint32_t step = HELLO; step <= steps; step++) {
        struct greeting mine = honest;
        char *bytes = (char *)&mine;
        int fds[8], count = step == PROOF && side == HOST ? 2 : 0;
        mine.step = roll(50) ? step : roll(6);
        mine.side = side;
        mine.nonce = (uint64_t)roll(1u << 31) << 32 | roll(1u << 31);
        mine.flags = roll(2) ? roll(32) : 0;
        mine.page = roll(3) ? 0 : (uintptr_t)canary & ~4095ul;
        if (roll(4) == 0)
            mine.page = 0x100000000000 + 4096ul * roll(1u << 31);
        if (roll(20) == 0)
            count = roll(8);
        for (int i = 0; i < count; i++)
            fds[i] = i < 2 && roll(20) ? all_fds[i] : all_fds[roll(8)];
        if (roll(6) == 0)
            spoil(bytes, WHOLE);
        size_t first = roll(8) ? WHOLE : roll(WHOLE) + 1;
        send_with(to, bytes, first, fds, count);
        if (first < WHOLE)
            send_with(to, bytes + first, WHOLE - first, all_fds, roll(9) ? 0 : roll(4));
    }
}

static double limit = 180; /* seconds; 0: none */
static long rounds_done;

/* Counts a round; a busy machine has to complete only the first ones. */
static bool goes_on(long rounds, long first)
{
    static double begun;
    begun = begun ? begun : seconds();
    return rounds_done < rounds && (rounds_done < first || !limit || seconds() - begun < limit);
}

static void *lie_and_end(void *to)
{
    int socket = (int)(long)to;
    lie_in_greeting(socket);
    if (roll(200))
        shutdown(socket, SHUT_WR);
    else if (roll(20))
        shutdown(socket, SHUT_RDWR);
    return NULL;
}

static void greetings(long rounds)
{
    long met = 0;
    int bell[2];
    honest = overheard_hello();
    make_pair(SOCK_SEQPACKET, bell);
    all_fds[0] = memfd_create("region", MFD_ALLOW_SEALING);
    all_fds[1] = bell[1];
    if (ftruncate(all_fds[0], honest.region) ||
        fcntl(all_fds[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
        wrong("no region: %s", strerror(errno));
    all_fds[2] = open("/dev/null", O_RDWR);
    all_fds[3] = memfd_create("fuzz", MFD_ALLOW_SEALING);
    all_fds[4] = eventfd(0, 0);
    all_fds[5] = socket(AF_INET, SOCK_STREAM, 0);
    all_fds[6] = socket(AF_UNIX, SOCK_DGRAM, 0);
    all_fds[7] = open("/proc/self/mem", O_RDWR);
    for (; goes_on(rounds, 1000); rounds_done++) {
        int pair[2];
        double begun = seconds();
        make_pair(SOCK_STREAM, pair);
        EXPECT(setsockopt(pair[0], SOL_SOCKET, SO_PASSCRED, (int[]){ 1 }, sizeof(int)), 0);
        pthread_t liar = start(lie_and_end, pair[0]);
        int connection = adma_attach(pair[1]);
        shutdown(pair[1], SHUT_RDWR);
        pthread_join(liar, NULL);

        if (seconds() - begun > 1 + SLACK)
            wrong("round %ld: a greeting took %.1f s", rounds_done, seconds() - begun);
        if (connection > 0) {
            byte data[100];
            met++;
            adma_cookie_t cookie = adma_iread(connection, (void *)data, 100);
            if (cookie > 0)
                adma_wait_for(cookie, 0);
            EXPECT(adma_close(connection), 0);
        } else if (connection == 0) {
            wrong("attach is 0");
        }
        close(pair[0]);
        close(pair[1]);
        if (rounds_done % 1000 == 0)
            expect_canary("greeting");
    }
    expect_canary("greeting");
    if (rounds > 1000 && met == 0)
        wrong("no greeting came through: nothing was shown");
}

/* ---- the region ------------------------------------------------------------------------ */

static void lie_in_region(int connection, byte *room)
{
    size_t size;
    byte *all = region(&size);
    long times = 1l << roll(15);
    for (int i = roll(12); i; i--) {
        size_t len = roll(3) ? 1u << roll(21) : roll(100);
        if (roll(2))
            (void)!adma_iwrite(connection, (void *)room, len);
        else
            (void)!adma_iread(connection, (void *)room, len);
    }
    while (times--) {
        /* Mostly at the words, with which both lanes begin. */
        size_t half = roll(2) ? size / 2 : 0;
        size_t at = (half + roll(roll(4) ? 110 * 1024 : size / 2)) & ~7ul;
        volatile uint32_t *word = (void *)(all + at);
        switch (roll(6)) {
        case 0: *word += roll(5) - 2; break;
        case 1: *word = roll(8); break;
        case 2: *word = roll(1u << 31); break;
        case 3: *(volatile uint64_t *)word = (uint64_t)roll(300) << 32 | roll(1 << 24); break;
        case 4: *(volatile uint64_t *)word = (uintptr_t)room + roll(1 << 20); break;
        case 5: *word ^= 1u << roll(32); break;
        }
        if (roll(2000) == 0)
            sched_yield();
    }
}

/* Makes one connection with a process that lies and dies; returns the number of messages. */
static long one_peer(bool streamed, bool blocks)
{
    int pair[2];
    long messages = 0;
    uint64_t seed = state;
    make_pair(SOCK_STREAM, pair);
    pid_t child = fork_child();
    if (child == 0) {
        close(pair[0]);
        state = seed ^ 0x5555;
        if (streamed)
            prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        int connection = adma_attach(pair[1]);
        byte *room = blocks ? adma_alloc(2 * MIB) : pages_between_guards(2 * MIB);
        if (connection > 0 && room)
            lie_in_region(connection, room);
        if (roll(2))
            kill(getpid(), SIGKILL);
        _exit(0);
    }
    close(pair[1]);
    int connection = adma_attach(pair[0]);
    close(pair[0]);
    if (connection > 0) {
        byte *mine = blocks ? adma_alloc(4 * MIB) : pages_between_guards(4 * MIB);
        byte *data = mine + MIB;
        for (size_t at = 0; at < 4 * MIB; at += 8)
            *(volatile uint64_t *)(mine + at) = 0xeeeeeeeeeeeeeeeeu;
        for (; messages < 300; messages++) {
            size_t len = roll(3) ? 1u << roll(21) : roll(100);
            double begun = seconds();
            adma_cookie_t cookie = post(connection, data, len, roll(2));
            long got = cookie < 0 ? cookie : adma_wait_for(cookie, roll(8) ? roll(5) : 50);
            if (seconds() - begun > SLACK)
                wrong("a message took %.1f s", seconds() - begun);
            if (got > (long)len)
                wrong("%ld bytes of %zu", got, len);
            if (got == -ECONNRESET || got == -EPROTO || got == -EPIPE)
                break;
        }
        double begun = seconds();
        long closed = adma_close(connection);
        /* A piece that it claims to have begun is waited for, until it is dead. */
        if ((closed && closed != -ETIMEDOUT) || seconds() - begun > 1 + SLACK)
            wrong("closing is %ld after %.1f s", closed, seconds() - begun);
        kill(child, SIGKILL);
        if (closed)
            EXPECT(adma_close(connection), 0);
        for (size_t at = 0; at < MIB; at += 8)
            if (*(uint64_t *)(mine + at) != 0xeeeeeeeeeeeeeeeeu ||
                *(uint64_t *)(mine + 3 * MIB + at) != 0xeeeeeeeeeeeeeeeeu)
                wrong("memory beside a buffer was written");
        expect_canary("region");
        if (blocks)
            EXPECT(adma_free((void *)mine), 0);
        else
            release_pages_between_guards(mine, 4 * MIB);
    }
    kill_child(child);
    return messages + 1;
}

static void regions(long rounds)
{
    for (long peers = 0; goes_on(rounds, 500); peers++)
        rounds_done += one_peer(peers % 2, peers / 2 % 2);
}

int main(int argc, char **argv)
{
    if (argc != 4 && argc != 5)
        wrong("usage: ipc_fuzz greeting|region ROUNDS SEED [SECONDS]");
    if (argc == 5)
        limit = atof(argv[4]);
    long rounds = atol(argv[2]);
    state = atol(argv[3]) * 2654435761u + 1;
    memset(canary, 0xa5, sizeof(canary));
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    if (!strcmp(argv[1], "greeting"))
        greetings(rounds);
    else
        regions(rounds);
    printf("%ld rounds\n", rounds_done);
    return 0;
}
