//! `adma program`, with one report for the program and all its descendants.
//!
//! This process stays, as the parent of the program, until the program has ended, so that the
//! report includes processes that were killed. It behaves as if it were the program (see `job`).
//! With `--quiet` or `--each` it becomes the program.

use crate::job::{End, Signals};
use crate::live_files::{self, LiveProcess, State};
use crate::options::{self, Options};
use crate::program;
use crate::report::process::FLOOR;
use crate::report::{Process, Report, Run, text};
use crate::say;
use crate::watch::Watch;
use adma_shared::knobs;
use adma_shared::units::Bytes;
use rustix::process::{Signal, set_parent_process_death_signal};
use std::io::IsTerminal;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Runs the program, reports, and ends as it has ended. Returns only where no files can be kept,
/// with the reason, and nothing has been done.
pub fn run(program: &Path, options: &Options) -> String {
    let tree = match live_files::make_tree() {
        Ok(tree) => tree,
        Err(why) => return why,
    };
    options::set("ADMA_LIVE", tree.as_os_str());
    options::set("ADMA_STATS", "off".as_ref());
    let begun = Instant::now();
    let signals = Signals::held();
    // SAFETY: this process has one thread; the child only executes.
    let child = unsafe { libc::fork() };
    if child == 0 {
        signals.as_found();
        // The program does not outlive a command that is killed, as it would not without us.
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        program::become_program(program, options.words.clone());
    }
    if child < 0 {
        signals.as_found();
        live_files::remove_tree(&tree);
        return "no process could be made".to_owned();
    }
    let mut watch = Watch::default();
    let end = signals.wait_for(child, || watch.look_in(&tree));
    let seen = watch.seen;
    let seconds = begun.elapsed().as_secs_f64();
    let mut processes = live_files::in_folder(&tree, false);
    let not_kept = not_kept(&tree);
    live_files::remove_tree(&tree);
    processes.retain(LiveProcess::counted);
    signals.before_writing();
    let words: Vec<_> = options.words.iter().map(|word| word.to_string_lossy()).collect();
    let run =
        Run { command: say::printable(&words.join(" ")), seconds, end: end.to_string(), not_kept };
    let (mut report, is_empty) = (Report::new(Some(run)), processes.is_empty());
    for process in processes {
        let end = ended(&process, child, end);
        let lines = seen.get(&process.path);
        report.add(Process::of_live(process, end, lines));
    }
    let report = report.finish();
    let page = options.html.as_ref().map(|path| report.write_page(path));
    let json = options.json.as_ref().map(|path| report.write_json(path));
    for why in [page, json].into_iter().flatten().filter_map(Result::err) {
        say::say(why);
    }
    let mut text = match is_empty {
        true if report.not_kept().is_some() => String::new(),
        true => nothing(),
        false => say::in_locale(text::of(&report)),
    };
    if let Some(why) = report.not_kept() {
        text += &format!("adma: not known in full: {why}; each process reports for itself\n");
    }
    // One write, so that it does not mix with lines of others. There is no place to report a failure.
    let _ = std::io::stderr().write_all(text.as_bytes());
    signals.end_as(end)
}

/// Returns why the statistics of processes are missing, if some could not keep theirs.
fn not_kept(tree: &Path) -> Option<String> {
    let processes = live_files::not_kept(tree);
    let place = tree.parent().unwrap_or(tree);
    let why = match live_files::room_for_file(tree) {
        Err(error) => say::about(place, &error),
        Ok(()) => format!("{}: no room, or of another version", place.display()),
    };
    let plural = if processes == 1 { "" } else { "es" };
    (processes > 0)
        .then(|| format!("statistics of {processes} process{plural} could not be kept ({why})"))
}

/// Returns the line for a terminal when no process made a large copy or sent a message.
fn nothing() -> String {
    let fixed = std::env::var("ADMA_MIN_BYTES").ok().and_then(|value| knobs::size(&value));
    let floor = Bytes(fixed.map_or(FLOOR, |bytes| bytes as u64));
    match std::io::stderr().is_terminal() {
        true => format!("adma: no call of {floor} or more was recorded\n"),
        false => String::new(),
    }
}

/// Returns how a process has ended, as far as it has reported that or is our child.
fn ended(process: &LiveProcess, child: i32, end: End) -> String {
    let status = |how: &str, status: Option<i32>| match status {
        Some(status) => format!("{how} {status}"),
        None => how.to_owned(),
    };
    let is_child = process.pid == child;
    match (process.state, end) {
        (State::Replaced, _) => "became another program".into(),
        (_, end) if is_child => end.to_string(),
        (State::Running, _) => "still runs".into(),
        (State::Elsewhere, _) => "not known".into(),
        (State::Exited(code), _) => status("exit", code),
        (State::Left(code), _) => status("_exit", code),
        (State::Aborted, _) => "aborted".into(),
        (State::Killed, _) => "killed".into(),
    }
}

/// Returns whether this process is inside the tree of another command, which reports.
pub fn is_inside_another() -> bool {
    std::env::var_os("ADMA_LIVE").is_some_and(|path| PathBuf::from(path).is_dir())
}
