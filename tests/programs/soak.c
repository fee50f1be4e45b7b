/* A random mix of calls for a while, each checked: sizes, threads, forks, signals, jumps, bad pages, reads
 * and changes of mappings, under a limit of descriptors. At the end leaks are counted.
 *
 *   soak SECONDS SEED [THREADS]
 *
 * Prints what was done, and descriptors, mappings, threads and memory after the first seconds and at the
 * end. The same seed chooses the same operations in each thread; what meets what is left to the machine.
 */
#include "trap.h"

enum { LARGEST = 16 * MIB, MOST_THREADS = 32 };
enum { COPY, FRESH, FILL, COMPARE, MOVE, READ, STREAM, GROW, GIVE_BACK, JUMP, FAULT, FORK, KINDS };
static const char *const names[KINDS] = {"copies", "fresh", "fills", "compares", "moves", "reads", "freads",
                                         "mremaps", "given back", "jumps", "faults", "forks"};
static atomic_long done[KINDS];
static atomic_bool stop;
static uint64_t seed;
static int file;

static __thread sigjmp_buf after_call;
static __thread volatile sig_atomic_t inside;

static void jump_out(int number)
{
    if (inside) {
        inside = 0;
        siglongjmp(after_call, number);
    }
    if (number == SIGSEGV)
        wrong("seed %lu: a fault outside of the operations that want one", (unsigned long)seed);
}

/* Returns a size in words, as often small as large. */
static size_t some_size(uint64_t *state)
{
    size_t scale = (32 * KIB) << next_random(state) % 9;
    return (scale + next_random(state) % scale) / 8 * 8;
}

static void operate(int kind, uint64_t *state, struct blocks b, timer_t timer)
{
    size_t size = some_size(state), shift = next_random(state) % 512 * 8;
    uint64_t mark = next_random(state);
    char *volatile to = (char *)b.to + shift, *volatile from = (char *)b.from + next_random(state) % 512 * 8;
    switch (kind) {
    case COPY:
        copy_checked((struct blocks){to, from, size}, mark, "copy");
        break;
    case FRESH: {
        char *fresh = map(2 * LARGEST + 4096);
        copy_checked((struct blocks){fresh + shift, from, size}, mark, "copy into fresh memory");
        munmap(fresh, 2 * LARGEST + 4096);
        break;
    }
    case FILL:
        memset(to, (int)mark, size);
        for (size_t i = 0; i < size; i += i + 64 < size ? 61 : 1)
            if (to[i] != (char)mark)
                wrong("byte %zu of a fill of %zu", i, size);
        break;
    case COMPARE: {
        fill(from, size, mark);
        fill(to, size, mark);
        size_t at = next_random(state) % size;
        if (memcmp(to, from, size))
            wrong("equal memory differs, %zu bytes", size);
        to[at] ^= 1;
        if (!memcmp(to, from, size) || (memcmp(to, from, size) < 0) != ((unsigned char)to[at] < (unsigned char)from[at]))
            wrong("byte %zu of %zu differs, but not by memcmp", at, size);
        break;
    }
    case MOVE:
        fill(to, size, mark);
        memmove((char *)b.to + 4096 + shift, to, size);
        check((char *)b.to + 4096 + shift, size, mark, "move");
        break;
    case READ:
        if (pread(file, to, size, shift) != (ssize_t)size)
            wrong("short read of %zu bytes", size);
        for (size_t i = 0; i < size; i += 8)
            if (*(uint64_t *)(to + i) != word_at((shift + i) / 8, 99))
                wrong("byte %zu of a read of %zu", i, size);
        break;
    case STREAM: {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/fd/%d", file);
        FILE *in = fopen(path, "r");
        MUST(in);
        if (fread(to, 1, size, in) != size)
            wrong("short fread of %zu bytes", size);
        check(to, size, 99, "fread");
        fclose(in);
        break;
    }
    case GROW: {
        size_t whole = (size + 4095) / 4096 * 4096;
        char *at = map(whole);
        fill(from, size, mark);
        memcpy(at, from, size);
        at = mremap(at, whole, whole + 4 * MIB, MREMAP_MAYMOVE);
        if (at == MAP_FAILED)
            wrong("mremap of %zu bytes: %s", whole, strerror(errno));
        check(at, size, mark, "moved memory");
        munmap(at, whole + 4 * MIB);
        break;
    }
    case GIVE_BACK:
        MUST(!madvise(b.to, LARGEST, MADV_DONTNEED));
        break;
    case JUMP: {
        char *volatile fresh = mark % 2 ? map(LARGEST) : NULL;
        if (!sigsetjmp(after_call, true)) {
            struct itimerspec once = {.it_value.tv_nsec = 1000 + mark % 3000000};
            inside = 1;
            timer_settime(timer, 0, &once, NULL);
            if (mark % 3 == 0)
                memset(fresh ? fresh : to, 1, LARGEST - 4096);
            else if (mark % 3 == 1)
                memcpy(fresh ? fresh : to, from, LARGEST - 4096);
            else if (pread(file, fresh ? fresh : to, LARGEST, 0) < 0)
                wrong("pread: %s", strerror(errno));
            inside = 0;
        }
        timer_settime(timer, 0, &(struct itimerspec){0}, NULL);
        if (fresh)
            munmap(fresh, LARGEST);
        break;
    }
    case FAULT: {
        char *bad = (char *)b.from + (4096 + next_random(state) % (LARGEST - 8192)) / 4096 * 4096;
        mprotect(bad, 4096, PROT_NONE);
        if (!sigsetjmp(after_call, true)) {
            inside = 1;
            memcpy(b.to, b.from, LARGEST);
            wrong("no fault");
        }
        mprotect(bad, 4096, PROT_READ | PROT_WRITE);
        break;
    }
    case FORK:
        IN_CHILD("child")
        {
            copy_checked((struct blocks){to, from, size}, mark, "copy of a child");
        }
        break;
    }
    done[kind]++;
}

static void *work(void *number)
{
    uint64_t state = seed * 1000003 + (uintptr_t)number;
    struct blocks b = map_blocks(2 * LARGEST + 16 * KIB);
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGRTMIN};
    event._sigev_un._tid = (int)syscall(SYS_gettid);
    MUST(!timer_create(CLOCK_MONOTONIC, &event, &timer));
    while (!stop) {
        int kind = (int)(next_random(&state) % KINDS);
        /* Forks dismiss workers, so they are rarer. */
        if (kind != FORK || next_random(&state) % 8 == 0)
            operate(kind, &state, b, timer);
    }
    timer_delete(timer);
    unmap_blocks(b);
    return NULL;
}

struct held {
    long descriptors, mappings, threads, kib;
};

static struct held look(void)
{
    struct held now = {.descriptors = entries_of("/proc/self/fd")};
    for (int ms = 0; (now.threads = count_threads()) > 1 && ms < 5000; ms++)
        sleep_ms(1); /* idle workers leave */
    FILE *in = fopen("/proc/self/maps", "r");
    for (int c; (c = getc(in)) != EOF;)
        now.mappings += c == '\n';
    fclose(in);
    now.kib = number_in("/proc/self/status", "VmRSS:");
    return now;
}

static struct held run(int threads, long seconds)
{
    pthread_t all[MOST_THREADS];
    stop = false;
    for (uintptr_t i = 0; i < (uintptr_t)threads; i++)
        all[i] = start_thread(work, (void *)i);
    sleep_ms(seconds * 1000);
    stop = true;
    join_all(all, threads);
    return look();
}

int main(int count, char **words)
{
    if (count < 3)
        wrong("usage: soak SECONDS SEED [THREADS]");
    long seconds = atol(words[1]), cpus = sysconf(_SC_NPROCESSORS_ONLN);
    seed = strtoull(words[2], NULL, 0);
    int threads = count > 3 ? atoi(words[3]) : (int)(cpus < 3 ? 3 : cpus);
    threads = threads > MOST_THREADS ? MOST_THREADS : threads;
    struct rlimit few = {700, 700};
    setrlimit(RLIMIT_NOFILE, &few);
    handle(SIGRTMIN, jump_out, SA_NODEFER);
    handle(SIGSEGV, jump_out, SA_NODEFER);
    file = memfd_create("soak", 0);
    char *bytes = map(2 * LARGEST + 4096);
    fill(bytes, 2 * LARGEST + 4096, 99);
    MUST(file >= 0 && write(file, bytes, 2 * LARGEST + 4096) == 2 * LARGEST + 4096);
    munmap(bytes, 2 * LARGEST + 4096);
    struct held before = run(threads, seconds / 10 + 1), after = run(threads, seconds - seconds / 10 - 1);
    printf("seed %lu, %ld s, %d threads:", (unsigned long)seed, seconds, threads);
    for (int i = 0; i < KINDS; i++)
        printf(" %ld %s%s", (long)done[i], names[i], i + 1 < KINDS ? "," : "");
    printf("; descriptors %ld -> %ld, mappings %ld -> %ld, threads %ld -> %ld, KiB %ld -> %ld\n",
           before.descriptors, after.descriptors, before.mappings, after.mappings, before.threads, after.threads,
           before.kib, after.kib);
    fflush(stdout);
    /* A stack and a guard page for each worker that there has ever been, and the C library's arenas. */
    if (after.descriptors > before.descriptors || after.threads > 1 || after.mappings > before.mappings + 160 ||
        after.kib > before.kib + 32 * 1024)
        wrong("seed %lu: something was left behind", (unsigned long)seed);
    return 0;
}
