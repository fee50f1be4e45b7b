//! memset and its relatives: every value and length right by every way, faults the caller's, and
//! what is large is carried.

mod common;

use common::{finish, number, plain, preloaded, statistics, succeed, victim};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

const OPS: &str = "memset,memset_chk,bzero,wmemset";
const FUNCTIONS: [&str; 4] = ["memset", "memset_chk", "bzero", "wmemset"];

/// Everything is shared that can be.
fn fill(arguments: &[&str]) -> Command {
    let mut command = preloaded(victim("fill"));
    command.args(arguments).env("ADMA_MIN_BYTES", "1").env("ADMA_CHANNELS", "3");
    command.env("ADMA_OPS", OPS);
    command
}

fn carried(reports: &[Value]) -> u64 {
    reports.iter().map(|report| number(&report["paths"]["engine"]["calls"])).sum()
}

fn engine_fills_right(arguments: &[&str], knobs: &[(&str, &str)], at_least: u64) {
    let reports = statistics(fill(arguments).envs(knobs.iter().copied()));
    assert!(carried(&reports) >= at_least, "{arguments:?} {knobs:?}: {reports:?}");
}

#[test]
fn every_value_fills_right_with_every_loop() {
    for stores in ["ordinary", "stream"] {
        engine_fills_right(&["values"], &[("ADMA_STORES", stores)], 900);
    }
}

#[test]
fn every_length_fills_right_with_every_loop_and_share() {
    succeed(plain(victim("fill")).arg("lengths"));
    for stores in ["ordinary", "stream"] {
        for share in ["auto", "0", "0.5", "1"] {
            let knobs = [("ADMA_STORES", stores), ("ADMA_CPU_SHARE", share)];
            engine_fills_right(&["lengths"], &knobs, 400);
        }
    }
}

#[test]
fn random_seed_fills_right() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos().to_string();
    engine_fills_right(&["lengths", &seed], &[], 400);
}

#[test]
fn memory_never_touched_is_filled_right() {
    engine_fills_right(&["fresh"], &[], 5);
    engine_fills_right(&["fresh"], &[("ADMA_CHANNELS", "8")], 5);
}

#[test]
fn four_threads_at_once_fill_right() {
    engine_fills_right(&["threads"], &[], 10);
}

#[test]
fn as_shipped_fills_right() {
    for mode in ["values", "lengths", "fresh", "threads"] {
        succeed(preloaded(victim("fill")).arg(mode));
    }
}

/// The fault comes in the calling thread, at the bad page, and nobody writes after it.
#[test]
fn bad_page_faults_in_the_caller_and_nobody_fills_on() {
    succeed(plain(victim("fill")).arg("fault"));
    for stores in ["ordinary", "stream"] {
        engine_fills_right(&["fault"], &[("ADMA_STORES", stores)], 28);
    }
}

#[test]
fn checked_fill_with_too_little_room_aborts_as_without_us() {
    let without = finish(plain(victim("fill")).args(["checked", "299999"]));
    let with = finish(&mut fill(&["checked", "299999"]));
    assert_eq!(without.status.signal(), Some(6));
    assert_eq!((with.status, &with.stderr), (without.status, &without.stderr));
    succeed(&mut fill(&["checked", "300000"]));
}

#[test]
fn every_function_at_the_threshold_is_carried_and_below_it_is_not() {
    for name in FUNCTIONS {
        let run = |size: &str, ops: &str| {
            let mut command = fill(&["calls", name, "5", size]);
            statistics(command.env("ADMA_MIN_BYTES", "64K").env("ADMA_OPS", ops))
        };
        let at = run("65536", OPS);
        assert_eq!(carried(&at), 5, "{name}: {at:?}");
        assert_eq!(carried(&run("65532", OPS)), 0, "{name}");
        assert_eq!(carried(&run("65536", "memcpy")), 0, "{name}");
    }
}
