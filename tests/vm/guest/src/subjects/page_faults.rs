//! Memory that is missing or must not be written: refused, and nothing else is touched.

use super::*;

const PIECES: usize = 6;
const LEN: usize = 2 * PAGE;

/// Defects of a page.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    ReadOnly,
    Forbidden,
    Unmapped,
}

impl Trouble {
    fn make(self, region: &Region, at: usize) -> Outcome {
        match self {
            Trouble::ReadOnly => region.protect(at, PAGE, libc::PROT_READ)?,
            Trouble::Forbidden => region.protect(at, PAGE, libc::PROT_NONE)?,
            Trouble::Unmapped => region.unmap_part(at, PAGE)?,
        }
        Ok(())
    }
}

/// Pieces that follow each other; the one with number `k` has trouble at its second page.
fn piece_with_trouble(trouble: Trouble, at_source: bool, k: usize) -> Outcome {
    let pair = Pair::new(PIECES * LEN)?;
    let bad = k * LEN + PAGE;
    trouble.make(if at_source { &pair.src } else { &pair.dst }, bad)?;
    let Submitted { result, out } = pair.device.submit(&mut pair.pieces(PIECES));
    ensure_eq!((result, out.accepted), (Err(EFAULT), k as u32), "result and accepted");
    if k > 0 {
        pair.device.finish(&out)?;
    }
    pair.dst.expect_part(0, k * LEN, 2).context("the pieces before")?;
    // Of the bad piece some may have been copied, but only up to the bad page.
    let is_readable = at_source || trouble == Trouble::ReadOnly;
    let untouched = if is_readable { bad } else { bad + PAGE };
    pair.dst.expect_part(untouched, PIECES * LEN - untouched, 1).context("from the bad page on")
}

pub fn page_fault_in_piece_k_of_n_accepts_k() -> Outcome {
    for (trouble, at_source) in [
        (Trouble::ReadOnly, false),
        (Trouble::Forbidden, false),
        (Trouble::Forbidden, true),
        (Trouble::Unmapped, false),
        (Trouble::Unmapped, true),
    ] {
        for k in [0, 1, PIECES / 2, PIECES - 1] {
            let place = format!("{trouble:?} in piece {k}, in the source: {at_source}");
            piece_with_trouble(trouble, at_source, k).context(place)?;
        }
    }
    Ok(())
}

pub fn page_fault_inside_a_piece_spares_what_is_behind() -> Outcome {
    const LEN: usize = 64 * PAGE;
    for bad in [0, 1, 31, 63] {
        let pair = Pair::new(LEN)?;
        pair.src.unmap_part(bad * PAGE, PAGE)?;
        pair.device.refuse(pair.whole(), EFAULT, format_args!("a hole at page {bad}"))?;
        // Bytes before it may have been copied, bytes behind it never.
        pair.dst.expect_part(bad * PAGE, LEN - bad * PAGE, 1)?;
    }
    Ok(())
}

pub fn page_fault_read_only_destination_is_efault() -> Outcome {
    let Pair { device, dst, src, .. } = Pair::new(LEN)?;
    let watched = Watched::new(&dst, 0, &src, 0, LEN, 0);
    dst.protect(0, LEN, libc::PROT_READ)?;
    device.refuse(watched.piece(), EFAULT, "a read-only destination")?;
    watched.expect_untouched()?;
    // In the other direction it is a good source.
    device.carry(&mut [Piece::new(&src, 0, &dst, 0, LEN)])?;
    src.expect_same(0, &dst, 0, LEN).context("a read-only source")
}

/// Writing is impossible, whether shared or by copy-on-write.
pub fn page_fault_read_only_file_destination_is_efault() -> Outcome {
    let device = Device::open()?;
    let src = Region::of_small_pages(LEN)?;
    let file = memory_file(LEN)?;
    let read_only = File::open(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        let dst = Region::map_file(read_only.as_raw_fd(), 0, LEN, libc::PROT_READ, flags)?;
        device.refuse(Piece::new(&dst, 0, &src, 0, LEN), EFAULT, "a read-only file")?;
        dst.expect_zero(0, LEN)?;
    }
    let code = (page_fault_read_only_file_destination_is_efault as *const () as u64) & !4095;
    let piece = Piece { dst: code, ..Piece::new(&src, 0, &src, 0, PAGE) };
    device.refuse(piece, EFAULT, "the program's own code")
}

pub fn page_fault_beyond_the_end_of_a_file_is_efault() -> Outcome {
    let device = Device::open()?;
    let file = memory_file(PAGE)?;
    let beyond = Region::map_file(file.as_raw_fd(), 0, LEN, READ_WRITE, libc::MAP_SHARED)?;
    let memory = Region::of_small_pages(LEN)?;
    memory.fill(1);
    for piece in [
        Piece::new(&memory, 0, &beyond, 0, LEN),
        Piece::new(&beyond, 0, &memory, 0, LEN),
        Piece::new(&memory, 0, &beyond, PAGE, PAGE),
    ] {
        device.refuse(piece, EFAULT, "beyond the end of a file")?;
    }
    Ok(memory.expect_part(PAGE, PAGE, 1)?)
}

pub fn page_fault_again_and_again_leaks_nothing() -> Outcome {
    let pair = Pair::new(16 * PAGE)?;
    pair.src.unmap_part(15 * PAGE, PAGE)?;
    for _ in 0..3 * SLOTS {
        let Submitted { result, out } = pair.device.submit(&mut pair.whole().split(4, 1));
        ensure_eq!((result, out.accepted), (Err(EFAULT), 3), "result and accepted");
        pair.device.finish(&out)?;
    }
    pair.device.carry(&mut [pair.part(0, 15 * PAGE)]).map(drop)
}
