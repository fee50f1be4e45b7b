//! The victims of tests/traps.rs and tests/signals.rs, with the engine in place of worker threads.

use super::*;

tests! {
    trap_of_signals_is_survived = survive_carried(&[
        "trap_signals timer",
        "trap_signals storm",
        "trap_signals jump",
        "trap_signals cancel",
        "trap_signals handler",
        "trap_signals coroutine",
    ]);
    // A child has its parent's descriptor and may not use it; one of vfork has its memory.
    trap_of_forks_is_survived = survive_carried(&[
        "trap_forks fork",
        "trap_forks handlers",
        "trap_forks bare",
        "trap_forks vfork",
        "trap_forks vfork-first",
        "trap_forks vfork-race",
    ]);
    trap_of_other_programs_is_survived =
        survive_carried(&["trap_forks exec", "trap_forks spawn", "trap_forks daemon"]);
    trap_of_locked_allocator_is_survived = survive_carried(&["trap_allocator_lock"]);
}

/// Runs each line, a program of the host's tests and its arguments; the bytes that the engine has
/// carried for all.
pub(super) fn survive(lines: &[&str]) -> Outcome<u64> {
    let mut carried = 0;
    for line in lines {
        let folder = Folder::new("victims")?;
        let mut command = shim::host_program(line)?;
        shim::report_into(shim::with_library(&mut command)?, &folder);
        let begun = Instant::now();
        crate::process::die_with_parent(&mut command);
        // The guest is slow, and one moment of ten shows what a hundred do.
        let done = command.env("TRAP_LESS", "8").output()?;
        ensure!(
            matches!(done.status.code(), Some(0 | 7)), // 7 is the choice of trap_ends.c
            "{line}: {}: {}",
            done.status,
            String::from_utf8_lossy(&done.stderr).trim()
        );
        let mut bytes = 0;
        for report in shim::reports(&folder)? {
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

pub fn trap_of_ends_is_survived() -> Outcome {
    survive_carried(&[
        "trap_ends atexit",
        "trap_ends keys",
        "trap_ends thread",
        "trap_ends last-thread",
        "trap_ends exit-while-copying",
        "trap_ends signal",
    ])?;
    // These leave no report.
    survive(&["trap_ends _exit", "trap_ends quick_exit"]).map(drop)
}

/// The engine's descriptor is closed, and its number is that of a file of the program's.
pub fn trap_of_strange_descriptors_is_survived() -> Outcome {
    let folder = Folder::new("files")?;
    let path = folder.path().display();
    for line in
        [format!("trap_surroundings files {path}"), format!("trap_surroundings files {path} later")]
    {
        survive_carried(&[&line])?;
        for number in 0..10 {
            let text = fs::read_to_string(folder.path().join(number.to_string()))?;
            ensure_eq!(text, format!("file {number}\n"), "file {number} of {line}");
        }
    }
    survive(&["trap_surroundings no-files"]).map(drop)
}

pub fn trap_of_filters_and_limits_is_survived() -> Outcome {
    let refused = ["trap_surroundings before-errno", "trap_surroundings before-kill"];
    ensure_eq!(survive(&refused).context("a filter before the first copy")?, 0, "bytes carried");
    survive_carried(&["trap_surroundings after-futex", "trap_workers no-memory"])?;
    // These may not write a report.
    survive(&[
        "trap_workers no-processes",
        "trap_surroundings setuid-threaded",
        "trap_surroundings setuid-busy",
    ])
    .map(drop)
}
