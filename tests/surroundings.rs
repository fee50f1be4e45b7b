//! Surroundings of a program that copies: allocators, descriptors, sandboxes, limits, privileges
//! and other libraries; and the cost for a program that does not need the library.

mod common;

use common::traps::{
    a_library, engine_calls, fixed, linked, offloaded, survives, survives_beside, survives_fixed,
    survives_offloaded, survives_unreported, traced,
};
use common::{
    CANNOT_BE_SHOWN, Folder, Value, copy_program, finish, has, is_root, library, needs, plain,
    preloaded, rows, shown, skip, skip_this, statistics, succeed, text, victim, victim_with,
};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

rows! { survives_offloaded:
    first_copy_inside_locked_allocator_does_not_enter_it: "trap_allocator_lock";
    exit_inside_locked_allocator_does_not_enter_it: "trap_allocator_lock exit";
    seccomp_filter_with_workers_alive_refuses_futex_copies_are_right:
        "trap_surroundings after-futex";
    seccomp_filter_for_all_threads_refuses_futex_workers_do_not_spin:
        "trap_surroundings after-tsync";
    seccomp_filter_with_workers_alive_kills_for_rare_calls_program_lives:
        "trap_surroundings after-rare";
    seccomp_filter_that_kills_for_rare_calls_is_not_met_by_a_program_with_handler:
        "trap_surroundings after-handled";
    seccomp_filter_with_workers_alive_kills_for_asking_program_lives:
        "trap_surroundings after-asking";
    seccomp_filter_after_workers_left_kills_for_clone_program_lives: "trap_surroundings idle-kill";
    seccomp_filter_with_what_we_say_we_need_from_the_start_copies_are_carried:
        "trap_surroundings least";
    caller_with_its_stack_eight_bytes_off_copies_right: "functions off";
    memory_locked_within_a_limit_is_locked_as_without_us: "trap_surroundings locked";
}

rows! { survives:
    seccomp_filter_before_first_copy_kills_for_clone_program_lives: "trap_surroundings before-kill";
    seccomp_filter_before_first_copy_kills_for_asking_program_lives:
        "trap_surroundings before-asking";
}

rows! { survives_unreported:
    setuid_after_copy_succeeds_and_no_worker_stays_root: "trap_surroundings setuid-idle";
    setuid_in_threaded_program_succeeds_and_no_worker_stays_root:
        "trap_surroundings setuid-threaded";
    setuid_while_copying_on_no_worker_stays_root: "trap_surroundings setuid-busy";
    threads_with_user_numbers_of_their_own_do_not_evict_each_others_workers:
        "trap_surroundings numbers";
    program_without_any_descriptor_left_copies_right: "trap_surroundings no-files";
}

rows! { survives_fixed:
    setuid_right_after_a_copy_leaves_no_worker_with_rights: "trap_surroundings setuid";
    capset_right_after_a_copy_leaves_no_worker_with_rights: "trap_surroundings capset";
}

/// A process that has used nothing of ours, or has switched us off, asks nothing when it ends.
#[test]
fn seccomp_filter_that_kills_for_all_but_exit_program_lives() {
    let program = victim("trap_surroundings");
    let quiet = [("ADMA_STATS", "off"), ("ADMA_STATS", "text"), ("ADMA_BACKEND", "libc")];
    for scene in ["tight-exit", "tight-_exit"] {
        if shown(plain(&program).arg(scene)).is_none() {
            return;
        }
        for (name, value) in quiet {
            succeed(preloaded(&program).arg(scene).env(name, value));
        }
        succeed(preloaded(&program).args([scene, "copies"]).env("ADMA_BACKEND", "libc"));
    }
}

// Allocators.

/// Allocators of the distribution, preloaded before us and after us.
#[test]
fn allocators_beside_us_in_both_orders_work() {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    let program = victim("trap_allocator");
    for soname in ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libmimalloc.so.2"] {
        let place = folders.iter().map(|f| Path::new(f).join(soname)).find(|f| f.exists());
        let Some(allocator) = place else {
            skip(&format!("allocators_beside_us ({soname})"), "it is not installed");
            continue;
        };
        // Three children and their parent.
        assert_eq!(survives_beside(&program, &allocator), [4, 4], "{soname}");
    }
}

// Descriptors and streams.

#[test]
fn program_that_reopens_all_descriptors_keeps_its_files() {
    let program = victim("trap_surroundings");
    let folder = Folder::new("closed");
    let files = |mut command: Command, later: &[&str]| {
        command.arg("files").arg(&folder).args(later);
        command
    };
    let own_files = |when: &str| {
        for number in 0..10 {
            let text = std::fs::read_to_string(folder.join(number.to_string())).unwrap();
            assert_eq!(text, format!("file {number}\n"), "{when}");
        }
    };
    if shown(&mut files(plain(&program), &[])).is_none() {
        return;
    }
    own_files("without the library");
    let statistics_in = |format| vec![("ADMA_STATS", format)];
    let mut settings = ["text", "json", "text,json"].map(statistics_in).to_vec();
    settings.extend([vec![("ADMA_LOG", "debug")], vec![("ADMA_PROFILE", "1")]]);
    // A file that cannot be written.
    settings.push(vec![("ADMA_STATS", "text"), ("ADMA_STATS_FILE", "/nonexistent/report")]);
    for setting in settings {
        succeed(fixed(&mut files(preloaded(&program), &[])).envs(setting.clone()));
        own_files(&format!("{setting:?}"));
    }
    // `later`: copies were carried before.
    succeed(&mut files(plain(&program), &["later"]));
    own_files("without the library, later");
    let mut later = files(preloaded(&program), &["later"]);
    succeed(fixed(&mut later).env("ADMA_STATS", "text,json"));
    own_files("later");
    // A named file is written, whatever became of stderr.
    assert!(offloaded(&statistics(fixed(&mut files(preloaded(&program), &[])))) > 0);
    own_files("with a statistics file");
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

/// The program's status is still its own.
#[test]
fn report_that_cannot_be_written_for_want_of_a_descriptor_costs_one_line() {
    let folder = Folder::new("none");
    let file = folder.join("report");
    let mut command = preloaded(victim("trap_surroundings"));
    fixed(command.arg("no-files")).env("ADMA_STATS", "json").env("ADMA_STATS_FILE", &file);
    let Some(done) = shown(&mut command) else { return };
    let complaints = text(&done.stderr);
    assert!(!file.exists());
    assert_eq!(complaints.lines().count(), 1, "one line about the file: {complaints}");
}

#[test]
fn stdout_with_statistics_asked_for_is_untouched() {
    let program = victim("trap_stdout");
    let expected = finish(&mut plain(&program)).stdout;
    for format in ["text", "json"] {
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
    if let Some(processes) = survives("trap_surroundings before-errno") {
        assert!(processes.iter().all(|one| one["channels"] == 0), "{processes:?}");
    }
}

/// Without ADMA_CHANNELS, so that the CPUs are counted, and without a report, for which a file is
/// opened. A worker's file would take the lowest number from the program.
#[test]
fn workers_open_no_file_of_their_own() {
    let program = victim("trap_surroundings");
    for scene in ["after-open", "open-again"] {
        if shown(plain(&program).arg(scene)).is_some() {
            succeed(preloaded(&program).arg(scene));
            succeed(preloaded(&program).arg(scene).env("ADMA_MIN_BYTES", "64K"));
        }
    }
}

/// The victim makes 21 large copies. With a report they go on being counted.
#[test]
fn system_call_refused_once_is_not_made_again_and_nothing_is_said() {
    needs!(has("strace"));
    let folder = Folder::new("refused");
    let report = folder.join("report");
    // Signals are held, a worker is made, and it is woken.
    for call in ["rt_sigprocmask", "clone", "futex"] {
        for (refusal, formats) in [("EPERM", "off"), ("ENOSYS", "json")] {
            let option = format!("inject={call}:error={refusal}");
            let (mut command, log) = traced(&option, true, &folder);
            fixed(&mut command).env("ADMA_STATS", formats).env("ADMA_STATS_FILE", &report);
            let begun = Instant::now();
            let (said, complaints) = succeed(command.arg(victim("trap_copy")));
            // A refused call is tried again after a second.
            let most = 5 + 2 * begun.elapsed().as_secs() as usize;
            let ours = complaints.lines().filter(|line| !line.starts_with("strace: "));
            assert_eq!((said.as_str(), ours.count()), ("", 0), "{call}, {refusal}: {complaints}");
            let log = std::fs::read_to_string(&log).unwrap();
            let refused: Vec<_> = log.lines().filter(|line| line.ends_with("(INJECTED)")).collect();
            assert!(!refused.is_empty(), "{call}, {refusal}: {log}");
            // Every thread may find out by itself; a report holds signals as well, and so do, once, the
            // reading of the command line, the making of a live file, and huge pages.
            for line in &refused {
                let thread = line.split(' ').next();
                let again = refused.iter().filter(|other| other.split(' ').next() == thread);
                assert!(again.count() <= most, "{call}, {refusal}: {log}");
            }
            // A mask that was not set is not restored: that would be a mask of our own making.
            assert!(!refused.iter().any(|line| line.contains("SIG_SETMASK")), "{log}");
        }
    }
}

#[test]
fn set_user_id_program_ignores_the_statistics_file() {
    if !is_root() {
        return skip_this("only root can make a program set-user-id for another user");
    }
    // ld.so preloads nothing there; a program may still be linked with us.
    let program = linked("trap_copy", &library());
    let folder = Folder::new("secure");
    let (copy, report) = (folder.join("program"), folder.join("report"));
    std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o777)).unwrap();
    copy_program(&program, &copy);
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
    if done.status.code() == Some(CANNOT_BE_SHOWN) {
        return skip_this("set-user-id has no effect here");
    }
    assert!(done.status.success(), "{}", text(&done.stderr));
    assert!(!report.exists(), "a caller could make a privileged program write any file");
}

// Other libraries and other callers.

#[test]
fn interposed_library_whose_memmove_calls_memcpy_does_not_recurse() {
    // As most libraries are, with the older table of symbols, of assembly, without memmove, and with a
    // memmove for itself.
    let own = ["-DOWN", "-Wl,--default-symver"];
    for more in [&[][..], &["-Wl,--hash-style=sysv"], &["-DUNTYPED"], &["-DCOPYING"], &own] {
        let other = a_library("trap_interposed", &[&["-DLIBRARY"], more].concat());
        survives_beside(&victim("trap_interposed"), &other);
    }
}

/// The address of such a function is then a place in the program.
#[test]
fn program_at_a_fixed_address_that_takes_that_of_errno_runs_as_without_us() {
    let program = victim_with("trap_fixed_place", &["-no-pie", "-fno-pie"]);
    for mut command in [plain(&program), preloaded(&program)] {
        succeed(command.arg(&program));
    }
}

/// The loader's locks are held by a thread that waits, or by one that the child of a fork lacks.
#[test]
fn calls_that_are_passed_on_wait_for_no_lock_of_the_loader() {
    let program = victim_with("trap_loader", &["-rdynamic"]);
    let loaded = victim_with("trap_loader", &["-shared", "-fPIC", "-DLIBRARY"]);
    for way in [&["constructor", loaded.to_str().unwrap()][..], &["fork"]] {
        if shown(plain(&program).args(way)).is_some() {
            succeed(preloaded(&program).args(way));
        }
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
    still_sees_what_is_wrong(fixed(&mut preloaded(&program)));
}

/// The sanitizer refuses to start where anything is preloaded before it.
#[test]
fn address_sanitizer_preloaded_before_us_copies_right() {
    let program = victim_with("trap_copy", &["-fsanitize=address"]);
    let (sanitizer, _) = succeed(plain("gcc").arg("-print-file-name=libasan.so"));
    let order = format!("{}:{}", sanitizer.trim(), library().display());
    succeed(preloaded(&program).env("LD_PRELOAD", &order));
    let mut command = preloaded(&program);
    assert!(offloaded(&statistics(fixed(command.env("LD_PRELOAD", &order)))) > 0);
    still_sees_what_is_wrong(&mut command);
}

/// Checks that the sanitizer's own memcpy comes before ours.
fn still_sees_what_is_wrong(command: &mut Command) {
    let done = finish(command.arg("beyond"));
    let report = text(&done.stderr);
    assert!(!done.status.success() && report.contains("heap-buffer-overflow"), "{report}");
}

// What it costs a program that copies nothing large.

#[test]
fn program_without_large_copies_opens_no_file_and_makes_no_thread() {
    needs!(has("strace"));
    let folder = Folder::new("strace");
    let trace = |preload: bool| {
        let option = "trace=open,openat,openat2,socket,process,write";
        let (mut command, log) = traced(option, preload, &folder);
        let done = finish(command.arg("true"));
        done.status.success().then(|| std::fs::read_to_string(&log).unwrap())
    };
    let Some(without) = trace(false) else {
        return skip_this("strace cannot trace here");
    };
    let with = trace(true).unwrap();
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
}

/// Returns our file name and the names of what ld.so loads with it.
fn needed_libraries() -> Vec<String> {
    let (dynamic, _) = succeed(plain("readelf").arg("-d").arg(library()));
    let needed = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let name = |line: &str| line.split(['[', ']']).nth(1).unwrap().to_owned();
    needed.map(name).chain(["libadma.so".to_owned()]).collect()
}

/// Costs of every program at its start, counted; `bench/run start` has the times.
#[test]
fn library_asks_little_of_the_loader() {
    let readelf = |option: &str| succeed(plain("readelf").args(["-W", option]).arg(library())).0;
    let relocations = readelf("-r");
    let count = |kind: &str| relocations.lines().filter(|line| line.contains(kind)).count();
    let named = count("R_X86_64_GLOB_DAT") + count("R_X86_64_JUMP_SLO") + count("R_X86_64_64");
    assert!(named <= 25, "{named} symbols to look up: {relocations}");
    let relative = count("R_X86_64_RELATIVE");
    // Vtables of engines and tables of names: two pages of pointers, which are relocated in one run.
    assert!(relative <= 600, "{relative} relocations");
    let imports = succeed(plain("nm").args(["-D", "--undefined-only"]).arg(library())).0;
    let rare = ["dlopen", "program_invocation_name", "getenv", "abort"];
    assert!(!rare.iter().any(|name| imports.contains(&format!(" {name}@"))), "{imports}");
    assert!(imports.lines().count() <= 16, "{imports}");
    assert_eq!(needed_libraries()[..], ["libc.so.6", "libadma.so"]);
    assert!(!readelf("-l").contains(" TLS "), "thread-local storage");
}

/// One build serves every system: what a newer C library has is looked up, not linked. A weak symbol of
/// a version that the C library has not keeps the whole library from being loaded.
#[test]
fn library_needs_no_symbol_newer_than_glibc_2_31() {
    let (versions, _) = succeed(plain("readelf").args(["-W", "-V"]).arg(library()));
    let minor = |word: &str| word.strip_prefix("GLIBC_2.")?.split('.').next()?.parse().ok();
    let newest: Option<u32> = versions.split_whitespace().filter_map(minor).max();
    assert!(newest.is_some_and(|minor| minor <= 31), "2.{newest:?}: {versions}");
}

/// Before glibc 2.34 threads are in libpthread, which need not be loaded before libc, or at all. (Later
/// ones have them in libc; `tests/run systems debian11` has the other kind.)
#[test]
fn thread_is_created_where_libpthread_comes_behind_libc_or_later() {
    for flags in ["-Wl,--as-needed", "-Wl,--no-as-needed -lc -lpthread"] {
        let flags: Vec<&str> = flags.split(' ').collect();
        let program = victim_with("late_threads", &flags);
        assert_eq!(succeed(&mut plain(&program)).0, "0 42\n", "without the library");
        assert_eq!(succeed(&mut preloaded(&program)).0, "0 42\n", "{flags:?}");
    }
}

/// Returns KiB: the least of five runs, because the mapped pages of files vary.
fn memory(scene: &str, preload: Option<&Path>) -> Option<i64> {
    let run = |_| {
        let mut command = plain(victim("trap_surroundings"));
        if let Some(library) = preload {
            command.env("LD_PRELOAD", library);
        }
        Some(text(&shown(command.arg(scene))?.stdout).trim().parse().unwrap())
    };
    (0..5).map(run).collect::<Option<Vec<i64>>>()?.into_iter().min()
}

/// Private memory is compared with an empty library's, for any preloaded library costs some.
#[test]
fn program_without_large_copies_has_little_memory_of_ours() {
    let empty = a_library("trap_library", &["-DEMPTY"]);
    for (scene, other, most) in [("private", Some(&*empty), 64), ("resident", None, 1023)] {
        let Some(without) = memory(scene, other) else { return };
        let with = memory(scene, Some(&library())).unwrap();
        assert!(with - without <= most, "{scene}: {with} KiB, without the library {without} KiB");
    }
}
