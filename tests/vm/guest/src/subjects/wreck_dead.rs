//! All channels die under a program that goes on copying: its bytes are right all the time,
//! and before long the engine is given up for good.

use super::wreck::{PIECE, Wreck, on_dying_wreck};
use super::*;

tests! {
    wreck_dead_by_read_errors_libc_takes_over = libc_takes_over(Kind::Read);
    wreck_dead_by_write_errors_libc_takes_over = libc_takes_over(Kind::Write);
    wreck_dead_by_other_errors_libc_takes_over = libc_takes_over(Kind::Other);
    wreck_dead_by_hangs_libc_takes_over = libc_takes_over(Kind::Hang);
    wreck_dead_even_after_resets_libc_takes_over = libc_takes_over(Kind::Dead);
}

/// A little while in which the program copies on.
const MEANWHILE: Duration = Duration::from_millis(500);

/// With the first transfer of a request, and in the middle of one.
fn libc_takes_over(kind: Kind) -> Outcome {
    for after in [0, 1] {
        let fault = Fault::always(kind).after(after);
        on_dying_wreck(|wreck| dies(wreck, fault)).context(format_args!("{fault:?}"))?;
    }
    Ok(())
}

fn dies(wreck: &Wreck, fault: Fault) -> Outcome {
    let program = shim::Steady::start()?;
    sleep(MEANWHILE);
    wreck.bench.arm_all(fault)?;
    println!("given up after {:?}", given_up(wreck)?);
    let counted = Statistics::now()?;
    sleep(MEANWHILE);
    let moved = Statistics::now()?.since(&counted);
    let report = program.end()?;
    ensure_eq!((moved.copies, moved.descriptors), (0, 0), "copies, descriptors afterwards");
    ensure!(report.engine_bytes()? > 0, "the engine had carried nothing before");
    let fallbacks = report.number("/fallbacks/no_channels")?;
    ensure!(fallbacks > 0, "the program has not given the engine up");
    Ok(())
}

/// Waits until requests are refused for good; makes none while a channel could take it.
fn given_up(wreck: &Wreck) -> Outcome<Duration> {
    let limit = if has_checkers() { 3 * PATIENCE } else { PATIENCE };
    let (dst, src) = (Region::of_small_pages(PIECE)?, Region::of_small_pages(PIECE)?);
    let begun = Instant::now();
    loop {
        let usable = wreck.device.info()?.usable;
        if usable == 0 {
            let Submitted { result, out } =
                wreck.device.submit(&mut [Piece::new(&dst, 0, &src, 0, PIECE)]);
            if result == Err(ENODEV) {
                return Ok(begun.elapsed());
            }
            // One may have come back just now.
            if out.accepted > 0 {
                wreck.device.end(&out)?;
            }
        }
        ensure!(begun.elapsed() < limit, "not given up within {limit:?}, {usable} usable");
        sleep(Duration::from_millis(20));
    }
}
