//! The explicit interface of the library, include/adma.h, on the helper: tests/programs/api.c,
//! which tests/api.rs runs on the host.

use super::traps::victim;
use crate::kernel::Statistics;
use crate::shim;
use crate::verdict::Outcome;

tests! {
    api_copies_of_every_size_and_offset_are_right
    api_overlapping_ranges_keep_their_meaning
    api_cookies_are_good_once
    api_many_copies_outstanding_end_right
    api_words_and_poll_descriptors_tell_the_end
    api_bad_pages_fault_as_promised
}

/// A subject of their own: together they take longer than one may.
pub const ENDS: &[crate::subjects::Test] = {
    use crate::subjects::Test;
    &[
        Test { name: "api_end_fork_and_exit_are_survived", run: fork_and_exit_are_survived },
        Test { name: "api_end_signals_are_survived", run: signals_are_survived },
        Test { name: "api_end_without_threads_all_is_done", run: without_threads_all_is_done },
    ]
};

/// Runs subjects of the program, which is linked with the library; all of them together must
/// have had bytes carried by the engine.
fn shown(subjects: &[&str]) -> Outcome {
    shown_also(subjects, &[false])
}

fn shown_also(subjects: &[&str], ways: &[bool]) -> Outcome {
    let library = shim::library()?;
    let before = Statistics::now()?;
    for subject in subjects {
        for &preloaded in ways {
            let mut command = shim::plain(victim("api")?);
            command.arg(subject).env("ADMA_BACKEND", "ioat").env("ADMA_MIN_BYTES", "16K");
            if preloaded {
                command.env("LD_PRELOAD", &library);
            }
            let done = command.output()?;
            let err = String::from_utf8_lossy(&done.stderr).trim().to_owned();
            match done.status.code() {
                Some(0) => ensure_eq!(err, "", "{subject}: said unasked"),
                Some(77) => println!("{subject}: {err}"),
                _ => fail!("{subject}, preloaded {preloaded}: {}: {err}", done.status),
            }
        }
    }
    let moved = Statistics::now()?.since(&before);
    println!("{subjects:?}: {} bytes in {} pieces by the engine", moved.bytes, moved.copies);
    // No engine takes ranges that overlap.
    ensure!(moved.bytes > 0 || subjects == ["overlap"], "nothing was carried");
    Ok(())
}

fn api_copies_of_every_size_and_offset_are_right() -> Outcome {
    // With it preloaded as well, here alone: the host's tests run all of it both ways.
    shown_also(&["oracle"], &[false, true])
}

fn api_overlapping_ranges_keep_their_meaning() -> Outcome {
    shown(&["overlap"])
}

fn api_cookies_are_good_once() -> Outcome {
    shown(&["cookies", "full"])
}

fn api_many_copies_outstanding_end_right() -> Outcome {
    shown(&["thousand", "threads"])
}

fn api_words_and_poll_descriptors_tell_the_end() -> Outcome {
    shown(&["notif", "poll", "looking"])
}

fn fork_and_exit_are_survived() -> Outcome {
    shown(&["fork", "exit"])
}

fn signals_are_survived() -> Outcome {
    shown(&["signals"])
}

fn without_threads_all_is_done() -> Outcome {
    shown(&["refused", "idle", "errno"])
}

fn api_bad_pages_fault_as_promised() -> Outcome {
    shown(&["faults"])
}
