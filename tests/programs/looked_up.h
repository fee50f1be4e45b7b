/* The functions of adma.h in a program that is not linked with the library: found where it was
 * preloaded, or in the file LIBRARY. After pattern.h and adma.h.
 */
#pragma once
#include <dlfcn.h>

static void *looked_up(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    const char *path = getenv("LIBRARY");
    void *library = found || !path ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library)
        found = dlsym(library, name);
    if (!found)
        wrong("%s: %s", name, dlerror());
    return found;
}

/* Once at each place: a signal handler had better not ask the loader. */
#define LOOK_UP(name)                                                                        \
    ({                                                                                   \
        static __typeof__(&name) found;                                              \
        if (!found)                                                                  \
            found = looked_up(#name);                                            \
        found;                                                                       \
    })
#define adma_copy LOOK_UP(adma_copy)
#define adma_icopy LOOK_UP(adma_icopy)
#define adma_icopy_batch LOOK_UP(adma_icopy_batch)
#define adma_icopy_notif LOOK_UP(adma_icopy_notif)
#define adma_check_copy LOOK_UP(adma_check_copy)
#define adma_wait_copy LOOK_UP(adma_wait_copy)
#define adma_poll_fd LOOK_UP(adma_poll_fd)
#define adma_strerror LOOK_UP(adma_strerror)
