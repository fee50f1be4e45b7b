//! The oracle of the host's tests (tests/programs/oracle.c) on the engine: every size, every
//! offset, every function, from one byte up.

use super::*;

tests! {
    oracle_over_all_channels_copies_right = oracle("auto");
    oracle_one_channel_each_copies_right = match std::env::var_os("GUEST_ROUNDS") {
        Some(_) => oracle("1"),
        None => skip!("takes most of a minute; GUEST_ROUNDS=1 asks for it"),
    };
}

/// No copy may be refused: one caller has one request in flight. Its slots were once all taken
/// by requests that were over, for their words come before their interrupts.
fn oracle(channels: &str) -> Outcome {
    if has_checkers() {
        skip!("takes too long on a kernel with checkers");
    }
    let mut command = shim::host_program("oracle")?;
    shim::with_library(&mut command)?.env("ADMA_MIN_BYTES", "1").env("ADMA_CHANNELS", channels);
    let report = shim::only_report(&mut command)?;
    let engine = report.number("/paths/engine/calls")?;
    println!("{engine} copies by the engine");
    ensure!(engine > 100_000, "only {engine} copies were carried");
    ensure_eq!(report.number("/paths/libc/calls")?, 0, "copies by libc");
    Ok(())
}
