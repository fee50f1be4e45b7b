/* signal_sent SCENE: SIGSEGV and SIGBUS that no fault has caused, during copies and between them. */
#include "signal_faults.h"

static volatile int last_value, last_code;
static sem_t arrived, copying;
static pthread_t copier;
static sigjmp_buf before_copy;
static atomic_int stop;
enum { SENT = 120, BIG = 8 << 20 };

static void leave_on_sent(int signo, siginfo_t *info, void *context)
{
    last_value = info->si_value.sival_int;
    last_code = info->si_code;
    if (gettid() != caller)
        wrong("a sent signal came to another thread");
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
        MUST(!pthread_sigqueue(copier, SIGSEGV, value));
        while (sem_wait(&arrived))
            ;
        if (last_value != i || last_code != SI_QUEUE)
            wrong("signal %d came as %d, code %d", i, last_value, last_code);
    }
    stop = 1;
    return unused;
}

/* Copies from two sources in turn, so that a late write shows. */
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

/* Sent to the process, all of whose threads block it: it has to stay pending for one of them. */
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

/* A signal with its default action ends the program, sent or raised. */
static void end_by_default(void)
{
    struct sigaction action = {.sa_handler = SIG_DFL, .sa_flags = SA_NODEFER};
    sigaction(SIGBUS, &action, NULL);
    copy_sound();
    say("to be ended by signal %ld\n", scene_how);
    scene_how == SIGSEGV ? kill(getpid(), SIGSEGV) : raise(SIGBUS);
    say("survived\n");
}

SCENES(caller = gettid(), {"sent", sent}, {"waited_for", waited_for},
       {"sent_with_default", end_by_default, SIGSEGV}, {"raised_with_default", end_by_default, SIGBUS})
