/* For fake_cuda.c: memory that is pinned as a real driver pins it, by io_uring's registered buffers,
 * and transfers between its pages and a file.
 */
#pragma once
#include "usual.h"
#include <linux/io_uring.h>

__attribute__((noreturn, format(printf, 1, 2)))
static void wrong(const char *format, ...)
{
    char line[256];
    va_list args;
    int len = snprintf(line, sizeof(line), "fake_cuda: ");
    va_start(args, format);
    len += vsnprintf(line + len, sizeof(line) - len - 1, format, args);
    va_end(args);
    line[len++] = '\n';
    if (write(2, line, len) < 0)
        _exit(98);
    _exit(99); /* not abort: its handlers may be the program's */
}

struct ring {
    int fd;
    uintptr_t start; /* of the pinned memory */
    unsigned *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    void *maps[3];
    size_t lens[3];
};

static bool ring_open(struct ring *ring, uintptr_t start, size_t len)
{
    struct io_uring_params p;
    struct iovec parts[64];
    unsigned count = 0;
    memset(&p, 0, sizeof(p));
    ring->start = start;
    ring->fd = syscall(SYS_io_uring_setup, 4, &p);
    if (ring->fd < 0)
        return false;
    ring->lens[0] = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    ring->lens[1] = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    ring->lens[2] = p.sq_entries * sizeof(struct io_uring_sqe);
    off_t offsets[3] = { IORING_OFF_SQ_RING, IORING_OFF_CQ_RING, IORING_OFF_SQES };
    for (int i = 0; i < 3; i++) {
        ring->maps[i] =
            mmap(NULL, ring->lens[i], PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring->fd,
                 offsets[i]);
        if (ring->maps[i] == MAP_FAILED)
            wrong("no memory for a ring");
    }
    char *sq = ring->maps[0], *cq = ring->maps[1];
    ring->sq_tail = (unsigned *)(sq + p.sq_off.tail);
    ring->sq_mask = (unsigned *)(sq + p.sq_off.ring_mask);
    ring->sq_array = (unsigned *)(sq + p.sq_off.array);
    ring->cq_head = (unsigned *)(cq + p.cq_off.head);
    ring->cq_tail = (unsigned *)(cq + p.cq_off.tail);
    ring->cq_mask = (unsigned *)(cq + p.cq_off.ring_mask);
    ring->cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);
    ring->sqes = ring->maps[2];
    /* A buffer of io_uring's has up to 1 GiB. */
    for (size_t at = 0; at < len && count < 64; count++) {
        size_t part = len - at < (512 << 20) ? len - at : 512 << 20;
        parts[count] = (struct iovec){ (void *)(start + at), part };
        at += part;
    }
    return syscall(SYS_io_uring_register, ring->fd, IORING_REGISTER_BUFFERS, parts, count) == 0;
}

static void ring_close(struct ring *ring)
{
    for (int i = 0; i < 3; i++)
        if (ring->maps[i])
            munmap(ring->maps[i], ring->lens[i]);
    if (ring->fd >= 0)
        close(ring->fd);
}

/* Transfers between pinned memory and a place in a file. Calls are made one by one. */
static void ring_transfer(struct ring *ring, bool up, uintptr_t host, int file, uint64_t at,
                          size_t len)
{
    while (len > 0) {
        size_t which = (host - ring->start) / (512 << 20);
        size_t room = (which + 1) * (size_t)(512 << 20) - (host - ring->start);
        size_t part = len < room ? len : room;
        unsigned tail = *ring->sq_tail, index = tail & *ring->sq_mask;
        struct io_uring_sqe *sqe = &ring->sqes[index];
        memset(sqe, 0, sizeof(*sqe));
        sqe->opcode = up ? IORING_OP_WRITE_FIXED : IORING_OP_READ_FIXED;
        sqe->fd = file;
        sqe->addr = host;
        sqe->len = part;
        sqe->off = at;
        sqe->buf_index = which;
        ring->sq_array[index] = index;
        __atomic_store_n(ring->sq_tail, tail + 1, __ATOMIC_RELEASE);
        long got = syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        unsigned head = *ring->cq_head;
        while (head == __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE))
            if (syscall(SYS_io_uring_enter, ring->fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0) < 0 &&
                errno != EINTR)
                wrong("io_uring_enter: %s", strerror(errno));
        int done = ring->cqes[head & *ring->cq_mask].res;
        __atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
        if (got < 0 || done <= 0)
            wrong("a transfer of %zu bytes failed: %ld, %s", part, got, strerror(-done));
        host += done;
        at += done;
        len -= done;
    }
}
