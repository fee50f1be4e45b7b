/*
 * Sets an action of SIGSEGV and SIGBUS in every way there is, copies, reads it back in every way
 * there is, and prints what it sees. The test compares that with what is seen without the
 * library.
 *
 * With EXPECT_IN_FRONT in the environment it insists that the kernel has something else: that
 * the library's handler stands in front of the program's.
 */
#include "pattern.h"
#include <errno.h>
#include <signal.h>
#include <sys/syscall.h>
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* glibc declares these nowhere, or not with everything else. */
int __sigaction(int, const struct sigaction *, struct sigaction *);
sighandler_t bsd_signal(int, sighandler_t);
sighandler_t __sysv_signal(int, sighandler_t);

enum { LEN = 1 << 20 };
static void *to, *from;

static void first(int signo) { (void)signo; }
static void second(int signo) { (void)signo; }

static const char *name_of(sighandler_t handler)
{
	return handler == SIG_DFL ? "SIG_DFL" : handler == SIG_IGN ? "SIG_IGN" :
	       handler == SIG_HOLD ? "SIG_HOLD" : handler == SIG_ERR ? "SIG_ERR" :
	       handler == first ? "first" :
	       handler == second ? "second" : "something else";
}

static uint64_t word(const sigset_t *set)
{
	return *(const uint64_t *)set;
}

static void show(const char *how, int answer, const struct sigaction *action)
{
	printf("    %s: %d, %s, flags %#x, mask %#lx, restorer %s\n", how, answer,
	       name_of(action->sa_handler), action->sa_flags, word(&action->sa_mask),
	       action->sa_restorer ? "given" : "none");
}

static struct sigaction action_of(sighandler_t handler, int flags, int also_blocked)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	sigemptyset(&action.sa_mask);
	if (also_blocked)
		sigaddset(&action.sa_mask, also_blocked);
	return action;
}

static void set_by_sigaction(int signo)
{
	struct sigaction action = action_of(second, SA_SIGINFO | SA_ONSTACK, SIGUSR1);

	sigaction(signo, &action, NULL);
}

static void set_with_every_flag(int signo)
{
	struct sigaction action = action_of(second, SA_SIGINFO | SA_NODEFER | SA_RESETHAND |
						    SA_RESTART | SA_NOCLDSTOP, SIGKILL);

	sigaddset(&action.sa_mask, SIGRTMAX);
	__sigaction(signo, &action, NULL);
}

static void set_without_siginfo(int signo)
{
	struct sigaction action = action_of(first, SA_RESTART, 0);

	sigaction(signo, &action, NULL);
}

static void set_default_with_flags(int signo)
{
	struct sigaction action = action_of(SIG_DFL, SA_NODEFER, SIGHUP);

	sigaction(signo, &action, NULL);
}

static void set_by_signal(int signo) { signal(signo, first); }
static void set_by_ssignal(int signo) { ssignal(signo, first); }
static void set_by_bsd_signal(int signo) { bsd_signal(signo, first); }
static void set_by_sysv_signal(int signo) { sysv_signal(signo, first); }
static void set_by_other_sysv_signal(int signo) { __sysv_signal(signo, first); }
static void set_by_sigset(int signo) { sigset(signo, first); }
static void ignore_by_sigignore(int signo) { sigignore(signo); }
static void ignore_by_signal(int signo) { signal(signo, SIG_IGN); }
static void nothing(int signo) { (void)signo; }

static void set_by_signal_to_interrupt(int signo)
{
	siginterrupt(signo, 1);
	signal(signo, first);
	siginterrupt(signo, 0);
	siginterrupt(signo, 1);
}

static const struct {
	const char *name;
	void (*set)(int);
} setters[] = {
	{ "nothing", nothing },
	{ "sigaction", set_by_sigaction },
	{ "every flag", set_with_every_flag },
	{ "no siginfo", set_without_siginfo },
	{ "default with flags", set_default_with_flags },
	{ "signal", set_by_signal },
	{ "ssignal", set_by_ssignal },
	{ "bsd_signal", set_by_bsd_signal },
	{ "sysv_signal", set_by_sysv_signal },
	{ "__sysv_signal", set_by_other_sysv_signal },
	{ "sigset", set_by_sigset },
	{ "sigignore", ignore_by_sigignore },
	{ "signal to SIG_IGN", ignore_by_signal },
	{ "signal after siginterrupt", set_by_signal_to_interrupt },
};
enum { SETTERS = sizeof(setters) / sizeof(setters[0]) };

/* What the kernel has, past the C library and past us. */
static void expect_in_front(int signo)
{
	struct {
		sighandler_t handler;
		unsigned long flags;
		void *restorer;
		uint64_t mask;
	} kernel;
	struct sigaction seen;

	if (syscall(SYS_rt_sigaction, signo, NULL, &kernel, 8) || sigaction(signo, NULL, &seen))
		fail("sigaction of %d: %m", signo);
	if (seen.sa_handler == SIG_IGN ? kernel.handler != SIG_IGN :
					 kernel.handler == seen.sa_handler)
		fail("signal %d: the kernel has %p, the program sees %s", signo,
		     (void *)kernel.handler, name_of(seen.sa_handler));
}

static void copy(int signo)
{
	memcpy(to, from, LEN);
	if (getenv("EXPECT_IN_FRONT"))
		expect_in_front(signo);
}

static void read_back(int signo, void (*set)(int), int copies_between)
{
	struct sigaction old = { 0 }, none = action_of(SIG_DFL, 0, 0), other;
	sigset_t before, mask;

#define AGAIN (set(signo), copies_between ? copy(signo) : (void)0)
	AGAIN;
	show("sigaction", sigaction(signo, NULL, &old), &old);
	show("__sigaction", __sigaction(signo, NULL, &old), &old);
	other = action_of(first, SA_ONSTACK, SIGUSR2);
	show("sigaction that sets", sigaction(signo, &other, &old), &old);
	show("and what it set", sigaction(signo, NULL, &old), &old);
	AGAIN;
	printf("    signal: %s\n", name_of(signal(signo, SIG_DFL)));
	AGAIN;
	printf("    signal that sets: %s\n", name_of(signal(signo, second)));
	show("and what it set", sigaction(signo, NULL, &old), &old);
	AGAIN;
	printf("    ssignal: %s\n", name_of(ssignal(signo, SIG_DFL)));
	AGAIN;
	printf("    bsd_signal: %s\n", name_of(bsd_signal(signo, SIG_IGN)));
	AGAIN;
	printf("    sysv_signal: %s\n", name_of(sysv_signal(signo, first)));
	show("and what it set", sigaction(signo, NULL, &old), &old);
	AGAIN;
	printf("    __sysv_signal: %s\n", name_of(__sysv_signal(signo, SIG_DFL)));
	AGAIN;
	printf("    sigset: %s\n", name_of(sigset(signo, second)));
	show("and what it set", sigaction(signo, NULL, &old), &old);
	AGAIN;
	printf("    sigset to hold: %s\n", name_of(sigset(signo, SIG_HOLD)));
	show("and what it left", sigaction(signo, NULL, &old), &old);
	sigprocmask(SIG_SETMASK, NULL, &mask);
	printf("    blocked: %#lx\n", word(&mask));
	printf("    sigset that lets it come: %s\n", name_of(sigset(signo, first)));
	sigprocmask(SIG_SETMASK, NULL, &mask);
	printf("    blocked: %#lx\n", word(&mask));
	AGAIN;
	printf("    sigignore: %d\n", sigignore(signo));
	show("and what it set", sigaction(signo, NULL, &old), &old);
	AGAIN;
	printf("    siginterrupt: %d\n", siginterrupt(signo, 1));
	show("and what it set", sigaction(signo, NULL, &old), &old);
	printf("    signal after it: %s\n", name_of(signal(signo, first)));
	show("and what it set", sigaction(signo, NULL, &old), &old);
	printf("    siginterrupt back: %d\n", siginterrupt(signo, 0));
	AGAIN;
	/* Saved, replaced, restored: as libraries do. */
	sigaction(signo, &other, &old);
	copy(signo);
	sigaction(signo, &old, &other);
	show("what was replaced", 0, &other);
	copy(signo);
	show("what was restored", sigaction(signo, NULL, &old), &old);
	sigprocmask(SIG_SETMASK, NULL, &before);
	printf("    blocked in the end: %#lx\n", word(&before));
	siginterrupt(signo, 0);
	sigaction(signo, &none, NULL);
}

static void show_refusals(void)
{
	struct sigaction action = action_of(first, 0, 0);
#define TRY(call) (errno = 0, printf("%s: %ld", #call, (long)(call)), printf(", errno %d\n", errno))
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
	static const int signals[] = { SIGSEGV, SIGBUS, SIGUSR1 };

	to = (void *)pages_between_guards(LEN);
	from = (void *)pages_between_guards(LEN);
	show_refusals();
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < SETTERS; i++)
			for (int s = 0; s < (round ? 2 : 3); s++) {
				printf("round %d, signal %d, set by %s\n", round, signals[s],
				       setters[i].name);
				if (round == 0 && signals[s] != SIGUSR1) {
					struct sigaction old;

					/* Before the first large copy. */
					setters[i].set(signals[s]);
					sigaction(signals[s], NULL, &old);
					show("before any copy", 0, &old);
					siginterrupt(signals[s], 0);
					old = action_of(SIG_DFL, 0, 0);
					sigaction(signals[s], &old, NULL);
				} else if (signals[s] != SIGUSR1) {
					read_back(signals[s], setters[i].set, round == 1);
				}
			}
		if (round == 0)
			memcpy(to, from, LEN);
	}
	show_refusals();
	return 0;
}
