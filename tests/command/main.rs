//! The command adma: its options, where it finds its library, what the program inherits, what it
//! says of programs that cannot be helped, its reports in a browser; and preload.sh, which builds it.

mod bench;
mod building;
mod checkout;
#[path = "../common/mod.rs"]
mod common;
mod help;
mod moments;
mod options;
mod place;
mod program;
mod report;
mod warnings;

use adma_shared::knobs::{FORMATS, KNOBS};
use common::{
    Folder, command, copy_program, executable, finish, found, has, is_root, library, needs, plain,
    preloaded, root, scratch, skip_this, statistics, succeed, text, victim, victim_with,
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
