/* Large reads beside other readers, writers, signals, processes and filters: what is printed is compared
 * with a run without the library.
 *
 * reads_beside shared FOLDER     one position for threads, for processes, for two descriptors
 * reads_beside changing FOLDER   files that grow and are truncated while they are read
 * reads_beside replaced FOLDER   a descriptor that becomes another file's, or is closed, during a read
 * reads_beside signals FOLDER    with and without SA_RESTART, a jump out of the handler
 * reads_beside small FOLDER      on what a handler has of a stack of 8 KiB, beside its frame
 * reads_beside cancelled FOLDER  a thread that is cancelled before it reads, or waits for a pipe
 * reads_beside children FOLDER   fork, vfork, exec, threads with descriptors of their own
 * reads_beside watched FOLDER    locks, a lease, inotify, access time
 * reads_beside filtered FOLDER   before and after a seccomp filter that kills for what a reader need not call
 */
#include "reads.h"
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>

/* ---- one position for many */

#define STEP (384 * KIB)
#define STEPS 40

struct reader {
    int fd;
    enum how how;
    atomic_char *seen;
    FILE *file; /* instead of the descriptor, unless NULL */
};

/* Reads to the end; every byte must come once, to one reader. */
static void *read_on(void *argument)
{
    struct reader *reader = argument;
    uint64_t *to = map(STEP);
    ssize_t got;
    while ((got = reader->file ? (ssize_t)fread(to, 1, STEP, reader->file)
                               : call(reader->how, reader->fd, (char *)to, STEP, 0)) > 0) {
        size_t place = (to[0] / 8 - 1) / (STEP / 8);
        if (got != (ssize_t)STEP || place >= STEPS || reader->seen[place]++)
            wrong("%zd bytes of step %zu, once more", got, place);
        for (size_t i = 0; i < STEP / 8; i++)
            if (to[i] != (place * (STEP / 8) + i + 1) * 8)
                wrong("step %zu has other bytes at %zu", place, i * 8);
    }
    MUST(got >= 0);
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
    MUST(write(fd, words, STEPS * STEP) == (ssize_t)(STEPS * STEP));
    const enum how hows[] = {READ, READV, PREADV2};
    for (int round = 0; round < rounds(12); round++) {
        memset((void *)seen, 0, STEPS);
        lseek(fd, 0, SEEK_SET);
        struct reader reader = {fd, hows[round % 3], seen, NULL}, other = reader;
        other.fd = dup(fd);
        if (round % 4 == 3)
            reader.file = other.file = fdopen(dup(fd), "r");
        pid_t child = fork();
        if (child == 0) {
            if (!reader.file) /* its buffer would be another one */
                read_on(&reader);
            _exit(0);
        }
        pthread_t threads[3];
        for (int i = 0; i < 3; i++)
            threads[i] = start_thread(read_on, i == 1 ? &other : &reader);
        join_all(threads, 3);
        expect_success(child, "child");
        for (int i = 0; i < STEPS; i++)
            if (seen[i] != 1)
                wrong("step %d was read %d times", i, seen[i]);
        if (lseek(fd, 0, SEEK_CUR) != (off_t)(STEPS * STEP))
            wrong("position %ld", (long)lseek(fd, 0, SEEK_CUR));
        if (reader.file)
            fclose(reader.file);
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
            MUST(write(change->fd, more, PAGE * 8) == (ssize_t)(PAGE * 8));
        }
    munmap(more, MIB);
    return NULL;
}

/* Position and answer agree, and bytes that were always there are read. */
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
            FILE *file = round % 6 == 5 ? fopen(path_of("changing"), "r") : NULL;
            size_t size = shrinks ? SIZE + 10 : 60 * MIB;
            if (file)
                how = READ;
            lseek(fd, 0, SEEK_SET);
            ssize_t got = file ? (ssize_t)fread(to, 1, size, file) : call(how, fd, to, size, 0);
            off_t position = file ? ftell(file) : lseek(fd, 0, SEEK_CUR);
            if (file)
                fclose(file);
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

/* ---- descriptors that change */

struct swap {
    int fd, by;
    useconds_t after;
};

static void *swap(void *argument)
{
    struct swap *swap = argument;
    while (!stop) {
    }
    usleep(swap->after);
    if (swap->by >= 0)
        dup2(swap->by, swap->fd);
    else
        close(swap->fd);
    return NULL;
}

/* The kernel reads on from the file that it has begun with; never from two, nor is the position of
 * the second one moved. */
static void replaced(void)
{
    size_t size = 64 * MIB;
    char *to = map(size), *zeros = map(size);
    int files[2] = {new_file("old", size, O_RDONLY), open(path_of("new"), O_RDWR | O_CREAT, 0600)};
    MUST(write(files[1], zeros, size) == (ssize_t)size);
    for (int round = 0; round < rounds(60); round++) {
        lseek(files[0], 0, SEEK_SET);
        lseek(files[1], MIB, SEEK_SET);
        struct swap how = {dup(files[0]), round % 6 < 5 ? files[1] : -1, round % 10 * 500};
        stop = false;
        pthread_t thread = start_thread(swap, &how);
        stop = true;
        ssize_t got = round % 2 ? read(how.fd, to, size) : pread(how.fd, to, size, 0);
        int why = errno;
        pthread_join(thread, NULL);
        if (how.by >= 0)
            close(how.fd);
        if (got > 0 ? !memcmp(to, zeros, got) : how.by < 0 && why == EBADF)
            continue; /* it came before the read */
        if (got <= 0)
            wrong("round %d: %zd, %s", round, got, strerror(why));
        check(to, got, 1, "from the first file");
        if (lseek(files[1], 0, SEEK_CUR) != (off_t)MIB)
            wrong("round %d: the second file is at %ld", round, (long)lseek(files[1], 0, SEEK_CUR));
    }
    say("from one file");
}

/* ---- signals, cancellation */

static volatile sig_atomic_t handled;
static sigjmp_buf back;
static volatile bool jumps;

static void on_alarm(int number)
{
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

static struct { int fd; enum how how; char *to; } small_read;

static void read_as_coroutine(void)
{
    if (call(small_read.how, small_read.fd, small_read.to, SIZE, 0) != (ssize_t)SIZE)
        wrong("%s: %s", names[small_read.how], strerror(errno));
}

/* The frame has all registers of AVX-512. */
#define LEFT ((size_t)4496)

static void small(void)
{
    static ucontext_t here, there;
    /* Below the stack lies a page that nothing may touch. */
    char *stack = map(3 * PAGE);
    MUST(!mprotect(stack, PAGE, PROT_NONE));
    small_read.fd = new_file("small", SIZE, O_RDONLY);
    for (int round = 0; round < 4 * FUNCTIONS; round++) {
        small_read.how = round / 4;
        small_read.to = map(SIZE); /* never written */
        /* Lets the loader find it, which takes more stack than the read. */
        call(small_read.how, small_read.fd, small_read.to, 3, 0);
        lseek(small_read.fd, 0, SEEK_SET);
        MUST(!getcontext(&there));
        there.uc_stack = (stack_t){.ss_sp = stack + PAGE, .ss_size = LEFT};
        there.uc_link = &here;
        makecontext(&there, read_as_coroutine, 0);
        MUST(!swapcontext(&here, &there));
        check(small_read.to, SIZE, 1, "on a small stack");
        munmap(small_read.to, SIZE);
    }
    say("read on a small stack");
}

static int cancelled_fd;
static FILE *cancelled_file;
static atomic_int cleaned;

static void clean(void *unused)
{
    cleaned++;
}

static void *read_cancelled(void *how)
{
    static char to[4 * MIB];
    pthread_cleanup_push(clean, NULL);
    pthread_cancel(pthread_self());
    if ((intptr_t)how < FUNCTIONS)
        call((intptr_t)how, cancelled_fd, to, SIZE, 0);
    else if (fread(to, 1, SIZE, cancelled_file) != SIZE)
        wrong("fread: %s", strerror(errno));
    wrong("%zd is no cancellation point", (intptr_t)how);
    pthread_cleanup_pop(0);
    return NULL;
}

static void *read_pipe(void *file)
{
    static char to[4 * MIB];
    pthread_cleanup_push(clean, NULL);
    wrong("fread: %zu", fread(to, 1, SIZE, file));
    pthread_cleanup_pop(0);
    return NULL;
}

static void cancelled(void)
{
    cancelled_fd = new_file("cancelled", SIZE, O_RDONLY);
    cancelled_file = fdopen(dup(cancelled_fd), "r");
    for (intptr_t how = 0; how <= FUNCTIONS; how++) {
        void *result;
        pthread_join(start_thread(read_cancelled, (void *)how), &result);
        printf("%s: cancelled %d, cleaned %d, position %ld\n",
               how < FUNCTIONS ? names[how] : "fread", result == PTHREAD_CANCELED, cleaned,
               (long)lseek(cancelled_fd, 0, SEEK_CUR));
    }
    printf("stream: unlocked %d, at %ld\n", !ftrylockfile(cancelled_file), ftell(cancelled_file));
    /* Inside fread, where no byte will come. */
    int ends[2], left = 1;
    MUST(pipe(ends) == 0 && write(ends[1], names, 40) == 40);
    pthread_t thread = start_thread(read_pipe, fdopen(ends[0], "r"));
    while (left > 0)
        ioctl(ends[0], FIONREAD, &left);
    void *result;
    pthread_cancel(thread);
    pthread_join(thread, &result);
    printf("pipe: cancelled %d, cleaned %d\n", result == PTHREAD_CANCELED, cleaned);
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
        MUST(pread(own, to, 4 * MIB, 0) == (ssize_t)(4 * MIB));
        check(to, 4 * MIB, 9, "descriptors of its own");
    }
    return NULL;
}

/* The position goes on where `execute` has left it. */
static void executed(void)
{
    char *to = map(4 * MIB);
    int fd = atoi(scene_argument(1, "-1"));
    ssize_t got = read(fd, to, SIZE);
    printf("executed: %zd %lx\n", got, sum_of(to, 4 * MIB));
}

static void execute(int fd)
{
    char number[12];
    snprintf(number, sizeof number, "%d", fd);
    printf("executing: %zd\n", read(fd, map(MIB), MIB));
    fflush(stdout);
    execl("/proc/self/exe", scene_words[0], "executed", folder, number, (char *)NULL);
    wrong("exec: %s", strerror(errno));
}

static void children(void)
{
    char *to = map(8 * MIB);
    int fd = new_file("children", SIZE, O_RDONLY);
    tell("before", fd, to, SIZE, 0);
    fflush(stdout);
    IN_CHILD("child of fork") {
        tell("forked", fd, to, SIZE, 0);
        fflush(stdout);
    }
    lseek(fd, 0, SEEK_SET);
    pid_t child = vfork();
    if (child == 0)
        _exit(read(fd, to, SIZE) == (ssize_t)SIZE ? 0 : 1);
    expect_success(child, "child of vfork");
    check(to, SIZE, 1, "vfork");
    printf("vforked: position %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    lseek(fd, 0, SEEK_SET);
    fflush(stdout);
    IN_CHILD("child that executes")
        execute(fd);
    printf("executed: position %ld\n", (long)lseek(fd, 0, SEEK_CUR));
    pthread_t thread = start_thread(read_own, (void *)(intptr_t)fd);
    for (int round = 0; round < 50; round++) {
        MUST(pread(fd, to, SIZE, 0) == (ssize_t)SIZE);
        check(to, SIZE, 1, "beside another table");
        if (round % 10)
            continue;
        IN_CHILD("child of a process that reads") {
            memset(to, 0, SIZE);
            if (pread(fd, to, SIZE, 0) == (ssize_t)SIZE)
                check(to, SIZE, 1, "forked while a thread reads");
        }
    }
    pthread_join(thread, NULL);
    say("children have read");
}

/* Locks, lease, kinds of events and access time are as after one reader. */
static void watched(void)
{
    char *to = map(8 * MIB), events[4096];
    int fd = new_file("watched", SIZE, O_RDWR), inotify = inotify_init1(IN_NONBLOCK);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET}, found = lock;
    struct stat before, after;
    MUST(!fcntl(fd, F_SETLK, &lock) && !flock(fd, LOCK_EX));
    inotify_add_watch(inotify, path_of("watched"), IN_ACCESS | IN_OPEN | IN_CLOSE | IN_MODIFY);
    futimens(fd, (struct timespec[2]){{1000, 0}, {2000, 0}});
    fstat(fd, &before);
    while (read(inotify, events, sizeof events) > 0)
        ;
    tell("watched", fd, to, SIZE, 0);
    fstat(fd, &after);
    ssize_t got = read(inotify, events, sizeof events);
    uint32_t seen = 0;
    for (ssize_t at = 0; at < got;) {
        struct inotify_event *event = (void *)(events + at);
        seen |= event->mask;
        at += sizeof *event + event->len;
    }
    printf("events %x, accessed %d, written %d\n", seen, after.st_atime > before.st_atime,
           after.st_mtime > before.st_mtime);
    fflush(stdout);
    IN_CHILD("child that asks for locks") {
        int other = open(path_of("watched"), O_RDWR);
        printf("locks: %d of %d, %d\n", !fcntl(other, F_GETLK, &found) && found.l_type == F_WRLCK,
               found.l_pid == getppid(), flock(other, LOCK_EX | LOCK_NB));
        fflush(stdout);
    }
    close(fd);
    fd = open(path_of("watched"), O_RDONLY);
    printf("lease: %d, ", fcntl(fd, F_SETLEASE, F_RDLCK));
    tell("leased", fd, to, SIZE, 0);
    printf("lease: %d\n", fcntl(fd, F_GETLEASE));
}

static void filtered(void)
{
    char *to = map(8 * MIB);
    int fd = new_file("filtered", SIZE, O_RDONLY);
    FILE *file = fdopen(dup(fd), "r");
    const int unneeded[] = {SYS_preadv2, SYS_statx, SYS_process_vm_readv, SYS_pread64, SYS_fcntl, -1};
    static struct task tasks[MOST_TASKS];
    for (int round = 0; round < 30; round++) {
        if (round == 10) {
            if (workers_expected() && tasks_of(getpid(), tasks) < 2)
                wrong("reads have called no worker");
            filter_calls(unneeded, SECCOMP_RET_KILL_PROCESS, SECCOMP_FILTER_FLAG_TSYNC);
        }
        lseek(fd, 0, SEEK_SET);
        rewind(file);
        memset(to, 0, SIZE);
        struct iovec one = {to, SIZE};
        ssize_t got = round % 3 == 0   ? read(fd, to, SIZE)
                      : round % 3 == 1 ? readv(fd, &one, 1)
                                       : (ssize_t)fread(to, 1, SIZE, file);
        MUST(got == (ssize_t)SIZE);
        check(to, SIZE, 1, "filtered");
    }
    say("read under a filter");
}

SCENES((void)0, {"shared", shared}, {"changing", changing}, {"replaced", replaced},
       {"signals", signals}, {"small", small}, {"cancelled", cancelled}, {"children", children}, {"executed", executed},
       {"watched", watched}, {"filtered", filtered})
