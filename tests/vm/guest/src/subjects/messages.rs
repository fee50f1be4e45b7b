//! Messages between processes with the helper as their engine: the programs of tests/ipc.rs,
//! which run on the host without it.

use super::*;
use std::process::Command;

tests! {
    message_bytes_arrive_in_every_order_and_size =
        // Both ways, in four orders; without process_vm each byte of a large one is carried.
        all_carried(&[&format!("ipc_messages helper {}", largest())], 8 * LARGE);
    message_longer_than_its_buffer_is_told = all_carried(&["ipc_messages unequal"], 1 << 20);
    message_threads_share_a_connection = all_carried(&["ipc_threads threads"], 1);
    message_end_fork = all_carried(&["ipc_ends fork", "ipc_ends orphan"], 0);
    // Nothing is needed of it but its exports.
    message_end_stopped_process = all_carried(&["ipc_stopped stopped"], 16 << 20);
}

/// Bytes of the large messages of `ipc_messages`, one way in one order.
const LARGE: u64 = 65535 + 65536 + 65537 + 262144 + 262145;

fn program(line: &str, engine: &str) -> Outcome<Command> {
    let mut command = shim::host_program(line)?;
    command.env("ADMA_IPC_ENGINE", engine).env("ENGINE", "helper");
    Ok(command)
}

/// Runs a program that must succeed; returns the bytes that channels have copied between processes,
/// and its output.
fn carried(command: &mut Command) -> Outcome<(u64, String)> {
    let before = Statistics::now()?;
    let done = shim::finish(command)?;
    let moved = Statistics::now()?.since(&before);
    println!("{command:?}: {} exports, {} bytes", moved.exports, moved.export_bytes);
    print!("{}", String::from_utf8_lossy(&done.stdout));
    Ok((moved.export_bytes, String::from_utf8_lossy(&done.stderr).trim().to_owned()))
}

/// Runs programs in which everything above the threshold goes through the helper.
fn all_carried(lines: &[&str], least: u64) -> Outcome {
    for line in lines {
        let (bytes, err) = carried(&mut program(line, "helper")?)?;
        ensure_eq!(err, "", "{line}: said unasked");
        ensure!(bytes >= least, "{line}: {bytes} bytes by the helper, want {least}");
    }
    Ok(())
}

/// Returns the largest message: emulated channels are slow.
fn largest() -> &'static str {
    if has_checkers() { "300000" } else { "3200000" }
}

/// Memory of adma_alloc is ordinary memory for the helper, even when it is freed.
pub fn message_from_block_to_block_is_carried() -> Outcome {
    // With other ways available a writer does not use the helper for a read that is waited for.
    for (engine, least) in [("helper", 8 * LARGE), ("auto", 2 * LARGE)] {
        let mut command = program("ipc_messages helper 300000", engine)?;
        let (bytes, _) = carried(command.env("BLOCKS", "1"))?;
        ensure!(bytes >= least, "{engine}: {bytes} bytes by the helper");
    }
    for what in ["freed", "returned", "fork", "closed", "straddling", "alone", "returned closed"] {
        all_carried(&[&format!("ipc_blocks {what}")], 0)?;
    }
    // This kernel stops allocating pages when a signal comes.
    all_carried(&["ipc_blocks interrupted"], 0)
}

pub fn message_regimes_are_kept() -> Outcome {
    // The probes of the connection are two words each way.
    const PROBES: u64 = 32;
    let large = 8 * (32769 + 65535 + 65536 + 65537);
    let (bytes, _) = carried(&mut program("ipc_messages helper 100000", "helper")?)?;
    ensure!((large..=large + PROBES).contains(&bytes), "{bytes}, want {large} and no small ones");
    Ok(())
}

pub fn message_engine_is_preferred_and_named() -> Outcome {
    let mut command = program("ipc_ends close", "auto")?;
    let (bytes, err) = carried(command.env("ADMA_LOG", "info"))?;
    let lines: Vec<&str> = err.lines().filter(|line| line.contains("connection:")).collect();
    ensure_eq!(lines.len(), 2, "lines about the connection: {err}");
    let right = "adma: connection: helper, one copy by the engine; else process_vm, one copy";
    ensure!(lines.iter().all(|line| line.starts_with(right)), "{err}");
    ensure!(bytes > 0, "nothing was carried");
    for knob in [("ADMA_BACKEND", "threads"), ("ADMA_IPC_ENGINE", "shm")] {
        let mut command = program("ipc_ends close", "auto")?;
        let (bytes, err) = carried(command.envs([knob, ("ADMA_LOG", "info")]))?;
        ensure!(bytes == 0 && !err.contains("connection: helper"), "{knob:?}: {bytes}, {err}");
    }
    Ok(())
}

pub fn message_calls_that_are_forbidden_are_not_needed() -> Outcome {
    // The side that still has the right makes calls, too, and a message in which that fails goes
    // through shared memory; all others are carried, of twelve with 8 MiB each or 1.
    for (line, least) in [("ipc_rights lost", 8 << 20), ("ipc_rights lost both", 5 * (8 << 20))] {
        let (bytes, _) = carried(&mut program(line, "auto")?)?;
        ensure!(bytes >= least, "{line}: {bytes} bytes by the helper");
    }
    // A filter that exists before the engine is up may forbid anything: it stays down.
    let (bytes, _) = carried(&mut program("ipc_rights refused", "auto")?)?;
    ensure_eq!(bytes, 0, "bytes by the helper under a filter");
    Ok(())
}

pub fn message_end_close_and_exec() -> Outcome {
    all_carried(&["ipc_ends close", "ipc_ends exec", "ipc_listen listen", "ipc_waiting quiet"], 0)?;
    // Its pid cannot be found any more; ports need none.
    all_carried(&["ipc_ends first_thread"], 20 << 20)
}

pub fn message_end_connections_leave_nothing() -> Outcome {
    if has_checkers() {
        skip!("takes too long on a kernel with checkers");
    }
    all_carried(&["ipc_ends again", "ipc_limits full"], 1)
}

pub fn message_killed_at_random_is_noticed_every_time() -> Outcome {
    let rounds = rounds(500);
    for (engine, rounds) in [("helper", rounds), ("auto", rounds.div_ceil(5))] {
        // Microseconds that most peers need to come to messages: the guest is slow, and its host may be busy.
        let longest = if has_checkers() { 400_000 } else { 40_000 };
        let bytes = |longest| -> Outcome<u64> {
            let line = format!("ipc_killed {rounds} {longest}");
            Ok(carried(&mut program(&line, engine)?)?.0)
        };
        let enough = 5_000 * rounds as u64;
        if bytes(longest)? <= enough {
            let bytes = bytes(4 * longest)?;
            ensure!(bytes > enough, "{bytes} bytes in {rounds} rounds");
        }
    }
    Ok(())
}
