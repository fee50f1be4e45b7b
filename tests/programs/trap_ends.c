/* Ends of a program: makes one copy of 1 MiB and ends in the manner named by its first argument. The
 * exit status is 7 where the manner lets the program choose. Moments at which more copies are made go
 * to stdout.
 */
#include "trap.h"
#include "older.h"

enum { STATUS = 7, BARE_STATUS = 3 };

extern int __cxa_thread_atexit_impl(void (*destructor)(void *), void *object, void *library);
extern void *__dso_handle;

static bool destructor_copies;
static pthread_t main_thread;

static void copy(void)
{
    copy_once(1 * MIB, 1, "copy");
}

static void copy_and_say(void *moment)
{
    copy_once(1 * MIB, 2, moment);
    copy_once(4 * KIB, 3, moment);
    say(moment);
}

static void *copy_for_ever(void *nothing)
{
    for (;;)
        copy();
    return nothing;
}

static void start_copying(void)
{
    for (int i = 0; i < 3; i++)
        pthread_detach(start_thread(copy_for_ever, NULL));
    usleep(20000);
}

static void wait_for_ever(void)
{
    for (;;)
        pause();
}

/* ---- by exit ------------------------------------------------------------------------------------ */

static void exit_now(int number)
{
    exit(STATUS);
}

static void copy_and_exit_again(void)
{
    copy();
    exit(STATUS);
}

static void exit_in_exit_handler(void)
{
    atexit(copy_and_exit_again);
    exit(0);
}

static void copy_at_exit(void)
{
    copy_and_say("atexit");
}

static void copy_on_exit(int status, void *moment)
{
    copy_and_say(moment);
}

__attribute__((destructor)) static void copy_in_destructor(void)
{
    if (destructor_copies)
        copy_and_say("destructor");
}

static void copy_in_exit_handlers(void)
{
    destructor_copies = true;
    atexit(copy_at_exit);
    on_exit(copy_on_exit, "on_exit");
}

static void *leave_thread_data(void *nothing)
{
    pthread_key_t key;
    pthread_key_create(&key, copy_and_say);
    pthread_setspecific(key, "pthread key");
    __cxa_thread_atexit_impl(copy_and_say, "thread-local object", &__dso_handle);
    return nothing;
}

static void copy_in_thread_destructors(void)
{
    pthread_join(start_thread(leave_thread_data, NULL), NULL);
    __cxa_thread_atexit_impl(copy_and_say, "thread-local object of main", &__dso_handle);
}

static void *copy_and_call_exit(void *nothing)
{
    copy();
    exit(STATUS);
    return nothing;
}

static void exit_in_thread(void)
{
    destructor_copies = true;
    atexit(copy_at_exit);
    start_thread(copy_and_call_exit, NULL);
    wait_for_ever();
}

/* Exits in a signal handler that interrupts a copy. */
static void exit_in_signal_handler(void)
{
    struct blocks b = map_blocks(40 * MIB);
    atexit(copy_at_exit);
    handle(SIGALRM, exit_now, 0);
    fill(b.from, b.size, 1);
    alarm_after_us(20000);
    for (;;)
        memcpy(b.to, b.from, b.size);
}

static void *copy_on_alone(void *nothing)
{
    pthread_join(main_thread, NULL);
    for (int i = 0; i < 10; i++) {
        copy();
        sleep_ms(15);
    }
    say("last thread");
    return nothing;
}

/* Main ends by pthread_exit, and another thread exits last, with status 0. */
static void last_thread(void)
{
    main_thread = pthread_self();
    start_thread(copy_on_alone, NULL);
    pthread_exit(NULL);
}

/* ---- without exit handlers ------------------------------------------------------------------------ */

/* Bound before it is called: the loader's own way saves all registers, for which there is no stack. */
static void (*volatile leave)(int) = _exit;

static void leave_now(int number)
{
    leave(STATUS);
}

/* Exits with next to no stack. */
static void _exit_in_signal_handler(void)
{
    stack_t small = {.ss_size = least_signal_stack() + 1024};
    small.ss_sp = map(small.ss_size);
    sigaltstack(&small, NULL);
    handle(SIGUSR1, leave_now, SA_ONSTACK);
    raise(SIGUSR1);
}

static void *leave_too(void *nothing)
{
    _exit(STATUS);
    return nothing;
}

static void _exit_in_many_threads(void)
{
    start_copying();
    for (int i = 0; i < 3; i++)
        start_thread(leave_too, NULL);
    wait_for_ever();
}

static void copy_at_quick_exit(void)
{
    copy_and_say("at_quick_exit");
}

static void by_quick_exit(void)
{
    at_quick_exit(copy_at_quick_exit);
    quick_exit(STATUS);
}

static sigjmp_buf before_abort;

static void jump_back(int number)
{
    siglongjmp(before_abort, 1);
}

/* A handler jumps out, and the process copies once more. */
static void abort_and_jump(void)
{
    signal(SIGABRT, jump_back);
    if (!sigsetjmp(before_abort, 1))
        abort();
    copy();
}

/* Main ends by the system call exit, right after a copy or when workers have fallen asleep. */
static void bare(void)
{
    expect_workers(map_blocks(8 * MIB), "bare");
    sleep_ms(scene_how);
    syscall(SYS_exit, BARE_STATUS);
}

/* ---- in one call, and what is done just before the end ------------------------------------------ */

enum { RETURN, EXIT, _EXIT, _EXIT_C, ABORT, KILL, REPLACE, LIMIT_FILES, CLOSE_STDERR };

static void end_now(void)
{
    switch (scene_how) {
    case EXIT: exit(STATUS);
    case _EXIT: _exit(STATUS);
    case _EXIT_C: _Exit(STATUS);
    case ABORT: setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0}); abort();
    case KILL: kill(getpid(), SIGKILL); break;
    case REPLACE: unlink(scene_words[0]); break; /* as by an upgrade */
    case LIMIT_FILES: setrlimit(RLIMIT_FSIZE, &(struct rlimit){0, 0}); break;
    case CLOSE_STDERR: close(2); break;
    }
}

/* The daemon makes three more copies. */
static void become_daemon(void)
{
    if (daemon(0, 0))
        exit(1);
    for (int i = 0; i < 3; i++)
        copy();
}

enum { BY_OPEN, BY_DUP2, BY_FREOPEN };

/* A file of the program takes the place of stderr. */
static void own_stderr(void)
{
    const char *path = scene_argument(0, "");
    if (scene_how == BY_FREOPEN) {
        if (!freopen(path, "w", stderr))
            exit(1);
    } else {
        if (scene_how == BY_OPEN)
            close(2);
        int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
        if (scene_how == BY_DUP2 && (dup2(fd, 2) != 2 || close(fd)))
            exit(1);
    }
    fprintf(stderr, "a line of the program\n");
}

static const struct scene scenes[] = {
    {"return", end_now, RETURN},
    {"exit", end_now, EXIT},
    {"_exit", end_now, _EXIT},
    {"_Exit", end_now, _EXIT_C},
    {"abort", end_now, ABORT},
    {"kill", end_now, KILL},
    {"replaced", end_now, REPLACE},
    {"small-file-limit", end_now, LIMIT_FILES},
    {"closed-stderr", end_now, CLOSE_STDERR},
    {"exit-in-handler", exit_in_exit_handler},
    {"exit-while-copying", start_copying},
    {"atexit", copy_in_exit_handlers},
    {"keys", copy_in_thread_destructors},
    {"thread", exit_in_thread},
    {"signal", exit_in_signal_handler},
    {"last-thread", last_thread},
    {"_exit-in-handler", _exit_in_signal_handler},
    {"_exit-while-copying", _exit_in_many_threads},
    {"quick_exit", by_quick_exit},
    {"abort-and-jump", abort_and_jump},
    {"bare", bare, 0},
    {"bare-later", bare, 60},
    {"daemon", become_daemon},
    {"own-stderr", own_stderr, BY_OPEN},
    {"own-stderr-by-dup2", own_stderr, BY_DUP2},
    {"own-stderr-by-freopen", own_stderr, BY_FREOPEN},
    {0},
};

int main(int count, char **words)
{
    copy();
    return play(count, words, scenes) ? 1 : STATUS;
}
