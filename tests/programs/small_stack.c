/*
 * The first large copy of a process is made on a coroutine's stack of 8 KiB, with a forbidden
 * page below it.
 *
 * memcpy needs no stack at all, so whatever stands in for it has to make do with little, in
 * its first call as well.
 */
#include "pattern.h"
#include <ucontext.h>

enum { STACK = 8192, LEN = 1 << 20 };

static struct side dst, src;
static ucontext_t program, coroutine;

static void copy_there(void)
{
	memcpy((void *)dst.base, (void *)src.base, LEN);
}

int main(void)
{
	dst = (struct side){ pages_between_guards(LEN), LEN, 0, LEN };
	src = (struct side){ pages_between_guards(LEN), LEN, 0, LEN };
	/* Lets the dynamic linker find memcpy, which needs more stack than anything here. */
	memcpy((void *)dst.base, (void *)src.base, 1);
	lay_down(&dst, DESTINATION);
	lay_down(&src, SOURCE);
	getcontext(&coroutine);
	coroutine.uc_stack.ss_sp = (void *)pages_between_guards(STACK);
	coroutine.uc_stack.ss_size = STACK;
	coroutine.uc_link = &program;
	makecontext(&coroutine, copy_there, 0);
	if (swapcontext(&program, &coroutine))
		fail("swapcontext: %m");
	expect_copied(&dst, &src, "memcpy on a small stack");
	return 0;
}
