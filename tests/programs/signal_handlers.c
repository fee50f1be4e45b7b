/* signal_handlers SCENE: what sigaction promises to a handler, handlers that change, and where it sees
 * the fault.
 */
#include "signal_faults.h"
#include <execinfo.h>
#include <sys/auxv.h>

#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif

static sigjmp_buf before_copy;
static atomic_int stop;

/* ---- promises of sigaction, and handlers that change ------------------------------------ */

/* SA_RESETHAND applies to one fault of the program, and to none of ours. */
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
        wrong("the handler runs on another stack");
    mend_it(signo, info, context);
}

static void *copy_on_small_stack(void *unused)
{
    caller = gettid();
    MUST(!sigaltstack(&alternate, NULL));
    copy_mended("on a small stack");
    copy_mended("once more");
    return unused;
}

/* Faults on a small stack, with the handler on one with little more room than the frame. */
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
    MUST(!pthread_create(&thread, &attributes, copy_on_small_stack, NULL));
    pthread_join(thread, NULL);
}

static int depth;

static void fault_once_more(int signo, siginfo_t *info, void *context)
{
    note(info);
    if (depth++ == 0) {
        /* Makes large copies from and to the bad page, in the handler. */
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

/* Installs, replaces and removes handlers between copies. */
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
    join_all(threads, 2);
    say("%d faults\n", faults);
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
#ifdef __aarch64__
    dladdr((void *)((ucontext_t *)context)->uc_mcontext.pc, &at);
#else
    dladdr((void *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP], &at);
#endif
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
    say("signal %d, code %d, address %p\n", signo, info->si_code, info->si_addr);
    siglongjmp(before_copy, 1);
}

/* An address that no page can have: the kernel reports neither address nor reason. */
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

/* The program faults outside of any copy. */
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
       {"nested", nested}, {"between", between}, {"meanwhile", meanwhile}, {"unwind", unwind},
       {"impossible_address", impossible_address}, {"elsewhere_handled", elsewhere_handled})
