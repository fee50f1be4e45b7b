/* For signal_handlers.c: copies over a page that goes bad, and handlers that mend it. */
#pragma once
#include "pattern.h"
#include "scenes.h"

enum { LEN = 1 << 20, ROOM = LEN + 2 * PAGE, BAD = LEN / 2 / PAGE * PAGE, BIG = 8 << 20 };

static struct side dst, src;
static byte *bad;
static volatile sig_atomic_t faults;
static volatile pid_t caller;
static sigjmp_buf before_copy;
static atomic_int stop;

static void say(const char *format, ...)
{
    char line[300];
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    if (write(1, line, length) != length)
        _exit(1);
}

static pthread_t start_thread(void *(*work)(void *), const pthread_attr_t *attributes)
{
    pthread_t thread;
    if (pthread_create(&thread, attributes, work, NULL))
        fail("no thread");
    return thread;
}

/* Both sides sound, with the pattern of a fresh copy. */
static void prepare(void)
{
    if (!dst.base) {
        dst = (struct side){pages_between_guards(ROOM), ROOM, 100, LEN};
        src = (struct side){pages_between_guards(ROOM), ROOM, 300, LEN};
        lay_down(&src, SOURCE);
    }
    lay_down(&dst, DESTINATION);
    bad = dst.base + BAD;
}

static void spoil(void)
{
    if (mprotect((void *)bad, PAGE, PROT_NONE))
        fail("mprotect: %m");
}

static void mend(void)
{
    if (mprotect((void *)bad, PAGE, PROT_READ | PROT_WRITE))
        fail("mprotect: %m");
}

__attribute__((noinline)) static void copy(void)
{
    memcpy((void *)(dst.base + dst.from), (void *)(src.base + src.from), LEN);
    __asm__ volatile("" ::: "memory"); /* no tail call: this frame is looked for */
}

static void copy_sound(void)
{
    prepare();
    copy();
    expect_copied(&dst, &src, "a sound copy");
}

/* The handler is expected to mend the page. */
static void copy_mended(const char *what)
{
    int before = faults;
    prepare();
    spoil();
    copy();
    expect_copied(&dst, &src, what);
    say("%s: %d faults\n", what, faults - before);
}

static void note(const siginfo_t *info)
{
    faults++;
    if (gettid() != caller || (byte *)info->si_addr < bad || (byte *)info->si_addr >= bad + PAGE)
        fail("signal %d, code %d, at %p", info->si_signo, info->si_code, info->si_addr);
}

static void mend_it(int signo, siginfo_t *info, void *context)
{
    (void)signo, (void)context;
    note(info);
    mend();
}

static void mend_it_too(int signo, siginfo_t *info, void *context)
{
    mend_it(signo, info, context);
}

/* Without SA_SIGINFO. */
static void mend_whatever(int signo)
{
    (void)signo;
    faults++;
    mend();
}

static void handle(void (*handler)(int, siginfo_t *, void *), int flags, int also_blocked)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    if (also_blocked)
        sigaddset(&action.sa_mask, also_blocked);
    if (sigaction(SIGSEGV, &action, NULL))
        fail("sigaction: %m");
}

static const char *handler_now(void)
{
    struct sigaction action;
    sigaction(SIGSEGV, NULL, &action);
    return action.sa_handler == SIG_DFL              ? "SIG_DFL"
           : action.sa_handler == SIG_IGN            ? "SIG_IGN"
           : action.sa_sigaction == mend_it          ? "mend_it"
           : action.sa_sigaction == mend_it_too      ? "mend_it_too"
           : action.sa_handler == mend_whatever      ? "mend_whatever"
                                                     : "something else";
}
