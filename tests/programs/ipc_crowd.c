/* Clients of the example servers: many at once, with messages of all sizes, some of which they let
 * lie for a while.
 *
 * usage: ipc_crowd PATH CLIENTS ROUNDS [end]; five clients are threads of one process. With "end"
 *        the server is told to end when all have been served.
 */
#include "ipc.h"

enum { PER_PROCESS = 5 };

static const char *path;
static int rounds;

static const size_t sizes[] = { 1, 100, 5000, 32768, 40000, 100000, 300000, MIB, 2 * MIB };

static void *talk(void *number)
{
    int c = made(adma_connect_for(path, 100000));
    byte *sent = malloc(2 * MIB), *answer = malloc(2 * MIB);
    for (int round = 0; round < rounds; round++) {
        unsigned which = (long)number * 7 + round;
        size_t len = sizes[which % COUNT(sizes)];
        for (size_t at = 0; at < len; at++)
            sent[at] = content(which, at);
        EXPECT(adma_write(c, (void *)sent, len), len);
        if (which % 13 == 0)
            sleep_ms(20); /* it computes, and the answer waits */
        EXPECT(adma_read(c, (void *)answer, len), len);
        for (size_t at = 0; at < len; at++)
            if (answer[at] != sent[len - 1 - at])
                wrong("byte %zu of %zu is wrong", at, len);
    }
    EXPECT(adma_close(c), 0);
    free((void *)sent);
    free((void *)answer);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        wrong("usage: ipc_crowd PATH CLIENTS ROUNDS [end]");
    int processes = atoi(argv[2]) / PER_PROCESS;
    path = argv[1];
    rounds = atoi(argv[3]);
    alarm(150);
    for (int i = 0; i < processes; i++)
        if (fork() == 0) {
            pthread_t threads[PER_PROCESS];
            alarm(150);
            for (int t = 0; t < PER_PROCESS; t++)
                threads[t] = start(talk, i * PER_PROCESS + t);
            for (int t = 0; t < PER_PROCESS; t++)
                pthread_join(threads[t], NULL);
            exit(0);
        }
    for (int i = 0, status; i < processes; i++)
        if (wait(&status) < 0 || status)
            wrong("a client ended with status %#x", status);
    if (argc > 4)
        EXPECT(adma_write(made(adma_connect_for(path, 100000)), "", 0), 0);
    printf("%d clients were served\n", processes * PER_PROCESS);
    return 0;
}
