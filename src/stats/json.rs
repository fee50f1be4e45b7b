//! The report for programs: one JSON object on one line.

use super::live::{APART, Calls, channel_name, names_apart};
use super::messages::Messages;
use super::snapshot::Snapshot;
use super::worth::{self, Interval};
use super::{Fallback, Flow};
use crate::backend::engine::Form;
use crate::functions::Op;
use crate::os::text::{write_list as list, write_numbers as by_name};
use adma_shared::histogram::Histogram;
use core::fmt::{Result, Write};
use core::sync::atomic::Ordering::Relaxed;

pub fn write(snapshot: &Snapshot<'_>, out: &mut dyn Write) -> Result {
    let recorder = snapshot.recorder;
    write!(out, "{{\"version\":\"{}\",\"pid\":{}", env!("CARGO_PKG_VERSION"), snapshot.pid)?;
    out.write_str(",\"exe\":")?;
    string(out, snapshot.exe)?;
    out.write_str(",\"command\":[")?;
    list(out, words(snapshot.command), string)?;
    write!(out, "],\"started\":{:.3},\"seconds\":{:.6}", snapshot.started, snapshot.seconds)?;
    write!(out, ",\"backend\":\"{}\",\"channels\":{}", snapshot.backend, snapshot.channels)?;
    match snapshot.min_bytes {
        Some(bytes) => write!(out, ",\"min_bytes\":{bytes}")?,
        None => out.write_str(",\"min_bytes\":\"auto\"")?,
    }
    match snapshot.threshold {
        Some(bytes) => write!(out, ",\"threshold\":{bytes}")?,
        None => out.write_str(",\"threshold\":null")?,
    }

    out.write_str(",\"paths\":{\"engine\":")?;
    flow(out, snapshot, &recorder.engine, recorder.engine_bytes())?;
    out.write_str(",\"libc\":")?;
    flow(out, snapshot, &recorder.libc, recorder.libc_bytes())?;
    for kind in 0..APART {
        let (name, _) = names_apart(kind);
        write!(out, "}},\"{name}\":{{")?;
        counted(out, "calls", recorder.counts_apart(kind))?;
    }
    out.write_str("},\"fallbacks\":{")?;
    by_name(out, recorder.fallbacks().chain([("fault", snapshot.faults)]))?;
    write!(out, "}},\"taken_back\":{}", snapshot.taken_back)?;
    saved(out, snapshot)?;
    out.write_str(",\"fallback_bytes\":{")?;
    let bytes = |why: Fallback| (why.name(), recorder.fallbacks[why as usize].get()[1]);
    by_name(out, Fallback::ALL.map(bytes))?;

    write!(out, "}},\"channel_bytes\":{{\"caller\":{}", snapshot.caller_bytes)?;
    for (number, bytes) in snapshot.channel_bytes.iter().enumerate() {
        write!(out, ",\"{}-{number}\":{bytes}", channel_name(snapshot.backend))?;
    }
    let (checked, wrong) = (recorder.verified.load(Relaxed), recorder.mismatched.load(Relaxed));
    write!(out, "}},\"verify\":{{\"checked\":{checked},\"mismatched\":{wrong}}}")?;
    if let Some(report) = snapshot.engine {
        report(Form::Json, out)?;
    }
    if let Some(sums) = &snapshot.messages {
        messages(out, sums)?;
    }
    sites(out, snapshot)?;
    timeline(out, snapshot)?;
    if snapshot.profile {
        out.write_str(",\"profile\":{\"size\":")?;
        histogram(out, &recorder.every_size, |value| value)?;
        out.write_str(",\"functions\":{")?;
        let row = |(op, calls): (&Op, &Calls)| (op.name(), calls.get()[0], calls.get()[1]);
        counted(out, "calls", Op::ALL.iter().zip(&recorder.by_function).map(row))?;
        out.write_str("}}")?;
    }
    out.write_str("}\n")
}

/// Writes names with counts (`what`) and bytes.
fn counted<'a>(
    out: &mut dyn Write,
    what: &str,
    rows: impl IntoIterator<Item = (&'a str, u64, u64)>,
) -> Result {
    list(out, rows, |out, (name, count, bytes)| {
        write!(out, "\"{name}\":{{\"{what}\":{count},\"bytes\":{bytes}}}")
    })
}

/// Writes the seconds saved, their bounds, and their share of the time without us; or null and the
/// reason. `known`: the part of the shared time that was compared with libc's.
fn saved(out: &mut dyn Write, snapshot: &Snapshot<'_>) -> Result {
    let (recorder, scale) = (snapshot.recorder, snapshot.nanoseconds_per_tick);
    let saved = worth::saved(recorder, scale, snapshot.seconds);
    match saved.interval {
        Ok(Interval { seconds, low, high, calls }) => {
            let share = seconds / (snapshot.seconds + seconds).max(1e-9);
            write!(out, ",\"saved\":{{\"seconds\":{seconds:.6},\"low\":{low:.6}")?;
            write!(out, ",\"high\":{high:.6},\"calls\":{calls:.6}")?;
            write!(out, ",\"share\":{share:.4},\"reason\":null")?;
        }
        Err(why) => {
            out.write_str(",\"saved\":{\"seconds\":null,\"low\":null,\"high\":null")?;
            write!(out, ",\"share\":null,\"reason\":\"{why}\"")?;
        }
    }
    write!(out, ",\"known\":{:.3}}}", saved.known)
}

/// Returns the words of a command line, as far as they are text.
fn words(line: &[u8]) -> impl Iterator<Item = &str> {
    let line = line.strip_suffix(b"\0").unwrap_or(line);
    let words = line.split(|&byte| byte == 0).filter(|_| !line.is_empty());
    words.map(|word| match core::str::from_utf8(word) {
        Ok(word) => word,
        Err(error) => core::str::from_utf8(&word[..error.valid_up_to()]).unwrap_or_default(),
    })
}

/// Writes call sites: the file of the module (null: not known, empty: the program's), the offset in
/// it, and the calls from there.
fn sites(out: &mut dyn Write, snapshot: &Snapshot<'_>) -> Result {
    out.write_str(",\"sites\":[")?;
    let (mut first, mut done) = (true, Ok(()));
    snapshot.recorder.sites.for_each(|site| {
        let mut write = || -> Result {
            out.write_str(if first { "{\"module\":" } else { ",{\"module\":" })?;
            first = false;
            match site.module.map(|name| words(name).next().unwrap_or_default()) {
                Some("") => string(out, snapshot.exe)?,
                Some(name) => string(out, name)?,
                None => out.write_str("null")?,
            }
            let nanoseconds = snapshot.nanoseconds(site.ticks);
            write!(out, ",\"offset\":{},\"calls\":{}", site.offset, site.calls)?;
            write!(out, ",\"bytes\":{},\"ns\":{nanoseconds}}}", site.bytes)
        };
        done = done.and_then(|()| write());
    });
    done?;
    out.write_str("]")
}

/// Writes bytes over time: seconds from the start of the process to the first call and to the end
/// of the last one, seconds of a step, and bytes of each by the engine and by libc.
fn timeline(out: &mut dyn Write, snapshot: &Snapshot<'_>) -> Result {
    let line = &snapshot.recorder.timeline;
    let seconds = |ticks: u64| ticks as f64 * snapshot.nanoseconds_per_tick / 1e9;
    let [start, end] = [&line.start, &line.end]
        .map(|ticks| seconds(ticks.load(Relaxed).saturating_sub(snapshot.start_ticks)));
    write!(out, ",\"timeline\":{{\"start\":{start:.6},\"end\":{end:.6}")?;
    write!(out, ",\"step\":{:.6}", seconds(line.step()))?;
    for (name, steps) in ["engine", "libc"].into_iter().zip(line.bytes()) {
        write!(out, ",\"{name}\":[")?;
        list(out, steps, |out, bytes| write!(out, "{bytes}"))?;
        out.write_str("]")?;
    }
    out.write_str("}")
}

fn messages(out: &mut dyn Write, sums: &Messages) -> Result {
    out.write_str(",\"messages\":{")?;
    counted(out, "messages", sums.directions)?;
    out.write_str(",\"regimes\":{")?;
    counted(out, "messages", sums.regimes)?;
    out.write_str("},\"copied_bytes\":{")?;
    by_name(out, sums.copied)?;
    out.write_str("}}")
}

fn flow(out: &mut dyn Write, snapshot: &Snapshot<'_>, flow: &Flow, bytes: u64) -> Result {
    write!(out, "{{\"calls\":{},\"bytes\":{bytes},\"size\":", flow.sizes.count())?;
    histogram(out, &flow.sizes, |value| value)?;
    out.write_str(",\"latency_ns\":")?;
    histogram(out, &flow.ticks, |ticks| snapshot.nanoseconds(ticks))?;
    // Size classes: the exponent of two that they begin with, bytes and nanoseconds.
    out.write_str(",\"by_size\":[")?;
    list(out, flow.speeds(), |out, (class, bytes, ticks)| {
        write!(out, "[{class},{bytes},{}]", snapshot.nanoseconds(ticks))
    })?;
    out.write_str("]}")
}

fn histogram(out: &mut dyn Write, histogram: &Histogram, unit: impl Fn(u64) -> u64) -> Result {
    let parts = [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999)];
    out.write_str("{")?;
    by_name(out, parts.map(|(name, part)| (name, unit(histogram.quantile(part)))))?;
    write!(out, ",\"max\":{},\"buckets\":[", unit(histogram.max()))?;
    list(out, histogram.buckets(), |out, (lowest, highest, count)| {
        write!(out, "[{},{},{count}]", unit(lowest), unit(highest))
    })?;
    out.write_str("]}")
}

fn string(out: &mut dyn Write, text: &str) -> Result {
    out.write_char('"')?;
    for character in text.chars() {
        match character {
            '"' | '\\' => write!(out, "\\{character}")?,
            '\0'..='\x1f' => write!(out, "\\u{:04x}", character as u32)?,
            _ => out.write_char(character)?,
        }
    }
    out.write_char('"')
}
