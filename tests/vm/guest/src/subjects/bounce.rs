//! Memory that the engine could reach through a bounce buffer only (SWIOTLB).
//!
//! `tests/vm/run --provider software --append swiotlb=force bounce`: there every page is one.

use crate::device::*;
use crate::kernel::Statistics;
use crate::memory::{PAGE, Region};
use crate::shim;
use crate::verdict::{Context, Outcome};
use std::fs;

tests! {
    bounce_pages_are_refused_again_and_again
    bounce_program_copies_by_cpu
}

fn needs_bouncing() -> Outcome {
    if !fs::read_to_string("/proc/cmdline")?.contains("swiotlb=force") {
        skip!("no page needs a bounce buffer; --append swiotlb=force");
    }
    Ok(())
}

fn bounce_pages_are_refused_again_and_again() -> Outcome {
    needs_bouncing()?;
    let (dst, src) = (Region::of_small_pages(8 * PAGE)?, Region::of_small_pages(8 * PAGE)?);
    dst.fill(1);
    src.fill(2);
    let before = Statistics::now()?;
    // Pages that are to be kept, and those that are not.
    for device in [Device::open()?, Device::keeping_nothing()?] {
        for round in 0..10 {
            let mut pieces = Piece::new(&dst, 0, &src, 0, dst.len()).split(1 + round % 4, 1);
            let Submitted { result, out } = device.submit(&mut pieces);
            ensure_eq!(result, Err(EIO), "round {round}");
            ensure_eq!((out.accepted, out.id), (0, 0), "round {round}: accepted, and its number");
        }
    }
    ensure_eq!(Statistics::now()?.since(&before).descriptors, 0, "descriptors");
    dst.expect(1).context("written, but refused")
}

fn bounce_program_copies_by_cpu() -> Outcome {
    needs_bouncing()?;
    let report = shim::only_report(&mut shim::victim("copies", &["20", "262144"])?)?;
    let (engine, libc) = (report.engine_bytes()?, report.libc_bytes()?);
    println!("{engine} bytes by the engine, {libc} by libc");
    ensure_eq!((engine, libc), (0, 20 * 262_144), "bytes by the engine and by libc");
    Ok(())
}
