//! The report for people, written once for library and command: at most 80 columns.
#![forbid(unsafe_code)]

use crate::histogram::{Histogram, rounded_up};
use crate::knobs::OPS;
use crate::live::{APART, Flow, Recorder, names_apart};
use crate::messages::Messages;
use crate::units::{Bytes, Time};
use crate::worth;
use core::cmp::Reverse;
use core::fmt::{Display, Result, Write};
use core::sync::atomic::Ordering::Relaxed;

/// Rare events in copies, in words.
pub const FAULT: &str = "a bad page was left to the caller";
pub const TAKEN_BACK: &str = "the caller did not wait for a worker that did not run";

/// Data of a report, of one process or of several together.
pub struct Report<'a> {
    pub recorder: &'a Recorder,
    pub messages: Option<Messages>,
    /// Shared copies: bytes by callers, name of channels, and the bytes of each.
    pub channels: (u64, &'a str, &'a [u64]),
    /// Sentence about the time saved; `None`: nothing was shared.
    pub sentence: Option<&'a dyn Display>,
    /// Smallest copy that is considered.
    pub floor: u64,
    /// Threshold that was learned, or the fixed one.
    pub threshold: Option<u64>,
    /// Nanoseconds of a tick.
    pub scale: f64,
    /// Copies in which a bad page was left to the caller.
    pub faults: u64,
    /// Copies whose pieces were taken back from workers that did not run.
    pub taken_back: u64,
    pub has_profile: bool,
    /// Writes what only this caller knows, below the copies.
    pub more: &'a dyn Fn(&mut dyn Write) -> Result,
}

/// Writes the first line, of one process. `end`: how it ended, if that is worth a word.
pub fn heading(
    out: &mut dyn Write,
    (program, pid): (&str, i32),
    backend: &str,
    channels: usize,
    end: &str,
) -> Result {
    let program = program.char_indices().nth(20).map_or(program, |(end, _)| &program[..end]);
    let plural = if channels == 1 { "" } else { "s" };
    write!(out, "adma: {program} (pid {pid}), {backend}, {channels} channel{plural}")?;
    writeln!(out, " beside the caller{end}")
}

impl Report<'_> {
    /// Writes everything below the heading.
    pub fn write(&self, out: &mut dyn Write) -> Result {
        let recorder = self.recorder;
        let has_copies = recorder.total().1 > 0;
        if has_copies {
            paths(recorder, out)?;
            channels(self.channels, out)?;
            if let Some(sentence) = self.sentence {
                writeln!(out, "  {sentence}")?;
            }
            worth::not_helped(recorder, self.floor, out)?;
        }
        (self.more)(out)?;
        if let Some(sums) = &self.messages {
            messages(sums, out)?;
        }
        let rare = [(self.faults, FAULT), (self.taken_back, TAKEN_BACK)];
        for (copies, what) in rare.into_iter().filter(|(copies, _)| *copies > 0) {
            let noun = if copies == 1 { "copy" } else { "copies" };
            writeln!(out, "  in {copies} {noun} {what}")?;
        }
        let wrong = recorder.mismatched.load(Relaxed);
        if wrong > 0 {
            writeln!(
                out,
                "  VERIFY: {wrong} copies were wrong and have been repaired; engine off"
            )?;
        }
        if has_copies {
            writeln!(out)?;
            picture(out, &[(&recorder.engine.sizes, '#'), (&recorder.libc.sizes, '-')])?;
            writeln!(out, "  {:>18}    # engine   - libc", "")?;
            percentiles(recorder, self.scale, out)?;
        }
        if self.has_profile { self.profile(out) } else { Ok(()) }
    }

    /// Writes every copy of the profile, by function and by size, and the threshold that was
    /// learned.
    fn profile(&self, out: &mut dyn Write) -> Result {
        let recorder = self.recorder;
        writeln!(out, "\n  profile: every copy that came through")?;
        let mut rows: [_; OPS.len()] =
            core::array::from_fn(|op| (OPS[op], recorder.by_function[op].get()));
        rows.sort_unstable_by_key(|(_, [_, bytes])| Reverse(*bytes));
        for (name, [calls, bytes]) in rows.into_iter().filter(|(_, [calls, _])| *calls > 0) {
            writeln!(out, "  {name:<18}{calls:>10} calls{:>13}", Bytes(bytes))?;
        }
        picture(out, &[(&recorder.every_size, '#')])?;
        let large = |from: u64| -> u64 {
            let buckets = recorder.every_size.buckets().filter(|bucket| bucket.0 >= from);
            buckets.fold(0, |sum, bucket| sum.saturating_add(bucket.0.saturating_mul(bucket.2)))
        };
        match self.threshold {
            Some(bytes) => writeln!(
                out,
                "  suggested: ADMA_MIN_BYTES={bytes} ({:.0} % of the bytes are in such copies)",
                100.0 * large(bytes) as f64 / large(0).max(1) as f64
            ),
            None if large(self.floor) == 0 => {
                writeln!(out, "  suggested: none; no copy reaches {}", Bytes(self.floor))
            }
            None => writeln!(out, "  suggested: none; no size was measured to gain"),
        }
    }
}

/// Writes copies and bytes by the engine and by libc, and why.
pub fn paths(recorder: &Recorder, out: &mut dyn Write) -> Result {
    let all = (recorder.total().1 as f64).max(1.0);
    writeln!(out, "  {:<16}{:>10}{:>13}", "large copies", "copies", "bytes")?;
    for (name, (way, calls, bytes)) in
        ["by the engine", "by libc"].into_iter().zip(recorder.counts())
    {
        let part = 100.0 * bytes as f64 / all;
        write!(out, "  {name:<16}{calls:>10}{:>13}{part:>7.1} %", Bytes(bytes))?;
        if way == "libc" {
            for (number, (why, count)) in
                recorder.fallbacks().filter(|(_, count)| *count > 0).enumerate()
            {
                if number > 0 {
                    write!(out, "\n{:50}", "")?;
                }
                write!(out, "  {why} {count}")?;
            }
        }
        writeln!(out)?;
    }
    apart(recorder, out)
}

/// Writes calls of the kinds that have a line of their own; they are among the copies above.
fn apart(recorder: &Recorder, out: &mut dyn Write) -> Result {
    for kind in 0..APART {
        let (_, name) = names_apart(kind);
        let [(_, engine_calls, engine), (_, libc_calls, libc)] = recorder.counts_apart(kind);
        let (calls, bytes) = (engine_calls.saturating_add(libc_calls), engine.saturating_add(libc));
        if calls == 0 {
            continue;
        }
        let part = 100.0 * engine as f64 / (bytes as f64).max(1.0);
        write!(out, "  {name:<18}{calls:>8}{:>13}", Bytes(bytes))?;
        writeln!(out, "{part:>7.1} % by the engine")?;
    }
    Ok(())
}

/// Writes which part of the shared copies each channel has copied.
pub fn channels((caller, name, channels): (u64, &str, &[u64]), out: &mut dyn Write) -> Result {
    let total = channels.iter().fold(caller as f64, |sum, &bytes| sum + bytes as f64);
    if total == 0.0 {
        return Ok(());
    }
    let percent = |bytes: u64| 100.0 * bytes as f64 / total;
    write!(out, "  channel shares    caller {:.0} %", percent(caller))?;
    for (number, &bytes) in channels.iter().enumerate().take(8) {
        if number % 4 == 3 {
            write!(out, "\n                 ")?;
        }
        write!(out, "  {name}-{number} {:.0} %", percent(bytes))?;
    }
    if let Some(rest) = channels.get(8..).filter(|rest| !rest.is_empty()) {
        write!(
            out,
            "  {} more {:.0} %",
            rest.len(),
            rest.iter().map(|&bytes| percent(bytes)).sum::<f64>()
        )?;
    }
    writeln!(out)
}

/// Writes messages between processes, in all and for each regime.
pub fn messages(sums: &Messages, out: &mut dyn Write) -> Result {
    writeln!(out, "  {:<16}{:>10}{:>13}", "messages", "count", "bytes")?;
    for (name, count, bytes) in sums.directions {
        writeln!(out, "  {name:<16}{count:>10}{:>13}", Bytes(bytes))?;
    }
    for (name, count, bytes) in sums.regimes.into_iter().filter(|(_, count, _)| *count > 0) {
        writeln!(out, "    {name:<14}{count:>10}{:>13}", Bytes(bytes))?;
    }
    writeln!(out, "  copied here by")?;
    for (name, bytes) in sums.copied.into_iter().filter(|(_, bytes)| *bytes > 0) {
        writeln!(out, "    {name:<24}{:>13}", Bytes(bytes))?;
    }
    Ok(())
}

/// Draws one line for each power of two in use, with a bar; the first histogram comes first.
fn picture(out: &mut dyn Write, histograms: &[(&Histogram, char)]) -> Result {
    const WIDTH: u64 = 44;
    let mut all = [0u64; 64];
    let classes = |histogram: &Histogram| {
        let mut counts = [0u64; 64];
        for (lowest, _, count) in histogram.buckets() {
            let class = &mut counts[lowest.max(1).ilog2() as usize];
            *class = class.saturating_add(count);
        }
        counts
    };
    for (histogram, _) in histograms {
        let counts = classes(histogram);
        all.iter_mut().zip(counts).for_each(|(sum, count)| *sum = sum.saturating_add(count));
    }
    let Some(first) = all.iter().position(|&count| count > 0) else { return Ok(()) };
    let last = all.iter().rposition(|&count| count > 0).unwrap_or(first);
    let most = all.into_iter().max().unwrap_or(1).max(1);
    for (class, sum) in all.into_iter().enumerate().take(last + 1).skip(first) {
        let (from, to) = (Bytes(1 << class), Bytes(2u64 << class.min(62)));
        write!(out, "  {from:>8} - {to:<8}{sum:>10} ")?;
        for (histogram, mark) in histograms {
            // Rounded up, so that one copy shows among any number of others.
            let length = rounded_up(classes(histogram)[class] as f64 * WIDTH as f64 / most as f64);
            for _ in 0..length.min(WIDTH) {
                out.write_char(*mark)?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Quantile, its name, and the least number of copies for which it is shown.
pub const PARTS: [(f64, &str, u64); 5] = [
    (0.5, "p50", 10),
    (0.9, "p90", 10),
    (0.99, "p99", 100),
    (0.999, "p99.9", 1000),
    (1.0, "max", 1),
];

/// Writes percentiles; `scale`: nanoseconds of a tick. Those of a few copies would only be their
/// times in another order: see `PARTS`.
fn percentiles(recorder: &Recorder, scale: f64, out: &mut dyn Write) -> Result {
    let flows = recorder.flows();
    if flows.iter().all(|flow| flow.sizes.count() < PARTS[0].2) {
        return Ok(());
    }
    write!(out, "\n{:17}", "")?;
    for (_, name, _) in PARTS {
        write!(out, "{name:>11}")?;
    }
    writeln!(out)?;
    for (name, flow) in ["engine", "libc"].into_iter().zip(flows) {
        if flow.sizes.count() > 0 {
            rows(scale, out, name, flow)?;
        }
    }
    Ok(())
}

fn rows(scale: f64, out: &mut dyn Write, name: &str, flow: &Flow) -> Result {
    let copies = flow.sizes.count();
    let mut row = |name: &str, what: &str, cell: &dyn Fn(&mut dyn Write, f64) -> Result| {
        write!(out, "  {name:<8} {what}  ")?;
        for (part, _, least) in PARTS {
            match copies >= least {
                true => cell(out, part)?,
                false => write!(out, "{:>11}", "-")?,
            }
        }
        writeln!(out)
    };
    let time = |part| Time((flow.ticks.quantile(part) as f64 * scale) as u64);
    row(name, "size", &|out, part| write!(out, "{:>11}", Bytes(flow.sizes.quantile(part))))?;
    row("", "time", &|out, part| write!(out, "{:>11}", time(part)))
}
