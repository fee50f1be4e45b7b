//! The command adma as it is installed: its options, where it finds its library, what the program
//! inherits, what it says of programs that cannot be helped, and its reports in a browser.
//!
//! What preload.sh has in common with it is tested in tests/preload.

mod bench;
#[path = "../common/mod.rs"]
mod common;
mod help;
mod options;
mod place;
mod program;
mod report;
mod warnings;

use common::{
    command, copy_program, executable, finish, found, is_root, library, plain, preloaded, root,
    scratch, skip, statistics, succeed, text, victim, victim_with,
};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The command of the source tree, with no knob of ours inherited.
fn adma() -> Command {
    plain(command())
}
