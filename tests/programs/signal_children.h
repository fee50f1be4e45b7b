/* For signal_handlers.c: what a child and a program after exec have of it. */
#ifndef SIGNAL_CHILDREN_H
#define SIGNAL_CHILDREN_H
#include "signal_pages.h"
#include <errno.h>
#include <sys/wait.h>

static void show_ignored(void)
{
	char line[200];
	FILE *status = fopen("/proc/self/status", "r");

	while (fgets(line, sizeof(line), status))
		if (!strncmp(line, "SigIgn", 6))
			say("%s", line);
	fclose(status);
}

/* An ignored signal stays so over exec; a handler does not. */
static void exec_ignored(void)
{
	copy_sound();
	handle(mend_it, 0, 0);
	signal(SIGBUS, SIG_IGN);
	copy_sound();
	kill(getpid(), SIGBUS);
	show_ignored();
	execl("/proc/self/exe", "signal_handlers", "after_exec", NULL);
}

static void after_exec(void)
{
	show_ignored();
	say("after exec: %s\n", handler_now());
}

/* The child has our memory, and a table of its own in the kernel. */
static void in_vfork(void)
{
	handle(mend_it, 0, 0);
	copy_sound();
	if (vfork() == 0) {
		say("the child reads %s\n", handler_now());
		handle(mend_it_too, SA_RESTART, 0);
		say("the child reads %s\n", handler_now());
		signal(SIGSEGV, SIG_DFL);
		say("the child reads %s\n", handler_now());
		_exit(0);
	}
	say("the parent reads %s\n", handler_now());
	copy_mended("in the parent");
}

static void wait_for(pid_t child)
{
	int status;

	waitpid(child, &status, 0);
	if (WIFSIGNALED(status))
		say("the child was ended by signal %d\n", WTERMSIG(status));
	else
		say("the child exited with %d\n", WEXITSTATUS(status));
}

static void in_children(void)
{
	handle(mend_it, 0, 0);
	copy_sound();
	for (int bare_fork = 0; bare_fork < 2; bare_fork++)
		for (int with_default = 0; with_default < 3; with_default++) {
			pid_t child = bare_fork ? syscall(SYS_fork) : fork();

			if (child == 0) {
				caller = gettid();
				say("the child reads %s\n", handler_now());
				if (with_default == 1)
					signal(SIGSEGV, SIG_DFL);
				if (with_default == 2)
					handle(mend_it, SA_RESETHAND, 0);
				copy_mended("in the child");
				copy_mended("in the child");
				_exit(7);
			}
			wait_for(child);
			say("the parent reads %s\n", handler_now());
		}
	copy_mended("in the parent");
}

#endif
