//! A graphics card in loopback, with a fake driver library (tests/programs/fake_cuda.c): it pins
//! memory like a real one, checks the rules, and injects faults.

mod common;

use common::{
    Value, finish, needs, number, only_report, plain, preloaded, root, rows, shown, skip_this,
    succeed, text, victim, victim_with,
};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// Returns a folder in which the loader finds the fake.
fn fake_driver() -> PathBuf {
    fake_driver_as("fake-cuda", &["-shared", "-fPIC"])
}

/// Returns a driver of a version that cannot copy from host to host without buffers.
fn old_driver() -> PathBuf {
    fake_driver_as("fake-cuda-old", &["-shared", "-fPIC", "-DOLD"])
}

fn fake_driver_as(name: &str, flags: &[&str]) -> PathBuf {
    let library = victim_with("fake_cuda", flags);
    let folder = library.with_file_name(name);
    let name = folder.join("libcuda.so.1");
    std::fs::create_dir_all(&folder).unwrap();
    let modified = |path| std::fs::metadata(path).and_then(|m| m.modified()).ok();
    if modified(&name) < modified(&library) {
        // Tests run in parallel, so it is built elsewhere and then renamed.
        let fresh =
            folder.join(format!("{}.{:?}", std::process::id(), std::thread::current().id()));
        std::fs::copy(&library, &fresh).unwrap();
        std::fs::rename(&fresh, &name).unwrap();
    }
    folder
}

/// Returns a program on a machine with the fake card.
fn with_card(program: PathBuf, words: &str, knobs: &[(&str, &str)]) -> Command {
    let mut command = preloaded(program);
    command.args(words.split_whitespace());
    command.env("LD_LIBRARY_PATH", fake_driver());
    command.env("ADMA_BACKEND", "gpu").env("ADMA_CHANNELS", "2").env("ADMA_MIN_BYTES", "64K");
    command.envs(knobs.iter().copied());
    command
}

/// Returns gpu.c on a machine with the fake card.
fn card(words: &str, knobs: &[(&str, &str)]) -> Command {
    let include = format!("-I{}", root().join("include").display());
    with_card(victim_with("gpu", &[&include]), words, knobs)
}

fn by_card(report: &Value) -> u64 {
    let bytes = report["channel_bytes"].as_object().unwrap();
    bytes.iter().filter(|(name, _)| name.starts_with("gpu-")).map(|(_, bytes)| number(bytes)).sum()
}

/// Returns whether the engine can start here: it needs userfaultfd.
fn card_can_be_used() -> bool {
    static SHOWN: OnceLock<(bool, String)> = OnceLock::new();
    let (shown, out) = SHOWN.get_or_init(|| {
        let (out, _) = succeed(&mut card("", &[("ADMA_CHECK", "1")]));
        (out.contains("GPU         Fake Card"), out)
    });
    if !shown {
        skip_this(&format!("no userfaultfd here: {out}"));
    }
    *shown
}

/// Runs gpu.c with these words and knobs.
fn shows(words: &str, knobs: &[(&str, &str)]) {
    if card_can_be_used()
        && let Some(done) = shown(&mut card(words, knobs))
    {
        assert!(!text(&done.stderr).contains("copies were wrong"), "{done:?}");
    }
}

rows! { shows:
    copies_of_one_thread_are_right: "steady", &[("ADMA_VERIFY", "1")];
    copies_that_spare_cpus_are_right: "steady", &[("ADMA_BACKEND", "auto"), ("ADMA_GOAL", "cpu")];
    copies_of_many_threads_are_right: "plain 6", &[("FAKE_CUDA_SHUFFLE", "200")];
    copies_with_half_by_the_caller_are_right: "steady", &[("ADMA_CPU_SHARE", "0.5")];
    copies_with_callers_that_only_wait_are_right: "steady", &[("ADMA_CPU_SHARE", "0")];
    streams_that_run_apart_copy_right: "steady", &[("FAKE_CUDA_SHUFFLE", "500")];
    asynchronous_copies_are_right_and_told: "async", &[];
    asynchronous_copies_out_of_order_are_right_and_told: "async", &[("FAKE_CUDA_SHUFFLE", "300")];

    memory_unmapped_and_mapped_again_is_not_stale: "stale munmap", &[];
    page_unmapped_and_mapped_again_is_not_stale: "stale page", &[];
    memory_unmapped_past_the_c_library_is_not_stale: "stale raw", &[];
    memory_mapped_over_is_not_stale: "stale fixed", &[];
    memory_not_needed_is_not_stale: "stale dontneed", &[];
    page_not_needed_past_the_c_library_is_not_stale: "stale raw_dontneed", &[];
    memory_advised_free_is_not_stale: "stale madv_free", &[];
    memory_moved_in_is_not_stale: "stale mremap", &[];
    memory_under_the_break_is_not_stale: "stale brk", &[];
    memory_freed_and_allocated_again_is_not_stale: "stale free", &[];
    memory_reallocated_is_not_stale: "stale realloc", &[];
    memory_that_is_protected_faults_as_ever: "protect", &[];
    closed_descriptor_ends_the_engine: "closed", &[];

    registered_memory_is_bounded: "keep 4194304", &[("ADMA_KEEP", "4M")];
    registered_memory_that_is_not_used_is_let_go: "idle", &[];

    child_of_fork_never_calls_the_driver: "children fork", &[];
    child_of_raw_fork_never_calls_the_driver: "children raw", &[];
    child_of_vfork_never_calls_the_driver: "children vfork", &[];

    exit_before_the_driver_is_up_ends_well: "leave early", &[("FAKE_CUDA_START", "300")];
    exit_handler_that_was_there_first_copies: "leave handler_before", &[];
    exit_handler_that_came_later_copies: "leave handler_after", &[];
    destructor_of_the_program_copies: "leave plain", &[("AT_END", "1")];
    exit_while_a_thread_copies_ends_well: "leave threads", &[];
    exit_that_waits_for_a_copying_thread_ends_well: "leave joined", &[];
    exit_at_once_while_a_thread_copies_ends_well: "leave at_once", &[];
    quick_exit_ends_well: "leave quick", &[];

    filter_that_kills_for_userfaultfd_leaves_copies_to_libc: "filtered", &[];
    program_that_uses_the_driver_itself_goes_on_as_without_us: "own", &[];
}

/// A program that is linked with the driver, whose functions stand behind ours.
#[test]
fn calls_of_the_driver_that_are_passed_on_wait_for_no_lock_of_the_loader() {
    let driver = fake_driver().join("libcuda.so.1");
    let driver = driver.to_str().unwrap();
    let program = victim_with("trap_loader", &["-rdynamic", "-DDRIVER", driver]);
    let loaded = victim_with("trap_loader", &["-shared", "-fPIC", "-DLIBRARY"]);
    succeed(
        with_card(program, &format!("constructor {}", loaded.display()), &[])
            .env_remove("ADMA_BACKEND"),
    );
}

/// Copies are right after each error, and after a permanent one none is carried any more.
#[test]
fn trouble_at_any_call_leaves_copies_right() {
    needs!(card_can_be_used());
    let calls = [
        // At start-up: the card is never used.
        ("cuInit:1:100", false),
        ("cuDeviceGet:1:101", false),
        ("cuDevicePrimaryCtxRetain:1:2", false),
        ("cuCtxPushCurrent_v2:1:201", false),
        ("cuStreamCreate:3:2", false),
        ("cuMemAlloc_v2:2:2", false),
        ("cuMemHostRegister_v2:1:2", false), // of the words
        ("cuMemHostGetDevicePointer_v2:1:1", false),
        // Later, and for good.
        ("cuMemHostRegister_v2:3:719", false),
        ("cuMemcpyHtoDAsync_v2:1:719", false),
        ("cuMemcpyHtoDAsync_v2:7:719", true),
        ("cuMemcpyDtoHAsync_v2:6:700", true),
        ("cuMemcpyBatchAsync:1:719", false),
        ("cuMemcpyBatchAsync:5:700", true),
        ("cuStreamWriteValue32_v2:3:719", true),
        // A range that is refused; a call that is not supported here.
        ("cuMemHostRegister_v2:2:712", true),
        ("cuMemcpyBatchAsync:1:801", true),
        ("cuMemcpyBatchAsync:3:1", true),
    ];
    for (fail, carries) in calls {
        let mut command = card("plain", &[("FAKE_CUDA_FAIL", fail), ("ADMA_LOG", "info")]);
        if ["cuMemAlloc", "cuMemcpyHtoD", "cuMemcpyDtoH"].iter().any(|by| fail.contains(by)) {
            command.env("LD_LIBRARY_PATH", old_driver());
        }
        let (out, err) = succeed(&mut command);
        let carried: u64 = out.trim().parse().unwrap();
        assert_eq!(carried > 0, carries, "{fail}: {out}{err}");
        let soft = [":712", ":801", ":1"].iter().any(|code| fail.ends_with(code))
            && !fail.contains("DevicePointer");
        assert_eq!(!err.contains("CUDA error"), soft, "{fail}: {err}");
    }
}

/// Without buffers where the driver can and the CPU does not copy, otherwise by buffers.
#[test]
fn copies_go_straight_or_by_buffers() {
    needs!(card_can_be_used());
    let ways = |old: bool, knobs: &[(&str, &str)]| {
        let mut command = card("ways", knobs);
        if old {
            command.env("LD_LIBRARY_PATH", old_driver());
        }
        let (out, _) = succeed(&mut command);
        let numbers: Vec<u64> = out.split_whitespace().map(|word| word.parse().unwrap()).collect();
        (numbers[0], numbers[1])
    };
    for goal in ["time", "cpu"] {
        let (straight, all) = ways(false, &[("ADMA_GOAL", goal)]);
        assert!(straight > 10 << 20 && straight == all, "{goal}: {straight} of {all}");
        let (straight, all) = ways(true, &[("ADMA_GOAL", goal)]);
        assert!(straight == 0 && all > 10 << 20, "{goal}: {straight} of {all}");
    }
    let (straight, all) = ways(false, &[("FAKE_CUDA_FAIL", "cuMemcpyBatchAsync:1:801")]);
    assert!(straight == 0 && all > 10 << 20, "not supported: {straight} of {all}");
    // Eight back-to-back calls take as long as a copy: the rest goes by buffers.
    let (straight, all) = ways(false, &[("FAKE_CUDA_SYNC", "1"), ("ADMA_GOAL", "cpu")]);
    assert!(straight <= 8 * (2 << 20) && all > straight + (10 << 20), "{straight} of {all}");
}

#[test]
fn card_that_is_lost_in_the_middle_leaves_copies_right() {
    for copy in ["1", "2", "7", "40"] {
        let knobs = [("FAKE_CUDA_DIE", copy), ("ADMA_LOG", "info")];
        let mut command = card("plain", &knobs);
        needs!(card_can_be_used());
        let (_, err) = succeed(&mut command);
        assert!(err.contains("CUDA error 999"), "{copy}: {err}");
    }
}

#[test]
fn copy_completes_when_completion_word_is_lost_or_late() {
    for lose in ["1", "6"] {
        let knobs = [("FAKE_CUDA_LOSE", lose), ("ADMA_LOG", "info")];
        needs!(card_can_be_used());
        let (_, err) = succeed(&mut card("steady", &knobs));
        assert!(err.contains("1 words lost"), "{lose}: {err}");
    }
    shows("plain", &[("FAKE_CUDA_STALL", "30")]);
}

/// Streams that are done with the earlier copy do not complete the later one.
#[test]
fn copy_that_gets_the_slot_of_an_overdue_one_is_right() {
    needs!(card_can_be_used());
    for driver in [fake_driver(), old_driver()] {
        let mut command = card("overdue", &[("ADMA_LOG", "info")]);
        let (_, err) = succeed(command.env("LD_LIBRARY_PATH", driver));
        assert!(err.contains("; 0 words lost"), "{err}");
    }
}

#[test]
fn asynchronous_copies_survive_a_card_that_is_lost() {
    // Exit status 1 is only because the card has carried too little.
    needs!(card_can_be_used());
    let done = finish(&mut card("async", &[("FAKE_CUDA_DIE", "200")]));
    let err = String::from_utf8_lossy(&done.stderr);
    assert!(err.starts_with("the card has carried"), "{err}");
}

/// Runs the oracle of all other ways to copy.
#[test]
fn oracle_finds_copies_by_the_card_right() {
    needs!(card_can_be_used());
    for (words, goal) in [("-h", "time"), ("-t 3", "cpu")] {
        let knobs = [("ADMA_MIN_BYTES", "12000"), ("ADMA_GOAL", goal)];
        // On a busy machine the card gets no time, or the caller is done first: sums up several
        // runs.
        let (mut calls, mut bytes) = (0, 0);
        let carried = (0..15).any(|_| {
            let report = only_report(&mut with_card(victim("oracle"), words, &knobs));
            assert_eq!(report["backend"], "gpu", "{report}");
            calls += number(&report["paths"]["engine"]["calls"]);
            bytes += by_card(&report);
            calls > 1000 && bytes > 20_000_000
        });
        assert!(carried, "{words}: the card has carried {bytes} bytes, in {calls} calls");
    }
}

/// The report of `adma program` comes from the live file, not from the process.
#[test]
fn live_file_has_the_bytes_of_the_card_and_of_callers_beside_it() {
    needs!(card_can_be_used());
    let subject = card("steady", &[("ADMA_CPU_SHARE", "0.5")]);
    let mut command = plain(common::command());
    command.arg(subject.get_program()).args(subject.get_args());
    command.envs(subject.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.env_remove("LD_PRELOAD");
    let mut told = String::new();
    // Callers take copies that a busy card leaves, so their half may be more.
    let halves = (0..15).any(|_| {
        told = succeed(&mut command).1;
        let line = told.lines().find(|line| line.contains("channel shares")).unwrap_or_default();
        let percent = |name: &str| -> u32 {
            let mut words = line.split_whitespace().skip_while(|word| !word.starts_with(name));
            words.nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
        };
        (40..=60).contains(&percent("caller")) && percent("gpu-") > 0
    });
    assert!(halves, "{told}");
}

/// Each count rises where there is something to count.
#[test]
fn report_counts_registrations_by_their_end() {
    needs!(card_can_be_used());
    let counts = |words: &str, knobs: &[(&str, &str)]| {
        let report = only_report(&mut card(words, knobs));
        let counts = report["gpu"]["registrations"].clone();
        move |name: &str| number(&counts[name])
    };
    let keep = counts("keep 4194304", &[("ADMA_KEEP", "4M")]);
    // Three pairs in turn, three times, with room for one, which is there at the end.
    assert!(keep("evictions") >= 2 * 8, "{}", keep("evictions"));
    assert_eq!(keep("made"), keep("evictions") + 2);
    assert!(keep("hits") >= 3 * 9 && keep("misses") >= 2 * 9);
    assert_eq!(keep("most_bytes"), 4 << 20);
    assert_eq!((keep("refused"), keep("invalidations")), (0, 0));
    let stale = counts("stale munmap", &[]);
    assert!(stale("invalidations") >= 4 && stale("evictions") == 0);
    let refused = counts("plain", &[("FAKE_CUDA_FAIL", "cuMemHostRegister_v2:2:712")]);
    assert_eq!(refused("refused"), 1);
}

#[test]
fn check_names_the_card_its_copy_engines_its_buffers_and_its_rate() {
    needs!(card_can_be_used());
    let (out, _) = succeed(&mut card("", &[("ADMA_CHECK", "1")]));
    assert!(out.contains("GPU         Fake Card, 3 copy engines"), "{out}");
    assert!(out.contains("4 channels, without bounce buffers"), "{out}");
    let mut old = card("", &[("ADMA_CHECK", "1")]);
    let (old, _) = succeed(old.env("LD_LIBRARY_PATH", old_driver()));
    assert!(old.contains("bounce buffer 4 x 6 MiB"), "{old}");
    // A card that is too busy for all ten copies has none.
    let has_rate = |out: &str| {
        let rate = out.lines().find(|line| line.starts_with("  GPU rate")).unwrap();
        rate.split_whitespace().nth(2).unwrap().parse().is_ok_and(|rate: f64| rate > 0.0)
    };
    let again = || succeed(&mut card("", &[("ADMA_CHECK", "1")])).0;
    assert!(has_rate(&out) || (0..20).any(|_| has_rate(&again())), "{out}");
}

/// A machine without a driver copies by threads, and ADMA_LOG says why.
#[test]
fn machine_without_a_driver_copies_as_ever_and_says_why() {
    let mut command = card("plain", &[("ADMA_LOG", "info")]);
    let folder = fake_driver().with_file_name("no-cuda");
    std::fs::create_dir_all(&folder).unwrap();
    let fails = folder.join("libcuda.so.1"); // so that a real one is not found either
    std::fs::write(&fails, "not a library").unwrap();
    command.env("LD_LIBRARY_PATH", &folder);
    let (out, err) = succeed(&mut command);
    assert_eq!(out.trim(), "0");
    assert!(err.contains("no libcuda.so.1") || err.contains("userfaultfd"), "{err}");
}

/// A context on a card is only for programs that ask for it.
#[test]
fn auto_never_opens_the_driver() {
    for knobs in [
        [("ADMA_BACKEND", "auto"), ("ADMA_GOAL", "time")],
        [("ADMA_BACKEND", "threads"), ("ADMA_GOAL", "cpu")],
    ] {
        let (out, _) = succeed(&mut card("plain", &knobs));
        assert_eq!(out.trim(), "0", "{knobs:?}");
    }
}
