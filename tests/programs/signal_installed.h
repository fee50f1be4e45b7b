/* For signal_handlers.c: what sigaction promises of a handler, and handlers that change. */
#ifndef SIGNAL_INSTALLED_H
#define SIGNAL_INSTALLED_H
#include "signal_pages.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/auxv.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

/* SA_RESETHAND holds for one fault of the program's, and for none of ours. */
static void reset(void)
{
	struct sigaction action;

	handle(mend_it, SA_RESETHAND, 0);
	copy_sound();
	say("after a sound copy: %s\n", handler_now());
	copy_mended("a mended one");
	sigaction(SIGSEGV, NULL, &action);
	say("after a fault: %s, flags %#x\n", handler_now(), action.sa_flags);
	copy_sound();
	say("after another copy: %s\n", handler_now());
	handle(mend_it, SA_RESETHAND | SA_NODEFER, 0);
	copy_mended("set again");
	copy_mended("the second fault"); /* ends here */
}

static stack_t alternate;

static void mend_on_alternate_stack(int signo, siginfo_t *info, void *context)
{
	byte here, *low = alternate.ss_sp;

	if (&here < low || &here >= low + alternate.ss_size)
		fail("the handler runs on another stack");
	mend_it(signo, info, context);
}

static void *copy_on_small_stack(void *unused)
{
	caller = gettid();
	if (sigaltstack(&alternate, NULL))
		fail("sigaltstack: %m");
	copy_mended("on a small stack");
	copy_mended("once more");
	return unused;
}

/* The fault on a small stack, the handler on one that has room for little but the frame. */
static void alternate_stack(void)
{
	pthread_attr_t attributes;
	pthread_t thread;
	size_t least = getauxval(AT_MINSIGSTKSZ) ?: MINSIGSTKSZ;

	alternate.ss_size = (least + 1536 + 63) / 64 * 64;
	alternate.ss_sp = (void *)(pages_between_guards(alternate.ss_size) +
				   (PAGE - alternate.ss_size % PAGE) % PAGE);
	handle(mend_on_alternate_stack, SA_ONSTACK, 0);
	copy_sound();
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 48 << 10);
	if (pthread_create(&thread, &attributes, copy_on_small_stack, NULL))
		fail("no thread");
	pthread_join(thread, NULL);
}

static int depth;

static void fault_once_more(int signo, siginfo_t *info, void *context)
{
	static byte *other;

	note(info);
	if (depth++ == 0) {
		/* Another large copy over the same page, in the handler. */
		other = pages_between_guards(ROOM);
		memcpy((void *)(dst.base + dst.from), (void *)(src.base + src.from), LEN);
		memcpy((void *)other, (void *)(src.base + src.from), LEN);
	}
	(void)signo, (void)context;
	mend();
}

static void nested(void)
{
	copy_sound();
	handle(fault_once_more, SA_NODEFER, 0);
	copy_mended("a handler that faults");
	say("depth %d\n", depth);
}

static volatile uint64_t blocked_inside;

static void mend_and_look(int signo, siginfo_t *info, void *context)
{
	sigset_t mask;

	sigprocmask(SIG_SETMASK, NULL, &mask);
	blocked_inside = *(uint64_t *)&mask;
	mend_it(signo, info, context);
}

/* Installed, replaced and taken away between copies. */
static void between(void)
{
	handle(mend_and_look, 0, SIGUSR1);
	copy_sound();
	copy_mended("installed before the first copy");
	say("blocked inside: %#lx\n", blocked_inside);
	signal(SIGSEGV, SIG_DFL);
	copy_sound();
	handle(mend_it, 0, 0);
	copy_mended("by mend_it");
	signal(SIGSEGV, mend_whatever);
	copy_mended("by a handler without siginfo");
	handle(mend_and_look, 0, SIGUSR1);
	copy_mended("with SIGUSR1 blocked");
	say("blocked inside: %#lx\n", blocked_inside);
	copy_sound();
	handle(mend_and_look, SA_NODEFER, SIGUSR2);
	copy_mended("with SIGUSR2 blocked");
	say("blocked inside: %#lx\n", blocked_inside);
	signal(SIGSEGV, SIG_DFL);
	copy_sound();
	signal(SIGSEGV, SIG_IGN);
	copy_sound();
	handle(mend_it_too, 0, 0);
	copy_sound();
	copy_mended("by mend_it_too");
	say("in the end: %s\n", handler_now());
	sysv_signal(SIGSEGV, mend_whatever);
	copy_mended("by sysv_signal");
	say("in the end: %s\n", handler_now());
}

static void *install_all_the_time(void *unused)
{
	while (!stop) {
		handle(mend_it, SA_ONSTACK, SIGUSR1);
		signal(SIGSEGV, mend_whatever);
		handle(mend_it_too, SA_NODEFER, SIGUSR2);
	}
	return unused;
}

/* By another thread, while copies are under way. */
static void meanwhile(void)
{
	pthread_t threads[2];

	handle(mend_it, 0, 0);
	copy_sound();
	for (int i = 0; i < 2; i++)
		if (pthread_create(&threads[i], NULL, install_all_the_time, NULL))
			fail("no thread");
	for (int i = 0; i < 150; i++) {
		prepare();
		spoil();
		copy();
		expect_copied(&dst, &src, "meanwhile");
	}
	stop = 1;
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	say("%d faults\n", faults);
}

#endif
