/* For gpu.c: children, exits, and a program that uses the driver itself. */
#pragma once
#include "gpu_copies.h"
#include "seccomp.h"

static void be_child(struct blocks b)
{
    unsigned long calls = ask("fake_cuda_calls");
    for (int i = 0; i < 5; i++)
        copy(b, "in the child");
    munmap(b.from, LEN);
    map_at(b.from, LEN);
    copy(b, "in the child, new memory");
    if (ask("fake_cuda_calls") != calls)
        wrong("the child calls the driver");
}

/* A child never calls the driver, however it was made. */
static void children(void)
{
    const char *how = scene_argument(0, "fork");
    bool raw = !strcmp(how, "raw"), by_vfork = !strcmp(how, "vfork");
    struct blocks b = warm_blocks();
    for (int round = 0; round < 3; round++) {
        pid_t child = raw ? syscall(SYS_fork) : by_vfork ? vfork() : fork();
        if (child == 0 && by_vfork) {
            execlp("true", "true", (char *)NULL);
            _exit(1);
        }
        if (child == 0) {
            be_child(b);
            if (raw)
                _exit(0);
            exit(0);
        }
        copy(b, "beside the child");
        expect_success(child, how);
        warm_up(b); /* the card goes on */
    }
}

static struct blocks at_exit;
static atomic_bool copying;
static pthread_t copier;

/* Copies for ever, or for a limited time. */
static void *copy_on(void *times)
{
    for (uintptr_t i = 0; i < (uintptr_t)times; i++) {
        memcpy(at_exit.to, at_exit.from, LEN);
        copying = true;
    }
    return NULL;
}

static void copy_at_exit(void)
{
    for (int i = 0; i < 3; i++)
        copy(at_exit, "at exit");
}

static void join_at_exit(void)
{
    pthread_join(copier, NULL);
}

__attribute__((destructor)) static void copy_at_end(void)
{
    if (at_exit.to && getenv("AT_END"))
        copy_at_exit();
}

static void leave(void)
{
    const char *how = scene_argument(0, "plain");
    bool joined = !strcmp(how, "joined"), at_once = !strcmp(how, "at_once");
    at_exit = map_blocks(LEN);
    if (!strcmp(how, "early")) { /* before the driver is up */
        copy(at_exit, "once");
        exit(0);
    }
    if (!strcmp(how, "handler_before"))
        atexit(copy_at_exit);
    if (joined)
        atexit(join_at_exit);
    warm_up(at_exit);
    if (!strcmp(how, "handler_after"))
        atexit(copy_at_exit);
    if (!strcmp(how, "threads") || joined || at_once) {
        copier = start_thread(copy_on, (void *)(joined ? 300 : UINTPTR_MAX));
        while (!copying)
            usleep(100);
    }
    if (at_once)
        _exit(0);
    if (!strcmp(how, "quick"))
        quick_exit(0);
    exit(0);
}

/* A filter for all threads, before the first large copy, kills for userfaultfd. */
static void filtered(void)
{
    const int calls[] = {SYS_userfaultfd, -1};
    struct blocks b = map_blocks(LEN);
    filter_calls(calls, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC);
    copy(b, "under the filter"); /* the thread that would call the driver is not woken */
    copy(b, "without the card");
}

/* The program uses the driver itself. */
static void own(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *current;
    int device;
    int (*init)(unsigned) = dlsym(library, "cuInit");
    int (*get)(int *, int) = dlsym(library, "cuDeviceGet");
    int (*retain)(void **, int) = dlsym(library, "cuDevicePrimaryCtxRetain");
    int (*release)(int) = dlsym(library, "cuDevicePrimaryCtxRelease_v2");
    int (*push)(void *) = dlsym(library, "cuCtxPushCurrent_v2");
    int (*pop)(void **) = dlsym(library, "cuCtxPopCurrent_v2");
    int (*get_current)(void **) = dlsym(library, "cuCtxGetCurrent");
    /* As a program that is linked with the driver finds them. */
    int (*reg)(void *, size_t, unsigned) = dlsym(RTLD_DEFAULT, "cuMemHostRegister_v2");
    int (*unreg)(void *) = dlsym(RTLD_DEFAULT, "cuMemHostUnregister");
    if (init(0) || get(&device, 0))
        wrong("no driver");
    struct blocks b = warm_blocks();
    char *inside = (char *)b.to + 4096;
    if (get_current(&current) || current)
        wrong("a context is current in a thread of the program's");
    if (retain(&context, device) || push(context))
        wrong("no context");
    for (int round = 0; round < 3; round++) {
        int code = reg(inside, LEN / 2, 0);
        if (code)
            wrong("memory that the library had registered cannot be: error %d", code);
        copy(b, "registered by the program");
        copy(b, "registered by the program");
        if ((code = unreg(inside)))
            wrong("memory that the program had registered is not: error %d", code);
        if (unreg(inside) != 713)
            wrong("memory can be unregistered twice");
        for (int i = 0; i < 10; i++)
            copy(b, "afterwards");
    }
    if (get_current(&current) || current != context)
        wrong("the program's context is not current any more");
    pop(&current);
    release(device);
    copy(b, "without a context");
}
