/* Calls that the library passes on, while another thread holds a lock of the loader's:
 *
 *   constructor LIBRARY  a constructor of LIBRARY, which dlopen runs, waits for a thread that calls
 *   fork                 the caller is the child of a fork during which a thread walked over the
 *                        loaded objects (backtraces, profilers)
 *
 * Each call is made in a process of its own, which an alarm ends if it hangs. With LIBRARY defined
 * this file is the library. With DRIVER it is linked with libcuda, whose functions are called too.
 */
#include "trap.h"
#ifdef LIBRARY

extern void while_loading(void);

__attribute__((constructor)) static void start(void)
{
    while_loading();
}

#else
#include <grp.h>
#include <link.h>

extern int capset(void *header, const void *data);
extern int cuMemHostRegister_v2(void *, size_t, unsigned), cuMemHostUnregister(void *);

static void call_setgroups(void)
{
    gid_t groups[1000];
    int count = getgroups(1000, groups);
    if (count >= 0 && setgroups(count, groups)) {
        /* it may be forbidden */
    }
}

static char page[8192] __attribute__((aligned(4096)));

/* Name, arguments and the status that the process ends with. */
#define CALLS                                                                                      \
    CALL(unshare, (0), 0)                                                                          \
    CALL(setns, (-1, 0), 0)                                                                        \
    CALL(setuid, (getuid()), 0)                                                                    \
    CALL(setgid, (getgid()), 0)                                                                    \
    CALL(seteuid, (geteuid()), 0)                                                                  \
    CALL(setegid, (getegid()), 0)                                                                  \
    CALL(setreuid, (-1, -1), 0)                                                                    \
    CALL(setregid, (-1, -1), 0)                                                                    \
    CALL(setresuid, (-1, -1, -1), 0)                                                               \
    CALL(setresgid, (-1, -1, -1), 0)                                                               \
    CALL(capset, (NULL, NULL), 0)                                                                  \
    CALL(mprotect, (page, 4096, PROT_READ | PROT_WRITE), 0)                                        \
    CALL(pkey_mprotect, (page, 4096, PROT_READ | PROT_WRITE, -1), 0)                               \
    CALL(madvise, (page, 4096, MADV_NORMAL), 0)
#ifdef DRIVER /* the fake one wants a context */
#define DRIVER_CALLS                                                                               \
    CALL(cuMemHostRegister_v2, (page, 4096, 0), 99 << 8)                                           \
    CALL(cuMemHostUnregister, (page), 99 << 8)
#else
#define DRIVER_CALLS
#endif

/* gcc wants answers looked at; these are of no interest. */
#define CALL(name, arguments, status)                                                              \
    static void call_##name(void)                                                                  \
    {                                                                                              \
        if (name arguments)                                                                        \
            errno = 0;                                                                             \
    }
CALLS DRIVER_CALLS
#undef CALL
#define CALL(name, arguments, status) {#name, call_##name, status},

static const struct call {
    const char *name;
    void (*make)(void);
    int status;
} *call, calls[] = {{"abort", abort, SIGABRT}, {"setgroups", call_setgroups, 0}, CALLS DRIVER_CALLS};

static void *make_call(void *nothing)
{
    call->make();
    return nothing;
}

void while_loading(void)
{
    pthread_join(start_thread(make_call, NULL), NULL);
}

static atomic_bool walks, over;

static int wait_inside(struct dl_phdr_info *object, size_t size, void *nothing)
{
    walks = true;
    while (!over)
        sleep_ms(1);
    return 1;
}

static void *walk(void *nothing)
{
    dl_iterate_phdr(wait_inside, NULL);
    return nothing;
}

int main(int count, char **words)
{
    if (count < 2)
        wrong("want constructor LIBRARY, or fork");
    bool forks = !strcmp(words[1], "fork");
    pthread_t walker = forks ? start_thread(walk, NULL) : 0;
    while (forks && !walks)
        sleep_ms(1);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        call = &calls[i];
        pid_t child = fork();
        if (child == 0) {
            alarm(60);
            if (forks)
                call->make();
            else if (!dlopen(words[2], RTLD_NOW))
                wrong("%s: %s", words[2], dlerror());
            _exit(0);
        }
        int status = -1;
        MUST(waitpid(child, &status, 0) == child);
        if ((status & 0x7f) == SIGALRM)
            wrong("%s hung", call->name);
        if ((status & ~0x80) != call->status)
            wrong("%s: the child ended with status 0x%x", call->name, status);
    }
    over = true;
    if (forks)
        pthread_join(walker, NULL);
    return 0;
}
#endif
