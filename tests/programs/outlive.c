/* Calls that end another way than by their return: a handler jumps out, another thread forks, changes
 * mappings or installs a filter. Nothing that a call has set up for itself may outlive it.
 *
 *   files THREADS  jumps out of fills and copies into fresh memory open no file for good
 *   marks          memory of a fill that was jumped out of, given back and touched here and there, stays small
 *   child          like marks, in the child of a fork beside a thread that fills
 *   remap          mremap of memory that was mapped across the end of another mapping while its beginning was filled
 *   filtered       like files, with one thread, in a process that is under a filter from its start
 *   stream         a jump out of a large fread leaves cancellation enabled and the stream unlocked
 *   cancelled      so does a cancellation in the middle of it
 *   leaving ACTION a filter for all threads that does not allow them to exit (kill, errno, or errno and
 *                  unseen by the library): the program goes on, and copies
 *   once           one copy of 1 MiB, for valgrind
 *   masking        a filter that kills for rt_sigprocmask: the program copies
 */
#include "filtered.h"

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
    for (;;)
        pause();
    return unused;
}

/* The thread hears no signal, not even before it has begun to wait: a jump would go to another stack. */
static void start_waiting_thread(void)
{
    sigset_t every, before;
    sigfillset(&every);
    pthread_sigmask(SIG_BLOCK, &every, &before);
    start_thread(wait_for_ever, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void files(void)
{
    enum { SIZE = 8 * MIB };
    if (atoi(scene_argument(0, "1")) > 1)
        start_waiting_thread();
    handle(SIGALRM, jump_out, SA_NODEFER);
    char *from = map(SIZE);
    memset(from, 1, SIZE);
    struct rlimit limit = {64, 64};
    long before = 0;
    int jumps = 0;
    long begun = clock_ms();
    /* A busy machine takes longer for the jumps that it takes at least. */
    for (int i = 0; clock_ms() - begun < (jumps < 100 ? 60000 : 3000) && jumps < rounds(3000); i++) {
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

static void filtered(void)
{
    if (!*scene_argument(0, ""))
        be_filtered(scene_words);
    files();
    expect_workers(map_blocks(32 * MIB), "after jumps under a filter");
}

static const char *stream_path;

static FILE *open_stream(void)
{
    FILE *in = fopen(stream_path, "r");
    MUST(in);
    return in;
}

static void make_file(size_t size)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/outlive.%d", getpid());
    stream_path = path;
    char *bytes = map(size);
    memset(bytes, 3, size);
    int fd = open(path, O_CREAT | O_WRONLY | O_TRUNC, 0600);
    MUST(fd >= 0 && write(fd, bytes, size) == (ssize_t)size);
    close(fd);
    munmap(bytes, size);
}

enum { READ = 32 * MIB };

static void *try_lock(void *stream)
{
    if (ftrylockfile(stream))
        return stream;
    funlockfile(stream);
    return NULL;
}

static void stream(void)
{
    make_file(READ);
    char *to = map(READ);
    handle(SIGALRM, jump_out, SA_NODEFER);
    volatile int jumps = 0;
    for (volatile int i = 0; i < rounds(300); i++) {
        /* fread would allocate one, and a jump out of malloc breaks the heap. */
        static char buffer[BUFSIZ];
        FILE *in = open_stream();
        MUST(!setvbuf(in, buffer, _IOFBF, sizeof buffer));
        int state;
        if (sigsetjmp(after_call, true)) {
            jumps++;
            pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state);
            if (state != PTHREAD_CANCEL_ENABLE)
                wrong("jump %d: cancellation is disabled", jumps);
            close(fileno(in)); /* its lock may be libc's own, as without the library */
            continue;
        }
        inside = 1;
        alarm_after_us(20 + i * 61 % 9000);
        size_t got = fread(to, 1, READ, in);
        inside = 0;
        alarm_after_us(0);
        if (got != READ)
            wrong("%zu bytes", got);
        fclose(in);
    }
    unlink(stream_path);
    if (jumps < 20)
        cannot("%d jumps only", jumps);
}

static void *read_for_ever(void *in)
{
    char *to = map(READ);
    for (;;) {
        begun = true;
        if (fread(to, 1, READ, in) != READ)
            rewind(in);
    }
    return NULL;
}

static void cancelled(void)
{
    make_file(READ + 5 * MIB);
    for (int i = 0; i < rounds(60); i++) {
        FILE *in = open_stream();
        begun = false;
        pthread_t reader = start_thread(read_for_ever, in), other;
        while (!begun)
            sched_yield();
        struct timespec some = {0, i * 131 % 9000 * 1000};
        nanosleep(&some, NULL);
        void *result, *locked;
        MUST(!pthread_cancel(reader) && !pthread_join(reader, &result));
        other = start_thread(try_lock, in);
        MUST(!pthread_join(other, &locked));
        if (result != PTHREAD_CANCELED || locked)
            wrong("round %d: result %p, %s", i, result, locked ? "locked" : "not locked");
        fclose(in);
    }
    unlink(stream_path);
}

static void leaving(void)
{
    struct blocks b = map_blocks(32 * MIB);
    expect_workers(b, "before the filter");
    const char *action = scene_argument(0, "kill");
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, strcmp(action, "kill") ? SECCOMP_RET_ERRNO | EPERM : SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    (strcmp(action, "unseen") ? put_filter : put_filter_unseen)(code, COUNT(code), SECCOMP_FILTER_FLAG_TSYNC);
    sleep_ms(400); /* idle workers leave after 100 */
    copy_checked(b, 5, "under the filter");
    copy_once(64 * MIB, 6, "into fresh memory under the filter");
}

static void masking(void)
{
    struct blocks b = map_blocks(32 * MIB);
    expect_workers(b, "before the filter");
    filter_calls((const int[]){SYS_rt_sigprocmask, -1}, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC);
    copy_checked(b, 5, "under the filter");
    copy_once(64 * MIB, 6, "into fresh memory under the filter");
}

static void once(void)
{
    copy_once(MIB, 1, "one copy");
}

SCENES((void)0, {"files", files}, {"marks", marks}, {"child", child}, {"remap", remap},
       {"filtered", filtered}, {"stream", stream}, {"cancelled", cancelled}, {"leaving", leaving},
       {"masking", masking}, {"once", once})
