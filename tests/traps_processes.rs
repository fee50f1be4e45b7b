//! The life of a program and its threads: fork and exec, beginning and end, workers and CPUs.

mod common;

use common::traps::{
    a_library, both_orders, engine_bytes, engine_calls, fixed, linked, offloaded, says, survives,
    survives_offloaded, victims,
};
use common::{
    finish, found, library, plain, preloaded, skip, statistics, succeed, victim, victim_with,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

victims! { survives_offloaded:
    // fork, vfork, exec, spawn
    fork_handlers_that_copy_before_and_after_ours_are_right: "trap_fork handlers";
    fork_without_handlers_child_copies_and_does_not_hang: "trap_raw_fork";
    vfork_then_exec_during_copies_is_unharmed: "trap_vfork exec";
    vfork_child_copies_parent_goes_on_offloading: "trap_vfork copy";
    vfork_child_makes_first_copy_parent_goes_on_offloading: "trap_vfork first";
    vfork_child_and_thread_race_for_first_copy_neither_waits_for_ever: "trap_vfork race";
    exec_during_copy_leaves_no_worker_behind: "trap_exec";
    spawned_programs_during_copies_copy_right: "trap_spawn";
    daemon_copies_with_its_own_workers: "trap_spawn daemon";
    fork_right_after_a_copy_finds_the_process_alone: "trap_alone fork";
    unshare_right_after_a_copy_finds_the_process_alone: "trap_alone unshare";
    setns_right_after_a_copy_finds_the_process_alone: "trap_alone setns";
    // beginning
    copies_before_any_constructor_are_right: "trap_early";
    // threads and processors
    three_hundred_threads_copy_at_once_all_are_right: "trap_threads 300";
    affinity_narrowed_with_workers_alive_copies_right: "trap_one_cpu later";
    workers_come_with_the_first_large_copy_and_go_when_idle: "trap_workers";
    main_thread_niced_while_copying_workers_follow: "trap_class later-niced";
    main_thread_of_idle_class_while_copying_workers_follow: "trap_class later-idle";
    main_thread_with_io_priority_while_copying_workers_follow: "trap_class later-io";
    first_copy_by_a_niced_thread_workers_are_not: "trap_class niced";
    first_copy_by_an_idle_class_thread_workers_are_not: "trap_class idle";
    first_copy_by_a_real_time_thread_workers_are_not: "trap_class fifo";
    first_copy_by_a_pinned_thread_workers_are_not: "trap_class pinned";
    first_copy_by_a_niced_thread_under_a_filter_workers_are_not: "trap_class niced filtered";
    first_copy_by_an_idle_class_thread_under_a_filter_workers_are_not: "trap_class idle filtered";
    first_copy_by_a_real_time_thread_under_a_filter_workers_are_not: "trap_class fifo filtered";
    first_copy_by_a_pinned_thread_under_a_filter_workers_are_not: "trap_class pinned filtered";
}

// fork, vfork, exec, spawn

#[test]
fn fork_during_copy_child_copies_with_its_own_workers() {
    let test = "fork_during_copy_child_copies_with_its_own_workers";
    let Some(processes) = survives(test, &victim("trap_fork"), &[]) else { return };
    let parent = processes.iter().max_by_key(|process| engine_bytes(process)).unwrap();
    let children: Vec<_> = processes.iter().filter(|p| p["pid"] != parent["pid"]).collect();
    // 40 children leave by exit; a few may have found the board taken.
    let with_engine = children.iter().filter(|child| engine_calls(child) > 0).count();
    assert!(with_engine >= 30, "{with_engine} of {} children offloaded", children.len());
    for child in children {
        assert!(engine_bytes(child) <= 3 << 20, "the child reports its parent's copies: {child}");
    }
}

/// Without knobs, as most programs run. Shown where there is a CPU for a worker.
#[test]
fn processes_that_fork_for_each_small_copy_start_no_engine() {
    for way in ["prefork", "turn"] {
        succeed(plain(victim("trap_short")).arg(way));
        succeed(preloaded(victim("trap_short")).arg(way));
    }
}

/// Compared with an empty library, for any preloaded library costs some.
#[test]
fn fork_touches_few_pages_of_ours_in_the_child() {
    let faults = |library: &Path| -> i64 {
        let mut command = plain(victim("trap_short"));
        let (said, _) = succeed(command.arg("faults").env("LD_PRELOAD", library));
        said.trim().parse().unwrap()
    };
    let (ours, empty) = (faults(&library()), faults(&a_library("trap_empty_library", &[])));
    assert!(ours - empty <= 8, "{ours} page faults, {empty} with an empty library");
}

/// Lines of a program's system calls `traced`, with the number of the thread before each; `None`:
/// there is no strace.
fn system_calls(test: &str, traced: &str, way: &str) -> Option<Vec<(String, String)>> {
    if !found("strace") {
        skip(test, "strace is not installed");
        return None;
    }
    let folder = common::scratch("calls");
    let log = folder.join("log");
    let mut command = plain("strace");
    command.args(["-f", "-e", &format!("trace={traced}"), "-o"]).arg(&log);
    command.args(["-E", &format!("LD_PRELOAD={}", library().display())]);
    succeed(command.env("ADMA_CHANNELS", "6").arg(victim("trap_short")).arg(way));
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::remove_dir_all(folder).unwrap();
    let parts = text.lines().filter_map(|line| line.split_once(' '));
    Some(parts.map(|(thread, call)| (thread.into(), call.trim_start().into())).collect())
}

#[test]
fn first_large_copy_makes_one_worker_and_workers_make_the_others() {
    let test = "first_large_copy_makes_one_worker_and_workers_make_the_others";
    let Some(calls) = system_calls(test, "clone", "large") else { return };
    let makers: Vec<_> = calls.iter().filter(|(_, call)| call.contains("CLONE_THREAD")).collect();
    let by_caller = makers.iter().filter(|(thread, _)| *thread == calls[0].0);
    assert_eq!(by_caller.count(), 1, "{calls:?}");
    assert!(makers.len() > 1, "{calls:?}");
}

#[test]
fn helper_that_is_not_there_is_not_looked_for_in_every_child() {
    let test = "helper_that_is_not_there_is_not_looked_for_in_every_child";
    if Path::new("/dev/adma").exists() {
        return skip(test, "the helper is there");
    }
    let Some(calls) = system_calls(test, "openat", "again") else { return };
    let opened = calls.iter().filter(|(_, call)| call.contains("/dev/adma")).count();
    assert_eq!(opened, 1, "{calls:?}");
}

#[test]
fn child_of_a_bare_fork_does_not_report_its_parents_copies() {
    let test = "child_of_a_bare_fork_does_not_report_its_parents_copies";
    if let Some(processes) = survives(test, &victim("trap_raw_fork"), &["exit"]) {
        assert_eq!(processes.len(), 1, "{processes:?}");
    }
}

/// A slot that a dead child has taken would count as a copy in flight.
#[test]
fn vfork_child_killed_in_the_middle_of_a_copy_parent_goes_on_offloading() {
    let test = "vfork_child_killed_in_the_middle_of_a_copy_parent_goes_on_offloading";
    if let Some(processes) = survives(test, &victim("trap_vfork"), &["killed"]) {
        assert!(offloaded(&processes) >= 100, "{processes:?}");
        assert!(processes.iter().all(|p| p["fallbacks"]["busy"] == 0), "{processes:?}");
    }
}

// The beginning and the end of a program.

#[test]
fn ifunc_resolver_of_program_copies_right() {
    let test = "ifunc_resolver_of_program_copies_right";
    survives_offloaded(test, &victim_with("trap_early", &["-DWITH_IFUNC", "-Wl,-z,now"]), &[]);
}

#[test]
fn ifunc_resolver_of_library_copies_before_we_are_relocated() {
    let test = "ifunc_resolver_of_library_copies_before_we_are_relocated";
    let program = linked("trap_dlopen", &a_library("trap_library", &["-DWITH_IFUNC"]));
    survives_offloaded(test, &program, &[]);
}

#[test]
fn library_linked_or_opened_in_any_way_copies_right_from_constructor_to_destructor() {
    let (program, other) = (victim("trap_dlopen"), a_library("trap_library", &[]));
    let lines = ["library constructor", "library function", "library destructor"];
    says(&linked("trap_dlopen", &other), &[], &lines);
    for way in ["now", "deepbind", "namespace"] {
        says(&program, &[other.to_str().unwrap(), way], &lines);
    }
}

#[test]
fn preloaded_library_that_copies_works_before_and_after_us() {
    for order in both_orders(&a_library("trap_library", &[])) {
        let mut command = preloaded(victim("trap_copy"));
        let (said, _) = succeed(fixed(command.env("LD_PRELOAD", &order)));
        assert_eq!(said, "library constructor\nlibrary destructor\n", "LD_PRELOAD={order}");
        assert!(offloaded(&statistics(&mut command)) > 0, "LD_PRELOAD={order}");
    }
}

#[test]
fn copies_at_the_end_of_a_program_are_right() {
    let keys = ["thread-local object", "pthread key", "thread-local object of main"];
    let table: [(&str, &[&str]); 5] = [
        ("atexit", &["on_exit", "atexit", "destructor"]),
        ("keys", &keys),
        ("quick", &["at_quick_exit"]),
        ("handler", &["atexit"]), // exit in a signal handler during a copy
        ("_exit", &[]),
    ];
    for (way, lines) in table {
        says(&victim("trap_exit"), &[way], lines);
    }
}

#[test]
fn last_thread_alive_ends_the_process_and_reports_once() {
    let program = victim("trap_exit");
    let table: [(&str, &[&str], usize); 3] = [
        ("thread", &["atexit", "destructor"], 10), // exit from a thread during copies
        ("main-leaves", &["last thread"], 1),      // main leaves by pthread_exit
        ("detached", &[], 15),                     // threads copy while main returns
    ];
    for (way, lines, rounds) in table {
        says(&program, &[way], lines);
        for _ in 0..rounds {
            let processes = statistics(fixed(preloaded(&program).arg(way)));
            assert_eq!(processes.len(), 1, "one report: {processes:?}");
            assert!(offloaded(&processes) > 0, "{way}");
        }
    }
}

#[test]
fn main_leaves_by_the_bare_call_process_ends_at_once_with_its_status() {
    let program = victim("trap_exit");
    for way in ["bare", "bare-later"] {
        let status = |command: &mut Command| finish(command.arg(way)).status.code();
        assert_eq!(status(&mut plain(&program)), Some(3), "without the library");
        // Idle workers may stay for longer, so the quickest run tells.
        let quickest = (0..20).map(|_| {
            let begun = Instant::now();
            assert_eq!(status(fixed(&mut preloaded(&program))), Some(3), "{way}");
            begun.elapsed()
        });
        let quickest = quickest.min().unwrap();
        assert!(quickest < Duration::from_secs(1), "{way}: {quickest:?}");
    }
}

// Threads and processors.

fn has_one_cpu(test: &str) -> bool {
    let one = std::thread::available_parallelism().map_or(1, usize::from) < 2;
    if one {
        skip(test, "one CPU only");
    }
    one
}

/// The program sees no thread, and the library finds no channel.
fn no_workers(command: impl Fn() -> Command) {
    let processes = statistics(command().env("ADMA_MIN_BYTES", "64K"));
    assert!(processes.iter().all(|one| one["channels"] == 0), "{processes:?}");
    succeed(&mut command());
}

#[test]
fn single_cpu_makes_no_thread() {
    if !found("taskset") {
        return skip("single_cpu_makes_no_thread", "taskset is not installed");
    }
    let run = |mut command: Command, words: &[&str]| {
        command.args(words);
        command
    };
    let program = victim("trap_one_cpu");
    no_workers(|| run(preloaded("taskset"), &["-c", "0", program.to_str().unwrap(), "given"]));
    // The program narrows its affinity itself, before its first copy.
    succeed(&mut run(plain(&program), &["narrow"]));
    no_workers(|| run(preloaded(&program), &["narrow"]));
}

#[test]
fn affinity_changed_after_the_first_copy_workers_follow() {
    if has_one_cpu("affinity_changed_after_the_first_copy_workers_follow") {
        return;
    }
    let program = victim("trap_one_cpu");
    for way in ["widen", "shrink"] {
        succeed(plain(&program).arg(way));
        succeed(preloaded(&program).arg(way).env("ADMA_MIN_BYTES", "64K"));
    }
}

/// A group of the cpu controller, removed at the end of the test.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl Group {
    /// `None`: none can be made here, and the test was skipped.
    fn made(test: &str) -> Option<Self> {
        let name = format!("/sys/fs/cgroup/cpu/adma-{test}-{}", std::process::id());
        if std::fs::create_dir(&name).is_err() {
            skip(test, "no group can be made in /sys/fs/cgroup/cpu");
            return None;
        }
        Some(Self(name.into()))
    }

    fn quota(&self) -> PathBuf {
        self.0.join("cpu.cfs_quota_us")
    }

    /// A quota of one CPU.
    fn one_cpu(&self) -> String {
        std::fs::read_to_string(self.0.join("cpu.cfs_period_us")).unwrap().trim().into()
    }

    /// The shell enters the group and becomes the program.
    fn enter(&self, mut shell: Command, program: &Path) -> Command {
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        shell.arg(self.0.join("cgroup.procs")).arg(program);
        shell
    }
}

#[test]
fn cgroup_quota_of_one_cpu_makes_no_thread() {
    let Some(group) = Group::made("cgroup_quota_of_one_cpu_makes_no_thread") else { return };
    std::fs::write(group.quota(), group.one_cpu()).unwrap();
    let program = victim("trap_one_cpu");
    no_workers(|| group.enter(preloaded("sh"), &program));
}

#[test]
fn cgroup_quota_changed_after_the_first_copy_workers_follow() {
    let test = "cgroup_quota_changed_after_the_first_copy_workers_follow";
    if has_one_cpu(test) {
        return;
    }
    let Some(group) = Group::made(test) else { return };
    let (program, one_cpu) = (victim("trap_one_cpu"), group.one_cpu());
    for shell in [plain("sh"), preloaded("sh")] {
        let mut command = group.enter(shell, &program);
        command.arg("quota").arg(group.quota()).args([&one_cpu, "-1"]);
        succeed(command.env("ADMA_MIN_BYTES", "64K"));
    }
}
