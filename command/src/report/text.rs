//! The report for terminals: at most 80 columns.

use super::figures::Site;
use super::units::{bytes, cut, nanoseconds, percent, seconds};
use super::{Process, Report};
use crate::live_files::channel_bytes;
use adma_shared::live::channel_name;
use adma_shared::tables;
use adma_shared::units::Time;
use std::fmt::{Display, Write};
use std::sync::atomic::Ordering::Relaxed;

/// Number of call sites that are named.
const SITES: usize = 3;
/// Processes that get a line, of a run and of files; the others are counted.
const LISTED: (usize, usize) = (3, 40);

pub fn of(report: &Report) -> String {
    let mut out = String::new();
    // A `String` takes everything.
    let _ = write(report, &mut out);
    // Only the end of a program makes a line longer.
    let longest = if report.run.is_some() { usize::MAX } else { 80 };
    out.lines().map(|line| cut(line, longest).replace(" us", " µs") + "\n").collect()
}

fn write(report: &Report, out: &mut String) -> std::fmt::Result {
    let Report { processes, total, .. } = report;
    let (recorder, facts) = (&total.live.recorder, &total.live.facts);
    let channels = channel_bytes(&total.live);
    let (mut backend, mut shares) = (String::new(), &[][..]);
    let mut caller = 0;
    if let [one] = &processes[..] {
        backend = cut(&one.backend, 16);
        let who = (&*cut(one.name(), 20), one.pid as i32);
        tables::heading(out, who, &backend, channels.len(), &unusual(&one.end))?;
        (caller, shares) = (facts.caller_bytes.load(Relaxed), &channels);
    } else {
        let time = Time((report.seconds() * 1e9) as u64);
        let messages = total.live.messages.told().is_some();
        let what = match (recorder.total().1 > 0, messages) {
            (false, false) => "made copies, no large ones",
            (true, false) => "made large copies",
            (true, true) => "made large copies or sent messages",
            (false, true) => "sent messages",
        };
        // A profile includes processes without large copies.
        let all = messages || recorder.total().1 == 0;
        let count = processes.iter().filter(|process| all || process.all_bytes > 0).count();
        let plural = if count == 1 { "" } else { "es" };
        writeln!(out, "adma: {count} process{plural} {what}, within {time}")?;
    }
    let sentence = report.saved.as_ref().map(|saved| saved.sentence());
    let threshold = facts.threshold.load(Relaxed);
    tables::Report {
        recorder,
        messages: total.live.messages.told(),
        channels: (caller, channel_name(&backend), shares),
        sentence: sentence.as_ref().map(|sentence| sentence as &dyn Display),
        floor: facts.floor.load(Relaxed),
        threshold: (threshold > 0).then_some(threshold),
        scale: total.scale,
        faults: facts.faults.load(Relaxed),
        taken_back: facts.taken_back.load(Relaxed),
        has_profile: total.has_profile(),
        more: &|out| {
            sites(out, &total.sites)?;
            registrations(out, &total.registrations)?;
            list(out, report)
        },
    }
    .write(out)
}

/// Returns the engine's part of the bytes, if there were any.
pub fn engine_share(process: &Process) -> String {
    match process.bytes {
        0 => "-".to_owned(),
        all => percent(process.engine_bytes, all),
    }
}

/// Returns the time that a process has saved, if that is known.
pub fn saved(process: &Process) -> Option<String> {
    let saved = process.saved.as_ref()?.interval.as_ref().ok()?.estimate()?;
    Some(if saved < 0.0 { format!("−{}", seconds(-saved)) } else { seconds(saved) })
}

/// Writes which code copies most: three lines.
pub fn sites(out: &mut dyn Write, sites: &[Site]) -> std::fmt::Result {
    for (number, site) in sites.iter().take(SITES).enumerate() {
        let title = if number == 0 { "copied by" } else { "" };
        let (calls, sum, time) = (site.calls, bytes(site.bytes), nanoseconds(site.nanoseconds));
        let name = cut(&site.name, 36);
        writeln!(out, "  {title:<9} {name:<36}{calls:>8}{sum:>11}{time:>11}")?;
    }
    Ok(())
}

fn registrations(out: &mut dyn Write, all: &[(String, u64)]) -> std::fmt::Result {
    for (number, row) in all.chunks(3).take(3).enumerate() {
        let title = if number == 0 { "registered memory" } else { "" };
        write!(out, "  {title:<17}")?;
        for (name, value) in row {
            let value = if name == "most_bytes" { bytes(*value) } else { value.to_string() };
            write!(out, " {} {value}", cut(name, 14))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Returns an end that deserves a mention in the heading.
fn unusual(end: &str) -> String {
    let usual = ["", "exit 0", "_exit 0", "exit", "_exit", "still runs", "not known"];
    let is_usual = usual.contains(&end) || end.starts_with("became");
    if is_usual { String::new() } else { format!("; {end}") }
}

/// Lists those of several processes that copied most.
fn list(out: &mut dyn Write, report: &Report) -> std::fmt::Result {
    let all = &report.processes[..];
    let is_run = report.run.is_some();
    if all.len() < 2 {
        return Ok(());
    }
    let last = if is_run { "end" } else { "saved" };
    writeln!(
        out,
        "  {:<24}{:>8}{:>9}{:>11}{:>9}  {last}",
        "process", "pid", "copies", "bytes", "engine"
    )?;
    // Of a script's many small processes only the number is shown.
    let copied = all.iter().filter(|process| process.all_bytes > 0).count();
    let most = if is_run { LISTED.0 } else { LISTED.1 };
    let listed = if copied == 0 { all.len() } else { copied }.min(most);
    for process in &all[..listed] {
        let how = if is_run { process.end.clone() } else { saved(process).unwrap_or("-".into()) };
        writeln!(
            out,
            "  {:<24}{:>8}{:>9}{:>11}{:>9}  {how}",
            cut(process.program(), 23),
            process.pid,
            process.calls,
            bytes(process.all_bytes),
            engine_share(process),
        )?;
    }
    let rest = &all[listed..];
    if !rest.is_empty() {
        let sum = rest.iter().fold(0u64, |sum, process| sum.saturating_add(process.all_bytes));
        let odd = rest.iter().filter(|process| !unusual(&process.end).is_empty()).count();
        let odd = if odd > 0 { format!(", {odd} killed or failed") } else { String::new() };
        writeln!(out, "  and {} more, {} in all{odd}", rest.len(), bytes(sum))?;
    }
    Ok(())
}
