/* Signals and copies of one thread.
 *
 *   timer    an alarm rings during each copy of 64 MiB; its handler copies 64 MiB
 *   storm    another thread sends a signal 200 us after the last one was handled, at the earliest;
 *            its handler copies 128 KiB
 *   pending  a signal that the program has blocked is sent to the process while workers live: it
 *            must wait for the program, and not be taken by a worker that left it unblocked
 *
 * Interrupted copies and those of the handler must be right, and errno must survive in both.
 */
#include "trap.h"

static struct blocks outer, inner;
static volatile sig_atomic_t handled;
static atomic_bool storm_over;

static void copy_in_handler(int number)
{
    (void)number;
    int saved = errno;
    copy_checked(inner, 1000000 + handled, "signal handler");
    errno = saved;
    handled++;
}

static void *send_signals(void *target)
{
    for (int seen = -1; !storm_over; usleep(200)) {
        if (handled == seen)
            continue; /* a slow machine would come to nothing else */
        seen = handled;
        pthread_kill(*(pthread_t *)target, SIGUSR1);
    }
    return NULL;
}

static void expect_same_mask(const sigset_t *before)
{
    sigset_t now;
    sigprocmask(SIG_SETMASK, NULL, &now);
    for (int number = 1; number < 65; number++)
        if (sigismember(before, number) != sigismember(&now, number))
            wrong("the copies left signal %d %sblocked", number,
                  sigismember(&now, number) ? "" : "un");
}

static void ring_during_copies(void)
{
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    inner = map_blocks(64 * MIB);
    handle(SIGALRM, copy_in_handler, SA_RESTART);
    for (int round = 0; round < 12; round++) {
        int before = handled;
        fill(outer.from, outer.size, round);
        alarm_after_us(300 + round % 6 * 1500);
        errno = 4711;
        memcpy(outer.to, outer.from, outer.size);
        if (errno != 4711)
            wrong("interrupted memcpy changed errno to %d", errno);
        while (handled == before)
            usleep(500);
        check(outer.to, outer.size, round, "interrupted copy");
    }
    expect_same_mask(&mask);
}

static void copy_in_storm(void)
{
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    inner = map_blocks(128 * KIB);
    handle(SIGUSR1, copy_in_handler, SA_RESTART);
    pthread_t self = pthread_self(), sender = start_thread(send_signals, &self);
    for (int round = 0; round < 8 || handled < 50; round++)
        copy_checked(outer, round, "copy in a signal storm");
    storm_over = true;
    pthread_join(sender, NULL);
    expect_same_mask(&mask);
}

static void wait_for_blocked_signals(void)
{
    /* Workers come before the program blocks anything: their mask is their own doing. */
    copy_checked(outer, 1, "copy");
    expect_workers(outer, "before signals are blocked");
    sigset_t one, pending;
    sigfillset(&one);
    sigprocmask(SIG_BLOCK, &one, NULL);
    for (int number = SIGHUP; number < SIGRTMAX; number++) {
        if (number == SIGKILL || number == SIGSTOP || number == SIGCONT || number == 32 ||
            number == 33)
            continue; /* cannot be blocked, has no effect to wait for, or libc's */
        sigemptyset(&one);
        sigaddset(&one, number);
        kill(getpid(), number);
        sigpending(&pending);
        if (!sigismember(&pending, number))
            wrong("signal %d was taken from the program", number);
        struct timespec at_once = {0, 0};
        if (sigtimedwait(&one, NULL, &at_once) != number)
            wrong("signal %d cannot be waited for: %s", number, strerror(errno));
    }
}

SCENES(outer = map_blocks(64 * MIB), {"timer", ring_during_copies}, {"storm", copy_in_storm},
       {"pending", wait_for_blocked_signals})
