/*
 * signal_handlers CASE: a program that handles SIGSEGV and makes large copies over bad pages.
 *
 * Prints what it sees; the test compares that, and how the program ends, with a run without
 * the library. Each case is a function; most are in the headers signal_*.h, by what they are about.
 */
#include "signal_bare.h"
#include "signal_children.h"
#include "signal_installed.h"
#include "signal_pages.h"
#include "signal_sent.h"
#include "seccomp.h"
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/wait.h>
#include <ucontext.h>

static int frames_found;
static char object[200];

static void look_around(int signo, siginfo_t *info, void *context)
{
	void *frames[40];
	Dl_info at = { 0 };
	int count = backtrace(frames, 40);

	for (int i = 0; i < count; i++)
		frames_found |= (char *)frames[i] > (char *)copy &&
				(char *)frames[i] < (char *)copy + 128;
	dladdr((void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP], &at);
	snprintf(object, sizeof(object), "%s", at.dli_fname ? strrchr(at.dli_fname, '/') + 1 : "?");
	mend_it(signo, info, context);
}

/* The handler sees libc's memmove, and its callers. */
static void unwind(void)
{
	void *frames[4];

	backtrace(frames, 4); /* loads what it needs */
	copy_sound();
	handle(look_around, 0, 0);
	copy_mended("seen");
	say("the fault was in %s, the frames of its callers %s\n", object,
	    frames_found ? "found" : "not found");
}

static void jump_anyway(int signo, siginfo_t *info, void *context)
{
	(void)context;
	say("signal %d, code %d, address %p\n", signo, info->si_code, info->si_addr);
	siglongjmp(before_copy, 1);
}

/* An address that no page can have: the kernel gives neither address nor reason. */
static void impossible_address(void)
{
	copy_sound();
	handle(jump_anyway, 0, 0);
	if (!sigsetjmp(before_copy, 1))
		memcpy((void *)dst.base, (void *)0x8000000000000000, LEN);
	if (!sigsetjmp(before_copy, 1))
		memcpy((void *)0x8000000000000000, (void *)src.base, LEN);
	copy_sound();
	signal(SIGSEGV, SIG_DFL);
	memcpy((void *)0x8000000000000000, (void *)src.base, LEN);
}

/* The whole process faults, outside of any copy. */
static void elsewhere_handled(void)
{
	copy_sound();
	handle(mend_it, 0, 0);
	for (int i = 0; i < 1000; i++) {
		prepare();
		spoil();
		bad[i] = 1;
		mend();
	}
	say("%d faults\n", faults);
	signal(SIGSEGV, SIG_DFL);
	copy_sound();
	spoil();
	*bad = 1;
}

static void *be_cancelled(void *to)
{
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, NULL);
	for (;;)
		copy_in_turn(to);
	return NULL;
}

static void cancelled(void)
{
	byte *to = pages_between_guards(8 << 20);

	copy_in_turn(to);
	handle(mend_it, 0, 0);
	copy_sound();
	for (int i = 0; i < 40; i++) {
		pthread_t thread;
		void *result;

		if (pthread_create(&thread, NULL, be_cancelled, (void *)to))
			fail("no thread");
		sleep_ms(1 + i % 5);
		pthread_cancel(thread);
		pthread_join(thread, &result);
		if (result != PTHREAD_CANCELED)
			fail("not cancelled");
		expect_nobody_writes(to, 8 << 20, PAGE, "after a cancellation");
	}
	copy_mended("after 40 cancellations");
}

/* No thread copies by way of the kernel, whatever the program handles. */
static void filtered(void)
{
	const int copies[] = { SYS_process_vm_readv, SYS_process_vm_writev, -1 };

	handle(mend_it, 0, 0);
	copy_sound();
	if (answer_calls(copies, SECCOMP_RET_KILL_PROCESS, 0))
		cannot_be_shown("no seccomp filters here");
	for (int i = 0; i < 5; i++)
		copy_sound();
	copy_mended("under a filter");
}

static void jumps(void)
{
	copy_sound();
	handle(jump, 0, 0);
	for (int i = 0; i < 50; i++) {
		prepare();
		spoil();
		if (!sigsetjmp(before_copy, 1))
			copy();
		mend();
	}
	say("%d faults\n", faults);
	copy_sound();
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "reset", reset },
	{ "alternate_stack", alternate_stack },
	{ "nested", nested },
	{ "between", between },
	{ "meanwhile", meanwhile },
	{ "sent", sent },
	{ "waited_for", waited_for },
	{ "bare", bare },
	{ "bare_chain", bare_chain },
	{ "bare_report", bare_report },
	{ "exec_ignored", exec_ignored },
	{ "after_exec", after_exec },
	{ "in_vfork", in_vfork },
	{ "in_children", in_children },
	{ "unwind", unwind },
	{ "sent_with_default", sent_with_default },
	{ "raised_with_default", raised_with_default },
	{ "impossible_address", impossible_address },
	{ "elsewhere_handled", elsewhere_handled },
	{ "cancelled", cancelled },
	{ "filtered", filtered },
	{ "jumps", jumps },
};

int main(int argc, char **argv)
{
	caller = gettid();
	for (size_t i = 0; argc == 2 && i < sizeof(cases) / sizeof(cases[0]); i++)
		if (!strcmp(cases[i].name, argv[1])) {
			cases[i].run();
			return 0;
		}
	fail("usage: signal_handlers CASE");
}
