/* Calls that end another way than by their return: a handler jumps out, another thread forks, changes
 * mappings or installs a filter. Nothing that a call has set up for itself may outlive it.
 *
 *   files THREADS  jumps out of fills and copies into fresh memory open no file for good
 *   marks          memory of a fill that was jumped out of, given back and touched here and there, stays small
 *   child          like marks, in the child of a fork beside a thread that fills
 *   remap          mremap of memory that was mapped across the end of another mapping while its beginning was filled
 */
#include "trap.h"

static sigjmp_buf after_call;
static volatile sig_atomic_t inside;

static void jump_out(int number)
{
    if (inside) {
        inside = 0;
        siglongjmp(after_call, number);
    }
}

/* Fills fresh memory, or copies into it, until the alarm rings. Returns whether it was jumped out of. */
static bool interrupted_after(long us, char *to, const char *from, size_t size)
{
    if (sigsetjmp(after_call, true))
        return true;
    inside = 1;
    alarm_after_us(us);
    if (from)
        memcpy(to, from, size);
    else
        memset(to, 7, size);
    inside = 0;
    alarm_after_us(0);
    return false;
}

static void *wait_for_ever(void *unused)
{
    sigset_t every;
    sigfillset(&every);
    pthread_sigmask(SIG_BLOCK, &every, NULL);
    for (;;)
        pause();
    return unused;
}

static void files(void)
{
    enum { SIZE = 8 * MIB };
    if (atoi(scene_argument(0, "1")) > 1)
        start_thread(wait_for_ever, NULL);
    handle(SIGALRM, jump_out, SA_NODEFER);
    char *from = map(SIZE);
    memset(from, 1, SIZE);
    struct rlimit limit = {64, 64};
    long before = 0;
    int jumps = 0;
    long begun = clock_ms();
    for (int i = 0; clock_ms() - begun < 3000 && jumps < rounds(3000); i++) {
        char *to = map(SIZE);
        /* Most calls open what they open in their first tenth of a millisecond. */
        jumps += interrupted_after(10 + i * 37 % 300, to, i % 2 ? from : NULL, SIZE);
        munmap(to, SIZE);
        if (i == 20)
            before = entries_of("/proc/self/fd"); /* one file may stay open for good */
    }
    long now = entries_of("/proc/self/fd");
    setrlimit(RLIMIT_NOFILE, &limit);
    if (jumps < 100)
        cannot("%d jumps only", jumps);
    if (now > before)
        wrong("%ld descriptors became %ld after %d jumps", before, now, jumps);
}

/* Gives memory back and touches a page of each 2 MiB; returns by how many KiB the program has grown. */
static long grown_by_touching(char *at, size_t size)
{
    MUST(!madvise(at, size, MADV_DONTNEED));
    long before = number_in("/proc/self/status", "VmRSS:");
    for (size_t i = 0; i < size; i += 2 * MIB)
        at[i] = 1;
    return number_in("/proc/self/status", "VmRSS:") - before;
}

static void marks(void)
{
    enum { SIZE = 128 * MIB };
    handle(SIGALRM, jump_out, SA_NODEFER);
    int jumps = 0;
    for (int i = 0; i < 40; i++) {
        char *to = map(SIZE);
        jumps += interrupted_after(500 + 700 * i, to, NULL, SIZE);
        long grown = grown_by_touching(to, SIZE);
        if (grown > 4 * 1024)
            wrong("64 pages are %ld KiB after jump %d", grown, jumps);
        munmap(to, SIZE);
    }
    if (jumps < 5)
        cannot("%d jumps only", jumps);
}

static char *filled;
enum { FILLED = 256 * MIB };
static atomic_bool stop;

static void *fill_again(void *unused)
{
    while (!stop) {
        memset(filled, 5, FILLED);
        madvise(filled, FILLED, MADV_DONTNEED);
    }
    return unused;
}

static void child(void)
{
    filled = map(FILLED);
    pthread_t filler = start_thread(fill_again, NULL);
    for (int i = 0; i < 12; i++) {
        sleep_ms(7 + i);
        IN_CHILD("child that touches memory")
        {
            long grown = grown_by_touching(filled, FILLED);
            if (grown > 4 * 1024)
                wrong("128 pages are %ld KiB", grown);
        }
    }
    stop = true;
    pthread_join(filler, NULL);
}

/* Fills the first part of `filled`, and tells when it begins. */
static atomic_bool begun;

static void *fill_first_part(void *unused)
{
    begun = true;
    memset(filled, 5, FILLED / 2);
    return unused;
}

/* Another thread unmaps the end of the mapping whose beginning is filled, maps memory across that end,
 * touches it when the fill is over, and makes it longer. */
static void remap(void)
{
    enum { SIZE = 16 * MIB };
    int failed = 0, made = 6;
    for (int i = 0; i < made; i++) {
        char *room = mmap(NULL, 3 * FILLED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        filled = room + FILLED;
        MUST(room != MAP_FAILED && !mprotect(filled, FILLED, PROT_READ | PROT_WRITE));
        begun = false;
        pthread_t filler = start_thread(fill_first_part, NULL);
        while (!begun)
            sched_yield();
        sleep_ms(i % 7);
        char *across = filled + FILLED - SIZE / 2;
        MUST(mmap(across, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
             across);
        pthread_join(filler, NULL);
        across[0] = across[SIZE - 1] = 1;
        /* Not by the library's mremap, which tries again. */
        failed += syscall(SYS_mremap, across, SIZE, 2 * SIZE, MREMAP_MAYMOVE, NULL) == -1;
    }
    if (failed)
        wrong("%d of %d calls of mremap failed", failed, made);
}

SCENES((void)0, {"files", files}, {"marks", marks}, {"child", child}, {"remap", remap})
