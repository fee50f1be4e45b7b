/* A program that runs under a seccomp filter from its start, as a service does: the filter
 * is installed here, and then this program is executed again, to copy.
 *
 *   resources       systemd's SystemCallFilter=~@resources
 *   system-service  systemd's SystemCallFilter=@system-service
 *   usual           the two together, as in most units that have any
 *   least           only what adma(7) says that we need, and what this program needs
 *
 * Whatever is not allowed ends the process, as systemd has it by default.
 */
#include "trap.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

static const int resources[] = {
    SYS_ioprio_set,     SYS_mbind,          SYS_migrate_pages,   SYS_move_pages,
    SYS_sched_setaffinity, SYS_sched_setattr, SYS_sched_setparam, SYS_sched_setscheduler,
    SYS_set_mempolicy,  SYS_setpriority,    SYS_setrlimit,       450 /* set_mempolicy_home_node */,
    -1,
};

/* systemd 252, src/shared/seccomp-util.c: the sets that @system-service is made of, less
 * @resources. */
static const int system_service[] = {
    /* @default */
    SYS_arch_prctl, SYS_brk, SYS_clock_getres, SYS_clock_gettime, SYS_clock_nanosleep, SYS_execve,
    SYS_exit, SYS_exit_group, SYS_futex, SYS_get_robust_list, SYS_get_thread_area, SYS_getegid,
    SYS_geteuid, SYS_getgid, SYS_getgroups, SYS_getpgid, SYS_getpgrp, SYS_getpid, SYS_getppid,
    SYS_getrandom, SYS_getresgid, SYS_getresuid, SYS_getrlimit, SYS_getsid, SYS_gettid,
    SYS_gettimeofday, SYS_getuid, SYS_membarrier, SYS_mmap, SYS_mprotect, SYS_munmap,
    SYS_nanosleep, SYS_pause, SYS_prlimit64, SYS_restart_syscall, SYS_rseq, SYS_rt_sigreturn,
    SYS_sched_getaffinity, SYS_sched_yield, SYS_set_robust_list, SYS_set_thread_area,
    SYS_set_tid_address, SYS_time,
    /* @aio, @basic-io, @chown */
    SYS_io_cancel, SYS_io_destroy, SYS_io_getevents, SYS_io_pgetevents, SYS_io_setup,
    SYS_io_submit, SYS_io_uring_enter, SYS_io_uring_register, SYS_io_uring_setup, SYS_close,
    SYS_close_range, SYS_dup, SYS_dup2, SYS_dup3, SYS_lseek, SYS_pread64, SYS_preadv, SYS_preadv2,
    SYS_pwrite64, SYS_pwritev, SYS_pwritev2, SYS_read, SYS_readv, SYS_write, SYS_writev,
    SYS_chown, SYS_fchown, SYS_fchownat, SYS_lchown,
    /* @file-system */
    SYS_access, SYS_chdir, SYS_chmod, SYS_creat, SYS_faccessat, SYS_faccessat2, SYS_fallocate,
    SYS_fchdir, SYS_fchmod, SYS_fchmodat, SYS_fcntl, SYS_fgetxattr, SYS_flistxattr,
    SYS_fremovexattr, SYS_fsetxattr, SYS_fstat, SYS_fstatfs, SYS_ftruncate, SYS_futimesat,
    SYS_getcwd, SYS_getdents, SYS_getdents64, SYS_getxattr, SYS_inotify_add_watch,
    SYS_inotify_init, SYS_inotify_init1, SYS_inotify_rm_watch, SYS_lgetxattr, SYS_link, SYS_linkat,
    SYS_listxattr, SYS_llistxattr, SYS_lremovexattr, SYS_lsetxattr, SYS_lstat, SYS_mkdir,
    SYS_mkdirat, SYS_mknod, SYS_mknodat, SYS_newfstatat, SYS_open, SYS_openat, SYS_openat2,
    SYS_readlink, SYS_readlinkat, SYS_removexattr, SYS_rename, SYS_renameat, SYS_renameat2,
    SYS_rmdir, SYS_setxattr, SYS_stat, SYS_statfs, SYS_statx, SYS_symlink, SYS_symlinkat,
    SYS_truncate, SYS_unlink, SYS_unlinkat, SYS_utime, SYS_utimensat, SYS_utimes,
    /* @io-event, @ipc, @keyring, @memlock, @network-io */
    SYS_epoll_create, SYS_epoll_create1, SYS_epoll_ctl, SYS_epoll_ctl_old, SYS_epoll_pwait,
    SYS_epoll_wait, SYS_epoll_wait_old, SYS_eventfd, SYS_eventfd2, SYS_poll, SYS_ppoll,
    SYS_pselect6, SYS_select, SYS_memfd_create, SYS_mq_getsetattr, SYS_mq_notify, SYS_mq_open,
    SYS_mq_timedreceive, SYS_mq_timedsend, SYS_mq_unlink, SYS_msgctl, SYS_msgget, SYS_msgrcv,
    SYS_msgsnd, SYS_pipe, SYS_pipe2, SYS_semctl, SYS_semget, SYS_semop, SYS_semtimedop,
    SYS_shmat, SYS_shmctl, SYS_shmdt, SYS_shmget, SYS_add_key, SYS_keyctl, SYS_request_key,
    SYS_mlock, SYS_mlock2, SYS_mlockall, SYS_munlock, SYS_munlockall, SYS_accept, SYS_accept4,
    SYS_bind, SYS_connect, SYS_getpeername, SYS_getsockname, SYS_getsockopt, SYS_listen,
    SYS_recvfrom, SYS_recvmmsg, SYS_recvmsg, SYS_sendmmsg, SYS_sendmsg, SYS_sendto,
    SYS_setsockopt, SYS_shutdown, SYS_socket, SYS_socketpair,
    /* @process, @setuid, @signal, @sync, @timer */
    SYS_capget, SYS_clone, SYS_clone3, SYS_execveat, SYS_fork, SYS_getrusage, SYS_kill,
    SYS_pidfd_open, SYS_pidfd_send_signal, SYS_prctl, SYS_rt_sigqueueinfo, SYS_rt_tgsigqueueinfo,
    SYS_setns, SYS_tgkill, SYS_times, SYS_tkill, SYS_unshare, SYS_vfork, SYS_wait4, SYS_waitid,
    SYS_setgid, SYS_setgroups, SYS_setregid, SYS_setresgid, SYS_setresuid, SYS_setreuid,
    SYS_setuid, SYS_rt_sigaction, SYS_rt_sigpending, SYS_rt_sigprocmask, SYS_rt_sigsuspend,
    SYS_rt_sigtimedwait, SYS_sigaltstack, SYS_signalfd, SYS_signalfd4, SYS_fdatasync, SYS_fsync,
    SYS_msync, SYS_sync, SYS_sync_file_range, SYS_syncfs, SYS_alarm, SYS_getitimer, SYS_setitimer,
    SYS_timer_create, SYS_timer_delete, SYS_timer_getoverrun, SYS_timer_gettime,
    SYS_timer_settime, SYS_timerfd_create, SYS_timerfd_gettime, SYS_timerfd_settime,
    /* its own */
    SYS_capset, SYS_copy_file_range, SYS_fadvise64, SYS_flock, SYS_get_mempolicy, SYS_getcpu,
    SYS_getpriority, SYS_ioctl, SYS_ioprio_get, SYS_kcmp, SYS_madvise, SYS_mremap,
    SYS_personality, SYS_readahead, SYS_remap_file_pages, SYS_sched_get_priority_max,
    SYS_sched_get_priority_min, SYS_sched_getattr, SYS_sched_getparam, SYS_sched_getscheduler,
    SYS_sched_rr_get_interval, SYS_sendfile, SYS_setfsgid, SYS_setfsuid, SYS_setpgid, SYS_setsid,
    SYS_splice, SYS_sysinfo, SYS_tee, SYS_umask, SYS_uname, SYS_userfaultfd, SYS_vmsplice,
    -1,
};

static const int least[] = {
    /* what adma(7) says: the loader's and ours */
    SYS_arch_prctl, SYS_brk, SYS_clone, SYS_close, SYS_execve, SYS_exit, SYS_exit_group,
    SYS_futex, SYS_geteuid, SYS_getpid, SYS_getrandom, SYS_gettid, SYS_mmap, SYS_mprotect,
    SYS_munmap, SYS_openat, SYS_pread64, SYS_prctl, SYS_prlimit64, SYS_read, SYS_rseq,
    SYS_rt_sigaction, SYS_rt_sigprocmask, SYS_sched_getaffinity, SYS_sched_yield,
    SYS_set_robust_list, SYS_set_tid_address, SYS_write, SYS_access, SYS_newfstatat, SYS_fstat,
    /* this program's own */
    SYS_clock_nanosleep, SYS_getdents64, SYS_lseek,
    /* a report's */
    SYS_fcntl, SYS_readlinkat, SYS_rename, SYS_renameat, SYS_renameat2, SYS_rt_sigpending,
    SYS_rt_sigtimedwait, SYS_unlink, SYS_unlinkat, SYS_ftruncate, SYS_uname, SYS_lstat, SYS_stat,
    -1,
};

static void add(struct sock_filter *code, unsigned short *n, const int *calls, unsigned action)
{
    for (; *calls >= 0; calls++) {
        code[(*n)++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, *calls, 0, 1);
        code[(*n)++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, action);
    }
}

static void install(const char *name)
{
    static struct sock_filter code[1024];
    unsigned short n = 0;
    unsigned rest = SECCOMP_RET_KILL_PROCESS;
    code[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
                                             offsetof(struct seccomp_data, nr));
    if (!strcmp(name, "resources")) {
        add(code, &n, resources, SECCOMP_RET_KILL_PROCESS);
        rest = SECCOMP_RET_ALLOW;
    } else if (!strcmp(name, "system-service")) {
        add(code, &n, resources, SECCOMP_RET_ALLOW);
        add(code, &n, system_service, SECCOMP_RET_ALLOW);
    } else if (!strcmp(name, "usual")) {
        add(code, &n, system_service, SECCOMP_RET_ALLOW);
    } else {
        add(code, &n, least, SECCOMP_RET_ALLOW);
    }
    code[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, rest);
    struct sock_fprog program = {n, code};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) ||
        syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program))
        cannot("no seccomp filter here: %s", strerror(errno));
}

static void copy_several(const char *where)
{
    struct blocks b = map_blocks(32 * MIB);
    for (int i = 0; i < 10; i++) {
        copy_checked(b, i, where);
        sleep_ms(5);
    }
    expect_workers(b, where);
    unmap_blocks(b);
}

int main(int count, char **words)
{
    const char *name = count > 1 ? words[1] : "least";
    if (count < 3) {
        install(name);
        execl("/proc/self/exe", words[0], name, "copy", (char *)NULL);
        wrong("cannot execute myself: %s", strerror(errno));
    }
    copy_several(name);
    return 0;
}
