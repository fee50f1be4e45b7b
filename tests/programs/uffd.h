/* Pages that userfaultfd withholds. After pattern.h. */
#pragma once
#include "older.h"
#include <sys/ioctl.h>

static int userfault;

static void open_userfault(int flags, uint64_t features)
{
    struct uffdio_api api = {.api = UFFD_API, .features = features};
    userfault = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | flags);
    if (userfault < 0 || ioctl(userfault, UFFDIO_API, &api))
        cannot("userfaultfd is forbidden or lacks a feature here");
}

/* Discards the contents; the next access waits for `supply_page`, or fails. */
static void lose_pages(void *at, size_t len)
{
    struct uffdio_register range = {.range = {(uintptr_t)at, len},
                                    .mode = UFFDIO_REGISTER_MODE_MISSING};
    MUST(!madvise(at, len, MADV_DONTNEED) && !ioctl(userfault, UFFDIO_REGISTER, &range));
}

/* Supplies a page. Returns 0 if it was missing. */
static int supply_page(uintptr_t page, const void *contents)
{
    struct uffdio_copy copy = {.dst = page, .src = (uintptr_t)contents, .len = PAGE};
    return ioctl(userfault, UFFDIO_COPY, &copy);
}

/* The page that a thread waits for; 0 where none does within `ms` milliseconds (-1: for ever). */
static uintptr_t page_asked_for(int ms)
{
    struct pollfd readable = {.fd = userfault, .events = POLLIN};
    struct uffd_msg message;
    if (poll(&readable, 1, ms) != 1 ||
        read(userfault, &message, sizeof(message)) != sizeof(message))
        return 0;
    return message.arg.pagefault.address & -PAGE;
}
