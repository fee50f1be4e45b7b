//! Overlapped pinning: of a first copy the engine carries what is pinned while the rest is being pinned.
//!
//! `bench/run pins` reads the last line of the first test.

use super::*;

const LEN: usize = 16 << 20;

/// A queue of idxd has room for 14 transfers: what is more waits for room before the next stretch.
fn needs_a_long_queue() -> Outcome {
    if is_dsa() {
        skip!("a queue of idxd is too short");
    }
    if has_checkers() {
        skip!("pinning takes much longer than copying on a kernel with checkers");
    }
    Ok(())
}

/// Counts what is pinned, and of that what is pinned while the copy is in flight, in `pieces` pieces.
fn pinned(pair: &Pair, pieces: usize) -> Outcome<(u64, u64)> {
    let before = Statistics::now()?;
    pair.carry(pieces)?;
    let moved = Statistics::now()?.since(&before);
    ensure_eq!(moved.bytes, pair.dst.len() as u64, "bytes");
    pair.expect_copied()?;
    Ok((moved.pins, moved.overlapped))
}

/// Against an engine that takes as long as a real one takes beside a real processor's pinning.
pub fn overlap_of_a_first_copy_is_four_fifths_of_its_pages() -> Outcome {
    needs_a_long_queue()?;
    let bench = Bench::new()?;
    let pair = Pair::scattered(LEN)?;
    bench.arm_all(Fault::always(Kind::Slow).value(100))?;
    let (pins, overlapped) = pinned(&pair, pair.channels as usize)?;
    ensure_eq!(pins, 2 * (LEN / PAGE) as u64, "pages pinned");
    let again = pinned(&pair, pair.channels as usize)?;
    ensure_eq!(again, (0, 0), "pages pinned by the second copy");
    println!("overlapped {overlapped} of {pins} pages");
    ensure!(10 * overlapped >= 8 * pins, "{overlapped} of {pins} pages");
    Ok(())
}

/// Pages that were found pinned are on their way before others are pinned.
pub fn overlap_of_a_copy_that_is_pinned_in_part_begins_at_once() -> Outcome {
    needs_a_long_queue()?;
    let bench = Bench::new()?;
    let pair = Pair::scattered(LEN / 4)?;
    let half = pair.dst.len() / 2;
    pair.device.carry(&mut [pair.part(0, half).on(0)])?;
    bench.arm_all(Fault::always(Kind::Slow).value(100))?;
    let before = Statistics::now()?;
    pair.device.carry(&mut pair.whole().split(2, 1))?;
    let moved = Statistics::now()?.since(&before);
    println!("{} of {} pages", moved.overlapped, moved.pins);
    ensure_eq!(moved.pins, 2 * (half / PAGE) as u64, "pages pinned");
    ensure!(10 * moved.overlapped >= 8 * moved.pins, "{} overlapped", moved.overlapped);
    pair.expect_copied()
}

/// A page in the middle is not there: what was begun ends, and its piece is refused.
pub fn overlap_with_a_bad_page_behind_refuses_that_piece_only() -> Outcome {
    let pair = Pair::scattered(LEN / 4)?;
    let len = pair.dst.len();
    pair.src.unmap_part(len / 2 + len / 8, PAGE)?;
    let Submitted { result, out } = pair.device.submit(&mut pair.pieces(4));
    ensure_eq!((result, out.accepted), (Err(EFAULT), 2), "errno, and pieces taken");
    pair.device.finish(&out)?;
    pair.dst.expect_part(0, len / 2, 2)?;
    // The first piece: nothing is taken, and nothing goes on.
    let Submitted { result, out } = pair.device.submit(&mut [pair.part(len / 4, len / 2)]);
    ensure_eq!((result, out.accepted, out.id), (Err(EFAULT), 0, 0), "errno, pieces, request");
    pair.dst.fill(3);
    pair.device.carry(&mut [pair.part(0, PAGE)])?;
    pair.dst.expect_part(PAGE, len - PAGE, 3).context("written after the refusal")
}
