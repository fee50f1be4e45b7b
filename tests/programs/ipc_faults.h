/* Pages that come only when this process supplies them. */
#pragma once
#include "ipc.h"
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>

/* Withholds pages: a thread that touches them waits until that descriptor is closed. */
static inline int withhold_pages(byte *at, size_t len)
{
    struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_THREAD_ID };
    struct uffdio_register range = { .range = { (uintptr_t)at, len },
                                     .mode = UFFDIO_REGISTER_MODE_MISSING };
    int faults = syscall(SYS_userfaultfd, O_CLOEXEC);
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &range))
        cannot("no userfaultfd here");
    return faults;
}

/* Checks the support for it before other processes depend on it. */
static inline void expect_pages_can_be_withheld(void)
{
    close(withhold_pages(pages_between_guards(PAGE), PAGE));
}
