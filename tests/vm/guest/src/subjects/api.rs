//! The explicit interface of the library, include/adma.h, on the helper: tests/programs/api.c,
//! which tests/api.rs runs on the host.

use super::*;

tests! {
    // With it preloaded as well, here alone: the host's tests run all of it both ways.
    api_copies_of_every_size_and_offset_are_right = shown(&["oracle"], &[false, true]);
    api_overlapping_ranges_keep_their_meaning = shown(&["overlap"], LINKED);
    api_cookies_are_good_once = shown(&["cookies", "full"], LINKED);
    api_many_copies_outstanding_end_right = shown(&["thousand", "threads"], LINKED);
    api_words_and_poll_descriptors_tell_the_end = shown(&["notif", "poll", "looking"], LINKED);
    api_bad_pages_fault_as_promised = shown(&["faults"], LINKED);
    api_end_fork_and_exit_are_survived = shown(&["fork", "exit"], LINKED);
    api_end_signals_are_survived = shown(&["signals"], LINKED);
    api_end_without_threads_all_is_done = shown(&["refused", "idle", "errno"], LINKED);
}

/// Not preloaded as well.
const LINKED: &[bool] = &[false];

/// Runs subjects of the program, which is linked with the library; all of them together must
/// have had bytes carried by the engine.
fn shown(subjects: &[&str], ways: &[bool]) -> Outcome {
    let before = Statistics::now()?;
    for (subject, preloaded) in subjects.iter().flat_map(|s| ways.iter().map(move |way| (s, way))) {
        let mut command = shim::host_program(&format!("api {subject}"))?;
        command.env("ADMA_BACKEND", "ioat").env("ADMA_MIN_BYTES", "16K");
        if *preloaded {
            command.env("LD_PRELOAD", shim::library()?);
        }
        match shim::finish(&mut command) {
            Ok(done) => {
                ensure_eq!(String::from_utf8_lossy(&done.stderr), "", "{subject}: said unasked")
            }
            Err(End::Skipped(reason)) => println!("{subject}: {reason}"),
            Err(end) => return Err(end),
        }
    }
    let moved = Statistics::now()?.since(&before);
    println!("{subjects:?}: {} bytes in {} pieces by the engine", moved.bytes, moved.copies);
    // No engine takes ranges that overlap.
    ensure!(moved.bytes > 0 || subjects == ["overlap"], "nothing was carried");
    Ok(())
}
