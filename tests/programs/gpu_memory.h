/* For gpu.c: memory that goes, changes, or is not used any more, while the card may reach it. */
#pragma once
#include "gpu_copies.h"
#include <malloc.h>

/* Unmaps memory and maps it again. Returns where it is now. */
static char *renewed(char *it, const char *how)
{
    bool raw = !strncmp(how, "raw", 3);
    if (!strcmp(how, "munmap") || !strcmp(how, "raw")) {
        raw ? syscall(SYS_munmap, it, LEN) : munmap(it, LEN);
        map_at(it, LEN);
    } else if (!strcmp(how, "page")) { /* one in the middle */
        munmap(it + LEN / 2, 4096);
        map_at(it + LEN / 2, 4096);
    } else if (!strcmp(how, "fixed")) {
        mmap(it, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    } else if (!strcmp(how, "dontneed") || !strcmp(how, "madv_free")) {
        madvise(it, LEN, how[0] == 'd' ? MADV_DONTNEED : MADV_FREE);
    } else if (!strcmp(how, "raw_dontneed")) {
        syscall(SYS_madvise, it + 4096, 4096, MADV_DONTNEED);
    } else if (!strcmp(how, "mremap")) { /* away, and another to its place */
        void *away = map(LEN), *new = map(LEN);
        mremap(it, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, away);
        mremap(new, LEN, LEN, MREMAP_MAYMOVE | MREMAP_FIXED, it);
    } else if (!strcmp(how, "brk")) {
        if (brk(it) || sbrk(LEN) != it)
            cannot("the break was moved by another function");
    } else if (!strcmp(how, "free")) {
        free(it);
        return malloc(LEN + 4096);
    } else if (!strcmp(how, "realloc")) {
        return realloc(realloc(it, LEN / 4), LEN + 4096);
    } else {
        wrong("no such way: %s", how);
    }
    return it;
}

/* Memory is unmapped and mapped again at its address: as source, and as destination. */
static void stale(void)
{
    const char *how = scene_argument(0, "munmap");
    bool by_malloc = !strcmp(how, "free") || !strcmp(how, "realloc"), came_back = false;
    bool by_break = !strcmp(how, "brk");
    char *other = map(LEN);
    mallopt(M_MMAP_THRESHOLD, LEN / 8); /* every block is a mapping, and none is kept */
    for (int round = 0; round < 8; round++) {
        bool as_source = round % 2;
        char *it = by_malloc ? malloc(LEN + 4096) : by_break ? sbrk(LEN) : map(LEN);
        warm_up((struct blocks){as_source ? other : it, as_source ? it : other, LEN});
        bool (*pins)(void) = dlsym(driver(), "fake_cuda_pins");
        if (!pins || !pins())
            cannot("no io_uring: memory cannot be pinned here");
        char *again = renewed(it, how);
        came_back |= again == it;
        for (int i = 0; i < 3; i++)
            copy((struct blocks){as_source ? other : again, as_source ? again : other, LEN}, how);
        if (by_malloc)
            free(again);
        else if (!by_break)
            munmap(again, LEN);
    }
    if (!came_back)
        cannot("no memory came back at the same address");
    printf("%lu\n", carried());
}

static sigjmp_buf back;

static void on_fault(int signal)
{
    siglongjmp(back, signal);
}

static void expect_fault(struct blocks b, char *page, int protection, const char *what)
{
    mprotect(page, 4096, protection);
    if (sigsetjmp(back, 1) == 0) {
        memcpy(b.to, b.from, LEN);
        wrong("%s does not fault", what);
    }
    mprotect(page, 4096, PROT_READ | PROT_WRITE);
}

/* Memory that may not be read or written any more faults, as without the card. */
static void protect(void)
{
    struct blocks b = map_blocks(LEN);
    handle(SIGSEGV, on_fault, 0);
    for (volatile int round = 0; round < 3; round++) {
        warm_up(b);
        expect_fault(b, (char *)b.to + LEN / 2, PROT_READ, "a copy into read-only memory");
        expect_fault(b, b.from, PROT_NONE, "a copy out of memory that is not to be read");
        copy(b, "after the faults");
    }
}

/* The descriptor that reports changes is closed: registrations may be stale. */
static void closed(void)
{
    struct blocks b = warm_blocks();
    int found = 0;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; (entry = readdir(folder));) {
        char target[64] = "";
        if (readlinkat(dirfd(folder), entry->d_name, target, sizeof(target) - 1) > 0 &&
            strstr(target, "userfaultfd"))
            found += !close(atoi(entry->d_name));
    }
    if (found != 1)
        wrong("%d descriptors of that kind", found);
    renewed(b.from, "munmap");
    unsigned long before = carried();
    for (int i = 0; i < 5; i++)
        copy(b, "without the descriptor");
    if (carried() != before)
        wrong("the card goes on without knowing what changes");
}

/* At most ADMA_KEEP bytes stay registered, and the least recently used go first. */
static void keep(void)
{
    enum { PAIRS = 3 };
    unsigned long most = atol(scene_argument(0, "0")) + 4096; /* with the card's words */
    struct blocks pairs[PAIRS];
    for (int i = 0; i < PAIRS; i++)
        pairs[i] = map_blocks(LEN);
    for (int i = 0; i < 3 * PAIRS; i++) {
        warm_up(pairs[i % PAIRS]);
        if (ask("fake_cuda_registered") > most)
            wrong("%lu bytes are registered", ask("fake_cuda_registered"));
    }
}

/* Unused registrations are dropped. */
static void idle(void)
{
    struct blocks b = warm_blocks();
    if (ask("fake_cuda_registered") < 2 * LEN)
        wrong("only %lu bytes are registered", ask("fake_cuda_registered"));
    for (long limit = clock_ms() + 200000; ask("fake_cuda_registered") > 4096; usleep(10000))
        if (clock_ms() > limit)
            wrong("%lu bytes are registered still", ask("fake_cuda_registered"));
    warm_up(b);
}
