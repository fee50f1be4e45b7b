//! The report for people: at most 80 columns.

use super::Flow;
use super::histogram::Histogram;
use super::snapshot::{Helper, Snapshot};
use crate::ipc::tally::Messages;
use crate::os::sys::Op;
use core::sync::atomic::Ordering::Relaxed;
use std::fmt::{Display, Formatter, Result, Write};

pub fn write(snapshot: &Snapshot<'_>, out: &mut dyn Write) -> Result {
    let recorder = snapshot.recorder;
    let engine = recorder.engine.bytes.load(Relaxed);
    let libc = recorder.libc.bytes.load(Relaxed);
    let program = snapshot.program();
    let program = program.char_indices().nth(20).map_or(program, |(end, _)| &program[..end]);
    let plural = if snapshot.channels == 1 { "" } else { "s" };
    write!(out, "adma: {program} (pid {}), ", snapshot.pid)?;
    writeln!(out, "{}, {} channel{plural} beside the caller", snapshot.backend, snapshot.channels)?;

    if engine + libc > 0 {
        writeln!(out, "  {:<16}{:>10}{:>13}", "large copies", "copies", "bytes")?;
        for (name, flow) in [("by the engine", &recorder.engine), ("by libc", &recorder.libc)] {
            let bytes = flow.bytes.load(Relaxed);
            let part = 100.0 * bytes as f64 / (engine + libc) as f64;
            let calls = flow.sizes.count();
            write!(out, "  {name:<16}{calls:>10}{:>13}{part:>7.1} %", Bytes(bytes))?;
            if std::ptr::eq(flow, &recorder.libc) {
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
        channels(snapshot, out)?;
    }
    if let Some(asked) = &snapshot.helper {
        helper(asked, out)?;
    }
    if let Some(told) = &snapshot.messages {
        messages(told, out)?;
    }
    if snapshot.faults > 0 {
        writeln!(out, "  in {} copies a bad page was left to the caller", snapshot.faults)?;
    }
    if snapshot.taken_back > 0 {
        let copies = snapshot.taken_back;
        writeln!(
            out,
            "  in {copies} copies the caller did not wait for a worker that did not run"
        )?;
    }
    let mismatched = recorder.mismatched.load(Relaxed);
    if mismatched > 0 {
        writeln!(
            out,
            "  VERIFY: {mismatched} copies were wrong and have been repaired; engine off"
        )?;
    }

    if engine + libc > 0 {
        writeln!(out)?;
        picture(out, &[(&recorder.engine.sizes, '#'), (&recorder.libc.sizes, '-')])?;
        writeln!(out, "  {:>18}    # engine   - libc", "")?;
        writeln!(out)?;
        percentiles(snapshot, out)?;
    }
    if snapshot.profile {
        profile(snapshot, out)?;
    }
    Ok(())
}

fn channels(snapshot: &Snapshot<'_>, out: &mut dyn Write) -> Result {
    let total = snapshot.caller_bytes + snapshot.channel_bytes.iter().sum::<u64>();
    if total == 0 {
        return Ok(());
    }
    let percent = |bytes: u64| 100.0 * bytes as f64 / total as f64;
    write!(out, "  channel shares    caller {:.0} %", percent(snapshot.caller_bytes))?;
    for (number, &bytes) in snapshot.channel_bytes.iter().enumerate().take(8) {
        if number % 4 == 3 {
            write!(out, "\n                 ")?;
        }
        write!(out, "  {}-{number} {:.0} %", snapshot.channel_name, percent(bytes))?;
    }
    if let Some(rest) = snapshot.channel_bytes.get(8..).filter(|rest| !rest.is_empty()) {
        write!(out, "  {} more {:.0} %", rest.len(), percent(rest.iter().sum()))?;
    }
    writeln!(out)
}

fn helper(helper: &Helper, out: &mut dyn Write) -> Result {
    let Helper { system_calls, wait_calls, kernel_bytes, redone_pieces, .. } = helper;
    writeln!(out, "  kernel helper     {system_calls} system calls, {wait_calls} to wait;")?;
    writeln!(
        out,
        "                    {} copied by the kernel, {redone_pieces} pieces done again",
        Bytes(*kernel_bytes)
    )?;
    if let Some([_, (_, errors)]) = helper.module
        && errors > 0
    {
        writeln!(out, "  of all processes  {errors} transfers failed or were too late")?;
    }
    if helper.requests == 0 {
        return Ok(());
    }
    if let Some([(_, hits), (_, cold), (_, other), (_, evicted), (_, changed)]) = helper.kept {
        writeln!(out, "  lines of pages    {hits} found pinned, {cold} new, {other} missed;")?;
        writeln!(out, "                    {evicted} made room, {changed} changed by the program")?;
    }
    let Helper { requests, pinned_pages, costs, .. } = helper;
    writeln!(out, "  time of a request ({requests} of them, {pinned_pages} pages pinned)")?;
    for row in costs.chunks(3) {
        write!(out, "                   ")?;
        for (name, nanoseconds) in row {
            write!(out, " {name} {}", Time(nanoseconds / requests))?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Messages between processes; by regime the same ones again.
fn messages(told: &Messages, out: &mut dyn Write) -> Result {
    writeln!(out, "  {:<16}{:>10}{:>13}", "messages", "count", "bytes")?;
    for (name, count, bytes) in told.directions {
        writeln!(out, "  {name:<16}{count:>10}{:>13}", Bytes(bytes))?;
    }
    for (name, count, bytes) in told.regimes.into_iter().filter(|(_, count, _)| *count > 0) {
        writeln!(out, "    {name:<14}{count:>10}{:>13}", Bytes(bytes))?;
    }
    writeln!(out, "  copied here by")?;
    for (name, bytes) in told.copied.into_iter().filter(|(_, bytes)| *bytes > 0) {
        writeln!(out, "    {name:<24}{:>13}", Bytes(bytes))?;
    }
    Ok(())
}

/// One line for each power of two in use, with a bar; the first histogram's part comes first.
fn picture(out: &mut dyn Write, histograms: &[(&Histogram, char)]) -> Result {
    const WIDTH: u64 = 44;
    let class = |value: u64| value.max(1).ilog2() as usize;
    let count = |histogram: &Histogram, wanted: usize| -> u64 {
        let of_class = |b: &(u64, u64, u64)| class(b.0) == wanted;
        histogram.buckets().filter(of_class).map(|bucket| bucket.2).sum()
    };
    let all = |wanted| histograms.iter().map(|(h, _)| count(h, wanted)).sum::<u64>();
    let Some(first) = (0..64).find(|&c| all(c) > 0) else { return Ok(()) };
    let last = (first..64).rfind(|&c| all(c) > 0).unwrap_or(first);
    let most = (first..=last).map(all).max().unwrap_or(1).max(1);
    for class in first..=last {
        let (from, to) = (Bytes(1 << class), Bytes(2u64 << class.min(62)));
        write!(out, "  {from:>8} - {to:<8}{:>10} ", all(class))?;
        for (histogram, mark) in histograms {
            // Rounded up: one copy is seen, however many others there are.
            for _ in 0..(count(histogram, class) * WIDTH).div_ceil(most) {
                out.write_char(*mark)?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

fn percentiles(snapshot: &Snapshot<'_>, out: &mut dyn Write) -> Result {
    let recorder = snapshot.recorder;
    writeln!(out, "{:>28}{:>11}{:>11}{:>11}{:>11}", "p50", "p90", "p99", "p99.9", "max")?;
    for (name, flow) in [("engine", &recorder.engine), ("libc", &recorder.libc)] {
        if flow.sizes.count() > 0 {
            rows(snapshot, out, name, flow)?;
        }
    }
    Ok(())
}

fn rows(snapshot: &Snapshot<'_>, out: &mut dyn Write, name: &str, flow: &Flow) -> Result {
    const PARTS: [f64; 5] = [0.5, 0.9, 0.99, 0.999, 1.0];
    write!(out, "  {name:<8} size  ")?;
    for part in PARTS {
        write!(out, "{:>11}", Bytes(flow.sizes.quantile(part)))?;
    }
    write!(out, "\n  {:<8} time  ", "")?;
    for part in PARTS {
        write!(out, "{:>11}", Time(snapshot.nanoseconds(flow.ticks.quantile(part))))?;
    }
    writeln!(out)
}

fn profile(snapshot: &Snapshot<'_>, out: &mut dyn Write) -> Result {
    let recorder = snapshot.recorder;
    writeln!(out, "\n  profile: every copy that came through")?;
    for (op, calls) in Op::ALL.iter().zip(&recorder.by_function) {
        let (count, bytes) = (calls.calls.load(Relaxed), calls.bytes.load(Relaxed));
        if count > 0 {
            writeln!(out, "  {:<16}{count:>12} calls{:>13}", op.name(), Bytes(bytes))?;
        }
    }
    picture(out, &[(&recorder.every_size, '#')])?;
    let large = |from: u64| -> u64 {
        recorder.every_size.buckets().filter(|b| b.0 >= from).map(|b| b.0 * b.2).sum()
    };
    let all = large(0).max(1);
    match snapshot.threshold {
        Some(bytes) => writeln!(
            out,
            "  suggested: ADMA_MIN_BYTES={bytes} ({:.0} % of the bytes are in such copies)",
            100.0 * large(bytes as u64) as f64 / all as f64
        ),
        None if large(snapshot.floor as u64) == 0 => {
            writeln!(out, "  suggested: none; no copy reaches {}", Bytes(snapshot.floor as u64))
        }
        None => writeln!(out, "  suggested: none; no size was measured to gain"),
    }
}

/// A number of bytes as people read it.
struct Bytes(u64);

impl Display for Bytes {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let unit = (self.0.max(1).ilog2() / 10) as usize;
        let value = self.0 as f64 / (1u64 << (10 * unit)) as f64;
        let exact = self.0.is_multiple_of(1 << (10 * unit)) || value >= 100.0;
        pad(out, value, if exact { 0 } else { 1 }, UNITS[unit])
    }
}

/// A time in nanoseconds as people read it.
struct Time(u64);

impl Display for Time {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        let (value, unit) = match self.0 {
            0..1000 => (self.0 as f64, "ns"),
            1000..1_000_000 => (self.0 as f64 / 1e3, "us"),
            1_000_000..1_000_000_000 => (self.0 as f64 / 1e6, "ms"),
            _ => (self.0 as f64 / 1e9, "s"),
        };
        pad(out, value, usize::from(value < 100.0 && unit != "ns"), unit)
    }
}

/// Formats without allocating, and lets the width of the caller's format count.
fn pad(out: &mut Formatter<'_>, value: f64, decimals: usize, unit: &str) -> Result {
    struct Short([u8; 32], usize);
    impl Write for Short {
        fn write_str(&mut self, text: &str) -> Result {
            let room = self.0.get_mut(self.1..self.1 + text.len()).ok_or(std::fmt::Error)?;
            room.copy_from_slice(text.as_bytes());
            self.1 += text.len();
            Ok(())
        }
    }
    let mut short = Short([0; 32], 0);
    write!(short, "{value:.decimals$} {unit}")?;
    out.pad(core::str::from_utf8(&short.0[..short.1]).unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::tests::{rendered, rendered_with_helper};
    use super::*;

    #[test]
    fn text_fits_eighty_columns_and_tells_the_main_things() {
        let text = rendered(true, write);
        let with_helper = rendered_with_helper(write);
        for line in text.lines().chain(with_helper.lines()) {
            assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
        }
        for part in [
            "1000317 system calls, 17 to wait",
            "3 pieces done again",
            "ioat-1 10 %",
            "9 missed",
            "26 transfers failed or were too late",
            "11 changed",
            "pinning 30",
        ] {
            assert!(with_helper.contains(part), "{part} is missing:\n{with_helper}");
        }
        for part in ["by the engine", "overlap 1", "p99.9", "#####", "ADMA_MIN_BYTES=1048576"] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
    }

    #[test]
    fn units_are_short_and_right() {
        let bytes = [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB")];
        for (value, text) in bytes {
            assert_eq!(Bytes(value).to_string(), text);
        }
        assert_eq!(Bytes(u64::MAX).to_string(), "16.0 EiB");
        let times =
            [(999, "999 ns"), (1500, "1.5 us"), (123_400, "123 us"), (2_000_000_000, "2.0 s")];
        for (value, text) in times {
            assert_eq!(Time(value).to_string(), text);
        }
        assert_eq!(format!("{:>9}|", Bytes(1024)), "    1 KiB|");
    }
}
