/* Opens libpthread and makes a thread with it. Nothing here refers to it, so that the linker can leave
 * it out, or put it behind libc. Prints what pthread_create returns, and what the thread has stored.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static void *store(void *place)
{
    *(int *)place = 42;
    return NULL;
}

int main(void)
{
    int stored = 0, error;
    pthread_t thread;
    void *library = dlopen("libpthread.so.0", RTLD_NOW | RTLD_GLOBAL);
    int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        (int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *))dlsym(RTLD_DEFAULT, "pthread_create");
    int (*join)(pthread_t, void **) = (int (*)(pthread_t, void **))dlsym(RTLD_DEFAULT, "pthread_join");

    if (!library || !create || !join) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    error = create(&thread, NULL, store, &stored);
    if (!error)
        join(thread, NULL);
    printf("%d %d\n", error, stored);
    return 0;
}
