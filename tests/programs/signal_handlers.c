/*
 * signal_handlers SCENE: a program that handles SIGSEGV and makes large copies over bad pages.
 * Prints what it sees, to be compared, with its end, with a run without the library.
 */
#include "signal_pages.h"
#include <execinfo.h>
#include <sys/auxv.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

/* ---- promises of sigaction, and handlers that change ------------------------------------ */

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
    size_t least = getauxval(AT_MINSIGSTKSZ) ?: MINSIGSTKSZ;
    alternate.ss_size = (least + 1536 + 63) / 64 * 64;
    alternate.ss_sp = (void *)(pages_between_guards(alternate.ss_size) +
                               (PAGE - alternate.ss_size % PAGE) % PAGE);
    handle(mend_on_alternate_stack, SA_ONSTACK, 0);
    copy_sound();
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 48 << 10);
    pthread_join(start_thread(copy_on_small_stack, &attributes), NULL);
}

static int depth;

static void fault_once_more(int signo, siginfo_t *info, void *context)
{
    (void)signo, (void)context;
    note(info);
    if (depth++ == 0) {
        /* Large copies from and to the bad page, in the handler. */
        byte *other = pages_between_guards(ROOM);
        memcpy((void *)(dst.base + dst.from), (void *)(src.base + src.from), LEN);
        memcpy((void *)other, (void *)(src.base + src.from), LEN);
    }
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

static void copy_and_look(const char *what)
{
    copy_mended(what);
    say("blocked inside: %#lx\n", blocked_inside);
}

/* Installed, replaced and taken away between copies. */
static void between(void)
{
    handle(mend_and_look, 0, SIGUSR1);
    copy_sound();
    copy_and_look("installed before the first copy");
    signal(SIGSEGV, SIG_DFL);
    copy_sound();
    handle(mend_it, 0, 0);
    copy_mended("by mend_it");
    signal(SIGSEGV, mend_whatever);
    copy_mended("by a handler without siginfo");
    handle(mend_and_look, 0, SIGUSR1);
    copy_and_look("with SIGUSR1 blocked");
    copy_sound();
    handle(mend_and_look, SA_NODEFER, SIGUSR2);
    copy_and_look("with SIGUSR2 blocked");
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

/* Other threads install handlers while copies are in flight. */
static void meanwhile(void)
{
    pthread_t threads[2];
    handle(mend_it, 0, 0);
    copy_sound();
    for (int i = 0; i < 2; i++)
        threads[i] = start_thread(install_all_the_time, NULL);
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

/* ---- SIGSEGV that is sent ------------------------------------------------------------- */

static volatile int last_value, last_code;
static sem_t arrived, copying;
static pthread_t copier;
enum { SENT = 120 };

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

static void *send_signals(void *unused)
{
    for (int i = 1; i <= SENT; i++) {
        union sigval value = {.sival_int = i};
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
    byte *to = pages_between_guards(BIG);
    static volatile int jumps;
    copier = pthread_self();
    sem_init(&arrived, 0, 0);
    sem_init(&copying, 0, 0);
    copy_in_turn(to);
    handle(leave_on_sent, 0, 0);
    pthread_t sender = start_thread(send_signals, NULL);
    if (sigsetjmp(before_copy, 1)) {
        jumps++;
        expect_no_writer(to, BIG, PAGE, "after a jump");
    }
    sem_post(&copying);
    while (!stop)
        copy_in_turn(to);
    pthread_join(sender, NULL);
    say("%d jumps\n", jumps);
}

static void *copy_until_told(void *unused)
{
    byte *to = pages_between_guards(BIG);
    while (!stop)
        copy_in_turn(to);
    return unused;
}

/* Sent to the process, all of whose threads block it: it has to wait for one of them. */
static void waited_for(void)
{
    struct timespec minute = {60, 0};
    siginfo_t info;
    sigset_t set;
    int got = 0;
    copy_sound();
    sigemptyset(&set);
    sigaddset(&set, SIGSEGV);
    sigaddset(&set, SIGBUS);
    sigprocmask(SIG_BLOCK, &set, NULL);
    pthread_t thread = start_thread(copy_until_told, NULL);
    for (int i = 0; i < 100; i++) {
        kill(getpid(), i % 2 ? SIGSEGV : SIGBUS);
        sleep_ms(2);
        got += sigtimedwait(&set, &info, &minute) == (i % 2 ? SIGSEGV : SIGBUS) &&
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
    struct sigaction action = {.sa_handler = SIG_DFL, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
    copy_sound();
    say("to be ended by raise\n");
    raise(SIGBUS);
    say("survived\n");
}

/* ---- actions that are set and read past the C library ----------------------------------- */

static struct kernel_action {
    void (*handler)(int, siginfo_t *, void *);
    unsigned long flags;
    void (*restorer)(void);
    uint64_t mask;
} before;

static void set_bare(void (*handler)(int, siginfo_t *, void *))
{
    struct kernel_action action = {.handler = handler, .flags = SA_SIGINFO | 0x04000000};
    struct sigaction seen;
    /* The C library's restorer is found where it has set something. */
    signal(SIGUSR1, mend_whatever);
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
    (void)signo, (void)context;
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

static void in_children(void)
{
    handle(mend_it, 0, 0);
    copy_sound();
    for (int i = 0; i < 6; i++) {
        int status, with_default = i % 3;
        pid_t child = i < 3 ? fork() : syscall(SYS_fork);
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

/* ---- where the fault is ---------------------------------------------------------------- */

static int frames_found;
static char object[200];

static void look_around(int signo, siginfo_t *info, void *context)
{
    void *frames[40];
    Dl_info at = {0};
    int count = backtrace(frames, 40);
    for (int i = 0; i < count; i++)
        frames_found |=
            (char *)frames[i] > (char *)copy && (char *)frames[i] < (char *)copy + 128;
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

SCENES(caller = gettid(), {"reset", reset}, {"alternate_stack", alternate_stack},
       {"nested", nested}, {"between", between}, {"meanwhile", meanwhile}, {"sent", sent},
       {"waited_for", waited_for}, {"sent_with_default", sent_with_default},
       {"raised_with_default", raised_with_default}, {"bare", bare}, {"bare_chain", bare_chain},
       {"bare_report", bare_report}, {"exec_ignored", exec_ignored}, {"after_exec", after_exec},
       {"in_vfork", in_vfork}, {"in_children", in_children}, {"unwind", unwind},
       {"impossible_address", impossible_address}, {"elsewhere_handled", elsewhere_handled})
