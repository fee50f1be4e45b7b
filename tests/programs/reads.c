/* Large reads of files in every corner. Each case prints a line with what a program can notice
 * (answer, errno, position and bytes), to be compared with a run without the library.
 *
 * reads corners FOLDER   descriptors: ends, kinds of files, bad buffers, bad lists, flags
 * reads streams FOLDER   FILEs: buffers, pushed back bytes, ends, errors, modes
 * reads shared FOLDER    one position for threads, for processes, for two descriptors
 * reads changing FOLDER  files that grow and are truncated while they are read
 * reads signals FOLDER   with and without SA_RESTART, a jump out of the handler
 * reads cancelled FOLDER a thread that is cancelled before it reads
 * reads children FOLDER  fork, vfork, threads with descriptors of their own
 * reads filtered FOLDER  after a seccomp filter that kills for what a reader need not call
 * reads huge FOLDER      more than the kernel reads at once
 * reads overflow NAME    __read_chk, __pread_chk or __fread_chk of more than the buffer holds
 */
#include "filtered.h"
#include <sys/socket.h>

#define PAGE ((size_t)4096)
#define SIZE (3 * MIB + 120)

ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off_t, size_t);
size_t __fread_chk(void *, size_t, size_t, size_t, FILE *);
size_t __fread_unlocked_chk(void *, size_t, size_t, size_t, FILE *);

static const char *folder;

static const char *path_of(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* A file of `size` bytes that tell their places, in the page cache. */
static int new_file(const char *name, size_t size, int flags)
{
    int fd = open(path_of(name), O_RDWR | O_CREAT | O_TRUNC, 0600);
    char *block = map(size + 8);
    fill(block, size + 8, 1);
    if (fd < 0 || write(fd, block, size) != (ssize_t)size)
        wrong("cannot write %s: %s", path_of(name), strerror(errno));
    munmap(block, size + 8);
    if (flags == O_RDWR)
        return lseek(fd, 0, SEEK_SET) == 0 ? fd : -1;
    close(fd);
    return open(path_of(name), flags);
}

static uint64_t sum_of(const char *block, size_t size)
{
    typedef uint64_t __attribute__((aligned(1), may_alias)) any_word;
    uint64_t sum = size;
    for (size_t i = 0; i < size / 8; i++)
        sum = (sum ^ ((const any_word *)block)[i]) * 1099511628211u;
    for (size_t i = size / 8 * 8; i < size; i++)
        sum = (sum ^ block[i]) * 1099511628211u;
    return sum;
}

/* ---- every function that reads from a descriptor, as one kind of call */

enum how { READ, PREAD, READV, READV_FAR, PREADV, PREADV2, PREADV2_AT, READ_CHK, PREAD_CHK,
           PREAD64_CHK, FUNCTIONS };
static const char *const names[] = {"read", "pread", "readv", "readv_far", "preadv", "preadv2",
                                    "preadv2_at", "read_chk", "pread_chk", "pread64_chk"};

static ssize_t call(enum how how, int fd, char *to, size_t size, off_t at)
{
    struct iovec near[3] = {{to, size / 3}, {to + size / 3, 0}, {to + size / 3, size - size / 3}};
    static __thread struct iovec far[3];
    memcpy(far, near, sizeof near);
    switch (how) {
    case READ: return read(fd, to, size);
    case PREAD: return pread(fd, to, size, at);
    case READV: return readv(fd, near, 3);
    case READV_FAR: return readv(fd, far, 3);
    case PREADV: return preadv(fd, near, 3, at);
    case PREADV2: return preadv2(fd, near, 3, -1, 0);
    case PREADV2_AT: return preadv2(fd, far, 3, at, 0);
    case READ_CHK: return __read_chk(fd, to, size, size);
    case PREAD_CHK: return __pread_chk(fd, to, size, at, size);
    default: return __pread64_chk(fd, to, size, at, size);
    }
}

/* The second time lists outside the stack are fetched. */
static void tell(const char *what, int fd, char *to, size_t size, off_t at)
{
    for (int how = 0; how < FUNCTIONS; how++)
        for (int turn = 0; turn < 2; turn++) {
            lseek(fd, at, SEEK_SET);
            errno = 77;
            ssize_t got = call(how, fd, to, size, at);
            int error = errno;
            printf("%s %s: %zd, errno %d, position %ld, bytes %lx\n", what, names[how], got,
                   error, (long)lseek(fd, 0, SEEK_CUR),
                   got > 0 ? sum_of(to, got) : 0);
        }
}

static void ends(char *to)
{
    const struct { const char *what; off_t at; size_t size; } cases[] = {
        {"all", 0, SIZE}, {"one more", 0, SIZE + 1}, {"many more", 0, SIZE + MIB},
        {"from the middle", 1234567, SIZE}, {"odd", 77, 2 * MIB + 13},
        {"up to the end", SIZE - MIB, MIB}, {"last byte", SIZE - 1, MIB},
        {"at the end", SIZE, MIB}, {"past the end", SIZE + 5, MIB}, {"below", 5, 65535},
    };
    int flags[] = {O_RDONLY, O_RDWR | O_APPEND, O_RDONLY | O_NONBLOCK, O_RDONLY | O_NOATIME};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        int fd = new_file("ends", SIZE, flags[i]);
        for (size_t j = 0; j < sizeof cases / sizeof *cases; j++)
            tell(cases[j].what, fd, to + 8 * i, cases[j].size, cases[j].at);
        close(fd);
    }
    /* Into memory that was never written, and not at a page. */
    int fd = new_file("ends", SIZE, O_RDONLY);
    for (int how = 0; how < FUNCTIONS; how++) {
        char *fresh = map(8 * MIB);
        lseek(fd, 0, SEEK_SET);
        ssize_t got = call(how, fd, fresh + 100, SIZE + 50, 0);
        printf("fresh %s: %zd %lx\n", names[how], got, sum_of(fresh, 4 * MIB));
        munmap(fresh, 8 * MIB);
    }
    close(fd);
}

static void kinds_of_files(char *to)
{
    int fd = new_file("kinds", SIZE, O_RDONLY | O_DIRECT);
    if (fd >= 0)
        tell("direct", fd, (char *)(((uintptr_t)to + PAGE) & ~(PAGE - 1)), 2 * MIB, 0);
    close(fd);
    tell("closed", fd, to, MIB, 0);
    tell("no descriptor", -1, to, MIB, 0);
    const struct { const char *path; int flags; } kinds[] = {
        {path_of("kinds"), O_PATH}, {path_of("kinds"), O_WRONLY}, {folder, O_RDONLY},
        {"/dev/zero", O_RDONLY},    {"/dev/null", O_RDONLY},      {"/proc/version", O_RDONLY},
        {"/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        fd = open(kinds[i].path, kinds[i].flags);
        tell(kinds[i].path, fd, to, MIB + 5, 0);
        tell(kinds[i].path, fd, to, MIB, 3);
        close(fd);
    }
    fd = open(path_of("sparse"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    tell("empty", fd, to, MIB, 0);
    if (ftruncate(fd, SIZE) < 0 || pwrite(fd, "x", 1, 2 * MIB) != 1)
        wrong("sparse: %s", strerror(errno));
    tell("sparse", fd, to, SIZE + 9, 0);
    close(fd);
    fd = memfd_create("reads", 0);
    fill(to, 2 * MIB, 5);
    if (write(fd, to, 2 * MIB) != (ssize_t)(2 * MIB))
        wrong("memfd: %s", strerror(errno));
    tell("memfd", fd, to, 3 * MIB, 0);
    close(fd);
    for (int i = 0; i < 2 * FUNCTIONS; i++) {
        int ends[2], how = i / 2;
        if ((i % 2 ? pipe(ends) : socketpair(AF_UNIX, SOCK_DGRAM, 0, ends)) < 0 ||
            write(ends[1], names, 40) != 40 || write(ends[1], names, 30) != 30)
            wrong("pipe or socketpair: %s", strerror(errno));
        errno = 77;
        ssize_t got = call(how, ends[0], to, MIB, 0);
        printf("%s %s: %zd, errno %d\n", i % 2 ? "pipe" : "socket", names[how], got, errno);
        close(ends[0]);
        close(ends[1]);
    }
}

static void bad_buffers(void)
{
    int fd = new_file("buffers", SIZE, O_RDONLY);
    for (int protection = 0; protection < 2; protection++)
        for (size_t page = 0; page < 600; page += 149) {
            char *to = map(4 * MIB);
            mprotect(to + page * PAGE, PAGE, protection ? PROT_READ : PROT_NONE);
            tell("bad page", fd, to, SIZE, 3);
            munmap(to, 4 * MIB);
        }
    char *to = map(4 * MIB);
    munmap(to + MIB, 3 * MIB);
    tell("ends early", fd, to + 5, 2 * MIB, 0);
    tell("nowhere", fd, (char *)16, 2 * MIB, 0);
    tell("kernel's", fd, (char *)0xffff800000000000, 2 * MIB, 0);
    tell("too much", fd, to, (size_t)SSIZE_MAX + 2, 0);
    close(fd);
}

static void bad_lists(char *to)
{
    int fd = new_file("lists", SIZE, O_RDONLY);
    struct iovec *list = map(2000 * sizeof *list);
    const struct { const char *what; const struct iovec *list; int count; } cases[] = {
        {"no list", NULL, 1}, {"bad list", (void *)4096, 2}, {"empty", list, 0},
        {"negative", list, -1}, {"many", list, 1024}, {"too many", list, 1025},
        {"some", list, 60}, {"more", list, 65},
    };
    for (int i = 0; i < 2000; i++)
        list[i] = (struct iovec){to + i * 50000 % (4 * MIB), 40000};
    for (int turn = 0; turn < 2; turn++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (int how = 0; how < 3; how++) {
                memset(to, 0, 5 * MIB);
                lseek(fd, 100, SEEK_SET);
                errno = 77;
                ssize_t got = how == 0   ? readv(fd, cases[i].list, cases[i].count)
                              : how == 1 ? preadv(fd, cases[i].list, cases[i].count, 100)
                                         : preadv2(fd, cases[i].list, cases[i].count, 100, 0);
                int error = errno;
                printf("list %s %d: %zd, errno %d, position %ld, bytes %lx\n", cases[i].what, how,
                       got, error, (long)lseek(fd, 0, SEEK_CUR), sum_of(to, 5 * MIB));
            }
    /* Two buffers that overlap: the kernel's order decides. */
    struct iovec twice[2] = {{to, MIB}, {to + MIB / 2, MIB}};
    printf("overlapping: %zd %lx\n", preadv(fd, twice, 2, 0), sum_of(to, 2 * MIB));
    struct iovec sum[2] = {{to, MIB}, {to, SSIZE_MAX}};
#define TRY(call) (errno = 0, printf(#call ": %zd", call), printf(", errno %d\n", errno))
    TRY(readv(fd, sum, 2));
    TRY(pread(fd, to, MIB, -5));
    TRY(pread(fd, to, MIB, LONG_MAX - 5));
    const int flags[] = {RWF_NOWAIT, RWF_HIPRI, RWF_APPEND, 1 << 30, -1};
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        TRY(preadv2(fd, sum, 1, 0, flags[i]));
    close(fd);
}

static void corners(void)
{
    char *to = map(8 * MIB);
    fill(to, 8 * MIB, 3);
    ends(to);
    kinds_of_files(to);
    bad_buffers();
    bad_lists(to);
}

#include "reads_streams.h"

/* ---- one position for many */

#define STEP (384 * KIB)
#define STEPS 40

struct reader {
    int fd;
    enum how how;
    atomic_char *seen;
};

/* Reads until the end; every byte must come once, to one reader. */
static void *read_on(void *argument)
{
    struct reader *reader = argument;
    uint64_t *to = map(STEP);
    ssize_t got;
    while ((got = call(reader->how, reader->fd, (char *)to, STEP, 0)) > 0) {
        size_t place = (to[0] / 8 - 1) / (STEP / 8);
        if (got != (ssize_t)STEP || place >= STEPS || reader->seen[place]++)
            wrong("%zd bytes of step %zu, once more", got, place);
        for (size_t i = 0; i < STEP / 8; i++)
            if (to[i] != (place * (STEP / 8) + i + 1) * 8)
                wrong("step %zu has other bytes at %zu", place, i * 8);
    }
    if (got < 0)
        wrong("read: %s", strerror(errno));
    munmap(to, STEP);
    return NULL;
}

static void shared(void)
{
    atomic_char *seen = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int fd = open(path_of("shared"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    uint64_t *words = map(STEPS * STEP);
    for (size_t i = 0; i < STEPS * STEP / 8; i++)
        words[i] = (i + 1) * 8;
    if (write(fd, words, STEPS * STEP) != (ssize_t)(STEPS * STEP))
        wrong("write: %s", strerror(errno));
    const enum how hows[] = {READ, READV, PREADV2};
    for (int round = 0; round < rounds(12); round++) {
        memset((void *)seen, 0, STEPS);
        lseek(fd, 0, SEEK_SET);
        struct reader reader = {fd, hows[round % 3], seen}, other = reader;
        other.fd = dup(fd);
        pid_t child = fork();
        if (child == 0) {
            read_on(&reader);
            _exit(0);
        }
        pthread_t threads[3];
        for (int i = 0; i < 3; i++)
            threads[i] = start_thread(read_on, i == 1 ? &other : &reader);
        for (int i = 0; i < 3; i++)
            pthread_join(threads[i], NULL);
        expect_success(child, "child");
        for (int i = 0; i < STEPS; i++)
            if (seen[i] != 1)
                wrong("step %d was read %d times", i, seen[i]);
        if (lseek(fd, 0, SEEK_CUR) != (off_t)(STEPS * STEP))
            wrong("position %ld", (long)lseek(fd, 0, SEEK_CUR));
        close(other.fd);
    }
    say("every byte once");
}

/* ---- files that change */

static atomic_bool stop;

struct change {
    int fd;
    bool shrinks;
};

static void *change(void *argument)
{
    struct change *change = argument;
    char *more = map(MIB);
    for (size_t round = 0; !stop; round++)
        if (change->shrinks) {
            if (ftruncate(change->fd, MIB + round % 5 * 100000) < 0 ||
                ftruncate(change->fd, SIZE) < 0)
                wrong("ftruncate: %s", strerror(errno));
        } else if (round < 300) {
            fill(more, PAGE * 8, 1); /* not the right bytes: only their number matters */
            if (write(change->fd, more, PAGE * 8) != (ssize_t)(PAGE * 8))
                wrong("write: %s", strerror(errno));
        }
    munmap(more, MIB);
    return NULL;
}

/* Position and answer agree, and what was there all the time is read. */
static void changing(void)
{
    char *to = map(64 * MIB);
    for (int shrinks = 0; shrinks < 2; shrinks++) {
        int fd = new_file("changing", SIZE, O_RDONLY);
        struct change what = {open(path_of("changing"), O_WRONLY | O_APPEND), shrinks};
        stop = false;
        pthread_t thread = start_thread(change, &what);
        for (int round = 0; round < rounds(200); round++) {
            const enum how hows[] = {READ, READV, PREADV2, PREAD, PREADV};
            enum how how = hows[round % 5];
            lseek(fd, 0, SEEK_SET);
            ssize_t got = call(how, fd, to, shrinks ? SIZE + 10 : 60 * MIB, 0);
            off_t position = lseek(fd, 0, SEEK_CUR);
            if (position != (how == PREAD || how == PREADV ? 0 : got))
                wrong("%s: %zd bytes, position %ld", names[how], got, (long)position);
            if (got < (ssize_t)(shrinks ? MIB : SIZE))
                wrong("%s: %zd bytes", names[how], got);
            check(to, shrinks ? MIB : SIZE, 1, names[how]);
        }
        stop = true;
        pthread_join(thread, NULL);
        close(what.fd);
        close(fd);
    }
    say("position and answer agree");
}

/* ---- signals, cancellation */

static volatile sig_atomic_t handled;
static sigjmp_buf back;
static volatile bool jumps;

static void on_alarm(int number)
{
    (void)number;
    handled++;
    if (jumps)
        siglongjmp(back, 1);
}

static void signals(void)
{
    char *to = map(8 * MIB);
    int fd = new_file("signals", SIZE, O_RDONLY);
    for (int restart = 0; restart < 3; restart++) {
        handle(SIGALRM, on_alarm, restart ? SA_RESTART : 0);
        struct itimerval often = {{0, 500}, {0, 500}}, never = {{0, 0}, {0, 0}};
        handled = 0;
        volatile int round = 0;
        setitimer(ITIMER_REAL, &often, NULL);
        if (sigsetjmp(back, 1))
            round++; /* on a slow machine no read may ever be done in time */
        jumps = restart == 2;
        for (; round < 100 || handled < 20; round++) {
            lseek(fd, 0, SEEK_SET);
            memset(to, 0, 64);
            ssize_t got = call(round % FUNCTIONS, fd, to, SIZE, 0);
            if (got != (ssize_t)SIZE)
                wrong("%s: %zd, %s", names[round % FUNCTIONS], got, strerror(errno));
            check(to, SIZE, 1, "interrupted");
        }
        jumps = false;
        setitimer(ITIMER_REAL, &never, NULL);
    }
    say("whole answers");
}

static int cancelled_fd;
static atomic_int cleaned;

static void clean(void *unused)
{
    (void)unused;
    cleaned++;
}

static void *read_cancelled(void *how)
{
    static char to[4 * MIB];
    pthread_cleanup_push(clean, NULL);
    pthread_cancel(pthread_self());
    call((intptr_t)how, cancelled_fd, to, SIZE, 0);
    wrong("%s is no cancellation point", names[(intptr_t)how]);
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancelled(void)
{
    cancelled_fd = new_file("cancelled", SIZE, O_RDONLY);
    for (intptr_t how = 0; how < FUNCTIONS; how++) {
        void *result;
        pthread_join(start_thread(read_cancelled, (void *)how), &result);
        printf("%s: cancelled %d, cleaned %d, position %ld\n", names[how],
               result == PTHREAD_CANCELED, cleaned, (long)lseek(cancelled_fd, 0, SEEK_CUR));
    }
}

/* ---- processes */

static void *read_own(void *shared_fd)
{
    int fd = (intptr_t)shared_fd;
    char *to = map(4 * MIB), *expected = map(4 * MIB);
    if (unshare(CLONE_FILES) < 0)
        cannot("unshare: %s", strerror(errno));
    close(fd);
    fill(expected, 4 * MIB, 9);
    int own = open(path_of("own"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (own != fd || write(own, expected, 4 * MIB) != (ssize_t)(4 * MIB))
        wrong("own: %d, %s", own, strerror(errno));
    for (int round = 0; round < 50; round++) {
        memset(to, 0, 4 * MIB);
        if (pread(own, to, 4 * MIB, 0) != (ssize_t)(4 * MIB))
            wrong("pread: %s", strerror(errno));
        check(to, 4 * MIB, 9, "descriptors of its own");
    }
    return NULL;
}

static void children(void)
{
    char *to = map(8 * MIB);
    int fd = new_file("children", SIZE, O_RDONLY);
    tell("before", fd, to, SIZE, 0);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        tell("forked", fd, to, SIZE, 0);
        fflush(stdout);
        _exit(0);
    }
    expect_success(child, "child of fork");
    lseek(fd, 0, SEEK_SET);
    child = vfork();
    if (child == 0)
        _exit(read(fd, to, SIZE) == (ssize_t)SIZE ? 0 : 1);
    expect_success(child, "child of vfork");
    check(to, SIZE, 1, "vfork");
    printf("vforked: position %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    pthread_t thread = start_thread(read_own, (void *)(intptr_t)fd);
    for (int round = 0; round < 50; round++) {
        if (pread(fd, to, SIZE, 0) != (ssize_t)SIZE)
            wrong("pread: %s", strerror(errno));
        check(to, SIZE, 1, "beside another table");
    }
    pthread_join(thread, NULL);
    say("children have read");
}

static void filtered(void)
{
    char *to = map(8 * MIB);
    int fd = new_file("filtered", SIZE, O_RDONLY);
    const int unneeded[] = {SYS_preadv2, SYS_statx, SYS_process_vm_readv, SYS_pread64, SYS_fcntl, -1};
    filter_calls(unneeded, SECCOMP_RET_KILL_PROCESS, 0);
    for (int round = 0; round < 20; round++) {
        lseek(fd, 0, SEEK_SET);
        struct iovec one = {to, SIZE};
        if ((round % 2 ? read(fd, to, SIZE) : readv(fd, &one, 1)) != (ssize_t)SIZE)
            wrong("read: %s", strerror(errno));
        check(to, SIZE, 1, "filtered");
    }
    say("read under a filter");
}

/* 2 GiB and more of addresses, all of them the same 2 MiB. */
static void huge(void)
{
    size_t size = 2049 * MIB;
    int few = memfd_create("few", 0), fd = open(path_of("huge"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    char *to = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (ftruncate(few, 2 * MIB) < 0 || ftruncate(fd, 3000 * MIB) < 0 || to == MAP_FAILED)
        cannot("no room: %s", strerror(errno));
    for (size_t at = 0; at < size; at += 2 * MIB)
        mmap(to + at, size - at < 2 * MIB ? size - at : 2 * MIB, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED, few, 0);
    struct iovec list[3] = {{to, 1000 * MIB}, {to + 1000 * MIB, 1000 * MIB}, {to, 500 * MIB}};
    printf("read %zd\n", read(fd, to, size));
    printf("position %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    printf("pread %zd\n", pread(fd, to, size, 2000 * MIB));
    printf("preadv %zd\n", preadv(fd, list, 2, 100));
    printf("readv %zd\n", readv(fd, list, 3));
    unlink(path_of("huge"));
}

/* A fortified read of more than the buffer holds. */
static void overflow(void)
{
    char *to = map(MIB);
    int fd = open("/dev/zero", O_RDONLY);
    switch (folder[0]) {
    case 'r': __read_chk(fd, to, MIB, MIB - 1); break;
    case 'p': __pread_chk(fd, to, MIB, 0, MIB - 1); break;
    default: __fread_chk(to, MIB - 1, KIB, KIB, fdopen(fd, "r"));
    }
    wrong("has read more than there is room for");
}

int main(int count, char **arguments)
{
    folder = count > 2 ? arguments[2] : ".";
    return play(count, arguments,
                (const struct scene[]){{"corners", corners}, {"streams", streams},
                                       {"shared", shared}, {"changing", changing},
                                       {"signals", signals}, {"cancelled", cancelled},
                                       {"children", children}, {"filtered", filtered},
                                       {"huge", huge}, {"overflow", overflow}, {NULL, NULL}});
}
