/* A signal handler that copies as much as the code it interrupts.
 *
 *   timer: an alarm rings during each copy of 64 MiB; its handler copies 64 MiB
 *   storm: another thread sends a signal 200 us after the last one was handled, at
 *          the earliest; its handler copies 128 KiB
 *
 * Both copies must be right, errno must survive in both, and nothing may hang.
 */
#include "trap.h"
#include <sys/time.h>

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
    for (int round = 0; round < 12; round++) {
        fill(outer.from, outer.size, round);
        struct itimerval soon = {{0, 0}, {0, 300 + round % 6 * 1500}};
        int before = handled;
        setitimer(ITIMER_REAL, &soon, NULL);
        errno = 4711;
        memcpy(outer.to, outer.from, outer.size);
        if (errno != 4711)
            wrong("interrupted memcpy changed errno to %d", errno);
        while (handled == before)
            usleep(500);
        check(outer.to, outer.size, round, "interrupted copy");
    }
}

static void copy_in_storm(void)
{
    pthread_t self = pthread_self();
    pthread_t sender = start_thread(send_signals, &self);
    for (int round = 0; round < 8 || handled < 50; round++)
        copy_checked(outer, round, "copy in a signal storm");
    storm_over = true;
    pthread_join(sender, NULL);
}

int main(int count, char **words)
{
    bool storm = count > 1 && !strcmp(words[1], "storm");
    outer = map_blocks(64 * MIB);
    inner = map_blocks(storm ? 128 * KIB : 64 * MIB);
    struct sigaction action = {.sa_handler = copy_in_handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    if (storm)
        copy_in_storm();
    else
        ring_during_copies();
    expect_same_mask(&mask);
    return 0;
}
