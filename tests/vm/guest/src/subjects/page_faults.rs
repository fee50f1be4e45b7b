//! Memory that is not there or must not be written: refused, and nothing else is touched.

use crate::device::*;
use crate::memory::{PAGE, Region, memory_file};
use crate::oracle::Watched;
use crate::verdict::{Context, Outcome};
use std::os::fd::AsRawFd;

tests! {
    page_fault_in_piece_k_of_n_accepts_k
    page_fault_inside_a_piece_spares_what_is_behind
    page_fault_read_only_destination_is_efault
    page_fault_read_only_file_destination_is_efault
    page_fault_beyond_the_end_of_a_file_is_efault
    page_fault_again_and_again_leaks_nothing
}

const PIECES: usize = 6;
const LEN: usize = 2 * PAGE;

/// What can be wrong with a page.
#[derive(Clone, Copy, Debug)]
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
fn piece_with_trouble(device: &Device, trouble: Trouble, at_source: bool, k: usize) -> Outcome {
    let total = PIECES * LEN;
    let (dst, src) = (Region::of_small_pages(total)?, Region::of_small_pages(total)?);
    dst.fill(1);
    src.fill(2);
    let channels = device.info()?.channels;
    let mut pieces = Piece::new(&dst, 0, &src, 0, total).split(PIECES, channels);
    let bad = k * LEN + PAGE;
    trouble.make(if at_source { &src } else { &dst }, bad)?;

    let Submitted { result, out } = device.submit(&mut pieces);
    ensure_eq!((result, out.accepted), (Err(EFAULT), k as u32), "result and accepted");
    if k > 0 {
        ensure_eq!(device.end(&out)?, 0, "failed pieces");
    }
    dst.expect_part(0, k * LEN, 2).context("the pieces before")?;
    // Of the bad piece some may have been copied, but only up to the bad page.
    let untouched = if at_source { bad } else { bad + PAGE };
    dst.expect_part(untouched, total - untouched, 1).context("what is behind")?;
    if !at_source && matches!(trouble, Trouble::ReadOnly) {
        dst.expect_part(bad, PAGE, 1).context("the bad page")?;
    }
    Ok(())
}

fn page_fault_in_piece_k_of_n_accepts_k() -> Outcome {
    let device = Device::open()?;
    for (trouble, at_source) in [
        (Trouble::ReadOnly, false),
        (Trouble::Forbidden, false),
        (Trouble::Forbidden, true),
        (Trouble::Unmapped, false),
        (Trouble::Unmapped, true),
    ] {
        for k in [0, 1, PIECES / 2, PIECES - 1] {
            let place = format!("{trouble:?} in piece {k}, in the source: {at_source}");
            piece_with_trouble(&device, trouble, at_source, k).context(place)?;
        }
    }
    Ok(())
}

fn page_fault_inside_a_piece_spares_what_is_behind() -> Outcome {
    const LEN: usize = 64 * PAGE;
    let device = Device::open()?;
    for bad in [0, 1, 31, 63] {
        let (dst, src) = (Region::of_small_pages(LEN)?, Region::of_small_pages(LEN)?);
        dst.fill(1);
        src.unmap_part(bad * PAGE, PAGE)?;
        let Submitted { result, out } = device.submit(&mut [Piece::new(&dst, 0, &src, 0, LEN)]);
        ensure_eq!((result, out.accepted), (Err(EFAULT), 0), "a hole at page {bad}");
        // What lies before may have been copied, what lies behind never.
        dst.expect_part(bad * PAGE, LEN - bad * PAGE, 1)?;
    }
    Ok(())
}

fn page_fault_read_only_destination_is_efault() -> Outcome {
    let device = Device::open()?;
    let (dst, src) = (Region::of_small_pages(LEN)?, Region::of_small_pages(LEN)?);
    let watched = Watched::new(&dst, 0, &src, 0, LEN, 0);
    dst.protect(0, LEN, libc::PROT_READ)?;
    let Submitted { result, out } = device.submit(&mut [watched.piece()]);
    ensure_eq!((result, out.accepted), (Err(EFAULT), 0), "a read-only destination");
    watched.expect_untouched()?;
    // The other way round it is a good source.
    device.carry(&mut [Piece::new(&src, 0, &dst, 0, LEN)])?;
    for at in (0..LEN).step_by(8) {
        ensure_eq!(src.word(at), dst.word(at), "read-only source, byte {at}");
    }
    Ok(())
}

/// No right to write by any detour: neither shared nor as a copy of one's own.
fn page_fault_read_only_file_destination_is_efault() -> Outcome {
    let device = Device::open()?;
    let src = Region::of_small_pages(LEN)?;
    let file = memory_file(LEN)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let read_only = std::fs::File::open(path)?;
    for flags in [libc::MAP_SHARED, libc::MAP_PRIVATE] {
        let fd = read_only.as_raw_fd();
        let dst = Region::map_file(fd, 0, LEN, libc::PROT_READ, flags)?;
        let Submitted { result, out } = device.submit(&mut [Piece::new(&dst, 0, &src, 0, LEN)]);
        ensure_eq!((result, out.accepted), (Err(EFAULT), 0), "a read-only file");
        dst.expect_zero(0, LEN)?;
    }
    // The program's own code.
    let code = (page_fault_read_only_file_destination_is_efault as *const () as u64) & !4095;
    let piece = Piece { dst: code, ..Piece::new(&src, 0, &src, 0, PAGE) };
    let Submitted { result, out } = device.submit(&mut [piece]);
    ensure_eq!((result, out.accepted), (Err(EFAULT), 0), "the program's own code");
    Ok(())
}

fn page_fault_beyond_the_end_of_a_file_is_efault() -> Outcome {
    let device = Device::open()?;
    let rights = libc::PROT_READ | libc::PROT_WRITE;
    let file = memory_file(PAGE)?;
    let beyond = Region::map_file(file.as_raw_fd(), 0, LEN, rights, libc::MAP_SHARED)?;
    let memory = Region::of_small_pages(LEN)?;
    memory.fill(1);
    for piece in [
        Piece::new(&memory, 0, &beyond, 0, LEN),
        Piece::new(&beyond, 0, &memory, 0, LEN),
        Piece::new(&memory, 0, &beyond, PAGE, PAGE),
    ] {
        let Submitted { result, out } = device.submit(&mut [piece]);
        ensure_eq!((result, out.accepted), (Err(EFAULT), 0), "beyond the end of a file");
    }
    memory.expect_part(PAGE, PAGE, 1)?;
    Ok(())
}

fn page_fault_again_and_again_leaks_nothing() -> Outcome {
    let device = Device::open()?;
    let (dst, src) = (Region::of_small_pages(16 * PAGE)?, Region::of_small_pages(16 * PAGE)?);
    src.unmap_part(15 * PAGE, PAGE)?;
    for _ in 0..3 * SLOTS {
        let mut pieces = Piece::new(&dst, 0, &src, 0, 16 * PAGE).split(4, 1);
        let Submitted { result, out } = device.submit(&mut pieces);
        ensure_eq!((result, out.accepted), (Err(EFAULT), 3), "result and accepted");
        ensure_eq!(device.end(&out)?, 0, "failed pieces");
    }
    device.carry(&mut [Piece::new(&dst, 0, &src, 0, 15 * PAGE)])?;
    Ok(())
}
