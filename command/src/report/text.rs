//! The report for terminals, of at most 80 columns: what the library writes of one process too
//! (`adma_shared::tables`), and tables that only the command has.

use super::figures::Site;
use super::{Report, document, sections};
use crate::live_files::channel_bytes;
use adma_report::units::{bytes, cut};
use adma_report::{Column, Row, Table, Value};
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
        let messages = total.live.messages.sums().is_some();
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
        messages: total.live.messages.sums(),
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

/// Writes which code copies most: three lines.
pub fn sites(out: &mut dyn Write, sites: &[Site]) -> std::fmt::Result {
    let rows = sites.iter().take(SITES).enumerate().map(|(number, site)| {
        let title = if number == 0 { "copied by" } else { "" };
        Row::new([
            format!("{title:<9} {}", cut(&site.name, 36)).into(),
            Value::Count(site.calls),
            Value::Bytes(site.bytes),
            Value::Nanoseconds(site.nanoseconds),
        ])
    });
    let table = Table::new("", [""; 4], rows.collect()).with_widths(&[46, 6, 9, 9]);
    out.write_str(&adma_report::text::table(&table))
}

fn registrations(out: &mut dyn Write, all: &[(String, u64)]) -> std::fmt::Result {
    for (number, row) in all.chunks(3).take(3).enumerate() {
        let title = if number == 0 { "registered memory" } else { "" };
        write!(out, "  {title:<17}")?;
        for (name, value) in row {
            write!(out, " {} {}", cut(name, 14), sections::registered(name, *value).text())?;
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
    // Of a script's many small processes only the number is shown.
    let copied = all.iter().filter(|process| process.all_bytes > 0).count();
    let most = if is_run { LISTED.0 } else { LISTED.1 };
    let listed = if copied == 0 { all.len() } else { copied }.min(most);
    let rows = all[..listed].iter().map(|process| {
        Row::new([
            process.program().into(),
            Value::Text(process.pid.to_string()),
            Value::Count(process.calls),
            Value::Bytes(process.all_bytes),
            document::engine_share(process),
            if is_run { process.end.as_str().into() } else { document::saved(process) },
        ])
    });
    let last = if is_run { "end" } else { "saved" };
    let titles = ["process", "pid", "copies", "bytes", "engine", last];
    let mut table = Table::new("", titles, rows.collect()).with_widths(&[24, 6, 7, 9, 7]);
    table.columns[0].longest = 23;
    table.columns[5] = Column::new(last).left();
    out.write_str(&adma_report::text::table(&table))?;
    let rest = &all[listed..];
    if !rest.is_empty() {
        let sum = rest.iter().fold(0u64, |sum, process| sum.saturating_add(process.all_bytes));
        let odd = rest.iter().filter(|process| !unusual(&process.end).is_empty()).count();
        let odd = if odd > 0 { format!(", {odd} killed or failed") } else { String::new() };
        writeln!(out, "  and {} more, {} in all{odd}", rest.len(), bytes(sum))?;
    }
    Ok(())
}
