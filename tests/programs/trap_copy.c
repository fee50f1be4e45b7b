/* Checked copies, for runs in unusual surroundings: linked statically, with sanitizers, set-user-id, in
 * a debugger, stopped and continued.
 *
 *   sizes                         blocks of many sizes
 *   secure                        like sizes, of a set-user-id program
 *   beyond                        and 8 bytes more than there is room for, which a sanitizer sees
 *   threads COUNT [SIZE ROUNDS]   COUNT threads at once, each its own size where none is given
 *   forks COPIES...               five of 1 MiB, then a child for each argument that makes as many;
 *                                 prints "parent PID" and "child PID COPIES"
 */
#include "trap.h"
#include <sys/auxv.h>

static void copy_sizes(void)
{
    for (size_t size = 8; size <= 32 * MIB; size *= 4)
        for (int i = 0; i < 3; i++)
            copy_once(size + 8 * i, i, "copy");
}

static void copy_secure(void)
{
    if (!getauxval(AT_SECURE))
        cannot("the program is not set-user-id here");
    copy_sizes();
}

static void copy_beyond(void)
{
    copy_sizes();
    char *block = malloc(MIB);
    memcpy(block, map(2 * MIB), MIB + 8);
    free(block);
}

static pthread_barrier_t start;

static void *copy_in_thread(void *number)
{
    uintptr_t own = (uintptr_t)number, size = strtoul(scene_argument(1, "0"), NULL, 10);
    struct blocks b = map_blocks(size ? size : (8 + own * 37 % 1500) * KIB + own * 8);
    pthread_barrier_wait(&start);
    for (int round = 0; round < atoi(scene_argument(2, "10")); round++)
        copy_checked(b, own << 32 | round, "one of many threads");
    unmap_blocks(b);
    return NULL;
}

static void copy_in_threads(void)
{
    int many = atoi(scene_argument(0, "64"));
    pthread_barrier_init(&start, NULL, many);
    in_threads(many, copy_in_thread);
}

static void copy_times(struct blocks b, int times)
{
    for (int i = 0; i < times; i++)
        copy_checked(b, i, "copy");
}

static void copy_in_children(void)
{
    struct blocks b = map_blocks(MIB);
    copy_times(b, 5);
    printf("parent %d\n", getpid());
    for (int i = 0; scene_argument(i, NULL); i++) {
        fflush(stdout);
        IN_CHILD("child") {
            printf("child %d %s\n", getpid(), scene_argument(i, ""));
            copy_times(b, atoi(scene_argument(i, "")));
            exit(0);
        }
    }
}

SCENES((void)0, {"sizes", copy_sizes}, {"secure", copy_secure}, {"beyond", copy_beyond},
       {"threads", copy_in_threads}, {"forks", copy_in_children})
