/* Signals, cancellation and small stacks in the middle of copies. Interrupted copies and those of
 * handlers must be right, errno must survive in both, and no worker writes after a copy was left.
 */
#include "trap.h"
#include "older.h"

static struct blocks outer, inner;
static volatile sig_atomic_t handled;
static atomic_bool storm_over;

static void copy_in_handler(int number)
{
    int saved = errno;
    copy_checked(inner, 1000000 + handled, "signal handler");
    errno = saved;
    handled++;
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

/* Rings an alarm during each copy, whose handler makes one, too. */
static void ring_during_copies(void)
{
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    outer = map_blocks(64 * MIB);
    inner = map_blocks(64 * MIB);
    handle(SIGALRM, copy_in_handler, SA_RESTART);
    for (int round = 0; round < rounds(12); round++) {
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

static void copy_in_storm(void)
{
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    outer = map_blocks(64 * MIB);
    inner = map_blocks(128 * KIB);
    handle(SIGUSR1, copy_in_handler, SA_RESTART);
    pthread_t self = pthread_self(), sender = start_thread(send_signals, &self);
    for (int round = 0; round < rounds(8) || handled < rounds(50); round++)
        copy_checked(outer, round, "copy in a signal storm");
    storm_over = true;
    pthread_join(sender, NULL);
    expect_same_mask(&mask);
}

/* A signal that the program has blocked must wait for it: a worker that left it unblocked would take
 * it. Workers come before the program blocks anything: their mask is their own doing. */
static void wait_for_blocked_signals(void)
{
    expect_workers(map_blocks(8 * MIB), "before signals are blocked");
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

/* ---- copies that are left in the middle ---------------------------------------------------- */

static struct blocks b;
static sigjmp_buf before_copy;

static void jump(int number)
{
    siglongjmp(before_copy, 1);
}

/* A late writer would put the source's bytes over these. */
static void expect_left(int round)
{
    fill(b.to, 2 * MIB, 3 + round);
    sleep_ms(1);
    check(b.to, 2 * MIB, 3 + round, "destination of a copy that was left");
}

/* A slot that is never released would send all later copies to libc. */
static void expect_still_offloaded(void)
{
    have_workers_leave();
    expect_workers(b, "after copies that were left");
}

static void jump_out(void)
{
    b = map_blocks(20 * MIB);
    fill(b.from, b.size, 1);
    handle(SIGALRM, jump, 0);
    for (volatile int round = 0; round < rounds(60); round++) {
        if (sigsetjmp(before_copy, 1) == 0) {
            alarm_after_us(200 + round % 10 * 250);
            for (;;)
                memcpy(b.to, b.from, b.size);
        }
        expect_left(round);
    }
    expect_still_offloaded();
}

static atomic_bool copying;

static void *copy_until_cancelled(void *nothing)
{
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
    copying = true;
    for (;;)
        memcpy(b.to, b.from, b.size);
    return nothing;
}

/* Threads that may be cancelled at any instruction, while others copy on. A program that handles
 * SIGSEGV makes the library copy in another mode. */
static void cancel_copies(void)
{
    pthread_t background[1];
    b = map_blocks(20 * MIB);
    fill(b.from, b.size, 1);
    if (scene_how)
        handle(SIGSEGV, unexpected_fault, 0);
    start_copiers(background, 1, 512 * KIB);
    for (int round = 0; round < rounds(60); round++) {
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
        expect_left(round);
    }
    stop_copiers(background, 1);
    expect_still_offloaded();
}

/* ---- the first large copy on a small stack ---------------------------------------------------- */

enum { THREAD, HANDLER, COROUTINE, EXIT };
#define COROUTINE_STACK (8 * KIB)

static void *copy_in_thread(void *nothing)
{
    copy_checked(b, 1, "thread with a small stack");
    if (scene_how == EXIT)
        exit(0); /* and so runs the code of exit */
    return nothing;
}

static void run_thread(void)
{
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN);
    if (pthread_create(&thread, &small, copy_in_thread, NULL))
        wrong("no thread with a small stack");
    pthread_join(thread, NULL);
}

static void run_handler(void)
{
    size_t size = least_signal_stack() + 8 * KIB;
    stack_t other = {.ss_sp = map(size), .ss_size = size};
    inner = b;
    sigaltstack(&other, NULL);
    handle(SIGUSR1, copy_in_handler, SA_ONSTACK);
    raise(SIGUSR1);
}

static void copy_in_coroutine(void)
{
    memcpy(b.to, b.from, b.size);
}

static void run_coroutine(void)
{
    static ucontext_t here, there;
    /* Below the stack lies a page that nothing may touch. */
    char *stack = map(COROUTINE_STACK + 4096);
    mprotect(stack, 4096, PROT_NONE);
    memcpy(b.to, b.from, 1); /* lets the loader find memcpy, which takes more stack than the copy */
    fill(b.from, b.size, 2);
    getcontext(&there);
    there.uc_stack = (stack_t){.ss_sp = stack + 4096, .ss_size = COROUTINE_STACK};
    there.uc_link = &here;
    makecontext(&there, copy_in_coroutine, 0);
    swapcontext(&here, &there);
    check(b.to, b.size, 2, "coroutine");
}

static void copy_on_small_stacks(void)
{
    b = map_blocks(32 * MIB);
    if (scene_how == COROUTINE)
        run_coroutine();
    if (scene_how == HANDLER)
        run_handler();
    run_thread();
    run_coroutine();
    run_handler();
}

SCENES((void)0, {"timer", ring_during_copies}, {"storm", copy_in_storm},
       {"pending", wait_for_blocked_signals}, {"jump", jump_out}, {"cancel", cancel_copies, false},
       {"cancel-handled", cancel_copies, true}, {"thread", copy_on_small_stacks, THREAD},
       {"handler", copy_on_small_stacks, HANDLER}, {"coroutine", copy_on_small_stacks, COROUTINE},
       {"exit", copy_on_small_stacks, EXIT})
