//! Pitfalls of interposing memcpy: the life of a program and its threads, from start-up through
//! fork and exec to exit, and its workers and CPUs.

mod common;

use common::traps::{
    a_library, both_orders, engine_bytes, engine_calls, fixed, linked, offloaded,
    program_survives_offloaded, survives, survives_fixed, survives_offloaded, survives_unreported,
    traced,
};
use common::{
    Folder, finish, has, has_cpus, library, needs, plain, preloaded, rows, skip_this, statistics,
    succeed, victim, victim_with,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

rows! { survives_offloaded:
    // fork, vfork, exec, spawn
    fork_handlers_that_copy_before_and_after_ours_are_right: "trap_forks handlers";
    fork_without_handlers_child_copies_and_does_not_hang: "trap_forks bare";
    vfork_then_exec_during_copies_is_unharmed: "trap_forks vfork-exec";
    vfork_child_copies_parent_goes_on_offloading: "trap_forks vfork";
    vfork_child_makes_first_copy_parent_goes_on_offloading: "trap_forks vfork-first";
    vfork_child_and_thread_race_for_first_copy_neither_waits_for_ever: "trap_forks vfork-race";
    exec_during_copy_leaves_no_worker_behind: "trap_forks exec";
    spawned_programs_during_copies_copy_right: "trap_forks spawn";
    daemon_copies_with_its_own_workers: "trap_forks daemon";
    fork_right_after_a_copy_finds_the_process_alone: "trap_forks alone";
    unshare_right_after_a_copy_finds_the_process_alone: "trap_forks unshare";
    setns_right_after_a_copy_finds_the_process_alone: "trap_forks setns";
    // beginning
    copies_before_any_constructor_are_right: "trap_early";
    // threads and processors
    three_hundred_threads_copy_at_once_all_are_right: "trap_copy threads 300";
    affinity_narrowed_with_workers_alive_copies_right: "trap_workers narrow-later";
    workers_come_with_the_first_large_copy_and_go_when_idle: "trap_workers live";
    main_thread_niced_while_copying_workers_follow: "trap_workers later-niced";
    main_thread_of_idle_class_while_copying_workers_follow: "trap_workers later-idle";
    main_thread_with_io_priority_while_copying_workers_follow: "trap_workers later-io";
    first_copy_by_a_niced_thread_workers_are_not: "trap_workers niced";
    first_copy_by_an_idle_class_thread_workers_are_not: "trap_workers idle";
    first_copy_by_a_real_time_thread_workers_are_not: "trap_workers fifo";
    first_copy_by_a_pinned_thread_workers_are_not: "trap_workers pinned";
    first_copy_by_a_niced_thread_under_a_filter_workers_are_not: "trap_workers niced filtered";
    first_copy_by_an_idle_class_thread_under_a_filter_workers_are_not: "trap_workers idle filtered";
    first_copy_by_a_real_time_thread_under_a_filter_workers_are_not: "trap_workers fifo filtered";
    first_copy_by_a_pinned_thread_under_a_filter_workers_are_not: "trap_workers pinned filtered";
    first_copy_by_a_deadline_thread_others_get_workers: "trap_workers deadline";
}

rows! { survives:
    address_space_exhausted_copies_stay_with_libc: "trap_workers no-memory";
}

rows! { survives_unreported:
    process_limit_reached_copies_stay_with_libc: "trap_workers no-processes";
}

rows! { survives_fixed:
    process_limit_lifted_workers_come_after_a_while: "trap_workers no-processes-yet";
    process_limit_with_room_for_own_threads_only_is_the_programs: "trap_workers room";
}

// fork, vfork, exec, spawn

#[test]
fn fork_during_copy_child_copies_with_its_own_workers() {
    let Some(processes) = survives("trap_forks") else { return };
    let parent = processes.iter().max_by_key(|process| engine_bytes(process)).unwrap();
    let children: Vec<_> = processes.iter().filter(|p| p["pid"] != parent["pid"]).collect();
    // 40 children leave by exit; a few may have found all slots taken.
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
        succeed(plain(victim("trap_forks")).arg(way));
        succeed(preloaded(victim("trap_forks")).arg(way));
    }
}

/// Compared with an empty library, for any preloaded library costs some.
#[test]
fn fork_touches_few_pages_of_ours_in_the_child() {
    let faults = |library: &Path| -> i64 {
        let mut command = plain(victim("trap_forks"));
        let (said, _) = succeed(command.arg("faults").env("LD_PRELOAD", library));
        said.trim().parse().unwrap()
    };
    let (ours, empty) = (faults(&library()), faults(&a_library("trap_library", &["-DEMPTY"])));
    assert!(ours - empty <= 8, "{ours} page faults, {empty} with an empty library");
}

/// A process that makes one copy of 1 MiB and ends takes 60 us for it, and 1 us for each page that it touches.
#[test]
fn first_copy_of_a_process_touches_one_page_of_ours() {
    let faults = || -> i64 {
        let mut command = plain(victim("trap_forks"));
        let (said, _) = succeed(command.arg("first").env("LD_PRELOAD", library()));
        said.trim().parse().unwrap()
    };
    let least = (0..5).map(|_| faults()).min();
    assert!(least <= Some(1), "{least:?} page faults, wanted one for the code");
}

/// Returns a program's system calls `name`, with the thread id before each; `None`: there is no
/// strace.
fn system_calls(name: &str, scene: &str) -> Option<Vec<(String, String)>> {
    has("strace").then_some(())?;
    let folder = Folder::new("calls");
    let (mut command, log) = traced(&format!("trace={name}"), true, &folder);
    succeed(command.env("ADMA_CHANNELS", "6").arg(victim("trap_forks")).arg(scene));
    let text = std::fs::read_to_string(&log).unwrap();
    let parts = text.lines().filter_map(|line| line.split_once(' '));
    Some(parts.map(|(thread, call)| (thread.into(), call.trim_start().into())).collect())
}

#[test]
fn first_large_copy_makes_one_worker_and_workers_make_the_others() {
    let Some(calls) = system_calls("clone", "large") else { return };
    let makers: Vec<_> = calls.iter().filter(|(_, call)| call.contains("CLONE_THREAD")).collect();
    let by_caller = makers.iter().filter(|(thread, _)| *thread == calls[0].0);
    assert_eq!(by_caller.count(), 1, "{calls:?}");
    assert!(makers.len() > 1, "{calls:?}");
}

#[test]
fn helper_that_is_not_there_is_not_looked_for_in_every_child() {
    if Path::new("/dev/adma").exists() {
        return skip_this("the helper is there");
    }
    let Some(calls) = system_calls("openat", "again") else { return };
    let opened = calls.iter().filter(|(_, call)| call.contains("/dev/adma")).count();
    assert_eq!(opened, 1, "{calls:?}");
}

#[test]
fn child_of_a_bare_fork_does_not_report_its_parents_copies() {
    if let Some(processes) = survives("trap_forks bare-exit") {
        assert_eq!(processes.len(), 1, "{processes:?}");
    }
}

/// A slot that a dead child has taken would count as a copy in flight.
#[test]
fn vfork_child_killed_in_the_middle_of_a_copy_parent_goes_on_offloading() {
    if let Some(processes) = survives("trap_forks vfork-killed") {
        assert!(offloaded(&processes) >= 100, "{processes:?}");
        assert!(processes.iter().all(|p| p["fallbacks"]["busy"] == 0), "{processes:?}");
    }
}

// The beginning and the end of a program.

#[test]
fn ifunc_resolver_of_program_copies_right() {
    program_survives_offloaded(&victim_with("trap_early", &["-DWITH_IFUNC", "-Wl,-z,now"]), &[]);
}

#[test]
fn ifunc_resolver_of_library_copies_before_we_are_relocated() {
    let program = linked("trap_dlopen", &a_library("trap_library", &["-DWITH_IFUNC"]));
    program_survives_offloaded(&program, &[]);
}

#[test]
fn library_linked_or_opened_in_any_way_copies_right_from_constructor_to_destructor() {
    let (program, other) = (victim("trap_dlopen"), a_library("trap_library", &[]));
    let lines = "library constructor\nlibrary function\nlibrary destructor\n";
    let other = other.to_str().unwrap();
    let linked = linked("trap_dlopen", Path::new(other));
    let opened = ["now", "deepbind", "namespace"].map(|way| (&program, vec![other, way]));
    for (program, args) in opened.into_iter().chain([(&linked, vec![])]) {
        assert_eq!(succeed(plain(program).args(&args)).0, lines, "without the library");
        assert_eq!(succeed(preloaded(program).args(&args)).0, lines, "{args:?}");
        let mut reporting = preloaded(program);
        let (said, _) = succeed(fixed(reporting.args(&args)).env("ADMA_STATS", "text"));
        assert_eq!(said, lines, "with a report on stderr: {args:?}");
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
fn main_leaves_by_the_bare_call_process_ends_at_once_with_its_status() {
    let program = victim("trap_ends");
    for way in ["bare", "bare-later"] {
        let status = |command: &mut Command| finish(command.arg(way)).status.code();
        assert_eq!(status(&mut plain(&program)), Some(3), "without the library");
        // Idle workers may stay for longer, so the quickest run counts.
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

/// Checks that the program sees no thread, and that the library finds no channel.
fn no_workers(command: impl Fn() -> Command) {
    let processes = statistics(command().env("ADMA_MIN_BYTES", "64K"));
    assert!(processes.iter().all(|one| one["channels"] == 0), "{processes:?}");
    succeed(&mut command());
}

#[test]
fn single_cpu_makes_no_thread() {
    needs!(has("taskset"));
    let run = |mut command: Command, words: &[&str]| {
        command.args(words);
        command
    };
    let program = victim("trap_workers");
    no_workers(|| run(preloaded("taskset"), &["-c", "0", program.to_str().unwrap(), "one-cpu"]));
    // The program narrows its affinity itself, before its first copy.
    succeed(&mut run(plain(&program), &["narrow"]));
    no_workers(|| run(preloaded(&program), &["narrow"]));
    // With channels asked for by number there are some.
    let processes =
        statistics(fixed(preloaded("taskset").args(["-c", "0"]).arg(victim("trap_copy"))));
    assert!(offloaded(&processes) > 0, "{processes:?}");
}

#[test]
fn affinity_changed_after_the_first_copy_workers_follow() {
    needs!(has_cpus());
    let program = victim("trap_workers");
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
    /// Makes a group. `None`: not possible here, and the test was skipped.
    fn made(name: &str) -> Option<Self> {
        let name = format!("/sys/fs/cgroup/cpu/adma-{name}-{}", std::process::id());
        if std::fs::create_dir(&name).is_err() {
            skip_this("no group can be made in /sys/fs/cgroup/cpu");
            return None;
        }
        Some(Self(name.into()))
    }

    fn quota(&self) -> PathBuf {
        self.0.join("cpu.cfs_quota_us")
    }

    /// Returns a quota of one CPU, which is the period.
    fn one_cpu(&self) -> String {
        std::fs::read_to_string(self.0.join("cpu.cfs_period_us")).unwrap().trim().into()
    }

    /// Has the shell enter the group and become the program.
    fn enter(&self, mut shell: Command, program: &Path) -> Command {
        shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        shell.arg(self.0.join("cgroup.procs")).arg(program);
        shell
    }
}

#[test]
fn cgroup_quota_of_one_cpu_makes_no_thread() {
    let Some(group) = Group::made("one") else { return };
    std::fs::write(group.quota(), group.one_cpu()).unwrap();
    let program = victim("trap_workers");
    no_workers(|| {
        let mut command = group.enter(preloaded("sh"), &program);
        command.arg("one-cpu");
        command
    });
}

#[test]
fn cgroup_quota_changed_after_the_first_copy_workers_follow() {
    needs!(has_cpus());
    let Some(group) = Group::made("changed") else { return };
    let (program, one_cpu) = (victim("trap_workers"), group.one_cpu());
    for shell in [plain("sh"), preloaded("sh")] {
        let mut command = group.enter(shell, &program);
        command.arg("quota").arg(group.quota()).args([&one_cpu, "-1"]);
        succeed(command.env("ADMA_MIN_BYTES", "64K"));
    }
}
