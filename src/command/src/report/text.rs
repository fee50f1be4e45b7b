//! The report for terminals: at most 80 columns.

use super::Report;
use super::chart::cut;
use super::figures::{Distribution, Figures, PARTS, Site, Traffic, in_words};
use super::units::{bytes, nanoseconds, percent, seconds};
use std::fmt::Write;

/// Call sites that are named.
const SITES: usize = 3;
/// So many processes have a line; the others are counted.
const LISTED: usize = 40;

pub fn of(report: &Report) -> String {
    let Report { processes, total, .. } = report;
    let mut out = String::new();
    if let [one] = processes.as_slice() {
        let plural = if one.channels == 1 { "" } else { "s" };
        let (program, backend) = (cut(one.name(), 20), cut(&one.backend, 16));
        let _ = writeln!(
            out,
            "adma: {program} (pid {}), {backend}, {} channel{plural} beside the caller",
            one.pid, one.channels
        );
    } else {
        let _ = writeln!(
            out,
            "adma: {} processes, {} together",
            processes.len(),
            seconds(total.seconds)
        );
    }
    if let Some(saved) = &total.saved {
        let _ = writeln!(out, "  {}", saved.sentence());
    }
    copies(&mut out, total);
    sites(&mut out, &total.sites);
    registrations(&mut out, total);
    rare(&mut out, total);
    if !total.messages.is_empty() {
        let _ = writeln!(out, "  {:<16}{:>10}{:>13}", "messages", "count", "bytes");
        for (name, number, sum) in &total.messages {
            let _ = writeln!(out, "  {name:<16}{number:>10}{:>13}", bytes(*sum));
        }
    }
    if total.bytes() > 0 {
        out.push('\n');
        picture(&mut out, &[(&total.engine.sizes, '#'), (&total.libc.sizes, '-')]);
        let _ = writeln!(out, "  {:>18}    # engine   - libc\n", "");
        percentiles(&mut out, total);
    }
    if let Some(profile) = &total.profile {
        out += "\n  profile: every copy that came through\n";
        let mut functions: Vec<_> = profile.functions.iter().collect();
        functions.sort_by_key(|function| std::cmp::Reverse(function.2));
        for (name, calls, sum) in functions {
            let _ = writeln!(out, "  {:<16}{calls:>12} calls{:>13}", cut(name, 16), bytes(*sum));
        }
        picture(&mut out, &[(&profile.sizes, '#')]);
    }
    if processes.len() > 1 {
        list(&mut out, report);
    }
    // Nothing real is longer.
    out.lines().map(|line| cut(line, 80) + "\n").collect()
}

/// The engine's part of the bytes, if there were any.
pub fn engine_share(figures: &Figures) -> String {
    match figures.bytes() {
        0 => "-".to_owned(),
        all => percent(figures.engine.bytes, all),
    }
}

/// The time that a process has saved, if that is known.
pub fn saved(figures: &Figures) -> Option<String> {
    let interval = figures.saved.as_ref()?.interval.as_ref().ok()?;
    Some(signed(interval.seconds))
}

pub fn signed(saved: f64) -> String {
    if saved < 0.0 { format!("−{}", seconds(-saved)) } else { seconds(saved) }
}

fn copies(out: &mut String, total: &Figures) {
    if total.bytes() == 0 {
        let _ = writeln!(out, "  no large copies");
        return;
    }
    let _ = writeln!(out, "  {:<16}{:>10}{:>13}", "large copies", "copies", "bytes");
    for (name, flow) in [("by the engine", &total.engine), ("by libc", &total.libc)] {
        let share = percent(flow.bytes, total.bytes());
        let _ = writeln!(out, "  {name:<16}{:>10}{:>13}{share:>10}", flow.calls, bytes(flow.bytes));
    }
    for (name, calls, sum) in &total.reads {
        let _ =
            writeln!(out, "  {:<16}{calls:>10}{:>13}  by {name}", "reads of files", bytes(*sum));
    }
    let mut reasons: Vec<_> = total.fallbacks.iter().collect();
    reasons.sort_by_key(|reason| std::cmp::Reverse((reason.2, reason.1)));
    for (name, copies, _) in reasons {
        let words = match in_words(name) {
            "" => cut(name, 50),
            words => words.to_owned(),
        };
        let _ = writeln!(out, "  {:>24}  {}", copies, cut(&words, 52));
    }
    let all = total.channels.iter().fold(0u64, |sum, channel| sum.saturating_add(channel.1));
    if all > 0 {
        let _ = write!(out, "  channel shares  ");
        for (number, (name, share)) in total.channels.iter().take(9).enumerate() {
            if number > 0 && number % 3 == 0 {
                let _ = write!(out, "\n  {:16}", "");
            }
            let _ = write!(out, "  {} {}", cut(name, 10), percent(*share, all));
        }
        if total.channels.len() > 9 {
            let _ = write!(out, "\n  {:16}  and {} more", "", total.channels.len() - 9);
        }
        out.push('\n');
    }
}

/// Which code copies most: three lines.
pub fn sites(out: &mut String, sites: &[Site]) {
    for (number, site) in sites.iter().take(SITES).enumerate() {
        let title = if number == 0 { "copied by" } else { "" };
        let (calls, sum, time) = (site.calls, bytes(site.bytes), nanoseconds(site.nanoseconds));
        let name = cut(&site.name, 36);
        let _ = writeln!(out, "  {title:<9} {name:<36}{calls:>8}{sum:>11}{time:>11}");
    }
}

fn registrations(out: &mut String, total: &Figures) {
    for (number, row) in total.registrations.chunks(3).take(3).enumerate() {
        let title = if number == 0 { "registered memory" } else { "" };
        let _ = write!(out, "  {title:<17}");
        for (name, value) in row {
            let value = if name == "most_bytes" { bytes(*value) } else { value.to_string() };
            let _ = write!(out, " {} {value}", cut(name, 14));
        }
        out.push('\n');
    }
}

fn rare(out: &mut String, total: &Figures) {
    if total.mismatched > 0 {
        let _ = writeln!(
            out,
            "  VERIFY: {} copies were wrong and have been repaired",
            total.mismatched
        );
    }
    if total.faults > 0 {
        let _ = writeln!(out, "  in {} copies a bad page was left to the caller", total.faults);
    }
    if total.taken_back > 0 {
        let copies = total.taken_back;
        let _ = writeln!(
            out,
            "  in {copies} copies the caller did not wait for a worker that did not run"
        );
    }
}

/// One line for each power of two in use, with a bar.
fn picture(out: &mut String, histograms: &[(&Distribution, char)]) {
    const WIDTH: u128 = 44;
    let classes: Vec<_> = histograms.iter().map(|(all, mark)| (all.classes(), *mark)).collect();
    let of = |all: &[(u32, u64, u64)], wanted| {
        all.iter().find(|class| class.0 == wanted).map_or(0, |class| class.1)
    };
    let used = || classes.iter().flat_map(|(all, _)| all).map(|class| class.0);
    let (Some(first), Some(last)) = (used().min(), used().max()) else { return };
    let sum = |class| classes.iter().fold(0u64, |sum, (all, _)| sum.saturating_add(of(all, class)));
    let most = (first..=last).map(sum).max().unwrap_or(1).max(1);
    for class in first..=last {
        let to = 1u64.checked_shl(class + 1).map_or("16 EiB".to_owned(), bytes);
        let _ = write!(out, "  {:>8} - {to:<8}{:>10} ", bytes(1 << class), sum(class));
        for (all, mark) in &classes {
            // Rounded up: one copy is seen, however many others there are.
            let length = (u128::from(of(all, class)) * WIDTH).div_ceil(u128::from(most));
            out.extend(std::iter::repeat_n(*mark, length.min(WIDTH) as usize));
        }
        out.push('\n');
    }
}

fn percentiles(out: &mut String, total: &Figures) {
    let _ = write!(out, "  {:<15}", "");
    for (name, ..) in PARTS {
        let _ = write!(out, "{name:>12}");
    }
    out.push('\n');
    for (name, flow) in [("engine", &total.engine), ("libc", &total.libc)] {
        if flow.calls > 0 {
            rows(out, name, flow);
        }
    }
}

/// A percentile of fewer copies than it takes to have one is left out.
fn rows(out: &mut String, name: &str, flow: &Traffic) {
    for (what, histogram, unit) in
        [("size", &flow.sizes, bytes as fn(u64) -> String), ("time", &flow.times, nanoseconds)]
    {
        let _ = write!(out, "  {:<8} {what:<6}", if what == "size" { name } else { "" });
        for (_, part, enough) in PARTS {
            let known = histogram.count() >= enough;
            let value = if known { unit(histogram.quantile(part)) } else { "-".to_owned() };
            let _ = write!(out, "{value:>12}");
        }
        out.push('\n');
    }
}

fn list(out: &mut String, report: &Report) {
    let _ = writeln!(
        out,
        "\n  {:<24}{:>8}{:>10}{:>12}{:>10}{:>12}",
        "process", "pid", "copies", "bytes", "engine", "saved"
    );
    let all = report.processes.len();
    // The greatest come first. Of a script's many small processes the number will do.
    let copied = report.processes.iter().filter(|process| process.figures.calls() > 0).count();
    let listed = if copied == 0 { all.min(LISTED) } else { copied.min(LISTED) };
    for process in &report.processes[..listed] {
        let figures = &process.figures;
        let saved = saved(figures).unwrap_or("-".to_owned());
        let _ = writeln!(
            out,
            "  {:<24}{:>8}{:>10}{:>12}{:>10}{saved:>12}",
            cut(process.program(), 23),
            process.pid,
            figures.calls(),
            bytes(figures.bytes()),
            engine_share(figures),
        );
    }
    let less = if copied > listed { "copied less" } else { "made no large copies" };
    if all > listed {
        let _ = writeln!(out, "  and {} more, which {less}", all - listed);
    }
}
