//! Faults and signals: output and end of a program are compared with those of a run without the
//! library.

use super::{Folder, Value, finish, plain, preloaded, skip_this, text, victim};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};

/// Shares of the caller; with 0 it leaves as much as it can to the workers, which then meet the bad
/// page first.
pub const CPU_SHARES: [&str; 2] = ["auto", "0"];

/// Setting with which the caller streams without help, from 1 MiB up.
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

/// Runs to any end and returns the statistics as well, if an exit has written them. Children that
/// have made copies report first.
pub fn finish_with_report(command: &mut Command) -> (Output, Option<Value>) {
    let folder = Folder::new("faults");
    let file = folder.join("report.json");
    let done = finish(command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", &file));
    let report = std::fs::read_to_string(&file).ok().map(|text| {
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).unwrap_or_else(|error| panic!("{command:?}: {error}: {text}"))
    });
    (done, report)
}

/// Returns how a process ended and its output.
pub fn outcome(done: &Output) -> (Option<i32>, Option<i32>, String, String) {
    (done.status.code(), done.status.signal(), text(&done.stdout), text(&done.stderr))
}

/// Returns the outcome without the library; `None`: skipped, because it cannot be shown here.
pub fn without_us(program: &str, arguments: &[&str]) -> Option<Output> {
    let done = finish(plain(victim(program)).args(arguments));
    if done.status.code() == Some(super::CANNOT_BE_SHOWN) {
        skip_this(text(&done.stderr).trim());
        return None;
    }
    assert_ne!(done.status.code(), Some(1), "without the library: {:?}", outcome(&done));
    Some(done)
}

/// Checks that copies were carried, and that no slot is left claimed, which makes the engine busy
/// for a single caller.
pub fn expect_carried(report: &Value, at_least: u64, what: &str) {
    let carried = super::number(&report["paths"]["engine"]["calls"]);
    assert!(carried >= at_least, "{what}: {report}");
    assert_eq!(report["fallbacks"]["busy"], 0, "{what}: {report}");
}
