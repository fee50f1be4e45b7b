//! The victims of tests/traps_*.rs, with the engine in place of worker threads.

use crate::shim;
use crate::verdict::{Context, Outcome};
use std::path::PathBuf;
use std::time::Instant;

tests! {
    trap_of_signals_is_survived = || survive_carried(&[
        "trap_signal timer",
        "trap_signal storm",
        "trap_signal_jump",
        "trap_cancel",
        "trap_errno",
        "trap_small_stack handler",
        "trap_small_stack coroutine",
    ]);
    // A child has its parent's descriptor and may not use it; one of vfork has its memory.
    trap_of_forks_is_survived = || survive_carried(&[
        "trap_fork",
        "trap_fork handlers",
        "trap_raw_fork",
        "trap_vfork copy",
        "trap_vfork first",
        "trap_vfork race",
    ]);
    trap_of_other_programs_is_survived =
        || survive_carried(&["trap_exec", "trap_spawn", "trap_spawn daemon"]);
    trap_of_ends_is_survived
    trap_of_strange_descriptors_is_survived
    trap_of_filters_and_limits_is_survived
    trap_of_locked_allocator_is_survived = || survive_carried(&["trap_allocator_lock"]);
}

/// A small program that tests/*.rs run on the host too, built by tests/vm/guest/build.
pub fn victim(name: &str) -> Outcome<PathBuf> {
    let exe = std::env::current_exe()?;
    let mut places = exe.ancestors().map(|up| up.join("vm/guest-victims").join(name));
    match places.find(|path| path.is_file()) {
        Some(path) => Ok(path),
        None => skip!("there is no victim {name}: tests/vm/guest/build"),
    }
}

/// Runs each line, a victim and its arguments; the bytes that the engine has carried for all.
pub fn survive(lines: &[&str]) -> Outcome<u64> {
    let mut carried = 0;
    for line in lines {
        let mut words = line.split_whitespace();
        let reports = shim::Folder::new("victims")?;
        let mut command = shim::plain(victim(words.next().unwrap_or_default())?);
        shim::report_into(shim::with_library(&mut command)?, &reports).args(words);
        // The guest is slow, and one moment of ten shows what a hundred do.
        command.env("TRAP_LESS", "8");
        let begun = Instant::now();
        let done = command.output()?;
        ensure!(
            done.status.success(),
            "{line}: {}: {}",
            done.status,
            String::from_utf8_lossy(&done.stderr).trim()
        );
        let mut bytes = 0;
        for report in shim::reports(&reports)? {
            bytes += report.engine_bytes()?;
        }
        println!("{line}: {bytes} bytes by the engine, {:?}", begun.elapsed());
        carried += bytes;
    }
    Ok(carried)
}

/// Like `survive`; each line must have had bytes carried.
fn survive_carried(lines: &[&str]) -> Outcome {
    for line in lines {
        ensure!(survive(&[line])? > 0, "{line}: nothing was carried");
    }
    Ok(())
}

fn trap_of_ends_is_survived() -> Outcome {
    survive_carried(&[
        "trap_exit atexit",
        "trap_exit keys",
        "trap_exit thread",
        "trap_exit main-leaves",
        "trap_exit detached",
        "trap_exit handler",
    ])?;
    // These leave no report.
    survive(&["trap_exit _exit", "trap_exit quick"]).map(|_| ())
}

/// The engine's descriptor is closed, and its number is that of a file of the program's.
fn trap_of_strange_descriptors_is_survived() -> Outcome {
    let folder = shim::Folder::new("files")?;
    let path = folder.path().display();
    for line in [format!("trap_closed {path}"), format!("trap_closed {path} later")] {
        survive_carried(&[&line])?;
        for number in 0..10 {
            let text = std::fs::read_to_string(folder.path().join(number.to_string()))?;
            ensure_eq!(text, format!("file {number}\n"), "file {number} of {line}");
        }
    }
    survive(&["trap_closed none"]).map(|_| ())
}

fn trap_of_filters_and_limits_is_survived() -> Outcome {
    let refused = ["trap_seccomp before-errno", "trap_seccomp before-kill"];
    ensure_eq!(survive(&refused).context("a filter before the first copy")?, 0, "bytes carried");
    survive_carried(&["trap_seccomp after-futex", "trap_limits memory"])?;
    // These may not write a report.
    survive(&["trap_limits nproc", "trap_privileges threaded", "trap_privileges busy"]).map(|_| ())
}
