//! The tables of a report: which way copies went, how large they were, how long they took.
//!
//! Pure, and without allocation, at most 80 columns; the command `adma` compiles this file too.
#![forbid(unsafe_code)]

use super::histogram::{Histogram, rounded_up};
use super::live::{Flow, Recorder};
use super::messages::Messages;
use super::units::{Bytes, Time};
use core::fmt::{Result, Write};
use core::sync::atomic::Ordering::Relaxed;

/// Copies and bytes by the engine and by libc, and why.
pub fn paths(recorder: &Recorder, out: &mut dyn Write) -> Result {
    let (engine, libc) = (recorder.engine_bytes(), recorder.libc_bytes());
    writeln!(out, "  {:<16}{:>10}{:>13}", "large copies", "copies", "bytes")?;
    let flows = [("by the engine", &recorder.engine, engine), ("by libc", &recorder.libc, libc)];
    for (name, flow, bytes) in flows {
        let part = 100.0 * bytes as f64 / (engine as f64 + libc as f64).max(1.0);
        let calls = flow.sizes.count();
        write!(out, "  {name:<16}{calls:>10}{:>13}{part:>7.1} %", Bytes(bytes))?;
        if core::ptr::eq(flow, &recorder.libc) {
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
    reads(recorder, out)
}

/// Reads of files, which are among the copies above.
fn reads(recorder: &Recorder, out: &mut dyn Write) -> Result {
    let [(_, engine_calls, engine), (_, libc_calls, libc)] = recorder.read_counts();
    let (calls, bytes) = (engine_calls.saturating_add(libc_calls), engine.saturating_add(libc));
    if calls == 0 {
        return Ok(());
    }
    let part = 100.0 * engine as f64 / (bytes as f64).max(1.0);
    write!(out, "  {:<16}{calls:>10}{:>13}", "reads of files", Bytes(bytes))?;
    writeln!(out, "{part:>7.1} % by the engine")
}

/// Which part of the shared copies each channel has copied.
pub fn channels(caller: u64, name: &str, channels: &[u64], out: &mut dyn Write) -> Result {
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

/// Messages between processes; by regime the same ones again.
pub fn messages(told: &Messages, out: &mut dyn Write) -> Result {
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

/// How many copies of which size, by the engine and by libc.
pub fn sizes(recorder: &Recorder, out: &mut dyn Write) -> Result {
    writeln!(out)?;
    picture(out, &[(&recorder.engine.sizes, '#'), (&recorder.libc.sizes, '-')])?;
    writeln!(out, "  {:>18}    # engine   - libc", "")
}

/// Every copy that came through, by function and by size, and the threshold that measuring has
/// found. `names`: of the functions.
pub fn profile(
    recorder: &Recorder,
    names: &[&str],
    threshold: Option<u64>,
    floor: u64,
    out: &mut dyn Write,
) -> Result {
    writeln!(out, "\n  profile: every copy that came through")?;
    for (name, calls) in names.iter().zip(&recorder.by_function) {
        let (count, bytes) = (calls.calls.load(Relaxed), calls.bytes.load(Relaxed));
        if count > 0 {
            writeln!(out, "  {name:<16}{count:>12} calls{:>13}", Bytes(bytes))?;
        }
    }
    picture(out, &[(&recorder.every_size, '#')])?;
    let large = |from: u64| -> u64 {
        let buckets = recorder.every_size.buckets().filter(|bucket| bucket.0 >= from);
        buckets.fold(0, |sum, bucket| sum.saturating_add(bucket.0.saturating_mul(bucket.2)))
    };
    match threshold {
        Some(bytes) => writeln!(
            out,
            "  suggested: ADMA_MIN_BYTES={bytes} ({:.0} % of the bytes are in such copies)",
            100.0 * large(bytes) as f64 / large(0).max(1) as f64
        ),
        None if large(floor) == 0 => {
            writeln!(out, "  suggested: none; no copy reaches {}", Bytes(floor))
        }
        None => writeln!(out, "  suggested: none; no size was measured to gain"),
    }
}

/// One line for each power of two in use, with a bar; the first histogram's part comes first.
pub fn picture(out: &mut dyn Write, histograms: &[(&Histogram, char)]) -> Result {
    const WIDTH: u64 = 44;
    let class = |value: u64| value.max(1).ilog2() as usize;
    let count = |histogram: &Histogram, wanted: usize| -> u64 {
        let of_class = |b: &(u64, u64, u64)| class(b.0) == wanted;
        histogram.buckets().filter(of_class).fold(0, |sum, bucket| sum.saturating_add(bucket.2))
    };
    let all = |wanted: usize| {
        histograms.iter().fold(0u64, |sum, (h, _)| sum.saturating_add(count(h, wanted)))
    };
    let Some(first) = (0..64).find(|&c| all(c) > 0) else { return Ok(()) };
    let last = (first..64).rfind(|&c| all(c) > 0).unwrap_or(first);
    let most = (first..=last).map(all).max().unwrap_or(1).max(1);
    for class in first..=last {
        let (from, to) = (Bytes(1 << class), Bytes(2u64 << class.min(62)));
        write!(out, "  {from:>8} - {to:<8}{:>10} ", all(class))?;
        for (histogram, mark) in histograms {
            // Rounded up: one copy is seen, however many others there are.
            let length = rounded_up(count(histogram, class) as f64 * WIDTH as f64 / most as f64);
            for _ in 0..length.min(WIDTH) {
                out.write_char(*mark)?;
            }
        }
        writeln!(out)?;
    }
    Ok(())
}

/// What part of all copies lies below, its name, and of how many copies that can be told.
const PARTS: [(f64, &str, u64); 5] = [
    (0.5, "p50", 10),
    (0.9, "p90", 10),
    (0.99, "p99", 100),
    (0.999, "p99.9", 1000),
    (1.0, "max", 1),
];

/// `scale`: nanoseconds of a tick. Percentiles of a few copies would only be their times in
/// another order: see `PARTS`.
pub fn percentiles(recorder: &Recorder, scale: f64, out: &mut dyn Write) -> Result {
    let flows = [("engine", &recorder.engine), ("libc", &recorder.libc)];
    if flows.iter().all(|(_, flow)| flow.sizes.count() < PARTS[0].2) {
        return Ok(());
    }
    write!(out, "\n{:17}", "")?;
    for (_, name, _) in PARTS {
        write!(out, "{name:>11}")?;
    }
    writeln!(out)?;
    for (name, flow) in flows {
        if flow.sizes.count() > 0 {
            rows(scale, out, name, flow)?;
        }
    }
    Ok(())
}

fn rows(scale: f64, out: &mut dyn Write, name: &str, flow: &Flow) -> Result {
    let copies = flow.sizes.count();
    write!(out, "  {name:<8} size  ")?;
    for (part, _, least) in PARTS {
        match copies >= least {
            true => write!(out, "{:>11}", Bytes(flow.sizes.quantile(part)))?,
            false => write!(out, "{:>11}", "-")?,
        }
    }
    write!(out, "\n  {:<8} time  ", "")?;
    for (part, _, least) in PARTS {
        match copies >= least {
            true => write!(out, "{:>11}", Time((flow.ticks.quantile(part) as f64 * scale) as u64))?,
            false => write!(out, "{:>11}", "-")?,
        }
    }
    writeln!(out)
}
