//! Every copy function against a naive oracle, through every way the library can copy.
//!
//! The threshold is one byte, so that everything goes through the planner and the channels.
//! A failure names the seed; `oracle -s SEED` repeats it.

mod common;

use common::{preloaded, statistics, succeed, victim};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

fn oracle(knobs: &[(&str, &str)], arguments: &[&str]) -> Command {
    let mut command = preloaded(victim("oracle"));
    command
        .args(arguments)
        .env("ADMA_MIN_BYTES", "1")
        .env("ADMA_CHANNELS", "3")
        .envs(knobs.iter().copied());
    command
}

/// Copies right, and the engine has carried nearly all of it: otherwise nothing was shown.
fn engine_copies_right(knobs: &[(&str, &str)], arguments: &[&str]) {
    for report in statistics(&mut oracle(knobs, arguments)) {
        let calls = |path: &str| report["paths"][path]["calls"].as_u64().unwrap();
        assert!(calls("engine") > 100_000, "{knobs:?}: {report}");
        assert!(calls("libc") < 100, "{knobs:?}: {report}");
    }
}

macro_rules! copies_are_right {
    ($($name:ident: $knobs:expr;)*) => {
        $(
            #[test]
            fn $name() {
                engine_copies_right(&$knobs, &[]);
            }
        )*
    };
}

copies_are_right! {
    ordinary_stores_on_one_channel_copies_right:
        [("ADMA_STORES", "ordinary"), ("ADMA_CHANNELS", "1")];
    ordinary_stores_on_three_channels_copies_right:
        [("ADMA_STORES", "ordinary")];
    stream_stores_on_one_channel_copies_right:
        [("ADMA_STORES", "stream"), ("ADMA_CHANNELS", "1")];
    stream_stores_on_three_channels_copies_right:
        [("ADMA_STORES", "stream")];
    caller_that_takes_nothing_copies_right:
        [("ADMA_CPU_SHARE", "0")];
    caller_that_takes_half_copies_right:
        [("ADMA_CPU_SHARE", "0.5")];
    caller_that_takes_everything_copies_right:
        [("ADMA_CPU_SHARE", "1")];
}

#[test]
fn program_that_handles_faults_copies_right() {
    engine_copies_right(&[], &["-h"]);
}

#[test]
fn random_seed_copies_right() {
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    engine_copies_right(&[], &["-s", &seed.to_string()]);
}

/// More threads than channels: some copies find every channel busy, all must be right.
#[test]
fn eight_threads_at_once_copy_right() {
    for report in statistics(&mut oracle(&[], &["-t", "8"])) {
        assert!(report["paths"]["engine"]["calls"].as_u64().unwrap() > 0, "{report}");
    }
}

/// The same with a fault handler, where nobody may fault but the caller.
#[test]
fn eight_threads_that_handle_faults_copy_right() {
    for report in statistics(&mut oracle(&[("ADMA_CHANNELS", "8")], &["-t", "8", "-h"])) {
        assert!(report["paths"]["engine"]["calls"].as_u64().unwrap() > 0, "{report}");
    }
}

/// As shipped: the library decides by itself what it carries, and learns meanwhile.
#[test]
fn learning_threshold_copies_right() {
    succeed(&mut preloaded(victim("oracle")));
}
