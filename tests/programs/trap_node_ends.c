/* Threads copy the end of a destination that is on their NUMA node. On a machine with two nodes and a CPU in
 * each; the caller runs on the first, and the one worker on the second. Each page of the destination is
 * write-protected by userfaultfd, which names the thread that writes to it first. */
#include "trap.h"
#include "older.h"
#include <linux/mempolicy.h>
#include <sys/ioctl.h>

enum { NODES = 2, SIZE = 4 << 20, PAGE_SIZE = 4096, PAGES = SIZE / PAGE_SIZE, ROUNDS = 40 };

static int userfault;
static pid_t caller;
static char *destination;
/* Pages by the half in which they are, and by the node whose thread has written them first. */
static size_t written[2][NODES];
static bool seen[PAGES];
/* The half of each thread's first page; -1: it has written none. */
static atomic_int began_in[NODES];

/* Counts each page that a thread waits for, and lets it write. */
static void *count_writers(void *none)
{
    struct uffd_msg message;
    while (read(userfault, &message, sizeof message) == sizeof message) {
        uintptr_t at = message.arg.pagefault.address & -(uintptr_t)PAGE_SIZE;
        size_t page = (at - (uintptr_t)destination) / PAGE_SIZE;
        int half = page >= PAGES / 2;
        bool is_worker = (pid_t)message.arg.pagefault.feat.ptid != caller;
        if (!seen[page])
            written[half][is_worker]++;
        seen[page] = true;
        if (began_in[is_worker] < 0)
            began_in[is_worker] = half;
        struct uffdio_writeprotect free_page = {.range = {at, PAGE_SIZE}};
        MUST(!ioctl(userfault, UFFDIO_WRITEPROTECT, &free_page));
    }
    return none;
}

static void bind_half(int half, unsigned long node)
{
    unsigned long nodes = 1ul << node;
    void *at = destination + half * (SIZE / 2);
    if (syscall(SYS_mbind, at, SIZE / 2, MPOL_BIND, &nodes, 64, 0))
        cannot("mbind: %s", strerror(errno));
    memset(at, 1, SIZE / 2);
}

/* One half at a time: each has a policy, so it is a mapping of its own. */
static void protect_half(int half)
{
    struct uffdio_writeprotect protect = {
        .range = {(uintptr_t)destination + half * (SIZE / 2), SIZE / 2},
        .mode = UFFDIO_WRITEPROTECT_MODE_WP,
    };
    MUST(!ioctl(userfault, UFFDIO_WRITEPROTECT, &protect));
}

/* Copies into halves of the named nodes until both threads have written, each from its own node's end on. How
 * much each writes depends on which is faster. */
static void expect_own_halves(int first_node, const char *name)
{
    struct blocks b = map_blocks(SIZE);
    destination = b.to;
    madvise(b.to, SIZE, MADV_NOHUGEPAGE);
    bind_half(0, first_node);
    bind_half(1, !first_node);
    struct uffdio_register range = {.range = {(uintptr_t)b.to, SIZE},
                                    .mode = UFFDIO_REGISTER_MODE_WP};
    if (ioctl(userfault, UFFDIO_REGISTER, &range))
        cannot("userfaultfd does not protect pages here");
    bool own_ends = false;
    for (int round = 0; round < (workers_expected() ? ROUNDS : 1) && !own_ends; round++) {
        memset(written, 0, sizeof written);
        memset(seen, 0, sizeof seen);
        began_in[0] = -1;
        began_in[1] = -1;
        protect_half(0);
        protect_half(1);
        copy_checked(b, round, name);
        own_ends = began_in[0] == first_node && began_in[1] == !first_node;
        printf("%s: caller and worker began in halves %d and %d, and wrote %zu and %zu pages\n", name,
               began_in[0], began_in[1], written[0][0] + written[1][0], written[0][1] + written[1][1]);
    }
    /* Without the library the caller writes everything. */
    if (workers_expected() ? !own_ends : written[0][0] + written[1][0] != PAGES)
        wrong("%s: not each thread has begun at the end of its node", name);
    MUST(!ioctl(userfault, UFFDIO_UNREGISTER, &range.range));
    unmap_blocks(b);
}

static void *copy_into_halves(void *none)
{
    caller = syscall(SYS_gettid);
    stay_on(0);
    expect_own_halves(0, "caller's node first");
    expect_own_halves(1, "worker's node first");
    return none;
}

int main(void)
{
    unsigned long allowed = 0;
    if (syscall(SYS_get_mempolicy, NULL, &allowed, 64, NULL, MPOL_F_MEMS_ALLOWED) || allowed != 3)
        cannot("no two NUMA nodes");
    struct uffdio_api api = {.api = UFFD_API,
                             .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_THREAD_ID};
    userfault = syscall(SYS_userfaultfd, O_CLOEXEC);
    if (userfault < 0 || ioctl(userfault, UFFDIO_API, &api))
        cannot("userfaultfd is forbidden or lacks a feature here");
    start_thread(count_writers, NULL);
    /* Workers may use the CPUs of the main thread, the caller its own. */
    stay_on(1);
    expect_workers(map_blocks(SIZE), "before halves are bound");
    pthread_join(start_thread(copy_into_halves, NULL), NULL);
    return 0;
}
