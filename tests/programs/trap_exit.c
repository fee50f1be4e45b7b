/* The end of a program, and copies at that moment or after it. Moments reached go to stdout.
 *
 *   atexit      handlers of atexit, on_exit and the program's own destructor copy
 *   keys        destructors of thread-local data copy, in a thread and in main
 *   thread      exit() is called by another thread; atexit handlers copy
 *   main-leaves main ends by pthread_exit, another thread copies on and ends last
 *   detached    main returns while detached threads copy
 *   _exit       main calls _exit while detached threads copy
 *   quick       quick_exit, with a handler that copies
 *   handler     exit() inside a signal handler that interrupts a copy
 *   bare        main ends by the system call exit, with the status 3, right after a copy
 *   bare-later  like bare, when workers have fallen asleep
 */
#include "trap.h"

extern int __cxa_thread_atexit_impl(void (*destructor)(void *), void *object, void *library);
extern void *__dso_handle;

static bool destructor_copies;
static pthread_t main_thread;

static void copy_and_say(void *moment)
{
    copy_once(4 * MIB, 1, moment);
    copy_once(4 * KIB, 2, moment);
    say(moment);
}

static void copy_at_exit(void)
{
    copy_and_say("atexit");
}

static void copy_on_exit(int status, void *moment)
{
    (void)status;
    copy_and_say(moment);
}

static void copy_at_quick_exit(void)
{
    copy_and_say("at_quick_exit");
}

__attribute__((destructor)) static void copy_in_destructor(void)
{
    if (destructor_copies)
        copy_and_say("destructor");
}

static void by_atexit(void)
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

static void by_keys(void)
{
    pthread_join(start_thread(leave_thread_data, NULL), NULL);
    __cxa_thread_atexit_impl(copy_and_say, "thread-local object of main", &__dso_handle);
}

static void *call_exit(void *nothing)
{
    copy_once(8 * MIB, 3, "thread before exit");
    exit(0);
    return nothing;
}

static void by_thread(void)
{
    destructor_copies = true;
    atexit(copy_at_exit);
    start_thread(call_exit, NULL);
    copy_until_stopped((void *)(1 * MIB));
}

static void *copy_on_alone(void *nothing)
{
    pthread_join(main_thread, NULL);
    for (int i = 0; i < 10; i++) {
        copy_once(4 * MIB, 10 + i, "thread that outlives main");
        sleep_ms(15);
    }
    say("last thread");
    return nothing;
}

static void main_leaves(void)
{
    main_thread = pthread_self();
    start_thread(copy_on_alone, NULL);
    pthread_exit(NULL);
}

static void detached(void)
{
    for (int i = 0; i < 3; i++)
        pthread_detach(start_thread(copy_until_stopped, (void *)(512 * KIB + i * MIB)));
    sleep_ms(20);
}

static void by__exit(void)
{
    detached();
    _exit(0);
}

static void quick(void)
{
    at_quick_exit(copy_at_quick_exit);
    quick_exit(0);
}

static void exit_now(int number)
{
    (void)number;
    exit(0);
}

static void in_handler(void)
{
    struct blocks b = map_blocks(40 * MIB);
    atexit(copy_at_exit);
    handle(SIGALRM, exit_now, 0);
    fill(b.from, b.size, 1);
    alarm_after_us(20000);
    for (;;)
        memcpy(b.to, b.from, b.size);
}

static void bare(void)
{
    expect_workers(map_blocks(8 * MIB), "bare");
    syscall(SYS_exit, 3);
}

static void bare_later(void)
{
    expect_workers(map_blocks(8 * MIB), "bare-later");
    sleep_ms(60);
    syscall(SYS_exit, 3);
}

SCENES(copy_once(8 * MIB, 4, "main"), {"atexit", by_atexit}, {"keys", by_keys},
       {"thread", by_thread}, {"main-leaves", main_leaves}, {"detached", detached},
       {"_exit", by__exit}, {"quick", quick}, {"handler", in_handler}, {"bare", bare},
       {"bare-later", bare_later})
