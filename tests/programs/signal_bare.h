/* For signal_handlers.c: actions that are set and read past the C library. */
#ifndef SIGNAL_BARE_H
#define SIGNAL_BARE_H
#include "signal_pages.h"

struct kernel_action {
	void (*handler)(int, siginfo_t *, void *);
	unsigned long flags;
	void (*restorer)(void);
	uint64_t mask;
};

static struct kernel_action before;

static void set_bare(void (*handler)(int, siginfo_t *, void *))
{
	struct kernel_action action = { .handler = handler, .flags = SA_SIGINFO | 0x04000000 };
	struct sigaction seen;

	/* The C library's restorer is found where it has set something. */
	sigaction(SIGUSR1, NULL, &seen);
	action.restorer = seen.sa_restorer;
	if (syscall(SYS_rt_sigaction, SIGSEGV, &action, &before, 8))
		fail("rt_sigaction: %m");
}

static void set_back(void)
{
	if (syscall(SYS_rt_sigaction, SIGSEGV, &before, NULL, 8))
		fail("rt_sigaction: %m");
}

static void bare(void)
{
	signal(SIGUSR1, mend_whatever);
	handle(mend_it, 0, 0);
	copy_sound();
	set_bare(mend_it_too);
	say("set past the library: %s\n", handler_now());
	copy_mended("by it");
	say("and still: %s\n", handler_now());
	handle(mend_it, 0, 0);
	copy_mended("set by the library again");
	say("in the end: %s\n", handler_now());
}

static int forwarded;

static void forward(int signo, siginfo_t *info, void *context)
{
	forwarded++;
	before.handler(signo, info, context);
}

/* A handler that calls the one that was there before, as it has read it from the kernel. */
static void bare_chain(void)
{
	signal(SIGUSR1, mend_whatever);
	handle(mend_it, 0, 0);
	copy_sound();
	set_bare(forward);
	copy_sound();
	copy_mended("forwarded");
	copy_mended("forwarded again");
	say("%d forwarded\n", forwarded);
	set_back();
	copy_sound();
	copy_mended("set back");
	say("%d forwarded, in the end: %s\n", forwarded, handler_now());
}

static void report_and_set_back(int signo, siginfo_t *info, void *context)
{
	(void)signo, (void)context;
	note(info);
	say("a report\n");
	set_back();
}

/* A crash reporter: it lets the fault come again with what was there before it. */
static void bare_report(void)
{
	signal(SIGUSR1, mend_whatever);
	copy_sound();
	set_bare(report_and_set_back);
	copy_sound();
	copy_mended("a fatal fault"); /* ends here */
}

#endif
