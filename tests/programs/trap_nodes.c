/* Pages of a fresh destination lie where the caller's memory policy says, whichever thread has copied. On a
 * machine with two NUMA nodes and a CPU in each; the caller runs on the first, and workers on both.
 * Policies are set after workers were made. */
#include "trap.h"
#include <linux/mempolicy.h>

enum { NODES = 2, SIZE = 4 << 20, PAGES = SIZE / 4096 };

static void set_policy(int mode, unsigned long nodes)
{
    if (syscall(SYS_set_mempolicy, mode, mode == MPOL_DEFAULT ? NULL : &nodes, 64))
        cannot("set_mempolicy: %s", strerror(errno));
}

/* Counts the pages of a fresh destination on each node; `bound`: nodes of its own policy (mbind), or 0. */
static void count_pages(uint64_t seed, unsigned long bound, size_t counts[NODES])
{
    struct blocks b = map_blocks(SIZE);
    char line[1000], start[32];
    madvise(b.to, SIZE, MADV_NOHUGEPAGE); /* this also makes it a mapping of its own */
    if (bound && syscall(SYS_mbind, b.to, SIZE, MPOL_BIND, &bound, 64, 0))
        cannot("mbind: %s", strerror(errno));
    copy_checked(b, seed, "copy into fresh memory");
    snprintf(start, sizeof start, "%lx ", (unsigned long)b.to);
    counts[0] = counts[1] = 0;
    FILE *maps = fopen("/proc/self/numa_maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        for (int node = 0; node < NODES && !strncmp(line, start, strlen(start)); node++) {
            const char *found = strstr(line, node ? " N1=" : " N0=");
            counts[node] = found ? strtoul(found + 4, NULL, 10) : 0;
        }
    if (!maps || fclose(maps) || counts[0] + counts[1] != PAGES)
        cannot("numa_maps: %zu and %zu of %d pages", counts[0], counts[1], PAGES);
    unmap_blocks(b);
}

static void *copy_by_policies(void *none)
{
    static const struct {
        int mode;
        unsigned long nodes, bound;
        const char *name;
        size_t least[NODES];
    } policies[] = {
        {MPOL_DEFAULT, 0, 0, "default", {PAGES, 0}},
        {MPOL_BIND, 2, 0, "bound to the other node", {0, PAGES}},
        {MPOL_PREFERRED, 1, 0, "preferring this node", {PAGES, 0}},
        {MPOL_INTERLEAVE, 3, 0, "interleaved", {PAGES * 2 / 5, PAGES * 2 / 5}},
        {MPOL_DEFAULT, 0, 2, "destination bound to the other node", {0, PAGES}},
        {MPOL_BIND, 2, 1, "destination bound to this node, thread to the other", {PAGES, 0}},
        {MPOL_DEFAULT, 0, 0, "default again", {PAGES, 0}},
    };
    stay_on(0);
    for (unsigned p = 0; p < sizeof policies / sizeof *policies; p++)
        for (int round = 0; round < 4; round++) {
            size_t counts[NODES];
            set_policy(policies[p].mode, policies[p].nodes);
            count_pages(100 * p + round, policies[p].bound, counts);
            if (counts[0] < policies[p].least[0] || counts[1] < policies[p].least[1])
                wrong("%s: %zu and %zu of %d pages", policies[p].name, counts[0], counts[1], PAGES);
        }
    return none;
}

int main(void)
{
    unsigned long allowed = 0;
    if (syscall(SYS_get_mempolicy, NULL, &allowed, 64, NULL, MPOL_F_MEMS_ALLOWED) || allowed != 3)
        cannot("no two NUMA nodes");
    expect_workers(map_blocks(SIZE), "before policies are set");
    /* Workers may use the CPUs of the main thread, the caller its own. */
    pthread_join(start_thread(copy_by_policies, NULL), NULL);
    return 0;
}
