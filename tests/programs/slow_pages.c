/* Signals that come while memory is slow: userfaultfd gives out its pages one in a millisecond,
 * or never.
 *
 * slow_pages WHAT HOW. WHAT is done with the memory: copy, fill, compare, remote (process_vm_readv)
 * or started (adma_icopy). HOW:
 *
 *   late      prints by how many milliseconds SIGALRM came late in the middle of such calls, the
 *             median of several
 *   default   no page comes, and SIGTERM has its default action
 *   handled   no page comes, and SIGTERM has a handler, which ends the program
 *   directed  like handled, sent to the thread and not to the process
 *   jumps     no page comes until the handler of SIGTERM has jumped out of the call: then nothing
 *             may be written any more
 */
#include "pattern.h"
#include "uffd.h"

enum { PAGES = 160, LEN = PAGES * PAGE, ROUNDS = 9, ALARM_MS = 40 };

static byte *slow, *quick;
static const char zeros[PAGE];
static pthread_t caller;
static sigjmp_buf before_call;
static int sends_to_thread;
static volatile int pages_come;
static volatile sig_atomic_t came, calling;
static volatile long came_at;
static uint64_t (*icopy)(const void *, void *, size_t);
static int (*wait_copy)(uint64_t);

static void *serve(void *unused)
{
    struct pollfd readable = {.fd = userfault, .events = POLLIN};
    int sent = pages_come;
    while (poll(&readable, 1, -1) > 0) {
        if (!sent++) {
            sleep_ms(150); /* long enough for every thread that can hang to hang */
            if (sends_to_thread)
                pthread_kill(caller, SIGTERM);
            else
                kill(getpid(), SIGTERM);
        }
        while (!pages_come)
            sleep_ms(1);
        uintptr_t page = page_asked_for(0);
        sleep_ms(1);
        if (page)
            supply_page(page, zeros);
    }
    return unused;
}

static void call(const char *what)
{
    struct iovec local = {(void *)quick, LEN}, remote = {(void *)slow, LEN};
    if (!strcmp(what, "fill"))
        memset((void *)slow, 7, LEN);
    else if (!strcmp(what, "compare") && memcmp((void *)quick, (void *)slow, LEN))
        wrong("zeros are not the same as zeros");
    else if (!strcmp(what, "remote") &&
             process_vm_readv(getpid(), &local, 1, &remote, 1, 0) != LEN)
        wrong("process_vm_readv did not read all");
    else if (!strcmp(what, "started") && icopy)
        wait_copy(icopy((void *)slow, (void *)quick, LEN));
    else if (!strcmp(what, "started") || !strcmp(what, "copy"))
        memcpy((void *)quick, (void *)slow, LEN);
}

static void on_alarm(int signo)
{
    came_at = clock_us();
    came = 1;
}

static int ascending(const void *a, const void *b)
{
    return (*(const long *)a > *(const long *)b) - (*(const long *)a < *(const long *)b);
}

static void measure(const char *what)
{
    struct itimerval timer = {.it_value = {0, 1000 * ALARM_MS}};
    long late[ROUNDS];
    signal(SIGALRM, on_alarm);
    for (int round = 0; round < ROUNDS; round++) {
        madvise((void *)slow, LEN, MADV_DONTNEED);
        came = 0;
        long due = clock_us() + 1000 * ALARM_MS;
        setitimer(ITIMER_REAL, &timer, NULL);
        call(what);
        while (!came)
            sleep_ms(1);
        late[round] = came_at - due;
    }
    qsort(late, ROUNDS, sizeof(late[0]), ascending);
    printf("%ld\n", late[ROUNDS / 2] / 1000);
}

static void end(int signo)
{
    static const char text[] = "handled\n";
    _exit(write(2, text, sizeof(text) - 1) < 0 ? 1 : 7);
}

static void jump(int signo)
{
    if (calling)
        siglongjmp(before_call, 1);
}

/* Checks that nothing is written after the jump, even by threads that get their page only now. */
static void expect_left(const char *what)
{
    pages_come = 1;
    for (size_t i = 0; i < LEN; i += PAGE)
        quick[i] = 'A';
    sleep_ms(300);
    for (size_t i = 0; i < LEN; i += PAGE)
        if (quick[i] != 'A')
            wrong("written after the jump, at %zu", i);
    for (size_t i = 0; i < LEN; i += PAGE)
        quick[i] = !strcmp(what, "copy");
    call(what);
    if (quick[PAGE])
        wrong("the call after the jump is wrong");
}

int main(int count, char **arguments)
{
    const char *what = arguments[1], *how = arguments[2];
    sigset_t all, before;
    if (count != 3)
        wrong("slow_pages WHAT HOW");
    icopy = dlsym(RTLD_DEFAULT, "adma_icopy");
    wait_copy = dlsym(RTLD_DEFAULT, "adma_wait_copy");
    caller = pthread_self();
    quick = pages_between_guards(LEN);
    slow = pages_between_guards(LEN);
    for (int round = 0; round < 20; round++)
        call(what); /* nothing is slow yet: all threads are there afterwards */
    memset((void *)quick, 0, LEN);
    open_userfault(geteuid() ? UFFD_USER_MODE_ONLY : 0, 0);
    sends_to_thread = !strcmp(how, "directed");
    pages_come = !strcmp(how, "late");
    if (!strcmp(how, "handled") || sends_to_thread)
        signal(SIGTERM, end);
    if (!strcmp(how, "jumps"))
        signal(SIGTERM, jump);
    lose_pages((void *)slow, LEN);
    for (int page = 0; page < 16; page++) /* a caller may do a first part without help */
        supply_page((uintptr_t)slow + page * PAGE, zeros);
    /* No other thread of the program takes the signal. */
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    start_thread(serve, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (pages_come) {
        measure(what);
        return 0;
    }
    fprintf(stderr, "%s, %s\n", what, how);
    if (!sigsetjmp(before_call, 1)) {
        calling = 1;
        call(what);
        wrong("the call has come to an end without its pages");
    }
    calling = 0;
    expect_left(what);
    return 0;
}
