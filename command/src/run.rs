//! `adma program`: finds the program, warns of obstacles, and becomes it, unless there is to be one
//! report for all its processes (see `tree`).
//!
//! The program takes this process over: its number, its descriptors, its signals and its exit
//! status are what they would be without us.

use crate::options::{self, Options};
use crate::say::{self, FAILED, fail};
use crate::{SUBCOMMANDS, library, live_files, obstacle, program, tree};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Report of the library at exit by default.
const REPORT: &str = "text";

pub fn run(options: Options) -> ! {
    options::check_environment();
    let found = program::named(&options.words[0], &SUBCOMMANDS.map(|known| known.name));
    let obstacle = obstacle::of(&found);
    if let Some(obstacle) = &obstacle
        && !options.quiet
        && std::env::var_os("ADMA_LOG").is_none_or(|level| level != "error")
    {
        say::say(obstacle);
    }
    let backend = std::env::var_os("ADMA_BACKEND").filter(|_| !options.quiet).unwrap_or_default();
    match backend.to_str() {
        Some("gpu") => complain_about_card(),
        Some("dma" | "ioat") => complain_about_helper(),
        _ => {}
    }
    // Useless otherwise, and some loaders would complain.
    if obstacle.is_none_or(|obstacle| !obstacle.refuses_preloading()) {
        options::set("LD_PRELOAD", &preload_with(&library::preloadable(library::find())));
        report(&options, &found);
    }
    program::become_program(&found, options.words)
}

/// Makes one report for all processes, by default. Returns if each process reports for itself, or
/// none does.
fn report(options: &Options, program: &Path) {
    let is_set = |knob| std::env::var_os(knob).is_some();
    let files = [("--html", &options.html), ("--json", &options.json)];
    let mut wanted = files.into_iter().filter_map(|(option, file)| Some((option, file.as_ref()?)));
    for (_, file) in wanted.clone() {
        say::writable(file).unwrap_or_else(|why| fail(FAILED, why));
    }
    if let Some((option, _)) = wanted.next() {
        let why = tree::run(program, options);
        fail(FAILED, format_args!("{option}: no folder for live statistics ({why}); see adma(1)"));
    }
    if let Some(Err(why)) = folder_of_user().map(|folder| live_files::usable(&folder)) {
        if !options.quiet {
            say::say(format_args!("warning: no live statistics in {why}"));
        }
        // The report is made as if it were not set, and no process says so again.
        options::set("ADMA_LIVE", "auto".as_ref());
    }
    if is_set("ADMA_STATS") || tree::is_inside_another() {
        return;
    }
    if !options.each && !is_set("ADMA_STATS_FILE") && folder_of_user().is_none() {
        tree::run(program, options);
    }
    options::set("ADMA_STATS", REPORT.as_ref());
}

/// Returns the folder of ADMA_LIVE, if the user has set one and it exists.
fn folder_of_user() -> Option<PathBuf> {
    std::env::var_os("ADMA_LIVE").map(PathBuf::from).filter(|path| path.is_dir())
}

/// Warns once why a graphics card that was asked for cannot serve any of the processes.
fn complain_about_card() {
    // SAFETY: a terminated name; the driver is only opened, as the library would.
    if unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY) }.is_null() {
        say::say("warning: no GPU: no libcuda.so.1 that could be opened; worker threads serve");
    }
}

/// Warns once that the kernel helper that was asked for is missing. Processes whose report is made
/// here do not.
fn complain_about_helper() {
    let why = match std::fs::File::open("/dev/adma").map_err(|error| error.kind()) {
        Ok(_) => return,
        Err(ErrorKind::PermissionDenied) => "no permission for /dev/adma (join the group adma)",
        Err(_) => "no /dev/adma (load the kernel helper, see adma(7))",
    };
    say::say(format_args!("warning: {why}; using threads"));
}

/// Returns LD_PRELOAD with our library appended: AddressSanitizer, for one, insists on being first.
pub fn preload_with(library: &Path) -> OsString {
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    if before.as_bytes().split(separates).any(|one| one == library.as_os_str().as_bytes()) {
        return before; // adma within adma
    }
    match before.is_empty() {
        true => library.as_os_str().to_owned(),
        false => [&*before, library.as_os_str()].join(OsStr::new(":")),
    }
}

/// Returns LD_PRELOAD without our library.
pub fn preload_without(library: &Path) -> OsString {
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let ours = library.as_os_str().as_bytes();
    let others = before.as_bytes().split(separates).filter(|one| *one != ours);
    OsString::from_vec(others.collect::<Vec<_>>().join(&b':'))
}

/// Returns whether the loader splits LD_PRELOAD at a byte.
fn separates(byte: &u8) -> bool {
    byte.is_ascii_whitespace() || *byte == b':'
}
