//! The report for people: what every report has, and what only the library knows.

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
        channels: (snapshot.caller_bytes, snapshot.channel_name, snapshot.channel_bytes),
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
    let HelperCounts { system_calls, wait_calls, redone_pieces, .. } = helper;
    writeln!(out, "  kernel helper     {system_calls} system calls, {wait_calls} to wait;")?;
    writeln!(out, "                    {redone_pieces} pieces done again")?;
    for (driver, count, first, last) in drivers(helper.held) {
        writeln!(out, "                    {count} channels of {driver}: {first} to {last}")?;
    }
    if let Some([_, (_, errors)]) = helper.module
        && errors > 0
    {
        writeln!(out, "  of all processes  {errors} transfers failed or were too late")?;
    }
    if helper.requests == 0 {
        return Ok(());
    }
    if let Some([(_, hits), (_, misses), (_, evicted), (_, changed)]) = helper.kept {
        writeln!(out, "  lines of pages    {hits} found pinned, {misses} not;")?;
        writeln!(out, "                    {evicted} made room, {changed} changed by the program")?;
    }
    let HelperCounts { requests, pinned_pages, costs, .. } = helper;
    writeln!(out, "  time of a request ({requests} of them, {pinned_pages} pages pinned)")?;
    write!(out, "                   ")?;
    for (name, nanoseconds) in costs {
        write!(out, " {name} {}", Time(nanoseconds / requests))?;
    }
    writeln!(out)
}

/// Memory that was registered with a graphics card.
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
            "17 not;",
            "2 channels of idxd: dma0chan0 to dma0chan1",
            "26 transfers failed or were too late",
            "11 changed",
            "submission 40",
        ] {
            assert!(with_helper.contains(part), "{part} is missing:\n{with_helper}");
        }
        for part in [
            "by the engine",
            "reads of files",
            "overlap 1",
            "p99.9",
            "#####",
            "ADMA_MIN_BYTES=1048576",
        ] {
            assert!(text.contains(part), "{part} is missing:\n{text}");
        }
    }
}
