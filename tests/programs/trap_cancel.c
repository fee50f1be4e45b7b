/* Threads that may be cancelled at any instruction, cancelled while they copy: no worker writes
 * the destination afterwards, and copies of other threads go on, right and offloaded. With
 * "handled" the program handles SIGSEGV, which makes the library copy in another mode.
 */
#include "trap.h"

static struct blocks b;
static atomic_bool copying;

static void *copy_until_cancelled(void *nothing)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    copying = true;
    for (;;)
        memcpy(b.to, b.from, b.size);
    return nothing;
}

static void cancel_copies(void)
{
    pthread_t background[1];
    b = map_blocks(20 * MIB);
    fill(b.from, b.size, 1);
    fill(b.to, b.size, 1);
    start_copiers(background, 1, 512 * KIB);
    for (int round = 0; round < 60; round++) {
        void *result;
        copying = false;
        pthread_t thread = start_thread(copy_until_cancelled, NULL);
        while (!copying)
            sched_yield();
        usleep(100 + round % 10 * 200);
        pthread_cancel(thread);
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED)
            wrong("the thread was not cancelled");
        fill(b.to, 2 * MIB, 2 + round);
        sleep_ms(1);
        check(b.to, 2 * MIB, 2 + round, "destination of a cancelled copy");
    }
    stop_copiers(background, 1);
    have_workers_leave(); /* new ones show that copies are still offloaded */
    copy_checked(b, 1000, "copy after cancelled ones");
    expect_workers(b, "after cancelled copies");
}

static void on_fault(int number)
{
    wrong("signal %d, but nothing faults here", number);
}

static void cancel_with_handler(void)
{
    handle(SIGSEGV, on_fault, 0);
    cancel_copies();
}

SCENES((void)0, {"plain", cancel_copies}, {"handled", cancel_with_handler})
