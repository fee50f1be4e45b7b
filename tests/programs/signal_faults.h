/* For the signal_ programs: copies over a page that goes bad, and handlers of SIGSEGV that mend it. They
 * print what they see, to be compared, with their end, with a run without the library.
 */
#pragma once
#include "pattern.h"
#include "scenes.h"

enum { LEN = 1 << 20, ROOM = LEN + 2 * PAGE, BAD = LEN / 2 / PAGE * PAGE };

static struct side dst, src;
static byte *bad;
static volatile sig_atomic_t faults;
static volatile pid_t caller;

/* Prints without stdio, for handlers and children. */
#define say(...) dprintf(1, __VA_ARGS__)

/* Prepares both sides with the pattern of a fresh copy. */
static inline void prepare(void)
{
    if (!dst.base) {
        dst = (struct side){pages_between_guards(ROOM), ROOM, 100, LEN};
        src = (struct side){pages_between_guards(ROOM), ROOM, 300, LEN};
        lay_down(&src, SOURCE);
    }
    lay_down(&dst, DESTINATION);
    bad = dst.base + BAD;
}

static inline void spoil(void)
{
    MUST(!mprotect((void *)bad, PAGE, PROT_NONE));
}

static inline void mend(void)
{
    MUST(!mprotect((void *)bad, PAGE, PROT_READ | PROT_WRITE));
}

static __attribute__((noinline, unused)) void copy(void)
{
    memcpy((void *)(dst.base + dst.from), (void *)(src.base + src.from), LEN);
    __asm__ volatile("" ::: "memory"); /* no tail call: this frame is looked for */
}

static inline void copy_sound(void)
{
    prepare();
    copy();
    expect_copied(&dst, &src, "a sound copy");
}

/* The handler is expected to mend the page. */
static inline void copy_mended(const char *what)
{
    int before = faults;
    prepare();
    spoil();
    copy();
    expect_copied(&dst, &src, what);
    say("%s: %d faults\n", what, faults - before);
}

static inline void note(const siginfo_t *info)
{
    faults++;
    if (gettid() != caller || (byte *)info->si_addr < bad || (byte *)info->si_addr >= bad + PAGE)
        wrong("signal %d, code %d, at %p", info->si_signo, info->si_code, info->si_addr);
}

static inline void mend_it(int signo, siginfo_t *info, void *context)
{
    note(info);
    mend();
}

static inline void mend_it_too(int signo, siginfo_t *info, void *context)
{
    mend_it(signo, info, context);
}

/* Handler without SA_SIGINFO. */
static inline void mend_whatever(int signo)
{
    faults++;
    mend();
}

static inline void handle(void (*handler)(int, siginfo_t *, void *), int flags, int also_blocked)
{
    struct sigaction action = {.sa_sigaction = handler, .sa_flags = SA_SIGINFO | flags};
    if (also_blocked)
        sigaddset(&action.sa_mask, also_blocked);
    MUST(!sigaction(SIGSEGV, &action, NULL));
}

static inline const char *handler_now(void)
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
