//! preload.sh as its users meet it: what reaches the program, when it
//! builds, and what it says when something is missing.
//!
//! Every test has a checkout of its own, with library and command already built and a cargo that
//! compiles nothing first in PATH.

mod building;
mod checkout;
#[path = "../common/mod.rs"]
mod common;
mod place;
mod program;
mod telling;

use checkout::{BUILD, Checkout};
use common::{
    copy_program, executable, finish, library, plain, root, scratch, skip, succeed, text, victim,
    victim_with,
};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};

const SIGTERM: i32 = 15;

/// Fails for a reason of preload.sh's own: the status, one line on stderr that names `what`,
/// and nothing on stdout.
fn refuses(command: &mut Command, status: i32, what: &str) {
    let done = finish(command);
    let err = text(&done.stderr);
    assert_eq!(done.status.code(), Some(status), "{command:?}: {err}");
    assert_eq!(err.lines().count(), 1, "{command:?}: one line: {err}");
    assert!(err.starts_with("preload.sh: ") && err.contains(what), "{command:?}: {err}");
    assert_eq!(text(&done.stdout), "", "{command:?}");
}

/// What a program that lists its own mappings has loaded of us.
fn loaded(command: &mut Command) -> Vec<String> {
    let (maps, _) = succeed(command.args(["cat", "/proc/self/maps"]));
    let mut found: Vec<String> = maps
        .lines()
        .filter_map(|line| line.find('/').map(|at| line[at..].to_owned()))
        .filter(|path| path.contains("libadma"))
        .collect();
    found.dedup();
    found
}

/// Runs a victim that makes three copies of 1 MB; returns the JSON report from stderr.
fn report_of(command: &mut Command) -> Value {
    let (out, err) = succeed(command.arg(victim("stats_copies")).args(["memcpy", "1000000", "3"]));
    assert_eq!(out, "3000000 bytes copied\n");
    serde_json::from_str(&err).unwrap_or_else(|e| panic!("{command:?}: {e}: {err}"))
}

fn copying(command: &mut Command) -> Output {
    finish(command.arg(victim("stats_copies")).args(["memcpy", "1000000", "3"]))
}
