//! The text report: what every report has, and what only the library knows.

use super::live::channel_name;
use super::snapshot::{HelperCounts, Snapshot};
use super::units::{Bytes, Time};
use super::{tables, worth};
use crate::backend::ioat::queues::drivers;
use core::fmt::{Display, Result, Write};

pub fn write(snapshot: &Snapshot<'_>, out: &mut dyn Write) -> Result {
    let (who, scale) = ((snapshot.program(), snapshot.pid), snapshot.nanoseconds_per_tick);
    tables::heading(out, who, snapshot.backend, snapshot.channels, "")?;
    let saved = worth::saved(snapshot.recorder, scale, snapshot.seconds);
    let sentence = saved.sentence();
    let report = tables::Report {
        recorder: snapshot.recorder,
        messages: snapshot.messages,
        channels: (snapshot.caller_bytes, channel_name(snapshot.backend), snapshot.channel_bytes),
        sentence: sentence.as_ref().map(|sentence| sentence as &dyn Display),
        floor: snapshot.floor as u64,
        threshold: snapshot.threshold.map(|bytes| bytes as u64),
        scale,
        faults: snapshot.faults,
        taken_back: snapshot.taken_back,
        has_profile: snapshot.profile,
        more: &|out| {
            snapshot.helper.as_ref().map_or(Ok(()), |asked| helper(asked, out))?;
            snapshot.registrations.map_or(Ok(()), |told| registrations(told.map(|t| t.1), out))
        },
    };
    report.write(out)
}

fn helper(helper: &HelperCounts<'_>, out: &mut dyn Write) -> Result {
    let [_, waits, system_calls, redone, requests, pinned] = helper.counts.map(|(_, count)| count);
    writeln!(out, "  kernel helper     {system_calls} system calls, {waits} to wait;")?;
    writeln!(out, "                    {redone} pieces done again")?;
    for (driver, count, first, last) in drivers(helper.held) {
        writeln!(out, "                    {count} channels of {driver}: {first} to {last}")?;
    }
    if let Some([_, (_, errors)]) = helper.module
        && errors > 0
    {
        writeln!(out, "  of all processes  {errors} transfers failed or were too late")?;
    }
    if requests == 0 {
        return Ok(());
    }
    if let Some([(_, hits), (_, misses), (_, evicted), (_, changed)]) = helper.kept {
        writeln!(out, "  lines of pages    {hits} found pinned, {misses} not;")?;
        writeln!(out, "                    {evicted} made room, {changed} changed by the program")?;
    }
    writeln!(out, "  time of a request ({requests} of them, {pinned} pages pinned)")?;
    write!(out, "                   ")?;
    for (name, nanoseconds) in helper.costs {
        write!(out, " {name} {}", Time(nanoseconds / requests))?;
    }
    writeln!(out)
}

/// Writes the counts of memory that was registered with a graphics card.
fn registrations(
    [hits, misses, made, most_bytes, evicted, gone, refused]: [u64; 7],
    out: &mut dyn Write,
) -> Result {
    writeln!(out, "  registered memory {hits} copies found theirs, {misses} did not;")?;
    writeln!(
        out,
        "                    {made} ranges, {} at most, {refused} refused;",
        Bytes(most_bytes)
    )?;
    writeln!(out, "                    {evicted} made room, {gone} changed by the program")
}
