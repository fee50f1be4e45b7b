/* A signal that the program has blocked, sent to the process while workers live.
 *
 * It must wait for the program. A worker that left it unblocked would take it:
 * the default action ends the process.
 */
#include "trap.h"

int main(void)
{
    /* Workers come before the program blocks anything: what they block is their own doing. */
    struct blocks b = map_blocks(32 * MIB);
    copy_checked(b, 1, "copy");
    expect_workers(b, "before signals are blocked");
    sigset_t blocked;
    sigfillset(&blocked);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    for (int number = SIGHUP; number < SIGRTMAX; number++) {
        if (number == SIGKILL || number == SIGSTOP || number == 32 || number == 33)
            continue;
        sigset_t one, pending;
        sigemptyset(&one);
        sigaddset(&one, number);
        if (number == SIGCONT)
            continue; /* has no effect to wait for */
        kill(getpid(), number);
        sigpending(&pending);
        if (!sigismember(&pending, number))
            wrong("signal %d was taken from the program", number);
        struct timespec at_once = {0, 0};
        if (sigtimedwait(&one, NULL, &at_once) != number)
            wrong("signal %d cannot be waited for: %s", number, strerror(errno));
    }
    return 0;
}
