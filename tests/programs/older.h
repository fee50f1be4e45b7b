/* What headers of glibc before 2.36, and of Linux before 5.11, do not declare. */
#pragma once
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
#if __GLIBC_PREREQ(2, 32)
#include <sys/single_threaded.h>
#define knows_of_no_thread() ((bool)__libc_single_threaded)
#else
#define knows_of_no_thread() true /* it does not say */
#endif
