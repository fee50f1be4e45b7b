//! For the traps_ tests: every trap of interposing memcpy as a program that falls into it.
//!
//! Each victim runs three times: without the library (a victim that fails there
//! proves nothing), with the knobs a user has who sets none, and with a fixed
//! threshold, where copies are certainly offloaded.

use super::{finish, plain, preloaded, skip, statistics, succeed, victim_with};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a victim exits with when its trap cannot be shown on this machine.
pub const CANNOT_SHOW: i32 = 77;

/// Workers whatever the machine, enough of them that several copies are carried at once,
/// and a threshold that every large copy of the victims passes.
pub fn fixed(command: &mut Command) -> &mut Command {
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "4").env("TRAP_WORKERS", "1")
}

/// Without the library. False: skipped, since the trap cannot be shown here.
pub fn can_be_shown(test: &str, command: &mut Command) -> bool {
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
pub fn survives(test: &str, program: &Path, args: &[&str]) -> Option<Vec<Value>> {
    if !can_be_shown(test, plain(program).args(args)) {
        return None;
    }
    let (_, complaints) = succeed(preloaded(program).args(args));
    assert_eq!(complaints, "", "nothing is written unasked");
    Some(statistics(fixed(preloaded(program).args(args))))
}

/// The three runs, each with these lines on stdout.
pub fn says(program: &Path, args: &[&str], lines: &[&str]) {
    let expected: String = lines.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(succeed(plain(program).args(args)).0, expected, "without the library");
    assert_eq!(succeed(preloaded(program).args(args)).0, expected, "with default knobs");
    let mut reporting = preloaded(program);
    let (said, _) = succeed(fixed(reporting.args(args)).env("ADMA_STATS", "text"));
    assert_eq!(said, expected, "with a fixed threshold and a report on stderr");
}

pub fn engine_calls(process: &Value) -> u64 {
    process["paths"]["engine"]["calls"].as_u64().expect("paths.engine.calls")
}

pub fn engine_bytes(process: &Value) -> u64 {
    process["paths"]["engine"]["bytes"].as_u64().expect("paths.engine.bytes")
}

pub fn offloaded(processes: &[Value]) -> u64 {
    processes.iter().map(engine_calls).sum()
}

/// For victims whose copies must really have gone over the channels.
pub fn survives_offloaded(test: &str, program: &Path, args: &[&str]) {
    if let Some(processes) = survives(test, program, args) {
        assert!(offloaded(&processes) > 0, "nothing was offloaded: {processes:?}");
    }
}

/// For victims that have no right, or no descriptor, to write a report.
pub fn survives_unreported(test: &str, program: &Path, args: &[&str]) {
    if can_be_shown(test, plain(program).args(args)) {
        succeed(preloaded(program).args(args));
        assert_eq!(succeed(fixed(preloaded(program).args(args))).1, "", "quietly");
    }
}

/// One test per victim: `name: "victim" "argument";`, after the function that judges it.
macro_rules! victims {
    ($judge:ident: $($name:ident: $victim:literal $($arg:literal)*;)*) => {
        $(
            #[test]
            fn $name() {
                let program = $crate::common::victim($victim);
                $crate::common::traps::$judge(stringify!($name), &program, &[$($arg),*]);
            }
        )*
    };
}

pub(crate) use victims;

pub fn a_library(name: &str) -> PathBuf {
    victim_with(name, &["-shared", "-fPIC", "-Wl,-z,now"])
}

/// A program that is linked with one of our libraries.
pub fn linked(name: &str, with: &Path) -> PathBuf {
    let place = format!("-Wl,-rpath,{}", with.parent().unwrap().display());
    victim_with(name, &["-Wl,--no-as-needed", with.to_str().unwrap(), &place])
}
