//! The oracle of the host's tests (tests/programs/oracle.c) on the engine: every size, every
//! offset, every function, from one byte up.

use super::traps::victim;
use crate::kernel::has_checkers;
use crate::shim;
use crate::verdict::Outcome;

tests! { ALL_CHANNELS:
    oracle_over_all_channels_copies_right = || oracle("auto");
}

tests! { ONE_CHANNEL:
    oracle_one_channel_each_copies_right = || {
        if std::env::var_os("GUEST_ROUNDS").is_none() {
            skip!("takes most of a minute; GUEST_ROUNDS=1 asks for it");
        }
        oracle("1")
    };
}

/// No copy may be refused: one caller has one request in flight. Its slots were once all taken
/// by requests that were over, for their words come before their interrupts.
fn oracle(channels: &str) -> Outcome {
    if has_checkers() {
        skip!("takes too long on a kernel with checkers");
    }
    let mut command = shim::plain(victim("oracle")?);
    shim::with_library(&mut command)?.env("ADMA_MIN_BYTES", "1").env("ADMA_CHANNELS", channels);
    let report = shim::only_report(&mut command)?;
    let engine = report.number(&["paths", "engine", "calls"])?;
    let libc = report.number(&["paths", "libc", "calls"])?;
    println!("{engine} copies by the engine, {libc} by libc");
    ensure!(engine > 100_000, "only {engine} copies were carried");
    ensure_eq!(libc, 0, "copies by libc");
    Ok(())
}
