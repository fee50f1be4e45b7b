/* For reads.c and reads_beside.c: files whose bytes tell their places, and every function that reads from
 * a descriptor as one kind of call. The second word is the folder for files.
 */
#pragma once
#include "filtered.h"

#define PAGE ((size_t)4096)
#define SIZE (3 * MIB + 120)

ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off_t, size_t);
size_t __fread_chk(void *, size_t, size_t, size_t, FILE *);
size_t __fread_unlocked_chk(void *, size_t, size_t, size_t, FILE *);

#define folder scene_argument(0, ".")

static const char *path_of(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Makes a file of `size` bytes that encode their places, in the page cache. */
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

/* Calls twice: the second time lists outside the stack are fetched. */
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
