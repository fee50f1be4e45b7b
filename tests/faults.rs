//! Faults belong to the caller: a program that meets bad memory in a large copy sees what it
//! would see without the library.
//!
//! The program prints what its handler saw in every copy, and checks the bytes itself. Its output and
//! end are compared with those of a run without the library.

mod common;

use common::faults::{ALONE, CPU_SHARES, finish_with_report, offloading, outcome, without_us};
use common::{finish, number, rows, text};

/// Checks a handler that returns, or jumps: every place and size in one process, and that copies
/// after the fault are still carried by the engine.
fn handler_sees_the_same(trouble: &str, reaction: &str) {
    let Some(without) = without_us("faults", &[trouble, reaction]) else { return };
    assert!(without.status.success(), "without the library: {:?}", outcome(&without));
    let cases = text(&without.stdout).lines().count() as u64;
    for share in CPU_SHARES.into_iter().chain([ALONE]) {
        let (with, report) =
            finish_with_report(offloading("faults", share).args([trouble, reaction]));
        assert_eq!(outcome(&with), outcome(&without), "{trouble}, {reaction}, share {share}");
        let report = report.expect("a report");
        if trouble.contains("key") {
            continue; // a program with keys and handlers may be left to libc altogether
        }
        let least = if share == ALONE { 1 } else { 2 * cases };
        let carried = number(&report["paths"]["engine"]["calls"]);
        assert!(carried >= least, "{trouble}, {reaction}, share {share}: {report}");
        // A jump out of a copy leaves no slot claimed.
        assert!(reaction != "jump" || report["fallbacks"]["busy"] == 0, "{trouble}: {report}");
    }
}

/// Checks signals without a handler that mends the page: most troubles kill the process.
fn ends_the_same(trouble: &str, reaction: &str, places: &[&str], sizes: &[&str]) {
    for place in places {
        for size in sizes {
            let arguments = [trouble, reaction, place, size];
            let Some(without) = without_us("faults", &arguments) else { return };
            for share in CPU_SHARES.into_iter().chain([ALONE]) {
                let with = finish(offloading("faults", share).args(arguments));
                assert_eq!(outcome(&with), outcome(&without), "{arguments:?}, share {share}");
            }
        }
    }
}

/// Every reaction of a program to the signal has the outcome of a run without the library.
fn belongs_to_the_caller(trouble: &str) {
    for reaction in ["repair", "jump"] {
        handler_sees_the_same(trouble, reaction);
    }
    ends_the_same(trouble, "none", &["start", "middle", "end"], &["1048576", "8388608"]);
    // Only the disposition matters here, so one place and one size suffice.
    for reaction in ["exit", "other", "ignored", "blocked"] {
        ends_the_same(trouble, reaction, &["middle"], &["1048576"]);
    }
}

rows! { belongs_to_the_caller:
    unmapped_source: "unmapped-source";
    unmapped_destination: "unmapped-destination";
    read_only_destination: "read-only-destination";
    forbidden_source: "forbidden-source";
    forbidden_destination: "forbidden-destination";
    truncated_source: "truncated-source";
    truncated_destination: "truncated-destination";
    userfault_source_supplied_by_monitor: "missing-source";
    userfault_destination_supplied_by_monitor: "missing-destination";
    userfault_source_for_user_mode_only: "missing-source-user-mode";
    userfault_destination_for_user_mode_only: "missing-destination-user-mode";
    userfault_source_by_sigbus: "missing-source-sigbus";
    userfault_destination_by_sigbus: "missing-destination-sigbus";
    protection_key_of_caller_source: "key-of-caller-source";
    protection_key_of_caller_destination: "key-of-caller-destination";
    protection_key_denied_source: "key-of-others-source";
    protection_key_denied_source_with_a_lower_key_free: "second-key-of-others-source";
    protection_key_denied_destination: "key-of-others-destination";
    protection_key_for_reading_destination: "key-for-reading-destination";
}

/// A file that another process truncates meanwhile never kills; threads that fault at once get their own
/// faults.
#[test]
fn faults_beside_other_processes_and_threads_are_each_callers_own() {
    for program in ["truncation", "faulting_threads"] {
        if without_us(program, &[]).is_none() {
            continue;
        }
        for share in CPU_SHARES {
            let (with, report) = finish_with_report(&mut offloading(program, share));
            assert!(with.status.success(), "{program}, share {share}: {:?}", outcome(&with));
            let carried = number(&report.unwrap()["paths"]["engine"]["calls"]);
            assert!(carried > 0, "{program}, share {share}");
        }
    }
}
