//! The report for people: at most 80 columns.

use super::snapshot::{HelperCounts, Snapshot};
use super::units::{Bytes, Time};
use super::{tables, worth};
use crate::backend::ioat::queues::drivers;
use crate::functions::Op;
use core::fmt::{Result, Write};
use core::sync::atomic::Ordering::Relaxed;

pub fn write(snapshot: &Snapshot<'_>, out: &mut dyn Write) -> Result {
    let recorder = snapshot.recorder;
    let engine = recorder.engine_bytes();
    let libc = recorder.libc_bytes();
    let program = snapshot.program();
    let program = program.char_indices().nth(20).map_or(program, |(end, _)| &program[..end]);
    let plural = if snapshot.channels == 1 { "" } else { "s" };
    write!(out, "adma: {program} (pid {}), ", snapshot.pid)?;
    writeln!(out, "{}, {} channel{plural} beside the caller", snapshot.backend, snapshot.channels)?;

    if engine + libc > 0 {
        tables::paths(recorder, out)?;
        let Snapshot { caller_bytes, channel_name, channel_bytes, .. } = *snapshot;
        tables::channels(caller_bytes, channel_name, channel_bytes, out)?;
        worth::saved(recorder, snapshot.nanoseconds_per_tick, snapshot.seconds).write(out)?;
        worth::not_helped(recorder, snapshot.floor as u64, out)?;
    }
    if let Some(asked) = &snapshot.helper {
        helper(asked, out)?;
    }
    if let Some(told) = snapshot.registrations {
        registrations(told.map(|(_, value)| value), out)?;
    }
    if let Some(told) = &snapshot.messages {
        tables::messages(told, out)?;
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
        tables::sizes(recorder, out)?;
        tables::percentiles(recorder, snapshot.nanoseconds_per_tick, out)?;
    }
    if snapshot.profile {
        let names = Op::ALL.map(Op::name);
        let threshold = snapshot.threshold.map(|bytes| bytes as u64);
        tables::profile(snapshot.recorder, &names, threshold, snapshot.floor as u64, out)?;
    }
    Ok(())
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
