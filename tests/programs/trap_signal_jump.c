/* A signal handler that leaves an interrupted copy by siglongjmp. No worker writes the destination
 * any more, and later copies are right and offloaded again (a claimed slot that is never given back
 * would send them all to libc).
 */
#include "trap.h"

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
    handle(SIGALRM, jump, 0);
    for (volatile int round = 0; round < 60; round++) {
        if (sigsetjmp(before_copy, 1) == 0) {
            alarm_after_us(200 + round % 10 * 250);
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
