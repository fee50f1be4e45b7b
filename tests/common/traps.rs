//! Traps of interposing memcpy: programs that fall into one, each run three times: without the
//! library (a program that fails there proves nothing), with no knob set, and with a fixed threshold,
//! where copies are certainly offloaded.

use super::{Value, plain, preloaded, shown, statistics, succeed, victim_with};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Enough workers on any machine to carry several copies at once, and a threshold that every large
/// copy of the programs passes.
pub fn fixed(command: &mut Command) -> &mut Command {
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "4").env("TRAP_WORKERS", "1")
}

/// Returns the statistics of the third run, or nothing when skipped.
pub fn survives(test: &str, program: &Path, args: &[&str]) -> Option<Vec<Value>> {
    shown(test, plain(program).args(args))?;
    let (_, complaints) = succeed(preloaded(program).args(args));
    assert_eq!(complaints, "", "nothing is written unasked");
    Some(statistics(fixed(preloaded(program).args(args))))
}

/// Expects these lines on stdout in each run.
pub fn says(program: &Path, args: &[&str], lines: &[&str]) {
    let expected: String = lines.iter().map(|line| format!("{line}\n")).collect();
    assert_eq!(succeed(plain(program).args(args)).0, expected, "without the library");
    assert_eq!(succeed(preloaded(program).args(args)).0, expected, "with default knobs");
    let mut reporting = preloaded(program);
    let (said, _) = succeed(fixed(reporting.args(args)).env("ADMA_STATS", "text"));
    assert_eq!(said, expected, "with a fixed threshold and a report on stderr");
}

pub fn engine_calls(process: &Value) -> u64 {
    super::number(&process["paths"]["engine"]["calls"])
}

pub fn engine_bytes(process: &Value) -> u64 {
    super::number(&process["paths"]["engine"]["bytes"])
}

pub fn offloaded(processes: &[Value]) -> u64 {
    processes.iter().map(engine_calls).sum()
}

/// Expects copies over the channels in the third run.
pub fn survives_offloaded(test: &str, program: &Path, args: &[&str]) {
    if let Some(processes) = survives(test, program, args) {
        assert!(offloaded(&processes) > 0, "nothing was offloaded: {processes:?}");
    }
}

/// For programs that have no right, or no descriptor, to write a report.
pub fn survives_unreported(test: &str, program: &Path, args: &[&str]) {
    if shown(test, plain(program).args(args)).is_some() {
        succeed(preloaded(program).args(args));
        assert_eq!(succeed(fixed(preloaded(program).args(args))).1, "", "quietly");
    }
}

/// For programs that have neither that right nor use for a run with default knobs.
pub fn survives_fixed(test: &str, program: &Path, args: &[&str]) {
    if shown(test, plain(program).args(args)).is_some() {
        succeed(fixed(preloaded(program).args(args)));
    }
}

/// One test for each row: `name: "program argument";`, after the function that judges it.
macro_rules! victims {
    ($judge:ident: $($name:ident: $words:literal;)*) => {
        $(
            #[test]
            fn $name() {
                let mut words = $words.split(' ');
                let program = $crate::common::victim(words.next().unwrap());
                $crate::common::traps::$judge(stringify!($name), &program, &words.collect::<Vec<_>>());
            }
        )*
    };
}

pub(crate) use victims;

pub fn a_library(name: &str, flags: &[&str]) -> PathBuf {
    victim_with(name, &[&["-shared", "-fPIC", "-Wl,-z,now"], flags].concat())
}

/// A program that is linked with a library.
pub fn linked(name: &str, with: &Path) -> PathBuf {
    let place = format!("-Wl,-rpath,{}", with.parent().unwrap().display());
    victim_with(name, &["-Wl,--no-as-needed", with.to_str().unwrap(), &place])
}

/// Our library and another one, in both orders of LD_PRELOAD.
pub fn both_orders(other: &Path) -> [String; 2] {
    let (ours, other) = (super::library().display().to_string(), other.display().to_string());
    [format!("{ours}:{other}"), format!("{other}:{ours}")]
}
