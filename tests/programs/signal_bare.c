/* signal_bare SCENE: actions that the library does not see change: those set and read past the C library,
 * and those of other programs and processes.
 */
#include "signal_faults.h"

/* ---- actions that are set and read past the C library ----------------------------------- */

static struct kernel_action {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
} before;

static void set_bare(void (*handler)(int, siginfo_t *, void *))
{
    struct kernel_action action = {.handler = handler, .flags = SA_SIGINFO};
#ifdef __x86_64__
    struct sigaction seen;
    /* The C library's restorer is found where it has set something. */
    signal(SIGUSR1, mend_whatever);
    sigaction(SIGUSR1, NULL, &seen);
    action.flags |= 0x04000000;
    action.restorer = seen.sa_restorer;
#endif
    MUST(!syscall(SYS_rt_sigaction, SIGSEGV, &action, &before, 8));
}

static void set_back(void)
{
    MUST(!syscall(SYS_rt_sigaction, SIGSEGV, &before, NULL, 8));
}

static void bare(void)
{
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
    note(info);
    say("a report\n");
    set_back();
}

/* A crash reporter: it lets the fault come again with what was there before it. */
static void bare_report(void)
{
    copy_sound();
    set_bare(report_and_set_back);
    copy_sound();
    copy_mended("a fatal fault"); /* ends here */
}

/* ---- children and exec ---------------------------------------------------------------- */

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
    execl("/proc/self/exe", "signal_bare", "after_exec", NULL);
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

static void in_children(void)
{
    handle(mend_it, 0, 0);
    copy_sound();
    for (int i = 0; i < 6; i++) {
        int status, with_default = i % 3;
        pid_t child = i < 3 ? fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
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
        waitpid(child, &status, 0);
        say("the child ended with %#x\n", status & ~0x80); /* a core file or none */
        say("the parent reads %s\n", handler_now());
    }
    copy_mended("in the parent");
}

SCENES(caller = gettid(), {"bare", bare}, {"bare_chain", bare_chain}, {"bare_report", bare_report},
       {"exec_ignored", exec_ignored}, {"after_exec", after_exec}, {"in_vfork", in_vfork},
       {"in_children", in_children})
