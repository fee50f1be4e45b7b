//! memcmp and its relatives: libc's answer by every way, of the first difference, whatever lies
//! behind it; faults the caller's; what is large is shared, and what differs early is not.

mod common;

use common::{number, only_report, plain, preloaded, statistics, succeed, victim};
use serde_json::Value;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

const OPS: &str = "memcmp,bcmp,wmemcmp";
const FUNCTIONS: [&str; 3] = ["memcmp", "bcmp", "wmemcmp"];

/// Everything is shared that can be.
fn compare(arguments: &[&str]) -> Command {
    let mut command = preloaded(victim("compare"));
    command.args(arguments).env("ADMA_MIN_BYTES", "1").env("ADMA_CHANNELS", "3");
    command.env("ADMA_OPS", OPS);
    command
}

fn carried(reports: &[Value]) -> u64 {
    reports.iter().map(|report| number(&report["paths"]["engine"]["calls"])).sum()
}

/// Right, and by the engine: otherwise nothing was shown.
fn engine_compares_right(arguments: &[&str], knobs: &[(&str, &str)], at_least: u64) {
    let reports = statistics(compare(arguments).envs(knobs.iter().copied()));
    assert!(carried(&reports) >= at_least, "{arguments:?} {knobs:?}: {reports:?}");
}

#[test]
fn every_length_compares_right_with_every_share() {
    succeed(plain(victim("compare")).arg("lengths"));
    for share in ["auto", "0", "0.5", "1"] {
        engine_compares_right(&["lengths"], &[("ADMA_CPU_SHARE", share)], 400);
    }
}

#[test]
fn random_seed_compares_right() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().to_string();
    engine_compares_right(&["lengths", &seed], &[], 400);
}

#[test]
fn difference_at_every_border_is_the_answer_and_a_later_one_is_not() {
    succeed(plain(victim("compare")).arg("borders"));
    for share in ["auto", "0", "0.5"] {
        engine_compares_right(&["borders"], &[("ADMA_CPU_SHARE", share)], 200);
    }
    engine_compares_right(&["borders"], &[("ADMA_CHANNELS", "1")], 200);
    engine_compares_right(&["borders"], &[("ADMA_CHANNELS", "8")], 200);
}

#[test]
fn every_pair_of_bytes_and_characters_is_answered_as_libc_does() {
    succeed(plain(victim("compare")).arg("values"));
    engine_compares_right(&["values"], &[], 4000);
}

#[test]
fn four_threads_at_once_compare_right() {
    engine_compares_right(&["threads"], &[], 10);
}

#[test]
fn as_shipped_compares_right() {
    for mode in ["lengths", "borders", "values", "threads", "fault", "behind", "unhandled"] {
        succeed(preloaded(victim("compare")).arg(mode));
    }
}

/// The fault comes in the calling thread, at the bad page.
#[test]
fn bad_page_behind_no_difference_faults_in_the_caller() {
    succeed(plain(victim("compare")).arg("fault"));
    for share in ["auto", "0"] {
        engine_compares_right(&["fault"], &[("ADMA_CPU_SHARE", share)], 30);
    }
}

/// Workers read ahead and meet it; the program never does, for libc would not have read so far.
#[test]
fn bad_page_behind_a_difference_is_nobodys() {
    succeed(plain(victim("compare")).arg("behind"));
    for share in ["auto", "0"] {
        engine_compares_right(&["behind"], &[("ADMA_CPU_SHARE", share)], 40);
    }
    // With half of it the caller's, workers are at the page before the difference is known.
    let met = |_| {
        let reports = statistics(compare(&["behind"]).env("ADMA_CPU_SHARE", "0.5"));
        number(&reports[0]["fallbacks"]["fault"]) > 0
    };
    assert!((0..20).any(met), "nobody met one");
}

#[test]
fn bad_page_without_a_handler_ends_the_program_as_without_us() {
    succeed(plain(victim("compare")).arg("unhandled"));
    for share in ["auto", "0"] {
        succeed(compare(&["unhandled"]).env("ADMA_CPU_SHARE", share));
    }
}

/// Of 64 MiB that differ in the second one, little more than that is compared.
#[test]
fn difference_cancels_what_lies_behind_it() {
    let report = only_report(&mut compare(&["cancel"]));
    assert_eq!(report["paths"]["engine"]["calls"], 20, "{report}");
    let bytes = report["channel_bytes"].as_object().unwrap().values().map(number).sum::<u64>();
    // Twenty times 1 MiB, and what four had begun when one found the difference.
    assert!(bytes < 20 * (4 << 20), "{bytes} of {report}");
}

#[test]
fn difference_in_the_first_kilobytes_calls_nobody() {
    let mut command = preloaded(victim("compare"));
    let report = only_report(command.args(["early"]).env("ADMA_OPS", OPS));
    assert_eq!(report["paths"]["engine"]["calls"], 0, "{report}");
    // Two differ in their very first bytes, which are libc's as if we were not there.
    assert_eq!(report["fallbacks"]["early"], 58, "{report}");
}

#[test]
fn length_beyond_all_memory_is_answered_by_the_first_difference() {
    succeed(plain(victim("compare")).arg("enormous"));
    succeed(&mut compare(&["enormous"]));
    succeed(preloaded(victim("compare")).arg("enormous"));
}

#[test]
fn every_function_at_the_threshold_is_carried_and_below_it_is_not() {
    for name in FUNCTIONS {
        let run = |size: &str, ops: &str| {
            let mut command = compare(&["calls", name, "5", size]);
            command.env("ADMA_PROFILE", "1");
            statistics(command.env("ADMA_MIN_BYTES", "64K").env("ADMA_OPS", ops))
        };
        let at = run("65536", OPS);
        assert_eq!(carried(&at), 5, "{name}: {at:?}");
        assert_eq!(at[0]["paths"]["engine"]["bytes"], 5 * 65536, "{name}: {at:?}");
        let profiled = number(&at[0]["profile"]["functions"][name]["calls"]);
        assert!(profiled >= 5, "{name}: {at:?}");
        assert_eq!(carried(&run("65532", OPS)), 0, "{name}");
        assert_eq!(carried(&run("65536", "memcpy")), 0, "{name}");
    }
}
