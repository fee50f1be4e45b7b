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

/* Counts each page that a thread waits for, and lets it write. */
static void *count_writers(void *none)
{
    struct uffd_msg message;
    while (read(userfault, &message, sizeof message) == sizeof message) {
        uintptr_t at = message.arg.pagefault.address & -(uintptr_t)PAGE_SIZE;
        size_t page = (at - (uintptr_t)destination) / PAGE_SIZE;
        if (!seen[page])
            written[page >= PAGES / 2][(pid_t)message.arg.pagefault.feat.ptid != caller]++;
        seen[page] = true;
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

/* Copies into halves of the named nodes until each thread has written most of its own node's half. */
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
    size_t best = 0;
    for (int round = 0; round < (workers_expected() ? ROUNDS : 1) && best < PAGES * 7 / 8; round++) {
        memset(written, 0, sizeof written);
        memset(seen, 0, sizeof seen);
        protect_half(0);
        protect_half(1);
        copy_checked(b, round, name);
        size_t own = written[0][first_node] + written[1][!first_node];
        best = own > best ? own : best;
        printf("%s: the caller wrote %zu pages of the first half and %zu of the second, the worker %zu and %zu\n",
               name, written[0][0], written[1][0], written[0][1], written[1][1]);
    }
    /* A caller that copies alone writes everything; at the wrong ends no thread writes pages of its node. */
    if (workers_expected() ? best < PAGES * 7 / 8 : best != PAGES / 2)
        wrong("%s: %zu of %d pages by threads of their nodes", name, best, PAGES);
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
