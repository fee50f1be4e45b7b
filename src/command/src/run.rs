//! `adma program`: finds the program, says what keeps it from being helped, and becomes it, unless
//! there is to be one report for all its processes (see `tree`).
//!
//! The program takes this process over: its number, its descriptors, its signals and its exit
//! status are what they would be without us.

use crate::options::{self, Options};
use crate::say::{self, fail};
use crate::{library, obstacle, program, tree};
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// What the library writes at exit if nobody has said anything.
const REPORT: &str = "text";

pub fn run(options: Options) -> ! {
    options::check_environment();
    let found = program::find(&options.words[0]).unwrap_or_else(|(status, why)| {
        let name = say::printable(&options.words[0].to_string_lossy());
        fail(status, format_args!("{name}: {why}"))
    });
    let obstacle = obstacle::of(&found);
    if let Some(obstacle) = &obstacle
        && !options.quiet
        && std::env::var_os("ADMA_LOG").is_none_or(|level| level != "error")
    {
        say::say(obstacle);
    }
    // To no purpose, and some loaders would complain.
    if obstacle.is_none_or(|obstacle| !obstacle.refuses_preloading()) {
        options::set("LD_PRELOAD", &preload_with(&library::preloadable(library::find())));
        report(&options, &found);
    }
    program::become_program(&found, options.words)
}

/// One report for all processes, where nobody wants something else. Returns where each process
/// reports for itself, or none does.
fn report(options: &Options, program: &Path) {
    let is_set = |knob| std::env::var_os(knob).is_some();
    if is_set("ADMA_STATS") || tree::is_inside_another() {
        return;
    }
    if !options.each && !["ADMA_STATS_FILE", "ADMA_PROFILE", "ADMA_LIVE"].into_iter().any(is_set) {
        tree::run(program, &options.words);
    }
    options::set("ADMA_STATS", REPORT.as_ref());
}

/// LD_PRELOAD with our library behind what is there already: AddressSanitizer, for one, insists
/// on being first.
pub fn preload_with(library: &Path) -> OsString {
    let before = preload_without(library);
    if before.is_empty() {
        return library.as_os_str().to_owned();
    }
    options::joined(&before, ":", library.as_os_str())
}

/// LD_PRELOAD as it would be without us: adma may run within adma.
pub fn preload_without(library: &Path) -> OsString {
    let found = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let separator = |byte: &u8| byte.is_ascii_whitespace() || *byte == b':';
    let others = found.as_bytes().split(separator);
    let others: Vec<&[u8]> =
        others.filter(|one| !one.is_empty() && *one != library.as_os_str().as_bytes()).collect();
    OsString::from_vec(others.join(&b':'))
}
