/* What headers of glibc before 2.36, and of Linux before 5.11, do not declare. */
#pragma once
#include <dlfcn.h>
#include <linux/userfaultfd.h>
#include <stdbool.h>
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif
#ifndef AT_MINSIGSTKSZ
#define AT_MINSIGSTKSZ 51
#endif
#define close_descriptors(first) syscall(SYS_close_range, first, ~0u, 0)
#define least_signal_stack() ((size_t)getauxval(AT_MINSIGSTKSZ))
#if !__GLIBC_PREREQ(2, 34)
#define _Fork() ((pid_t)syscall(SYS_fork))
#endif

/* Whether the C library says how many threads there are, and has one: from glibc 2.32 on. Looked up, for
 * `adma` is compiled once, on the oldest. */
static inline const char *one_thread_flag(void)
{
    return dlsym(RTLD_DEFAULT, "__libc_single_threaded");
}

static inline bool knows_of_no_thread(void)
{
    const char *flag = one_thread_flag();
    return !flag || *flag;
}
