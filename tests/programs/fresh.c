/* Copies into memory that was never touched, and what becomes of its pages: prints what was found.
 *
 *   huge             KiB of huge pages afterwards
 *   asked_for_small  like huge, after MADV_NOHUGEPAGE for other memory
 *   asked_by_number  like asked_for_small, by syscall()
 *   read_into        like huge, by a read of a file
 *   told_small       like huge, after PR_SET_THP_DISABLE
 *   told_once        like huge, after PR_SET_THP_DISABLE was set and withdrawn
 *   split            like huge, of a mapping that the program has split in the middle
 *   exhausted        like huge, after a copy that has found no free descriptor
 *   asked_for_huge   like huge, of twice the memory, marked with MADV_HUGEPAGE and copied into by halves
 *   asked_meanwhile  like huge, of the second half, marked with MADV_HUGEPAGE while the first is copied into
 *   resident         KiB by which the program has grown
 *   sparse           like resident, after it has given all back and written a byte of each 2 MiB
 *   grown            0, or why the mapping cannot be made longer
 *   jumped           like grown, after a fault in the source whose handler has jumped out of the copy
 *   beside           like grown, together with memory that was mapped behind it since
 *   touched          like beside, after that memory was touched as well; and with all bytes
 *   in_place         like touched, where there is room behind it, and it must not move
 *   collapsed        0, or why the kernel does not make huge pages of it (MADV_COLLAPSE)
 *   threaded         nothing, of copies in a program with two threads and in its child, which has other
 *                    mappings, and when all numbers of descriptors were closed
 *   mappings OWN     mappings that 600 copies add, in a program with OWN of its own
 */
#include "trap.h"
#include "older.h"

enum { SIZE = 32 << 20 };

/* Returns a source of small pages, so that only a destination can become huge. */
static char *source(size_t size)
{
    char *at = map(size);
    for (size_t i = 0; i < size; i += 4096)
        at[i] = (char)(i / 4096 + 1);
    return at;
}

static long huge_kib(void)
{
    return number_in("/proc/self/smaps_rollup", "AnonHugePages:");
}

static long count_mappings(void)
{
    long lines = 0;
    FILE *in = fopen("/proc/self/maps", "r");
    for (int c; in && (c = getc(in)) != EOF;)
        lines += c == '\n';
    if (in)
        fclose(in);
    return lines;
}

/* Makes mappings of its own that cannot be merged, then fresh copies, kept mapped and empty. */
static void mappings(void)
{
    long own = atol(scene_argument(0, "0"));
    char *pages = map((size_t)own * 4096 + 4096), *from = source(4 * MIB + 4096);
    for (long i = 0; i < own; i += 2)
        mprotect(pages + i * 4096, 4096, PROT_READ);
    long before = count_mappings();
    for (int i = 0; i < 600; i++) {
        char *to = map(6 * MIB);
        mprotect(to, 4096, PROT_NONE); /* never merged with its neighbour */
        memcpy(to + 4096 + 100, from, 4 * MIB);
        madvise(to + 4096, 6 * MIB - 4096, MADV_DONTNEED);
    }
    printf("%ld\n", count_mappings() - before);
}

enum { HUGE, ASKED_FOR_SMALL, ASKED_FOR_HUGE, ASKED_MEANWHILE, TOLD_SMALL, RESIDENT, SPARSE, GROWN,
       COLLAPSED, JUMPED, BESIDE, TOUCHED, IN_PLACE };
enum { ASKED_BY_NUMBER = -5, READ_INTO, TOLD_ONCE, SPLIT, EXHAUSTED }; /* print what `HUGE` does */

static char *locked_page, *second_half;

/* Called in the middle of the copy. */
static void mark_second_half(int number)
{
    madvise(second_half, SIZE, MADV_HUGEPAGE);
    mprotect(locked_page, 4096, PROT_READ);
}

static sigjmp_buf after_copy;

static void jump_out(int number)
{
    siglongjmp(after_copy, number);
}

/* Returns 0 or why a mapping that was copied into cannot be made longer. */
static long grow_after_copy(void)
{
    char *from = source(SIZE), *to = (char *)map(4 * SIZE) + 4096;
    MUST(mmap(to - 4096, 4 * SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
         MAP_FAILED);
    MUST(!mprotect(to, SIZE, PROT_READ | PROT_WRITE));
    size_t size = SIZE;
    if (scene_how == JUMPED) {
        mprotect(from + SIZE / 2, 4096, PROT_NONE);
        handle(SIGSEGV, jump_out, 0);
        if (!sigsetjmp(after_copy, true)) {
            memcpy(to, from, SIZE);
            wrong("no fault");
        }
    } else {
        memcpy(to, from, SIZE);
        MUST(!mprotect(to + SIZE, SIZE, PROT_READ | PROT_WRITE));
        size = 2 * SIZE;
    }
    if (scene_how >= TOUCHED)
        fill(to + SIZE, SIZE, 5);
    if (scene_how == IN_PLACE)
        munmap(to + size, SIZE);
    errno = 4711;
    char *moved = mremap(to, size, 3 * SIZE, scene_how == IN_PLACE ? 0 : MREMAP_MAYMOVE);
    if (moved == MAP_FAILED)
        return errno;
    if (errno != 4711 || (scene_how == IN_PLACE && moved != to))
        wrong("errno %d, %p became %p", errno, to, moved);
    if (scene_how >= TOUCHED) {
        if (memcmp(moved, from, SIZE))
            wrong("other bytes");
        check(moved + SIZE, SIZE, 5, "moved memory");
        for (size_t i = 0; i < SIZE; i += 4096)
            if (moved[2 * SIZE + i]++)
                wrong("byte %zu of the new memory is not zero", i);
        if (mremap(moved, 3 * SIZE, SIZE, 0) != moved || memcmp(moved, from, SIZE))
            wrong("it cannot be made shorter: %s", strerror(errno));
    }
    return 0;
}

/* Returns the growth of the program, in KiB, by a copy to an offset into a new mapping. */
static long copy_into_fresh(size_t at)
{
    char *from = source(SIZE);
    if (scene_how != GROWN && huge_kib() != 0)
        cannot("the system makes huge pages without being asked");
    long before = number_in("/proc/self/status", "VmRSS:");
    char *to = map(SIZE + 4096);
    if (scene_how == ASKED_FOR_HUGE) {
        to = map(2 * SIZE + 4096);
        madvise(to, 2 * SIZE + 4096, MADV_HUGEPAGE);
    }
    if (scene_how == SPLIT)
        madvise(to + SIZE / 2, SIZE / 2 + 4096, MADV_DONTFORK);
    if (scene_how == ASKED_MEANWHILE) {
        to = map(2 * SIZE);
        second_half = to + SIZE;
        locked_page = from + SIZE - 4096;
        mprotect(locked_page, 4096, PROT_NONE);
        handle(SIGSEGV, mark_second_half, 0);
        at = 0;
    }
    if (scene_how == READ_INTO) {
        int fd = memfd_create("source", 0);
        MUST(write(fd, from, SIZE) == SIZE && pread(fd, to + at, SIZE, 0) == SIZE);
    } else
        memcpy(to + at, from, SIZE);
    for (size_t i = SIZE + 4096; scene_how == ASKED_FOR_HUGE && i < 2 * SIZE; i += 4096)
        to[i] = 1;
    if (memcmp(to + at, from, SIZE) != 0)
        wrong("other bytes");
    if (scene_how == ASKED_MEANWHILE) {
        madvise(to, SIZE, MADV_DONTNEED);
        for (size_t i = 0; i < SIZE; i += 4096)
            second_half[i] = 1;
    }
    if (scene_how == SPARSE) {
        madvise(to, SIZE, MADV_DONTNEED);
        for (size_t i = 0; i < SIZE; i += 2 * MIB)
            to[i] = 1;
    }
    if (scene_how == COLLAPSED)
        return madvise((void *)(((uintptr_t)to + 4 * MIB) & -(2 * MIB)), 4 * MIB, 25) ? errno : 0;
    if (scene_how == GROWN)
        return mremap(to, SIZE + 4096, 2 * SIZE, MREMAP_MAYMOVE) == MAP_FAILED ? errno : 0;
    return number_in("/proc/self/status", "VmRSS:") - before;
}

static void *copy_and_grow(void *from)
{
    for (int i = 0; i < 50; i++) {
        char *to = map(8 * MIB);
        memcpy(to + 100, from, 8 * MIB - 200);
        if (memcmp(to + 100, from, 8 * MIB - 200) != 0)
            wrong("other bytes");
        to = mremap(to, 8 * MIB, 16 * MIB, MREMAP_MAYMOVE);
        if (to == MAP_FAILED)
            wrong("mremap: %s", strerror(errno));
        munmap(to, 16 * MIB);
    }
    return NULL;
}

static void copy_in_thread(char *from)
{
    pthread_join(start_thread(copy_and_grow, from), NULL);
    int lowest = dup(0);
    if (lowest != 3)
        wrong("the lowest free number is %d", lowest);
    close(lowest);
}

static void threaded(void)
{
    char *from = source(8 * MIB);
    close_descriptors(3);
    copy_in_thread(from);
    IN_CHILD("child that copies")
    {
        copy_in_thread(from);
    }
    close_descriptors(3);
    copy_in_thread(from);
}

/* Copies into fresh memory while no file can be opened. */
static void copy_without_descriptors(void)
{
    struct rlimit usual, none = {0, 0};
    char *from = source(SIZE);
    MUST(!getrlimit(RLIMIT_NOFILE, &usual));
    none.rlim_max = usual.rlim_max;
    MUST(!setrlimit(RLIMIT_NOFILE, &none));
    memcpy((char *)map(SIZE + 4096) + 100, from, SIZE);
    MUST(!setrlimit(RLIMIT_NOFILE, &usual));
}

static void pages(void)
{
    if (scene_how == EXHAUSTED)
        copy_without_descriptors();
    if (scene_how == ASKED_FOR_SMALL)
        madvise(map(4 * MIB), 4 * MIB, MADV_NOHUGEPAGE);
    if (scene_how == ASKED_BY_NUMBER)
        syscall(SYS_madvise, map(4 * MIB), 4 * MIB, MADV_NOHUGEPAGE);
    if (scene_how == TOLD_SMALL || scene_how == TOLD_ONCE)
        prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
    if (scene_how == TOLD_ONCE)
        prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
    long grown = scene_how >= JUMPED ? grow_after_copy() : copy_into_fresh(100);
    if (scene_how == GROWN && grown == 0)
        grown = copy_into_fresh(0) + copy_into_fresh(4096);
    printf("%ld\n", scene_how >= RESIDENT ? grown : huge_kib());
}

SCENES((void)0, {"huge", pages, HUGE}, {"asked_for_small", pages, ASKED_FOR_SMALL},
       {"asked_for_huge", pages, ASKED_FOR_HUGE},
       {"asked_meanwhile", pages, ASKED_MEANWHILE}, {"told_small", pages, TOLD_SMALL},
       {"read_into", pages, READ_INTO}, {"asked_by_number", pages, ASKED_BY_NUMBER},
       {"told_once", pages, TOLD_ONCE},
       {"split", pages, SPLIT}, {"exhausted", pages, EXHAUSTED},
       {"resident", pages, RESIDENT}, {"sparse", pages, SPARSE}, {"grown", pages, GROWN},
       {"jumped", pages, JUMPED}, {"beside", pages, BESIDE},
       {"touched", pages, TOUCHED}, {"in_place", pages, IN_PLACE},
       {"collapsed", pages, COLLAPSED}, {"mappings", mappings}, {"threaded", threaded})
