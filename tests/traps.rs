//! Every trap of TRAPS.md, "Interposing memcpy", as a program that falls into it.
//!
//! Each victim runs three times: without the library (a victim that fails there
//! proves nothing), with the knobs a user has who sets none, and with a fixed
//! threshold, where copies are certainly offloaded.

mod common;

use common::{finish, library, plain, preloaded, skip, statistics, succeed, victim, victim_with};
use serde_json::Value;
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a victim exits with when its trap cannot be shown on this machine.
const CANNOT_SHOW: i32 = 77;

/// Workers whatever the machine, enough of them that several copies are carried at once,
/// and a threshold that every large copy of the victims passes.
fn fixed(command: &mut Command) -> &mut Command {
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "4").env("TRAP_WORKERS", "1")
}

/// Without the library. False: skipped, since the trap cannot be shown here.
fn can_be_shown(test: &str, command: &mut Command) -> bool {
    let done = finish(command);
    let reason = String::from_utf8_lossy(&done.stderr);
    if done.status.code() == Some(CANNOT_SHOW) {
        skip(test, reason.trim());
        return false;
    }
    assert!(done.status.success(), "without the library: {command:?}: {}\n{reason}", done.status);
    true
}

/// The three runs. Returns the statistics of the last one, or nothing when skipped.
fn survives(test: &str, program: &Path, args: &[&str]) -> Option<Vec<Value>> {
    if !can_be_shown(test, plain(program).args(args)) {
        return None;
    }
    let (_, complaints) = succeed(preloaded(program).args(args));
    assert_eq!(complaints, "", "nothing is written unasked");
    Some(statistics(fixed(preloaded(program).args(args))))
}

/// The same for what is expected on stdout.
fn says(program: &Path, args: &[&str], lines: &[&str]) {
    let expected: String = lines.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(succeed(plain(program).args(args)).0, expected, "without the library");
    assert_eq!(succeed(preloaded(program).args(args)).0, expected, "with default knobs");
    let mut reporting = preloaded(program);
    let (said, _) = succeed(fixed(reporting.args(args)).env("ADMA_STATS", "text"));
    assert_eq!(said, expected, "with a fixed threshold and a report on stderr");
}

fn engine_calls(process: &Value) -> u64 {
    process["paths"]["engine"]["calls"].as_u64().expect("paths.engine.calls")
}

fn engine_bytes(process: &Value) -> u64 {
    process["paths"]["engine"]["bytes"].as_u64().expect("paths.engine.bytes")
}

fn offloaded(processes: &[Value]) -> u64 {
    processes.iter().map(engine_calls).sum()
}

/// For victims whose copies must really have gone over the channels.
fn survives_offloaded(test: &str, program: &Path, args: &[&str]) {
    if let Some(processes) = survives(test, program, args) {
        assert!(offloaded(&processes) > 0, "nothing was offloaded: {processes:?}");
    }
}

/// One test per victim: `name: "victim" "argument";`.
macro_rules! offloading_victims {
    ($($name:ident: $victim:literal $($arg:literal)*;)*) => {
        $(
            #[test]
            fn $name() {
                survives_offloaded(stringify!($name), &victim($victim), &[$($arg),*]);
            }
        )*
    };
}

fn a_library(name: &str) -> PathBuf {
    victim_with(name, &["-shared", "-fPIC", "-Wl,-z,now"])
}

/// A program that is linked with one of our libraries.
fn linked(name: &str, with: &Path) -> PathBuf {
    let place = format!("-Wl,-rpath,{}", with.parent().unwrap().display());
    victim_with(name, &["-Wl,--no-as-needed", with.to_str().unwrap(), &place])
}

fn found(program: &str) -> bool {
    std::env::var_os("PATH").is_some_and(|path| {
        std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
    })
}

fn is_root() -> bool {
    succeed(plain("id").arg("-u")).0.trim() == "0"
}

// Signals.

offloading_victims! {
    signal_handler_copies_during_copy_both_are_right: "trap_signal" "timer";
    signal_storm_during_copies_all_are_right: "trap_signal" "storm";
    signal_handler_jumps_out_of_copy_later_copies_are_offloaded: "trap_signal_jump";
    blocked_signal_with_workers_alive_waits_for_the_program: "trap_signal_pending";
    cancelled_thread_during_copy_leaves_no_writer_behind: "trap_cancel";
}

#[test]
fn stopped_and_continued_program_copies_right() {
    let script = "
        \"$0\" 16 & victim=$!
        for round in $(seq 20); do
            kill -STOP $victim && sleep 0.002 && kill -CONT $victim && sleep 0.004
        done 2>/dev/null
        wait $victim";
    let mut command = preloaded("sh");
    let processes = statistics(fixed(command.args(["-c", script]).arg(victim("trap_threads"))));
    assert!(offloaded(&processes) > 0, "{processes:?}");
}

// fork, vfork, exec, spawn.

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

offloading_victims! {
    fork_handlers_that_copy_before_and_after_ours_are_right: "trap_fork" "handlers";
    fork_without_handlers_child_copies_and_does_not_hang: "trap_raw_fork";
    vfork_then_exec_during_copies_is_unharmed: "trap_vfork" "exec";
    vfork_child_copies_parent_goes_on_offloading: "trap_vfork" "copy";
    vfork_child_makes_first_copy_parent_goes_on_offloading: "trap_vfork" "first";
    vfork_child_and_thread_race_for_first_copy_nobody_waits_for_ever: "trap_vfork" "race";
    exec_during_copy_leaves_no_worker_behind: "trap_exec";
    spawned_programs_during_copies_copy_right: "trap_spawn";
    daemon_copies_with_its_own_workers: "trap_spawn" "daemon";
}

// The beginning and the end of a program.

offloading_victims! {
    copies_before_any_constructor_are_right: "trap_early";
}

#[test]
fn ifunc_resolver_of_program_copies_right() {
    let test = "ifunc_resolver_of_program_copies_right";
    survives_offloaded(test, &victim_with("trap_early", &["-DWITH_IFUNC", "-Wl,-z,now"]), &[]);
}

#[test]
fn ifunc_resolver_of_library_copies_before_we_are_relocated() {
    let test = "ifunc_resolver_of_library_copies_before_we_are_relocated";
    let program = linked("trap_calls_library", &a_library("trap_ifunc_library"));
    survives_offloaded(test, &program, &[]);
}

#[test]
fn linked_library_constructor_and_destructor_copy_right() {
    let program = linked("trap_calls_library", &a_library("trap_library"));
    says(&program, &[], &["library constructor", "library function", "library destructor"]);
}

#[test]
fn preloaded_library_that_copies_works_before_and_after_us() {
    let (program, other) = (victim("trap_copy"), a_library("trap_library"));
    let (ours, other) = (library().display().to_string(), other.display().to_string());
    for order in [format!("{ours}:{other}"), format!("{other}:{ours}")] {
        let mut command = preloaded(&program);
        let (said, _) = succeed(fixed(command.env("LD_PRELOAD", &order)));
        assert_eq!(said, "library constructor\nlibrary destructor\n", "LD_PRELOAD={order}");
        assert!(offloaded(&statistics(&mut command)) > 0, "LD_PRELOAD={order}");
    }
}

#[test]
fn exit_handlers_and_destructor_copy_right() {
    says(&victim("trap_exit"), &["atexit"], &["on_exit", "atexit", "destructor"]);
}

#[test]
fn thread_local_destructors_copy_right() {
    let lines = ["thread-local object", "pthread key", "thread-local object of main"];
    says(&victim("trap_exit"), &["keys"], &lines);
}

#[test]
fn quick_exit_handler_copies_right() {
    says(&victim("trap_exit"), &["quick"], &["at_quick_exit"]);
}

#[test]
fn exit_in_signal_handler_during_copy_ends_the_program() {
    says(&victim("trap_exit"), &["handler"], &["atexit"]);
}

#[test]
fn exit_from_a_thread_during_copies_reports_and_ends() {
    let program = victim("trap_exit");
    says(&program, &["thread"], &["atexit", "destructor"]);
    for _ in 0..10 {
        let processes = statistics(fixed(preloaded(&program).arg("thread")));
        assert_eq!(processes.len(), 1, "one report: {processes:?}");
        assert!(offloaded(&processes) > 0);
    }
}

#[test]
fn main_leaves_by_pthread_exit_process_ends_with_its_last_thread() {
    let program = victim("trap_exit");
    says(&program, &["main-leaves"], &["last thread"]);
    let processes = statistics(fixed(preloaded(&program).arg("main-leaves")));
    assert!(offloaded(&processes) > 0, "{processes:?}");
}

#[test]
fn detached_threads_copy_while_main_returns_status_is_kept() {
    let program = victim("trap_exit");
    says(&program, &["detached"], &[]);
    says(&program, &["_exit"], &[]);
    for _ in 0..15 {
        let processes = statistics(fixed(preloaded(&program).arg("detached")));
        assert!(offloaded(&processes) > 0, "{processes:?}");
    }
}

// Allocators.

/// Runs beside an allocator of the distribution, preloaded before us and after us.
fn beside_allocator(test: &str, soname: &str) {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    let Some(allocator) = folders.iter().map(|f| Path::new(f).join(soname)).find(|f| f.exists())
    else {
        return skip(test, &format!("{soname} is not installed"));
    };
    let program = victim("trap_allocator");
    let (ours, other) = (library().display().to_string(), allocator.display().to_string());
    succeed(plain(&program).env("LD_PRELOAD", &other));
    for order in [format!("{ours}:{other}"), format!("{other}:{ours}")] {
        succeed(preloaded(&program).env("LD_PRELOAD", &order));
        let processes = statistics(fixed(&mut preloaded(&program)).env("LD_PRELOAD", &order));
        assert!(offloaded(&processes) > 0, "LD_PRELOAD={order}");
        assert_eq!(processes.len(), 4, "three children and their parent: LD_PRELOAD={order}");
    }
}

#[test]
fn jemalloc_beside_us_in_both_orders_works() {
    beside_allocator("jemalloc_beside_us_in_both_orders_works", "libjemalloc.so.2");
}

#[test]
fn tcmalloc_beside_us_in_both_orders_works() {
    beside_allocator("tcmalloc_beside_us_in_both_orders_works", "libtcmalloc_minimal.so.4");
}

#[test]
fn mimalloc_beside_us_in_both_orders_works() {
    beside_allocator("mimalloc_beside_us_in_both_orders_works", "libmimalloc.so.2");
}

offloading_victims! {
    first_copy_inside_locked_allocator_does_not_enter_it: "trap_allocator_lock";
    exit_inside_locked_allocator_does_not_enter_it: "trap_allocator_lock" "exit";
}

// Descriptors and streams.

#[test]
fn program_that_reopens_all_descriptors_keeps_its_files() {
    let test = "program_that_reopens_all_descriptors_keeps_its_files";
    let program = victim("trap_closed");
    let folder = common::scratch("closed");
    let own_files = |when: &str| {
        for number in 0..10 {
            let text = std::fs::read_to_string(folder.join(number.to_string())).unwrap();
            assert_eq!(text, format!("file {number}\n"), "{when}");
        }
    };
    if !can_be_shown(test, plain(&program).arg(&folder)) {
        return;
    }
    own_files("without the library");
    for format in ["text", "json", "hlog", "text,json,hlog"] {
        succeed(fixed(preloaded(&program).arg(&folder)).env("ADMA_STATS", format));
        own_files(format);
    }
    succeed(fixed(preloaded(&program).arg(&folder)).env("ADMA_LOG", "debug"));
    own_files("ADMA_LOG=debug");
    succeed(fixed(preloaded(&program).arg(&folder)).env("ADMA_PROFILE", "1"));
    own_files("ADMA_PROFILE=1");
    let mut complaining = preloaded(&program);
    fixed(complaining.arg(&folder)).env("ADMA_STATS", "text");
    succeed(complaining.env("ADMA_STATS_FILE", "/nonexistent/report"));
    own_files("a statistics file that cannot be written");
    // A named file is ours whatever became of stderr.
    assert!(offloaded(&statistics(fixed(preloaded(&program).arg(&folder)))) > 0);
    own_files("with a statistics file");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn program_that_closes_stderr_at_exit_still_reports_there() {
    // dd, like all of coreutils, closes its streams in an exit handler, before our end.
    let mut command = preloaded("dd");
    command.args(["if=/dev/zero", "of=/dev/null", "ibs=1M", "obs=3M", "count=9", "status=none"]);
    let (_, report) = succeed(fixed(command.env("ADMA_STATS", "json")));
    let report: Value = serde_json::from_str(&report).expect("a report on stderr");
    assert!(engine_calls(&report) > 0, "{report}");
}

#[test]
fn program_without_any_descriptor_left_copies_right() {
    let test = "program_without_any_descriptor_left_copies_right";
    let program = victim("trap_closed");
    if !can_be_shown(test, plain(&program).arg("none")) {
        return;
    }
    succeed(preloaded(&program).arg("none"));
    succeed(fixed(preloaded(&program).arg("none")));
    // The report cannot be written: the program's status is still its own.
    let folder = common::scratch("none");
    let file = folder.join("report");
    let mut command = preloaded(&program);
    fixed(command.arg("none")).env("ADMA_STATS", "json").env("ADMA_STATS_FILE", &file);
    let (_, complaints) = succeed(&mut command);
    assert!(!file.exists());
    assert_eq!(complaints.lines().count(), 1, "one line about the file: {complaints}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn stdout_with_statistics_asked_for_is_untouched() {
    let program = victim("trap_stdout");
    let expected = finish(&mut plain(&program)).stdout;
    for format in ["text", "json", "hlog"] {
        let mut command = preloaded(&program);
        fixed(&mut command).env("ADMA_STATS", format).env("ADMA_LOG", "debug");
        let done = finish(&mut command);
        assert!(done.status.success());
        assert!(!done.stderr.is_empty(), "{format}: the report goes to stderr");
        assert!(done.stdout == expected, "{format}: stdout has changed");
    }
}

// Sandboxes, limits, privileges.

#[test]
fn seccomp_filter_before_first_copy_refuses_threads_copies_are_right() {
    let test = "seccomp_filter_before_first_copy_refuses_threads_copies_are_right";
    let program = victim("trap_seccomp");
    if let Some(processes) = survives(test, &program, &["before-errno"]) {
        assert_eq!(offloaded(&processes), 0, "{processes:?}");
    }
}

#[test]
fn seccomp_filter_before_first_copy_kills_for_clone_program_lives() {
    let test = "seccomp_filter_before_first_copy_kills_for_clone_program_lives";
    survives(test, &victim("trap_seccomp"), &["before-kill"]);
}

offloading_victims! {
    seccomp_filter_with_workers_alive_refuses_futex_copies_are_right: "trap_seccomp" "after-futex";
    seccomp_filter_for_all_threads_refuses_futex_workers_do_not_spin: "trap_seccomp" "after-tsync";
    seccomp_filter_after_workers_left_kills_for_clone_program_lives: "trap_seccomp" "idle-kill";
}

#[test]
fn process_limit_reached_copies_stay_with_libc() {
    let test = "process_limit_reached_copies_stay_with_libc";
    // Without a report: the victim has no right to write one.
    let program = victim("trap_limits");
    if can_be_shown(test, plain(&program).arg("nproc")) {
        succeed(preloaded(&program).arg("nproc"));
        assert_eq!(succeed(fixed(preloaded(&program).arg("nproc"))).1, "", "quietly");
    }
}

#[test]
fn address_space_exhausted_copies_stay_with_libc() {
    let test = "address_space_exhausted_copies_stay_with_libc";
    survives(test, &victim("trap_limits"), &["memory"]);
}

offloading_victims! {
    thread_with_small_stack_makes_first_copy_without_overflow: "trap_small_stack" "thread";
    handler_on_small_stack_makes_first_copy_without_overflow: "trap_small_stack" "handler";
    coroutine_with_small_stack_makes_first_copy_without_overflow: "trap_small_stack" "coroutine";
    exit_on_small_stack_reports_without_overflow: "trap_small_stack" "exit";
}

/// Without reports: the victim has no right to write one.
fn drops_privileges(test: &str, way: &str) {
    let program = victim("trap_privileges");
    if can_be_shown(test, plain(&program).arg(way)) {
        succeed(preloaded(&program).arg(way));
        succeed(fixed(preloaded(&program).arg(way)));
    }
}

#[test]
fn setuid_after_copy_succeeds_and_no_worker_stays_root() {
    drops_privileges("setuid_after_copy_succeeds_and_no_worker_stays_root", "idle");
}

#[test]
fn setuid_in_threaded_program_succeeds_and_no_worker_stays_root() {
    drops_privileges("setuid_in_threaded_program_succeeds_and_no_worker_stays_root", "threaded");
}

#[test]
fn setuid_while_copying_on_no_worker_stays_root() {
    drops_privileges("setuid_while_copying_on_no_worker_stays_root", "busy");
}

#[test]
fn set_user_id_program_ignores_the_statistics_file() {
    let test = "set_user_id_program_ignores_the_statistics_file";
    if !is_root() {
        return skip(test, "only root can make a program set-user-id for somebody else");
    }
    // ld.so preloads nothing there; a program may still be linked with us.
    let program = linked("trap_copy", &library());
    let folder = common::scratch("secure");
    let (copy, report) = (folder.join("program"), folder.join("report"));
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    std::fs::copy(&program, &copy).unwrap();
    let run = |args: &[&str]| {
        let mut command = plain(&copy);
        fixed(command.args(args)).env("ADMA_STATS", "json").env("ADMA_STATS_FILE", &report);
        finish(&mut command)
    };
    assert!(run(&[]).status.success());
    assert!(report.exists(), "an ordinary program writes its report");
    std::fs::remove_file(&report).unwrap();
    std::os::unix::fs::chown(&copy, Some(54321), None).unwrap();
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o4755)).unwrap();
    let done = run(&["secure"]);
    let written = report.exists();
    std::fs::remove_dir_all(folder).unwrap();
    if done.status.code() == Some(CANNOT_SHOW) {
        return skip(test, "set-user-id has no effect here");
    }
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert!(!written, "a caller could make a privileged program write any file");
}

// What goes past us.

#[test]
fn dlopened_library_copies_right_in_every_way_of_opening() {
    let (program, other) = (victim("trap_dlopen"), a_library("trap_library"));
    let lines = ["library constructor", "library function", "library destructor"];
    for way in ["now", "deepbind", "namespace"] {
        says(&program, &[other.to_str().unwrap(), way], &lines);
    }
}

#[test]
fn static_program_runs_as_without_us() {
    let program = victim_with("trap_copy", &["-static"]);
    let done = finish(fixed(&mut preloaded(&program)).env("ADMA_STATS", "text"));
    assert!(done.status.success());
    assert!(done.stdout.is_empty() && done.stderr.is_empty());
}

#[test]
fn address_sanitizer_linked_statically_copies_right() {
    let program = victim_with("trap_copy", &["-fsanitize=address", "-static-libasan"]);
    succeed(&mut plain(&program));
    succeed(&mut preloaded(&program));
    succeed(fixed(&mut preloaded(&program)));
}

// Threads and processors.

offloading_victims! {
    errno_survives_copies_of_every_kind: "trap_errno";
    sixty_four_threads_copy_at_once_all_are_right: "trap_threads" "64";
    three_hundred_threads_copy_at_once_all_are_right: "trap_threads" "300";
}

/// Every copy stays with libc and the victim sees no thread; the number of channels is ours to find.
fn no_workers(command: &mut Command) {
    let processes = statistics(command.env("ADMA_MIN_BYTES", "64K"));
    assert_eq!(offloaded(&processes), 0, "{processes:?}");
}

#[test]
fn single_cpu_given_from_outside_makes_no_thread() {
    let test = "single_cpu_given_from_outside_makes_no_thread";
    if !found("taskset") {
        return skip(test, "taskset is not installed");
    }
    let program = victim("trap_one_cpu");
    no_workers(preloaded("taskset").args(["-c", "0"]).arg(&program).arg("given"));
    succeed(preloaded("taskset").args(["-c", "0"]).arg(&program).arg("given"));
}

#[test]
fn affinity_narrowed_before_first_copy_makes_no_thread() {
    let program = victim("trap_one_cpu");
    succeed(plain(&program).arg("narrow"));
    no_workers(preloaded(&program).arg("narrow"));
    succeed(preloaded(&program).arg("narrow"));
}

offloading_victims! {
    affinity_narrowed_with_workers_alive_copies_right: "trap_one_cpu" "later";
}

/// A group of the cpu controller, removed at the end of the test.
struct Group(PathBuf);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn cgroup_quota_of_one_cpu_makes_no_thread() {
    let test = "cgroup_quota_of_one_cpu_makes_no_thread";
    let folder = PathBuf::from(format!("/sys/fs/cgroup/cpu/adma-test-{}", std::process::id()));
    if std::fs::create_dir(&folder).is_err() {
        return skip(test, "no group can be made in /sys/fs/cgroup/cpu");
    }
    let group = Group(folder);
    let period = std::fs::read_to_string(group.0.join("cpu.cfs_period_us")).unwrap();
    std::fs::write(group.0.join("cpu.cfs_quota_us"), period.trim()).unwrap();
    let entering = |program: &Path| {
        let mut command = preloaded("sh");
        command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]);
        command.arg(group.0.join("cgroup.procs")).arg(program).arg("given");
        command
    };
    let program = victim("trap_one_cpu");
    no_workers(&mut entering(&program));
    succeed(&mut entering(&program));
}

offloading_victims! {
    workers_come_with_the_first_large_copy_and_go_when_idle: "trap_workers";
}

// What it costs a program that copies nothing large.

#[test]
fn program_without_large_copies_opens_no_file_and_makes_no_thread() {
    let test = "program_without_large_copies_opens_no_file_and_makes_no_thread";
    if !found("strace") {
        return skip(test, "strace is not installed");
    }
    let folder = common::scratch("strace");
    let trace = |preload: Option<&str>| {
        let log = folder.join("log");
        let mut command = plain("strace");
        command.args(["-f", "-e", "trace=open,openat,openat2,socket,process,write", "-o"]);
        command.arg(&log);
        if let Some(library) = preload {
            command.args(["-E", &format!("LD_PRELOAD={library}")]);
        }
        let done = finish(command.arg("true"));
        done.status.success().then(|| std::fs::read_to_string(&log).unwrap())
    };
    let Some(without) = trace(None) else {
        return skip(test, "strace cannot trace here");
    };
    let with = trace(Some(library().to_str().unwrap())).unwrap();
    // Without the process number, the time, and what address space layout makes of it.
    let calls = |log: &str| -> BTreeSet<String> {
        let call = |line: &str| line.split_once(' ').unwrap().1.trim_start().to_owned();
        log.lines().map(call).filter(|call| !call.starts_with("execve")).collect()
    };
    let added: Vec<_> = calls(&with).difference(&calls(&without)).cloned().collect();
    let allowed = needed_libraries();
    for call in added {
        let by_loader =
            call.starts_with("openat") && allowed.iter().any(|name| call.contains(name));
        assert!(by_loader, "the library adds {call}");
    }
    std::fs::remove_dir_all(folder).unwrap();
}

/// Our file name and the names of what ld.so loads with it.
fn needed_libraries() -> Vec<String> {
    let (dynamic, _) = succeed(plain("readelf").arg("-d").arg(library()));
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let name = |line: &str| line.split(['[', ']']).nth(1).unwrap().to_owned();
    needed.map(name).chain(["libadma.so".to_owned()]).collect()
}

#[test]
fn program_without_large_copies_needs_less_than_one_mebibyte_more() {
    let test = "program_without_large_copies_needs_less_than_one_mebibyte_more";
    let program = victim("trap_memory");
    if !can_be_shown(test, &mut plain(&program)) {
        return;
    }
    // The least of several: file pages that happen to be mapped around vary.
    let resident = |run: &dyn Fn() -> String| -> i64 {
        (0..5).map(|_| run().trim().parse::<i64>().unwrap()).min().unwrap()
    };
    let without = resident(&|| succeed(&mut plain(&program)).0);
    let with = resident(&|| succeed(&mut preloaded(&program)).0);
    assert!(with - without < 1024, "{with} KiB with the library, {without} KiB without");
}
