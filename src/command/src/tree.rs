//! `adma program`, with one report for the program and all its descendants.
//!
//! This process stays, as the parent of the program, until the program has ended: somebody has to
//! be there to report what processes have counted that were killed. It behaves as if it were the
//! program (see `job`).
//!
//! Whoever wants the program to have this very process uses `--quiet` or `--each`.

use crate::job::{End, Signals};
use crate::knobs;
use crate::live::{self, LiveProcess, State};
use crate::options::{self, Options};
use crate::program;
use crate::report::chart::cut;
use crate::report::figures::Figures;
use crate::report::{Report, Run, text};
use crate::say;
use crate::stats::live::Recorder;
use crate::stats::messages::MessageCounts;
use crate::stats::units::{Bytes, Time};
use crate::stats::{tables, worth};
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// What the library considers at least, unless that is fixed.
const FLOOR: usize = 256 << 10;
/// The processes that are named.
const NAMED: usize = 3;

/// Runs the program, reports, and ends as it has ended. Returns only where no files can be kept,
/// and nothing has been done.
pub fn run(program: &Path, options: &Options) {
    let Some(tree) = live::make_tree() else { return };
    options::set("ADMA_LIVE", tree.as_os_str());
    options::set("ADMA_STATS", "off".as_ref());
    let begun = Instant::now();
    let signals = Signals::held();
    // SAFETY: this process has one thread; the child only executes.
    let child = unsafe { libc::fork() };
    if child == 0 {
        signals.as_found();
        // The program does not outlive a command that is killed, as it would not without us.
        // SAFETY: changes what becomes of this process.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        program::become_program(program, options.words.clone());
    }
    if child < 0 {
        signals.as_found();
        live::remove_tree(&tree);
        return;
    }
    let end = signals.wait_for(child);
    let seconds = begun.elapsed().as_secs_f64();
    let mut processes = live::in_folder(&tree, false);
    live::remove_tree(&tree);
    processes.retain(LiveProcess::counted);
    signals.before_writing();
    let words: Vec<_> = options.words.iter().map(|word| word.to_string_lossy()).collect();
    let run = Run { command: say::printable(&words.join(" ")), seconds, end: end.to_string() };
    let whole = Report::of_live(&processes, run);
    if let Some(Err(why)) = options.html.as_ref().map(|path| whole.write_page(path)) {
        say::say(why);
    }
    let report = say::in_locale(report(processes, &whole.total, child, end, seconds));
    // One write, so that it does not mix with what others say. Nobody to tell if that fails.
    let _ = std::io::stderr().write_all(report.as_bytes());
    signals.end_as(end)
}

/// Where no process has made a large copy or sent a message, one line for a terminal.
fn report(
    mut processes: Vec<LiveProcess>,
    whole: &Figures,
    child: i32,
    end: End,
    seconds: f64,
) -> String {
    let mut out = String::new();
    if processes.is_empty() && std::io::stderr().is_terminal() {
        let fixed = std::env::var("ADMA_MIN_BYTES").ok().and_then(|value| knobs::size(&value));
        let floor = Bytes(fixed.unwrap_or(FLOOR) as u64);
        return format!("adma: no call of {floor} or more, nothing was carried\n");
    }
    processes.sort_by_key(|process| std::cmp::Reverse(process.all_bytes()));
    // A `String` takes everything.
    let _ = write_report(&processes, whole, child, end, seconds, &mut out);
    out
}

fn write_report(
    processes: &[LiveProcess],
    whole: &Figures,
    child: i32,
    end: End,
    seconds: f64,
    out: &mut String,
) -> std::fmt::Result {
    let Some(first) = processes.first() else { return Ok(()) };
    let scale = first.scale();
    let floor = first.live.facts.floor.load(Relaxed);
    let channels = first.channel_bytes();
    let caller = first.live.facts.caller_bytes.load(Relaxed);
    let mismatched: u64 = processes
        .iter()
        .map(|p| p.live.recorder.mismatched.load(Relaxed))
        .fold(0, u64::saturating_add);
    let rows: Vec<_> = processes
        .iter()
        .map(|process| {
            let line = process.command_line();
            (line, process.pid, process.all_bytes(), ended(process, child, end))
        })
        .collect();
    if let [(_, pid, _, how)] = &rows[..] {
        let program = first.program();
        let (backend, channels) = (first.backend(), channels.len());
        let plural = if channels == 1 { "" } else { "s" };
        write!(out, "adma: {} (pid {pid}), ", cut(&program, 20))?;
        writeln!(out, "{backend}, {channels} channel{plural} beside the caller{}", unusual(how))?;
    } else {
        let time = Time((seconds * 1e9) as u64);
        let what = match (
            processes.iter().any(|process| process.bytes() > 0),
            processes.iter().any(|process| process.messages().is_some()),
        ) {
            (false, false) => "made copies, no large ones",
            (true, false) => "made large copies",
            (true, true) => "made large copies or sent messages",
            (false, true) => "sent messages",
        };
        writeln!(out, "adma: {} processes {what}, within {time}", rows.len())?;
    }
    let (total, messages) = (Recorder::new(), MessageCounts::new());
    for process in processes {
        total.absorb(&process.live.recorder);
        messages.absorb(&process.live.messages);
    }
    let copied = total.engine_bytes().saturating_add(total.libc_bytes()) > 0;
    if copied {
        tables::paths(&total, out)?;
        if rows.len() == 1 {
            tables::channels(caller, &first.channel_name(), &channels, out)?;
        }
        if let Some(saved) = &whole.saved {
            writeln!(out, "  {}", saved.sentence())?;
        }
        worth::not_helped(&total, floor, out)?;
        text::sites(out, &whole.sites);
    }
    if let Some(told) = messages.told() {
        tables::messages(&told, out)?;
    }
    if mismatched > 0 {
        writeln!(out, "  VERIFY: {mismatched} copies were wrong and have been repaired")?;
    }
    if rows.len() > 1 {
        for (number, (program, pid, bytes, how)) in rows.iter().take(NAMED).enumerate() {
            let title = if number == 0 { "most by" } else { "" };
            let pid = format!("pid {pid}");
            let who = format!("{:<22} {pid:>11}", cut(program, 22));
            writeln!(out, "  {title:<9}{who:<34}{:>10}  {how}", Bytes(*bytes))?;
        }
        let rest = &rows[rows.len().min(NAMED)..];
        if !rest.is_empty() {
            let bytes = rest.iter().fold(0u64, |sum, row| sum.saturating_add(row.2));
            let who = format!("{} more", rest.len());
            let odd = rest.iter().filter(|row| !unusual(&row.3).is_empty()).count();
            let odd = if odd > 0 { format!("  {odd} killed or failed") } else { String::new() };
            writeln!(out, "  {:<9}{who:<34}{:>10}{odd}", "", Bytes(bytes))?;
        }
    }
    if copied {
        tables::sizes(&total, out)?;
        tables::percentiles(&total, scale, out)?;
    }
    if total.every_size.count() > 0 {
        let learned = processes.iter().map(|p| p.live.facts.threshold.load(Relaxed));
        let threshold = learned.filter(|&bytes| bytes > 0).min();
        tables::profile(&total, &knobs::OPS, threshold, floor, out)?;
    }
    Ok(())
}

/// As far as can be known: how a process has ended that is not our child only it could tell.
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

/// The same for a heading, where a usual end is not worth a word.
fn unusual(how: &str) -> String {
    match how {
        "exit 0" | "_exit 0" | "exit" | "_exit" | "still runs" | "not known" => String::new(),
        _ if how.starts_with("became") => String::new(),
        _ => format!("; {how}"),
    }
}

/// Where this process is inside the tree of another command, that one reports.
pub fn is_inside_another() -> bool {
    std::env::var_os("ADMA_LIVE").is_some_and(|path| PathBuf::from(path).is_dir())
}
