/*
 * A SIGALRM handler that leaves a running 64 MiB copy by siglongjmp.
 *
 * Once the program has left the copy no worker may write to its destination any more, and the
 * next copy must be right.
 */
#include "pattern.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>

enum { LEN = 64 << 20, ROUNDS = 12 };

static sigjmp_buf before_copy;
static volatile sig_atomic_t copying, interrupted;

static void on_alarm(int signo)
{
	(void)signo;
	interrupted += copying;
	if (copying)
		siglongjmp(before_copy, 1);
}

static void alarm_after(int microseconds)
{
	struct itimerval timer = { .it_value = { 0, microseconds } };

	setitimer(ITIMER_REAL, &timer, NULL);
}

static void expect_filled_with(byte *at, unsigned char want, const char *what)
{
	for (size_t i = 0; i < LEN; i += 64)
		if (at[i] != want)
			fail("%s: byte %zu is %#x, want %#x", what, i, at[i], want);
}

static void fill(byte *at, unsigned char with)
{
	for (size_t i = 0; i < LEN; i += 64)
		at[i] = with;
}

int main(void)
{
	byte *dst = pages_between_guards(LEN), *src = pages_between_guards(LEN);

	signal(SIGALRM, on_alarm);
	for (volatile int round = 0; round < ROUNDS; round++) {
		fill(src, 'S');
		fill(dst, 'D');
		if (!sigsetjmp(before_copy, 1)) {
			alarm_after(200 + 700 * round);
			copying = 1;
			memcpy((void *)dst, (void *)src, LEN);
		}
		copying = 0;
		expect_nobody_writes(dst, LEN, PAGE, "after the jump");
		alarm_after(0);
		fill(dst, 'A');
		expect_filled_with(dst, 'A', "a new pattern after the jump");
		memmove((void *)dst, (void *)src, LEN);
		expect_filled_with(dst, 'S', "the copy after the jump");
	}
	if (!interrupted)
		cannot_be_shown("no copy was long enough to be interrupted");
	return 0;
}
