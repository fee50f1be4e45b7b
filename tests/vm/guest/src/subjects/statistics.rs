//! The module's counters: two for every user, all of them for root.

use crate::device::*;
use crate::faults::Bench;
use crate::kernel::{ALL_STATISTICS, STATISTICS, Statistics, settle};
use crate::memory::{PAGE, Region};
use crate::process::{become_nobody, fork};
use crate::verdict::{Context, Outcome};
use std::fs;

tests! {
    statistics_for_everybody_tell_nothing_about_sizes
    statistics_of_one_copy_are_exact
    statistics_pins_are_one_per_page_and_side
    statistics_pinned_pages_are_seen_under_way_and_zero_when_idle
}

/// A user who may not use the device can count copies and errors and name the channels, and sees no
/// bytes, pages or lines.
fn statistics_for_everybody_tell_nothing_about_sizes() -> Outcome {
    println!("{:?}", Statistics::now()?);
    fork(|| {
        become_nobody()?;
        let mut found = Vec::new();
        for entry in fs::read_dir(STATISTICS).context(STATISTICS)? {
            let path = entry?.path();
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            found.push(name.clone());
            if name == "channels" {
                continue; // their names and drivers, as under /sys/class/dma
            }
            let number = text.strip_suffix('\n').and_then(|line| line.parse::<u64>().ok());
            ensure!(number.is_some(), "{}: {text:?}", path.display());
        }
        found.sort();
        ensure_eq!(found, ["channels", "copies", "errors"], "files that every user can read");
        ensure!(fs::read(ALL_STATISTICS).is_err(), "{ALL_STATISTICS} can be read by nobody");
        Ok(())
    })?
    .succeed()
}

fn statistics_of_one_copy_are_exact() -> Outcome {
    let device = Device::open()?;
    let channels = device.info()?.channels;
    let len = 16 * PAGE;
    let (dst, src) = (Region::of_small_pages(len)?, Region::of_small_pages(len)?);
    for parts in [1, 4, 16] {
        let before = Statistics::now()?;
        device.carry(&mut Piece::new(&dst, 0, &src, 0, len).split(parts, channels))?;
        let moved = Statistics::now()?.since(&before);
        println!("{parts} pieces: {moved:?}");
        ensure!(moved.copies > 0, "no copy was counted: {moved:?}");
        ensure_eq!(moved.bytes, len as u64, "bytes");
        ensure!(moved.descriptors > 0, "no descriptor was counted: {moved:?}");
        ensure_eq!(
            (moved.errors, moved.timeouts, moved.ring_full, moved.quarantined),
            (0, 0, 0, 0),
            "errors, timeouts, ring_full, quarantined"
        );
    }
    // What is refused at once is no copy.
    let before = Statistics::now()?;
    let refused = device.submit(&mut [Piece { len: 1, ..Piece::new(&dst, 0, &src, 0, len) }]);
    ensure_eq!(refused.result, Err(EINVAL), "a piece of one byte");
    let moved = Statistics::now()?.since(&before);
    ensure_eq!((moved.copies, moved.bytes, moved.pins), (0, 0, 0), "copies, bytes, pins");
    Ok(())
}

fn statistics_pins_are_one_per_page_and_side() -> Outcome {
    let device = Device::keeping_nothing()?;
    let channels = device.info()?.channels as usize;
    let (dst, src) = (Region::of_small_pages(65 * PAGE)?, Region::of_small_pages(65 * PAGE)?);
    for pages in [1, 16, 64] {
        // Cut at pages: no page belongs to two pieces.
        for parts in [1, channels.min(pages)] {
            let before = Statistics::now()?;
            let mut pieces = Piece::new(&dst, 0, &src, 0, pages * PAGE).split(parts, 1);
            if pieces.iter().any(|piece| piece.len % PAGE as u64 != 0) {
                continue;
            }
            device.carry(&mut pieces)?;
            let moved = Statistics::now()?.since(&before);
            ensure_eq!(moved.pins, 2 * pages as u64, "pins for {pages} pages, {parts} pieces");
        }
    }
    let before = Statistics::now()?;
    device.carry(&mut [Piece::new(&dst, 0, &src, 1, 16 * PAGE)])?;
    let moved = Statistics::now()?.since(&before);
    ensure_eq!(moved.pins, 16 + 17, "pins where the source lies across the pages");
    Ok(())
}

fn statistics_pinned_pages_are_seen_under_way_and_zero_when_idle() -> Outcome {
    let bench = Bench::new()?;
    let device = Device::keeping_nothing()?;
    let before = crate::kernel::pins_outstanding()?;
    settle(before)?;
    let (dst, src) = (Region::of_small_pages(16 * PAGE)?, Region::of_small_pages(16 * PAGE)?);
    bench.slow_down()?;
    let request = device.start(&mut Piece::new(&dst, 0, &src, 0, 16 * PAGE).split(16, 1))?;
    let pinned = Statistics::now()?.pinned_pages;
    ensure_eq!(device.wait(request.id, std::time::Duration::ZERO), Err(EAGAIN), "a look");
    ensure_eq!(pinned, 32, "pages pinned under way");
    bench.clear()?;
    ensure_eq!(device.end(&request)?, 0, "failed pieces");
    settle(before)
}
