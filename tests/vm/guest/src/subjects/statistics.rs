//! The module's counters: two for every user, all of them for root.

use super::*;
use crate::kernel::{ALL_STATISTICS, STATISTICS};

/// A user without access to the device sees copies, errors and names of channels, but no bytes,
/// pages or lines.
pub fn statistics_for_all_users_reveal_no_sizes() -> Outcome {
    println!("{:?}", Statistics::now()?);
    in_child(|| {
        become_nobody()?;
        let mut found = Vec::new();
        for entry in fs::read_dir(STATISTICS).context(STATISTICS)? {
            let path = entry?.path();
            let Ok(text) = fs::read_to_string(&path) else { continue };
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            // The names of channels and their drivers are those under /sys/class/dma.
            let is_number = text.strip_suffix('\n').is_some_and(|line| line.parse::<u64>().is_ok());
            ensure!(is_number || name == "channels", "{}: {text:?}", path.display());
            found.push(name);
        }
        found.sort();
        ensure_eq!(found, ["channels", "copies", "errors"], "files that every user can read");
        ensure!(fs::read(ALL_STATISTICS).is_err(), "{ALL_STATISTICS} can be read by nobody");
        Ok(())
    })
}

/// Returns what the module has counted while `run` ran.
fn counted(run: impl FnOnce() -> Outcome) -> Outcome<Statistics> {
    let before = Statistics::now()?;
    run()?;
    let moved = Statistics::now()?.since(&before);
    println!("{moved:?}");
    Ok(moved)
}

pub fn statistics_of_one_copy_are_exact() -> Outcome {
    let pair = Pair::new(16 * PAGE)?;
    for parts in [1, 4, 16] {
        let moved = counted(|| pair.carry(parts).map(drop))?;
        ensure!(moved.copies > 0 && moved.descriptors > 0, "not counted: {moved:?}");
        ensure_eq!(moved.bytes, 16 * PAGE as u64, "bytes");
        ensure_eq!(
            (moved.errors, moved.timeouts, moved.ring_full, moved.quarantined),
            (0, 0, 0, 0),
            "errors, timeouts, ring_full, quarantined"
        );
    }
    // A request that is refused at once is no copy.
    let moved = counted(|| pair.device.refuse(pair.part(0, 1), EINVAL, "a piece of one byte"))?;
    ensure_eq!((moved.copies, moved.bytes, moved.pins), (0, 0, 0), "copies, bytes, pins");
    Ok(())
}

pub fn statistics_pins_are_one_per_page_and_side() -> Outcome {
    let pair = Pair::new(65 * PAGE)?;
    pair.device.keep(0)?;
    // Cut at pages, so that no page belongs to two pieces.
    for (pages, parts) in [(1, 1), (16, 1), (16, 4), (64, 1), (64, 16)] {
        let mut pieces = pair.part(0, pages * PAGE).split(parts, pair.channels);
        let moved = counted(|| pair.device.carry(&mut pieces).map(drop))?;
        ensure_eq!(moved.pins, 2 * pages as u64, "pins for {pages} pages, {parts} pieces");
    }
    for at in (0..48 * PAGE).step_by(8 * PAGE) {
        let across = Piece::new(&pair.dst, at, &pair.src, at + 1, 16 * PAGE);
        let moved = counted(|| pair.device.carry(&mut [across]).map(drop))?;
        // Where the destination is in two ranges, there are two parts, and both have a page of the source.
        let range_of = |at| pair.dst.address(at) / RANGE as u64;
        let parts = range_of(at + 16 * PAGE - 1) - range_of(at) + 1;
        ensure_eq!(moved.pins, 16 + 16 + parts, "pins where the source lies across the pages");
    }
    Ok(())
}

pub fn statistics_pinned_pages_are_seen_under_way_and_zero_when_idle() -> Outcome {
    let bench = Bench::new()?;
    let pair = Pair::new(16 * PAGE)?;
    pair.device.keep(0)?;
    let before = kernel::pins_outstanding()?;
    kernel::settle(before)?;
    bench.slow_down()?;
    let request = pair.device.start(&mut pair.whole().split(16, 1))?;
    let pinned = Statistics::now()?.pinned_pages;
    ensure_eq!(pair.device.wait(request.id, Duration::ZERO), Err(EAGAIN), "a look");
    ensure_eq!(pinned, 32, "pages pinned under way");
    bench.clear()?;
    pair.device.finish(&request)?;
    kernel::settle(before)
}
