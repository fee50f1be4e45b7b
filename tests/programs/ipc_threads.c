/* Tests many threads on one connection: messages stay whole, and every thread gets its own. */
#include "ipc_echo.h"

static int connection_of_all;

static void *thread_writes(void *number)
{
    unsigned char *data = malloc(200000);
    memset(data, (int)(long)number, 200000);
    for (int i = 0; i < 200; i++) {
        size_t size = i % 3 == 0 ? 10 : i % 3 == 1 ? 5000 : 200000;
        EXPECT(adma_write(connection_of_all, data, size), size);
    }
    free(data);
    return NULL;
}

static void *thread_reads(void *unused)
{
    unsigned char *data = malloc(200000);
    for (int i = 0; i < 200; i++) {
        long got = adma_read(connection_of_all, data, 200000);
        if (got != 10 && got != 5000 && got != 200000)
            wrong("a message of %ld bytes", got);
        for (long at = 0; at < got; at++)
            if (data[at] != data[0])
                wrong("a message of two");
    }
    free(data);
    return unused;
}

/* Runs eight threads in each process. */
static void threaded(void)
{
    pthread_t threads[8];
    connection_of_all = fork_connected(&child);
    for (int i = 0; i < 8; i++)
        threads[i] = start(i % 2 ? thread_writes : thread_reads, i);
    join_all(threads, 8);
    if (child)
        finish_after(connection_of_all, child);
}

enum { SMALL = 20000, LARGE = 500, SMALL_THREADS = 4, LARGE_THREADS = 2 };

static void *write_many(void *large)
{
    size_t size = large ? 100000 : 10;
    unsigned char *data = calloc(1, size);
    for (int i = 0; i < (large ? LARGE : SMALL); i++)
        EXPECT(adma_write(connection_of_all, data, size), size);
    free(data);
    return NULL;
}

static void *read_many(void *count)
{
    unsigned char *data = malloc(100000);
    for (long i = 0; i < (long)count; i++) {
        long got = adma_read(connection_of_all, data, 100000);
        if (got != 10 && got != 100000)
            wrong("a message of %ld bytes", got);
    }
    free(data);
    return NULL;
}

/* Threads that only write, or only read, never get an error for a full table. */
static void crowd(void)
{
    enum { ALL = SMALL_THREADS * SMALL + LARGE_THREADS * LARGE, READERS = 3 };
    pthread_t threads[SMALL_THREADS + LARGE_THREADS];
    connection_of_all = fork_connected(&child);
    if (child == 0) {
        for (int i = 0; i < READERS; i++)
            threads[i] = start(read_many, ALL / READERS + (i < ALL % READERS));
        join_all(threads, READERS);
        exit(0);
    }
    for (int i = 0; i < SMALL_THREADS + LARGE_THREADS; i++)
        threads[i] = start(write_many, i < LARGE_THREADS);
    join_all(threads, SMALL_THREADS + LARGE_THREADS);
    finish_after(connection_of_all, child);
}

static void *read_one(void *connection)
{
    char data[10];
    EXPECT(adma_read((int)(long)connection, data, 10), 10);
    return NULL;
}

/* 300 threads read, which is more than there are places: the last ones wait for those. */
static void many_readers(void)
{
    pthread_t threads[300];
    PEER(connection) {
        usleep(300000);
        for (int i = 0; i < 300; i++)
            EXPECT(adma_write(connection, (void *)room, 10), 10);
    }
    for (int i = 0; i < 300; i++)
        threads[i] = start(read_one, connection);
    join_all(threads, 300);
    finish_after(connection, child);
}

PROGRAM(make_room(),
        { "threads", threaded }, { "crowd", crowd }, { "many_readers", many_readers })
