/* The end of a program, and copies at that moment or after it:
 *
 *   atexit      handlers of atexit, on_exit and the program's own destructor copy
 *   keys        destructors of thread-local data copy, in a thread and in main
 *   thread      exit() is called by another thread; atexit handlers copy
 *   main-leaves main ends by pthread_exit, another thread copies on and ends last
 *   detached    main returns while detached threads copy
 *   _exit       the same with _exit
 *   quick       quick_exit, with a handler that copies
 *   handler     exit() inside a signal handler that interrupts a copy
 *   bare        main ends by the system call exit, with the status 3, right after a copy
 *   bare-later  the same when workers have fallen asleep
 *
 * What was reached is written to stdout.
 */
#include "trap.h"
#include <sys/time.h>

extern int __cxa_thread_atexit_impl(void (*destructor)(void *), void *object, void *library);
extern void *__dso_handle;

static bool end_copies;

static void copy_and_say(const char *moment)
{
    copy_once(4 * MIB, 1, moment);
    copy_once(4 * KIB, 2, moment);
    say(moment);
}

static void copy_at_exit(void)
{
    copy_and_say("atexit");
}

static void copy_on_exit(int status, void *nothing)
{
    (void)status, (void)nothing;
    copy_and_say("on_exit");
}

static void copy_at_quick_exit(void)
{
    copy_and_say("at_quick_exit");
}

__attribute__((destructor)) static void copy_in_destructor(void)
{
    if (end_copies)
        copy_and_say("destructor");
}

static void copy_in_key_destructor(void *moment)
{
    copy_and_say(moment);
}

static void *leave_thread_data(void *nothing)
{
    pthread_key_t key;
    pthread_key_create(&key, copy_in_key_destructor);
    pthread_setspecific(key, "pthread key");
    __cxa_thread_atexit_impl(copy_in_key_destructor, "thread-local object", &__dso_handle);
    return nothing;
}

static void *call_exit(void *nothing)
{
    copy_once(8 * MIB, 3, "thread before exit");
    exit(0);
    return nothing;
}

static void *copy_on_alone(void *main_thread)
{
    pthread_join(*(pthread_t *)main_thread, NULL);
    for (int i = 0; i < 10; i++) {
        copy_once(4 * MIB, 10 + i, "thread that outlives main");
        sleep_ms(15);
    }
    say("last thread");
    return NULL;
}

static void start_detached_copiers(void)
{
    for (int i = 0; i < 3; i++)
        pthread_detach(start_thread(copy_until_stopped, (void *)(512 * KIB + i * MIB)));
    sleep_ms(20);
}

static void exit_in_handler(int number)
{
    (void)number;
    exit(0);
}

static void exit_during_copy(void)
{
    struct blocks b = map_blocks(40 * MIB);
    struct itimerval soon = {{0, 0}, {0, 20000}};
    struct sigaction action = {.sa_handler = exit_in_handler};
    atexit(copy_at_exit);
    sigaction(SIGALRM, &action, NULL);
    fill(b.from, b.size, 1);
    setitimer(ITIMER_REAL, &soon, NULL);
    for (;;)
        memcpy(b.to, b.from, b.size);
}

int main(int count, char **words)
{
    static pthread_t self;
    const char *way = count > 1 ? words[1] : "atexit";
    self = pthread_self();
    copy_once(8 * MIB, 4, "main");
    if (!strcmp(way, "atexit")) {
        end_copies = true;
        atexit(copy_at_exit);
        on_exit(copy_on_exit, NULL);
    } else if (!strcmp(way, "keys")) {
        pthread_join(start_thread(leave_thread_data, NULL), NULL);
        __cxa_thread_atexit_impl(copy_in_key_destructor, "thread-local object of main",
                                 &__dso_handle);
    } else if (!strcmp(way, "thread")) {
        end_copies = true;
        atexit(copy_at_exit);
        start_thread(call_exit, NULL);
        copy_until_stopped((void *)(1 * MIB));
    } else if (!strcmp(way, "main-leaves")) {
        start_thread(copy_on_alone, &self);
        pthread_exit(NULL);
    } else if (!strcmp(way, "detached")) {
        start_detached_copiers();
    } else if (!strcmp(way, "_exit")) {
        start_detached_copiers();
        _exit(0);
    } else if (!strcmp(way, "quick")) {
        at_quick_exit(copy_at_quick_exit);
        quick_exit(0);
    } else if (!strcmp(way, "handler")) {
        exit_during_copy();
    } else if (!strncmp(way, "bare", 4)) {
        expect_workers(map_blocks(8 * MIB), way);
        if (!strcmp(way, "bare-later"))
            sleep_ms(60);
        syscall(SYS_exit, 3);
    } else {
        wrong("no way %s", way);
    }
    return 0;
}
