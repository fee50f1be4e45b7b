/* First large copy on a small stack: a thread with the least stack there is, a signal handler on an
 * alternate stack, and a coroutine with 8 KiB. With "exit" such a thread also ends the program, and
 * so runs the code of exit.
 */
#include "trap.h"

#define COROUTINE_STACK (8 * KIB)

static struct blocks b;
static volatile uint64_t seed;
static bool thread_exits;

static void *copy_in_thread(void *nothing)
{
    copy_checked(b, ++seed, "thread with a small stack");
    if (thread_exits)
        exit(0);
    return nothing;
}

static void copy_in_handler(int number)
{
    (void)number;
    copy_checked(b, ++seed, "alternate stack");
}

static void copy_in_coroutine(void)
{
    memcpy(b.to, b.from, b.size);
}

static void run_coroutine(void)
{
    static ucontext_t here, there;
    /* Below the stack lies a page that nothing may touch. */
    char *stack = map(COROUTINE_STACK + 4096);
    mprotect(stack, 4096, PROT_NONE);
    memcpy(b.to, b.from, 1); /* lets the loader find memcpy, which takes more stack than the copy */
    fill(b.from, b.size, ++seed);
    getcontext(&there);
    there.uc_stack = (stack_t){.ss_sp = stack + 4096, .ss_size = COROUTINE_STACK};
    there.uc_link = &here;
    makecontext(&there, copy_in_coroutine, 0);
    swapcontext(&here, &there);
    check(b.to, b.size, seed, "coroutine");
}

static void run_thread(void)
{
    pthread_t thread;
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, PTHREAD_STACK_MIN);
    if (pthread_create(&thread, &small, copy_in_thread, NULL))
        wrong("no thread with a small stack");
    pthread_join(thread, NULL);
}

static void run_handler(void)
{
    size_t size = sysconf(_SC_MINSIGSTKSZ) + 8 * KIB;
    stack_t other = {.ss_sp = map(size), .ss_size = size};
    sigaltstack(&other, NULL);
    handle(SIGUSR1, copy_in_handler, SA_ONSTACK);
    raise(SIGUSR1);
}

int main(int count, char **words)
{
    const char *first = count > 1 ? words[1] : "thread";
    b = map_blocks(32 * MIB);
    if (!strcmp(first, "coroutine"))
        run_coroutine();
    if (!strcmp(first, "handler"))
        run_handler();
    thread_exits = !strcmp(first, "exit");
    run_thread();
    run_coroutine();
    run_handler();
    return 0;
}
