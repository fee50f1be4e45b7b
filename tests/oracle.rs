//! Copies, fills and comparisons against naive oracles, through every way the library can take; and
//! faults in them, which are the caller's.
//!
//! The threshold is one byte, so that everything goes through the planner and the channels. A
//! failure names the seed; `oracle -s SEED` repeats it.

mod common;

use common::{
    finish, number, only_report, plain, preloaded, rows, slower, statistics, succeed, victim,
};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Functions that each program calls, as ADMA_OPS names them. (The one called oracle copies.)
const OPS: [(&str, &str); 3] = [
    ("oracle", "all"),
    ("fill", "memset,memset_chk,bzero,wmemset"),
    ("compare", "memcmp,bcmp,wmemcmp"),
];

/// Shares everything that can be. `knobs`: `NAME=value`, separated by blanks, without ADMA_.
fn shared(words: &str, knobs: &str) -> Command {
    let (program, arguments) = words.split_once(' ').unwrap_or((words, ""));
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let mut command = preloaded(victim(program));
    command.args(arguments.replace("SEED", &seed.to_string()).split_whitespace());
    let ops = OPS.iter().find(|(name, _)| *name == program).unwrap().1;
    command.env("ADMA_MIN_BYTES", "1").env("ADMA_CHANNELS", "3").env("ADMA_OPS", ops);
    for (name, value) in knobs.split_whitespace().map(|knob| knob.split_once('=').unwrap()) {
        command.env(format!("ADMA_{name}"), value);
    }
    command
}

fn carried(reports: &[Value]) -> u64 {
    reports.iter().map(|report| number(&report["paths"]["engine"]["calls"])).sum()
}

/// Runs a program without the library: one that fails there proves nothing.
fn right_without_us(words: &str) {
    let (program, arguments) = words.split_once(' ').unwrap_or((words, ""));
    if program != "oracle" && !words.contains("SEED") {
        succeed(plain(victim(program)).args(arguments.split_whitespace()));
    }
}

/// Checks that copies are right, with `at_least` calls carried under each of the settings, which
/// bars separate. Without competition libc gets next to none.
fn engine_is_right(words: &str, settings: &str, at_least: u64) {
    right_without_us(words);
    for knobs in settings.split('|') {
        let reports = statistics(&mut shared(words, knobs));
        assert!(carried(&reports) >= at_least, "{words}, {knobs}: {reports:?}");
        let by_libc: u64 = reports.iter().map(|r| number(&r["paths"]["libc"]["calls"])).sum();
        assert!(at_least < 100_000 || by_libc < 100, "{words}, {knobs}: {reports:?}");
    }
}

rows! { engine_is_right:
    copies_are_right_with_ordinary_stores:
        "oracle", "STORES=ordinary CHANNELS=1|STORES=ordinary", 100_000;
    copies_are_right_with_streaming_stores:
        "oracle", "STORES=stream CHANNELS=1|STORES=stream", 100_000;
    copies_are_right_with_every_share: "oracle", "CPU_SHARE=0|CPU_SHARE=0.5|CPU_SHARE=1|STORES=ordinary CPU_SHARE=0.5|STORES=stream CPU_SHARE=0", 100_000;
    copies_of_a_program_that_handles_faults_are_right: "oracle -h", "", 100_000;
    copies_of_a_random_seed_are_right: "oracle -s SEED", "", 100_000;
    // More threads than channels: some copies find every channel busy.
    copies_of_eight_threads_at_once_are_right: "oracle -t 8", "", 1;
    copies_of_eight_threads_that_handle_faults_are_right: "oracle -t 8 -h", "CHANNELS=8", 1;

    fills_of_every_value_are_right: "fill values", "STORES=ordinary|STORES=stream", 900;
    fills_of_every_length_are_right: "fill lengths",
        "STORES=ordinary|STORES=ordinary CPU_SHARE=0|STORES=ordinary CPU_SHARE=0.5|\
         STORES=ordinary CPU_SHARE=1|STORES=stream|STORES=stream CPU_SHARE=0|\
         STORES=stream CPU_SHARE=0.5|STORES=stream CPU_SHARE=1", 400;
    fills_of_a_random_seed_are_right: "fill lengths SEED", "", 400;
    fills_of_memory_never_touched_are_right: "fill fresh", "CHANNELS=3|CHANNELS=8", 5;
    fills_of_four_threads_at_once_are_right: "fill threads", "", 10;
    // In the calling thread, at the bad page, and nothing is written after it.
    fills_of_a_bad_page_fault_in_the_caller: "fill fault", "STORES=ordinary|STORES=stream", 28;

    comparisons_of_every_length_are_right: "compare lengths",
        "CPU_SHARE=auto|CPU_SHARE=0|CPU_SHARE=0.5|CPU_SHARE=1", 400;
    comparisons_of_a_random_seed_are_right: "compare lengths SEED", "", 400;
    comparisons_tell_a_difference_at_every_border_and_no_later_one: "compare borders",
        "CPU_SHARE=auto|CPU_SHARE=0|CPU_SHARE=0.5|CHANNELS=1|CHANNELS=8", 200;
    comparisons_of_every_pair_of_bytes_and_characters_are_right: "compare values", "", 4000;
    comparisons_of_four_threads_at_once_are_right: "compare threads", "", 10;
    // In the calling thread, at the bad page.
    comparisons_of_a_bad_page_behind_no_difference_fault:
        "compare fault", "CPU_SHARE=auto|CPU_SHARE=0", 30;
    comparisons_with_a_bad_page_behind_a_difference_do_not_fault:
        "compare behind", "CPU_SHARE=auto|CPU_SHARE=0", 40;
    comparisons_without_a_handler_end_as_without_us:
        "compare unhandled", "CPU_SHARE=auto|CPU_SHARE=0", 0;
    comparisons_beyond_all_memory_are_answered_by_the_first_difference: "compare enormous", "", 0;
}

/// No knob is set: the library decides what it carries, and learns meanwhile.
#[test]
fn as_shipped_everything_is_right() {
    let compares = "lengths borders values threads fault behind unhandled enormous";
    let table = [("oracle", ""), ("fill", "values lengths fresh threads"), ("compare", compares)];
    for (program, modes) in table {
        for mode in modes.split(' ') {
            succeed(preloaded(victim(program)).args(mode.split_whitespace()));
        }
    }
}

/// With half of it the caller's, workers are at the page before the difference is known; where the host
/// lets them run.
#[test]
fn comparison_meets_a_bad_page_behind_a_difference_in_workers_only() {
    let met = || {
        let reports = statistics(&mut shared("compare behind", "CPU_SHARE=0.5"));
        number(&reports[0]["fallbacks"]["fault"]) > 0
    };
    let until = Instant::now() + Duration::from_secs(60) * slower();
    while !met() {
        assert!(Instant::now() < until, "no worker met one");
    }
}

/// The C library has several versions of it, of which it chooses by the processor.
#[test]
fn comparisons_are_those_of_each_version_of_the_c_library() {
    for without in ["-AVX2", "-MOVBE", "-AVX512VL,-AVX512BW", "-AVX2,-SSE4_1,-SSSE3"] {
        let mut command = shared("compare lengths", "");
        succeed(command.env("GLIBC_TUNABLES", format!("glibc.cpu.hwcaps={without}")));
    }
}

/// Of 64 MiB that differ in the second one, little more than that is compared.
#[test]
fn comparison_cancels_what_lies_behind_a_difference() {
    let report = only_report(&mut shared("compare cancel", ""));
    assert_eq!(report["paths"]["engine"]["calls"], 20, "{report}");
    let bytes = report["channel_bytes"].as_object().unwrap().values().map(number).sum::<u64>();
    // Twenty times 1 MiB, and what four had begun when one found the difference.
    assert!(bytes < 20 * (4 << 20), "{bytes} of {report}");
}

#[test]
fn comparison_that_differs_in_its_first_kilobytes_stays_with_the_caller() {
    let mut command = preloaded(victim("compare"));
    let report = only_report(command.arg("early").env("ADMA_OPS", OPS[2].1));
    assert_eq!(report["paths"]["engine"]["calls"], 0, "{report}");
    // Two differ in their very first bytes and go to libc as if we were not there.
    assert_eq!(report["fallbacks"]["early"], 58, "{report}");
}

#[test]
fn checked_fill_with_too_little_room_aborts_as_without_us() {
    let without = finish(plain(victim("fill")).args(["checked", "299999"]));
    let with = finish(&mut shared("fill checked 299999", ""));
    assert_eq!(without.status.signal(), Some(6));
    assert_eq!((with.status, &with.stderr), (without.status, &without.stderr));
    succeed(&mut shared("fill checked 300000", ""));
}

/// tests/interception.rs has the functions that copy.
#[test]
fn fill_or_comparison_at_the_threshold_is_carried_and_below_it_is_not() {
    for (program, ops) in &OPS[1..] {
        for name in ops.split(',') {
            let run = |size: &str, ops: &str| {
                let words = format!("{program} calls {name} 5 {size}");
                statistics(&mut shared(&words, &format!("MIN_BYTES=64K PROFILE=1 OPS={ops}")))
            };
            let at = run("65536", ops);
            assert_eq!(carried(&at), 5, "{name}: {at:?}");
            assert_eq!(at[0]["paths"]["engine"]["bytes"], 5 * 65536, "{name}: {at:?}");
            assert!(number(&at[0]["profile"]["functions"][name]["calls"]) >= 5, "{name}: {at:?}");
            assert_eq!(carried(&run("65532", ops)), 0, "{name}");
            assert_eq!(carried(&run("65536", "memcpy")), 0, "{name}");
        }
    }
}
