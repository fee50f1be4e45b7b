/* Kills the peer at random moments, many times: every fourth one from its start on, the others
 * after they have connected. Messages under way end soon, with the right bytes or an error.
 *
 * usage: ipc_killed rounds [microseconds]: the longest life. Of the rounds, as many as are over in
 * three minutes, but a few hundred.
 */
#include "ipc.h"

enum { LARGEST = 4 * 1024 * 1024 };

static byte *room;
static uint64_t seed = 1;

static unsigned random_number(unsigned below)
{
    return next_random(&seed) % below;
}

/* Returns sizes of every kind, equal on both sides. */
static size_t size_of_message(unsigned number)
{
    static const size_t sizes[] = { 10, 3000, 9000, 70000, 400000, LARGEST / 2 };
    size_t size = sizes[number * 7 % 6];
    /* Large enough for workers to copy, if any were asked for. */
    return size == LARGEST / 2 && getenv("ADMA_CHANNELS") ? LARGEST : size;
}

/* Writes and reads in turn until a call fails. */
static long talk(int connection, bool first)
{
    for (unsigned number = 0;; number++) {
        size_t size = size_of_message(number);
        bool writes = (number % 2 == 0) == first;
        adma_cookie_t cookie;
        long got;
        if (number % 3 == 0) {
            cookie = post(connection, room, size, writes);
            if (cookie < 0)
                return cookie;
            while (number % 2 && (got = adma_check(cookie)) == -EINPROGRESS)
                ;
            if (number % 2 == 0)
                got = adma_wait(cookie);
        } else {
            got = writes ? adma_write(connection, (void *)room, size)
                         : adma_read(connection, (void *)room, size);
        }
        if (got != (long)size)
            return got;
    }
}

int main(int argc, char **argv)
{
    int rounds = argc > 1 ? atoi(argv[1]) : 100;
    unsigned longest = argc > 2 ? atoi(argv[2]) : 1500;
    double slowest = 0, first = seconds();
    int killed = 0; /* and not gone by itself before */
    room = message_memory(LARGEST);
    fill(room, LARGEST, 0);
    signal(SIGPIPE, SIG_DFL);
    for (int round = 0; round < rounds; round++) {
        int pair[2], connected[2], status;
        if (round >= 300 && seconds() - first > 180)
            rounds = round + 1;
        make_pair(SOCK_STREAM, pair);
        make_pipe(connected);
        CHILD(child) {
            int connection = adma_attach(pair[1]);
            close(connected[1]);
            room = message_memory(LARGEST); /* the parent's block is not ours */
            talk(connection, false);
            _exit(0); /* the parent has gone away first */
        }
        close(pair[1]);
        /* Another child kills, so that it also strikes while we are inside. */
        CHILD(killer) {
            struct timespec pause = { 0, random_number(longest) * 1000l };
            char byte;
            close(pair[0]);
            close(connected[1]);
            while (round % 4 && read(connected[0], &byte, 1) < 0)
                ;
            nanosleep(&pause, NULL);
            kill(child, SIGKILL);
            _exit(0);
        }
        random_number(2);
        close(connected[0]);
        close(connected[1]);
        int connection = adma_attach(pair[0]);
        close(pair[0]);
        double begun = seconds();
        if (connection >= 0) {
            long end = talk(connection, true);
            if (end != -ECONNRESET)
                wrong("round %d: ended with %ld (%s)", round, end, strerror(-end));
            long again = adma_write(connection, (void *)room, 10);
            if (again != -ECONNRESET)
                wrong("round %d: the dead take messages: %ld", round, again);
            EXPECT(adma_read(connection, (void *)room, 10), -ECONNRESET);
            EXPECT(adma_close(connection), 0);
        } else if (connection != -ECONNRESET && connection != -EPIPE) {
            wrong("round %d: attach is %d (%s)", round, connection, strerror(-connection));
        }
        if (seconds() - begun > slowest)
            slowest = seconds() - begun;
        waitpid(child, &status, 0);
        killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        waitpid(killer, &status, 0);
        if (!WIFEXITED(status))
            wrong("the killer was killed");
    }
    printf("%d rounds, %d killed, the slowest took %.0f ms\n", rounds, killed, slowest * 1000);
    if (killed < rounds)
        wrong("%d of %d went before they were killed", rounds - killed, rounds);
    return slowest > 20;
}
