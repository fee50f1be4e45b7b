/* Large reads of files in every corner. Each case prints a line with what a program can notice
 * (answer, errno, position and bytes), to be compared with a run without the library.
 *
 * reads corners FOLDER   descriptors: ends, kinds of files, bad buffers, bad lists, flags
 * reads streams FOLDER   FILEs: buffers, pushed back bytes, ends, errors, modes
 * reads huge FOLDER      more than the kernel reads at once
 * reads each FOLDER      every function twice
 * reads overflow NAME    __read_chk, __pread_chk or __fread_chk of more than the buffer holds
 */
#include "reads.h"
#include <sys/socket.h>

static void ends(char *to)
{
    const struct { const char *what; off_t at; size_t size; } cases[] = {
        {"all", 0, SIZE}, {"one more", 0, SIZE + 1}, {"many more", 0, SIZE + MIB},
        {"from the middle", 1234567, SIZE}, {"odd", 77, 2 * MIB + 13},
        {"up to the end", SIZE - MIB, MIB}, {"last byte", SIZE - 1, MIB},
        {"at the end", SIZE, MIB}, {"past the end", SIZE + 5, MIB}, {"below", 5, 65535},
    };
    int flags[] = {O_RDONLY, O_RDWR | O_APPEND, O_RDONLY | O_NONBLOCK, O_RDONLY | O_NOATIME};
    for (size_t i = 0; i < COUNT(flags); i++) {
        int fd = new_file("ends", SIZE, flags[i]);
        for (size_t j = 0; j < COUNT(cases); j++)
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
    for (size_t i = 0; i < COUNT(kinds); i++) {
        fd = open(kinds[i].path, kinds[i].flags);
        tell(kinds[i].path, fd, to, MIB + 5, 0);
        tell(kinds[i].path, fd, to, MIB, 3);
        close(fd);
    }
    fd = open(path_of("sparse"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    tell("empty", fd, to, MIB, 0);
    MUST(ftruncate(fd, SIZE) >= 0 && pwrite(fd, "x", 1, 2 * MIB) == 1);
    tell("sparse", fd, to, SIZE + 9, 0);
    close(fd);
    fd = memfd_create("reads", 0);
    fill(to, 2 * MIB, 5);
    MUST(write(fd, to, 2 * MIB) == (ssize_t)(2 * MIB));
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
        for (size_t i = 0; i < COUNT(cases); i++)
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
    for (size_t i = 0; i < COUNT(flags); i++)
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
    FILE *file = fopen(path_of("huge"), "r");
    printf("fread %zu\n", fread(to, 1, size, file));
    printf("position %ld\n", ftell(file));
    unlink(path_of("huge"));
}

static void each(void)
{
    char *to = map(8 * MIB);
    int fd = new_file("each", SIZE, O_RDONLY);
    FILE *file = fdopen(fd, "r");
    tell("each", fd, to, SIZE, 0);
    for (int turn = 0; turn < 8; turn++) {
        rewind(file);
        tell_stream("each", turn % 4, file, 1, SIZE);
    }
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

SCENES((void)0, {"corners", corners}, {"streams", streams}, {"huge", huge}, {"each", each},
       {"overflow", overflow})
