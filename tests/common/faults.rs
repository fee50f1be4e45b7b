//! For tests of faults and signals: what a victim sees and how it ends is compared with a run
//! without the library.

use super::{finish, plain, preloaded, scratch, skip, text, victim};
use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

const CANNOT_BE_SHOWN: i32 = 77;

/// With a share of 0 the caller leaves all it can to the workers: then it is they who meet
/// the bad page first.
pub const CPU_SHARES: [&str; 2] = ["auto", "0"];

/// The caller streams without help. Only copies from 1 MiB up, the others are libc's.
pub const ALONE: &str = "alone";

pub fn offloading(program: &str, share: &str) -> Command {
    if share == ALONE {
        let mut command = preloaded("taskset");
        command.args(["-c", "0"]).arg(victim(program));
        command.env("ADMA_MIN_BYTES", "64K").env("ADMA_STORES", "stream");
        return command;
    }
    let mut command = preloaded(victim(program));
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "3").env("ADMA_CPU_SHARE", share);
    command
}

/// Runs to any end and returns the statistics as well, where there was an exit to write them.
/// Children report too; the program itself does so last.
pub fn finish_with_report(command: &mut Command) -> (Output, Option<Value>) {
    let folder = scratch("faults");
    let file = folder.join("report.json");
    let done = finish(command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", &file));
    // Children that have made copies report as well, before the one that waits for them.
    let report = std::fs::read_to_string(&file).ok().map(|text| {
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{command:?}: {error}: {text}"))
    });
    std::fs::remove_dir_all(&folder).unwrap();
    (done, report)
}

/// How a process ended and what it said.
pub fn outcome(done: &Output) -> (Option<i32>, Option<i32>, String, String) {
    (done.status.code(), done.status.signal(), text(&done.stdout), text(&done.stderr))
}

/// What the victim does without the library, or nothing where it cannot be shown here.
pub fn without_us(test: &str, program: &str, arguments: &[&str]) -> Option<Output> {
    let done = finish(plain(victim(program)).args(arguments));
    if done.status.code() == Some(CANNOT_BE_SHOWN) {
        skip(test, text(&done.stderr).trim());
        return None;
    }
    Some(done)
}

/// Succeeds without the library and with it.
pub fn succeeds_as_without_us(test: &str, program: &str) {
    let Some(without) = without_us(test, program, &[]) else { return };
    assert!(without.status.success(), "without the library: {:?}", outcome(&without));
    for share in CPU_SHARES {
        let (with, report) = finish_with_report(&mut offloading(program, share));
        assert!(with.status.success(), "share {share}: {:?}", outcome(&with));
        let report = report.expect("a report");
        assert!(report["paths"]["engine"]["calls"].as_u64().unwrap() > 0, "{report}");
    }
}
