/* For signal_handlers.c: SIGSEGV that is sent, during a copy and beside it. */
#ifndef SIGNAL_SENT_H
#define SIGNAL_SENT_H
#include "signal_pages.h"
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>

static volatile int last_value, last_code;
static sem_t arrived, copying;

static void leave_on_sent(int signo, siginfo_t *info, void *context)
{
	(void)signo, (void)context;
	last_value = info->si_value.sival_int;
	last_code = info->si_code;
	if (gettid() != caller)
		fail("a sent signal came to another thread");
	sem_post(&arrived);
	siglongjmp(before_copy, 1);
}

enum { SENT = 120 };
static pthread_t copier;

static void *send_signals(void *unused)
{
	for (int i = 1; i <= SENT; i++) {
		union sigval value = { .sival_int = i };

		while (sem_wait(&copying))
			;
		sleep_ms(1 + i % 3);
		if (pthread_sigqueue(copier, SIGSEGV, value))
			fail("pthread_sigqueue: %m");
		while (sem_wait(&arrived))
			;
		if (last_value != i || last_code != SI_QUEUE)
			fail("signal %d came as %d, code %d", i, last_value, last_code);
	}
	stop = 1;
	return unused;
}

/* Copies from two sources in turn, so that a late write is seen. */
static void copy_in_turn(byte *to)
{
	enum { BIG = 8 << 20 };
	static byte *sources[2];
	static unsigned turn;

	for (int i = 0; i < 2 && !sources[i]; i++) {
		sources[i] = pages_between_guards(BIG);
		for (size_t at = 0; at < BIG; at++)
			sources[i][at] = 0x11 << i;
	}
	memcpy((void *)to, (void *)sources[turn++ % 2], BIG);
}

/* Sent, not raised: its handler jumps out of copies, and no worker may write afterwards. */
static void sent(void)
{
	enum { BIG = 8 << 20 };
	byte *to = pages_between_guards(BIG);
	static volatile int jumps;
	pthread_t sender;

	copier = pthread_self();
	sem_init(&arrived, 0, 0);
	sem_init(&copying, 0, 0);
	copy_in_turn(to);
	handle(leave_on_sent, 0, 0);
	if (pthread_create(&sender, NULL, send_signals, NULL))
		fail("no thread");
	if (sigsetjmp(before_copy, 1)) {
		jumps++;
		expect_nobody_writes(to, BIG, PAGE, "after a jump");
	}
	sem_post(&copying);
	while (!stop)
		copy_in_turn(to);
	pthread_join(sender, NULL);
	say("%d jumps\n", jumps);
}

static void *copy_until_told(void *unused)
{
	byte *to = pages_between_guards(8 << 20), *from = pages_between_guards(8 << 20);

	while (!stop)
		memcpy((void *)to, (void *)from, 8 << 20);
	return unused;
}

/* Sent to the process, all of whose threads block it: it has to wait for one of them. */
static void waited_for(void)
{
	struct timespec second = { 60, 0 };
	siginfo_t info;
	pthread_t thread;
	sigset_t set;
	int got = 0;

	copy_sound();
	sigemptyset(&set);
	sigaddset(&set, SIGSEGV);
	sigaddset(&set, SIGBUS);
	sigprocmask(SIG_BLOCK, &set, NULL);
	if (pthread_create(&thread, NULL, copy_until_told, NULL))
		fail("no thread");
	for (int i = 0; i < 100; i++) {
		kill(getpid(), i % 2 ? SIGSEGV : SIGBUS);
		sleep_ms(2);
		got += sigtimedwait(&set, &info, &second) == (i % 2 ? SIGSEGV : SIGBUS) &&
		       info.si_pid == getpid() && info.si_code == SI_USER;
	}
	stop = 1;
	pthread_join(thread, NULL);
	say("%d waited for\n", got);
}

static void sent_with_default(void)
{
	copy_sound();
	say("to be ended by kill\n");
	kill(getpid(), SIGSEGV);
	say("survived\n");
}

static void raised_with_default(void)
{
	struct sigaction action = { .sa_handler = SIG_DFL, .sa_flags = SA_NODEFER };

	sigaction(SIGBUS, &action, NULL);
	copy_sound();
	say("to be ended by raise\n");
	raise(SIGBUS);
	say("survived\n");
}

#endif
