/* A signal handler that leaves an interrupted copy by siglongjmp.
 *
 * What remains must be an abandoned copy and nothing else: no worker writes its
 * destination any more, and later copies are right and are offloaded again
 * (a claimed place that is never given back would send them all to libc).
 */
#include "trap.h"
#include <setjmp.h>
#include <sys/time.h>

static sigjmp_buf before_copy;

static void jump(int number)
{
    (void)number;
    siglongjmp(before_copy, 1);
}

int main(void)
{
    struct blocks b = map_blocks(20 * MIB);
    fill(b.from, b.size, 1);
    fill(b.to, b.size, 2);
    struct sigaction action = {.sa_handler = jump};
    sigaction(SIGALRM, &action, NULL);
    for (int round = 0; round < 60; round++) {
        struct itimerval soon = {{0, 0}, {0, 200 + round % 10 * 250}};
        if (sigsetjmp(before_copy, 1) == 0) {
            setitimer(ITIMER_REAL, &soon, NULL);
            for (;;)
                memcpy(b.to, b.from, b.size);
        }
        /* A late writer would put the source's bytes over these. */
        fill(b.to, 2 * MIB, 3 + round);
        sleep_ms(1);
        check(b.to, 2 * MIB, 3 + round, "destination of an abandoned copy");
    }
    have_workers_leave(); /* new ones show that copies are still offloaded */
    copy_checked(b, 1000, "copy after abandoned ones");
    expect_workers(b, "after abandoned copies");
    return 0;
}
