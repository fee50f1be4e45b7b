//! Systems that refuse a system call: an old kernel, gVisor, a container. What needs the call falls
//! back, all else stays as it is, and nothing is said that was not asked for.

mod common;

use common::{
    finish, library, link_flags, plain, root, shown, skip_this, text, victim, victim_with,
};
use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// Makes a table of calls: name, number, and what is different when the call is refused.
macro_rules! calls {
    ($($name:ident: $lost:literal;)*) => { &[$((stringify!($name), libc::$name, $lost)),*] };
}

/// Calls that a system may refuse, with the lines of the program `rare_calls` that change then.
const RARE: &[(&str, i64, &str)] = calls! {
    SYS_epoll_create1: "";
    SYS_epoll_ctl: "";
    SYS_epoll_pwait: "";
    SYS_eventfd2: "cookie waited for";
    SYS_faccessat: "";
    SYS_fallocate: "";
    SYS_fchmod: "";
    SYS_flock: "";
    SYS_fstatfs: "";
    SYS_ftruncate: "message refused, block none"; // the size of shared memory
    SYS_get_mempolicy: "";
    SYS_getcpu: "";
    SYS_getpriority: "";
    SYS_getrandom: "message refused"; // secrets must not be guessed
    SYS_getrusage: "";
    SYS_ioctl: "";
    SYS_ioprio_get: "";
    SYS_ioprio_set: "";
    // A child of a fork must not take its parent's connections for its own (MADV_WIPEONFORK).
    SYS_madvise: "fresh small, message refused, block none";
    SYS_membarrier: "";
    SYS_memfd_create: "message refused, block none";
    SYS_mincore: "fresh small";
    SYS_mkdirat: "";
    SYS_move_pages: "";
    SYS_munlock: "";
    SYS_pidfd_open: "";
    SYS_ppoll: "";
    // Whether there is a filter is not known: nothing rare is tried.
    SYS_prctl: "fresh small, read libc, message shared memory";
    SYS_preadv2: "read libc";
    SYS_prlimit64: "";
    SYS_process_vm_readv: "remote refused, message shared memory";
    SYS_process_vm_writev: "message shared memory";
    SYS_readlinkat: "";
    SYS_rseq: "";
    SYS_rt_sigpending: "";
    SYS_rt_sigqueueinfo: "";
    SYS_rt_sigtimedwait: "";
    SYS_rt_tgsigqueueinfo: "";
    SYS_sched_getaffinity: "";
    SYS_sched_getscheduler: "";
    SYS_sched_setaffinity: "";
    SYS_sched_setscheduler: "";
    SYS_sched_yield: "";
    SYS_set_mempolicy: "";
    SYS_setpriority: "";
    SYS_shutdown: "";
    SYS_statx: "read libc";
    SYS_tgkill: "";
    SYS_unlinkat: "";
};

/// Calls without which no program runs, or without which the call that was asked for cannot be
/// made; and those with tests of their own: clone, rt_sigprocmask and userfaultfd.
const USUAL: &str = "accept4 bind clone close connect exit exit_group fcntl fstat futex geteuid getpid \
    getsockname getsockopt gettid kill listen lseek mmap mprotect mremap munmap newfstatat openat \
    pkey_mprotect pread64 preadv read readv recvmsg rt_sigaction rt_sigprocmask rt_sigreturn seccomp sendmsg \
    setsockopt socket socketpair userfaultfd write";

/// Calls that Docker's default profile refuses without capabilities, with EPERM, of those that programs
/// or their libraries try. clone3 is refused with ENOSYS.
const DOCKER: &[i64] = &[
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_fanotify_init,
    libc::SYS_get_mempolicy,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_keyctl,
    libc::SYS_mbind,
    libc::SYS_mount,
    libc::SYS_move_pages,
    libc::SYS_open_by_handle_at,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_process_madvise,
    libc::SYS_ptrace,
    libc::SYS_request_key,
    libc::SYS_set_mempolicy,
    libc::SYS_setns,
    libc::SYS_syslog,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
];

/// Returns a command that runs `rare_calls` under filters: a refusal, and the calls it is for. `seen`:
/// the library can see that there are filters.
fn refused(seen: bool, filters: &[(i32, &[i64])]) -> Command {
    let mut command = plain("env");
    for (errno, calls) in filters {
        let calls: Vec<_> = calls.iter().map(i64::to_string).collect();
        command.arg(victim("refused")).args(seen.then_some("seen"));
        command.args([errno.to_string(), calls.join(",")]);
    }
    command.arg(victim_with("rare_calls", &link_flags().each_ref().map(String::as_str)));
    command.env("LD_PRELOAD", library()).env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2");
    // Calls are counted, and a report is written.
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", "/dev/null");
    command
}

/// How `rare_calls` was carried, by subject. `None`: there are no filters here.
fn outcome(command: &mut Command) -> Option<BTreeMap<String, String>> {
    let done = shown(command)?;
    assert_eq!(text(&done.stderr), "", "{command:?}: nothing is written unasked");
    let line = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
    text(&done.stdout).lines().map(line).collect()
}

/// Compares each of these rows with a run in which an unused call is refused.
fn falls_back(errno: i32, is_chosen: impl Fn(&str) -> bool) {
    let run = |call: i64| outcome(&mut refused(false, &[(errno, &[call])]));
    let Some(usual) = run(libc::SYS_kexec_load) else { return };
    assert_eq!(usual["copy"], "shared", "{usual:?}");
    let mut wrong = Vec::new();
    for &(name, number, lost) in RARE.iter().filter(|(name, ..)| is_chosen(name)) {
        let mut want = usual.clone();
        for (subject, how) in lost.split(", ").filter_map(|lost| lost.split_once(' ')) {
            // Where the kernel gives huge pages to all memory, no refusal changes that.
            if usual[subject] == "unasked" {
                continue;
            }
            want.insert(subject.to_owned(), how.to_owned());
        }
        let got = run(number).unwrap();
        if got != want {
            wrong.push(format!("{name}: {got:?}, want {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn system_call_that_does_not_exist_costs_only_what_needs_it() {
    falls_back(libc::ENOSYS, |_| true);
}

#[test]
fn system_call_that_is_not_permitted_costs_only_what_needs_it() {
    // Those whose error is looked at.
    let chosen = "fallocate fstatfs ioctl madvise membarrier memfd_create preadv2 process_vm_readv";
    falls_back(libc::EPERM, |name| chosen.split(' ').any(|one| name == format!("SYS_{one}")));
}

/// The library sees such a filter and makes no rare call in a copy.
#[test]
fn containers_profile_leaves_copies_shared_and_messages_direct() {
    let filters = [(libc::ENOSYS, &[libc::SYS_clone3][..]), (libc::EPERM, DOCKER)];
    let Some(got) = outcome(&mut refused(true, &filters)) else { return };
    let want =
        ["copy shared", "cookie polled", "handled shared", "message process_vm", "block made"];
    for (subject, how) in want.iter().filter_map(|want| want.split_once(' ')) {
        assert_eq!(got[subject], how, "{got:?}");
    }
}

/// Each process logs the loss once, where that is asked for.
#[test]
fn refusal_of_process_vm_is_logged_once_by_each_side() {
    let mut command = refused(false, &[(libc::ENOSYS, &[libc::SYS_process_vm_readv])]);
    let done = finish(command.env("ADMA_LOG", "info"));
    if done.status.code() == Some(common::CANNOT_BE_SHOWN) {
        return skip_this(text(&done.stderr).trim());
    }
    let told = text(&done.stderr);
    let lines: Vec<_> = told.lines().filter(|line| line.contains("process_vm")).collect();
    assert!(done.status.success() && lines.len() == 2, "{told}");
}

/// Every call in the sources is in one of the tables, so that a new one gets its row.
#[test]
fn system_calls_of_the_sources_are_all_listed() {
    let other_arch = ["x86_64", "aarch64"].into_iter().find(|&name| name != std::env::consts::ARCH);
    let mut used = BTreeSet::new();
    let mut folders = vec![root().join("src")];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                if !other_arch.is_some_and(|name| path.ends_with(name)) {
                    folders.push(path);
                }
            } else {
                let source = std::fs::read_to_string(&path).unwrap();
                let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
                used.extend(
                    source
                        .split("SYS_")
                        .skip(1)
                        .map(|rest| rest.chars().take_while(|&c| is_name(c)).collect::<String>()),
                );
            }
        }
    }
    used.remove("");
    let rare = RARE.iter().filter_map(|(name, ..)| name.strip_prefix("SYS_"));
    let listed: BTreeSet<_> = USUAL.split_whitespace().chain(rare).map(String::from).collect();
    assert_eq!(used.difference(&listed).collect::<Vec<_>>(), Vec::<&String>::new(), "not listed");
    assert_eq!(listed.difference(&used).collect::<Vec<_>>(), Vec::<&String>::new(), "not used");
}
