/* Sets an action of SIGSEGV and SIGBUS in every way there is, copies, reads it back in every way
 * there is, and prints what it sees, to be compared with a run without the library.
 *
 * With EXPECT_IN_FRONT in the environment it insists that the kernel has another handler than the
 * program sees: the library's, in front of the program's.
 */
#include "pattern.h"
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* glibc declares these nowhere, or not with everything else. */
int __sigaction(int, const struct sigaction *, struct sigaction *);
sighandler_t bsd_signal(int, sighandler_t);
sighandler_t __sysv_signal(int, sighandler_t);

enum { LEN = 1 << 20, SETTERS = 14 };
static void *to, *from;
static int signo;

static void first(int number) { (void)number; }
static void second(int number) { (void)number; }

static const char *name_of(sighandler_t handler)
{
    return handler == SIG_DFL    ? "SIG_DFL"
           : handler == SIG_IGN  ? "SIG_IGN"
           : handler == SIG_HOLD ? "SIG_HOLD"
           : handler == SIG_ERR  ? "SIG_ERR"
           : handler == first    ? "first"
           : handler == second   ? "second"
                                 : "something else";
}

static uint64_t word(const sigset_t *set)
{
    return *(const uint64_t *)set;
}

static void show(const char *how, int answer, const struct sigaction *action)
{
#ifdef __x86_64__
    const char *restorer = action->sa_restorer ? "given" : "none";
#else /* the C library sets none, and returns what its stack has held */
    const char *restorer = "any";
#endif
    printf("    %s: %d, %s, flags %#x, mask %#lx, restorer %s\n", how, answer,
           name_of(action->sa_handler), action->sa_flags, word(&action->sa_mask), restorer);
}

static void show_now(void)
{
    struct sigaction now = {0};
    int answer = sigaction(signo, NULL, &now);
    show("sigaction", answer, &now);
}

static void show_mask(void)
{
    sigset_t mask;
    sigprocmask(SIG_SETMASK, NULL, &mask);
    printf("    blocked: %#lx\n", word(&mask));
}

static struct sigaction action_of(sighandler_t handler, int flags, int also_blocked)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigemptyset(&action.sa_mask);
    if (also_blocked)
        sigaddset(&action.sa_mask, also_blocked);
    return action;
}

static void set(int how)
{
    struct sigaction action = action_of(second, SA_SIGINFO | SA_ONSTACK, SIGUSR1);
    switch (how) {
    case 0: return;
    case 1: break;
    case 2:
        action = action_of(
            second, SA_SIGINFO | SA_NODEFER | SA_RESETHAND | SA_RESTART | SA_NOCLDSTOP, SIGKILL);
        sigaddset(&action.sa_mask, SIGRTMAX);
        break;
    case 3: action = action_of(first, SA_RESTART, 0); break;
    case 4: action = action_of(SIG_DFL, SA_NODEFER, SIGHUP); break;
    case 5: signal(signo, first); return;
    case 6: ssignal(signo, first); return;
    case 7: bsd_signal(signo, first); return;
    case 8: sysv_signal(signo, first); return;
    case 9: __sysv_signal(signo, first); return;
    case 10: sigset(signo, first); return;
    case 11: sigignore(signo); return;
    case 12: signal(signo, SIG_IGN); return;
    default:
        siginterrupt(signo, 1);
        signal(signo, first);
        siginterrupt(signo, 0);
        siginterrupt(signo, 1);
        return;
    }
    (how % 2 ? sigaction : __sigaction)(signo, &action, NULL);
}

/* Reads the kernel's action, past the C library and past us. */
static void expect_in_front(void)
{
    struct {
        sighandler_t handler;
        unsigned long flags;
        void *restorer;
        uint64_t mask;
    } kernel;
    struct sigaction seen;
    if (syscall(SYS_rt_sigaction, signo, NULL, &kernel, 8) || sigaction(signo, NULL, &seen))
        wrong("sigaction of %d: %m", signo);
    if (seen.sa_handler == SIG_IGN ? kernel.handler != SIG_IGN
                                   : kernel.handler == seen.sa_handler)
        wrong("signal %d: the kernel has %p, the program sees %s", signo, (void *)kernel.handler,
             name_of(seen.sa_handler));
}

static void copy(void)
{
    memcpy(to, from, LEN);
    if (getenv("EXPECT_IN_FRONT"))
        expect_in_front();
}

static void back_to_default(void)
{
    struct sigaction none = action_of(SIG_DFL, 0, 0);
    siginterrupt(signo, 0);
    sigaction(signo, &none, NULL);
}

static void read_back(int how, int copies_between)
{
    struct sigaction old = {0}, other = action_of(first, SA_ONSTACK, SIGUSR2);
#define AGAIN (set(how), copies_between ? copy() : (void)0)
#define SHOW(call) (AGAIN, printf("    " #call ": %s\n", name_of(call)), show_now())
    AGAIN;
    show_now();
    show("__sigaction", __sigaction(signo, NULL, &old), &old);
    show("sigaction that sets", sigaction(signo, &other, &old), &old);
    show_now();
    SHOW(signal(signo, SIG_DFL));
    SHOW(signal(signo, second));
    SHOW(ssignal(signo, SIG_DFL));
    SHOW(bsd_signal(signo, SIG_IGN));
    SHOW(sysv_signal(signo, first));
    SHOW(__sysv_signal(signo, SIG_DFL));
    SHOW(sigset(signo, second));
    SHOW(sigset(signo, SIG_HOLD));
    show_mask();
    printf("    sigset that lets it come: %s\n", name_of(sigset(signo, first)));
    show_mask();
    SHOW((sighandler_t)(long)sigignore(signo));
    SHOW((sighandler_t)(long)siginterrupt(signo, 1));
    printf("    signal after it: %s\n", name_of(signal(signo, first)));
    show_now();
    printf("    siginterrupt back: %d\n", siginterrupt(signo, 0));
    AGAIN;
    /* Saved, replaced, restored: as libraries do. */
    sigaction(signo, &other, &old);
    copy();
    sigaction(signo, &old, &other);
    show("what was replaced", 0, &other);
    copy();
    show_now();
    show_mask();
    back_to_default();
}

static void show_refusals(void)
{
    struct sigaction action = action_of(first, 0, 0);
/* printf may change errno: its first malloc asks for random numbers, which a fresh guest has not. */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        errno = 0;                                                                                 \
        long result = (long)(call);                                                                \
        int error = errno;                                                                         \
        printf("%s: %ld, errno %d\n", #call, result, error);                                       \
    } while (0)
    TRY(sigaction(0, &action, NULL));
    TRY(sigaction(SIGKILL, &action, NULL));
    TRY(sigaction(65, NULL, &action));
    TRY(sigaction(32, NULL, &action));
    TRY(signal(0, first));
    TRY(signal(SIGSEGV, SIG_ERR));
    TRY(signal(SIGSTOP, first));
    TRY(sysv_signal(SIGBUS, SIG_ERR));
    TRY(sysv_signal(-1, first));
    TRY(sigset(SIGSEGV, SIG_ERR));
    TRY(sigset(99, first));
    TRY(sigignore(SIGKILL));
    TRY(siginterrupt(0, 1));
}

int main(void)
{
    to = (void *)pages_between_guards(LEN);
    from = (void *)pages_between_guards(LEN);
    show_refusals();
    for (int round = 0; round < 3; round++) {
        for (int how = 0; how < SETTERS; how++)
            for (int s = 0; s < 2; s++) {
                signo = s ? SIGBUS : SIGSEGV;
                printf("round %d, signal %d, setter %d\n", round, signo, how);
                if (round > 0) {
                    read_back(how, round == 1);
                    continue;
                }
                /* Before the first large copy. */
                set(how);
                show_now();
                back_to_default();
            }
        if (round == 0)
            memcpy(to, from, LEN);
    }
    show_refusals();
    return 0;
}
