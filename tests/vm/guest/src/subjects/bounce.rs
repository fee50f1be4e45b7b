//! Memory that the engine could reach through a bounce buffer only (SWIOTLB).
//!
//! `tests/vm/run --provider software --append swiotlb=force bounce`: there every page is one.

use super::*;

fn needs_bouncing() -> Outcome {
    if !fs::read_to_string("/proc/cmdline")?.contains("swiotlb=force") {
        skip!("no page needs a bounce buffer; --append swiotlb=force");
    }
    Ok(())
}

pub fn bounce_pages_are_refused_again_and_again() -> Outcome {
    needs_bouncing()?;
    let pair = Pair::new(8 * PAGE)?;
    let before = Statistics::now()?;
    // Pages that are to be kept, and those that are not.
    for keep in [u64::MAX, 0] {
        pair.device.keep(keep)?;
        for round in 0..10 {
            let Submitted { result, out } = pair.device.submit(&mut pair.pieces(1 + round % 4));
            ensure_eq!((result, out.accepted, out.id), (Err(EIO), 0, 0), "round {round}");
        }
    }
    ensure_eq!(Statistics::now()?.since(&before).descriptors, 0, "descriptors");
    pair.dst.expect(1).context("written, but refused")
}

pub fn bounce_program_copies_by_cpu() -> Outcome {
    needs_bouncing()?;
    let report = shim::only_report(&mut shim::victim("copies", &["20", "262144"])?)?;
    let found = (report.engine_bytes()?, report.libc_bytes()?);
    ensure_eq!(found, (0, 20 * 262_144), "bytes by the engine and by libc");
    Ok(())
}
