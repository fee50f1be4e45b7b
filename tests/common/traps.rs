//! Pitfalls of interposing memcpy: a program for each, run three times: without the library (a
//! program that fails there proves nothing), with no knob set, and with a fixed threshold, where
//! copies are certainly offloaded.

use super::{Folder, Value, library, plain, preloaded, shown, statistics, succeed, victim_with};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sets enough workers on any machine to carry several copies at once, and a threshold below every
/// large copy of the programs.
pub fn fixed(command: &mut Command) -> &mut Command {
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "4").env("TRAP_WORKERS", "1")
}

/// Splits a program of tests/programs from its arguments.
fn split(words: &str) -> (PathBuf, Vec<&str>) {
    let mut words = words.split(' ');
    (super::victim(words.next().unwrap()), words.collect())
}

/// Expects copies over the channels in the third run.
pub fn survives_offloaded(words: &str) {
    let (program, args) = split(words);
    program_survives_offloaded(&program, &args);
}

/// Returns the statistics of the third run, or nothing when skipped.
pub fn survives(words: &str) -> Option<Vec<Value>> {
    let (program, args) = split(words);
    program_survives(&program, &args)
}

fn program_survives(program: &Path, args: &[&str]) -> Option<Vec<Value>> {
    shown(plain(program).args(args))?;
    let (_, complaints) = succeed(preloaded(program).args(args));
    assert_eq!(complaints, "", "nothing is written unasked");
    Some(statistics(fixed(preloaded(program).args(args))))
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

pub fn program_survives_offloaded(program: &Path, args: &[&str]) {
    if let Some(processes) = program_survives(program, args) {
        assert!(offloaded(&processes) > 0, "nothing was offloaded: {processes:?}");
    }
}

/// Like `survives`, for programs that have no right, or no descriptor, to write a report.
pub fn survives_unreported(words: &str) {
    let (program, args) = split(words);
    if shown(plain(&program).args(&args)).is_some() {
        succeed(preloaded(&program).args(&args));
        assert_eq!(succeed(fixed(preloaded(&program).args(&args))).1, "", "quietly");
    }
}

/// Like `survives_unreported`, for programs without use for a run with default knobs.
pub fn survives_fixed(words: &str) {
    let (program, args) = split(words);
    if shown(plain(&program).args(&args)).is_some() {
        succeed(fixed(preloaded(&program).args(&args)));
    }
}

pub fn a_library(name: &str, flags: &[&str]) -> PathBuf {
    victim_with(name, &[&["-shared", "-fPIC", "-Wl,-z,now"], flags].concat())
}

/// Compiles a program that is linked with a library.
pub fn linked(name: &str, with: &Path) -> PathBuf {
    let place = format!("-Wl,-rpath,{}", with.parent().unwrap().display());
    victim_with(name, &["-Wl,--no-as-needed", with.to_str().unwrap(), &place])
}

/// Returns our library and another one, in both orders of LD_PRELOAD.
pub fn both_orders(other: &Path) -> [String; 2] {
    let (ours, other) = (library().display().to_string(), other.display().to_string());
    [format!("{ours}:{other}"), format!("{other}:{ours}")]
}

/// Returns a program under strace, preloaded if wanted, and its log.
pub fn traced(option: &str, preload: bool, folder: &Folder) -> (Command, PathBuf) {
    let log = folder.join("log");
    let mut command = plain("strace");
    command.args(["-f", "-e", option, "-o"]).arg(&log);
    if preload {
        command.args(["-E", &format!("LD_PRELOAD={}", library().display())]);
    }
    (command, log)
}

/// Checks that a program copies right and offloaded beside another preloaded library, in both
/// orders. Returns the number of reports of each run.
pub fn survives_beside(program: &Path, other: &Path) -> [usize; 2] {
    succeed(plain(program).env("LD_PRELOAD", other));
    both_orders(other).map(|order| {
        succeed(preloaded(program).env("LD_PRELOAD", &order));
        let processes = statistics(fixed(&mut preloaded(program)).env("LD_PRELOAD", &order));
        assert!(offloaded(&processes) > 0, "LD_PRELOAD={order}");
        processes.len()
    })
}
