//! The tests, by subject. A name is subject, condition, outcome.
//!
//! Every public function of a subject is a test (see build.rs), in the order in which they stand
//! there. The guest runs subjects in the order of their names; tests that damage the device are
//! called wreck and come last.

// Imports of nearly every subject.
use crate::canary::Canary;
use crate::cgroup::ControlGroup;
use crate::device::*;
use crate::effort::{PATIENCE, eventually, rounds};
use crate::faults::{Bench, Fault, Kind, is_dsa};
use crate::kernel::{self, Pagemap, Parameter, Statistics, has_checkers, pins_must_wait_for_pages};
use crate::memory::{HUGE, PAGE, PageKind, RANGE, READ_WRITE, Region, memory_file};
use crate::modules;
use crate::oracle::Watched;
use crate::pair::Pair;
use crate::partner::{Order, Partner};
use crate::probes::Probe;
use crate::process::{Ended, Gate, become_nobody, fork, in_child, in_threads, limit_locked_memory};
use crate::random::Random;
use crate::scene::{BOTH, Scene};
use crate::shim::{self, Folder};
use crate::verdict::{Context, End, Outcome};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub struct Test {
    pub name: &'static str,
    pub run: fn() -> Outcome,
}

/// Defines tests that are a call each.
macro_rules! tests {
    ($($name:ident = $run:expr;)*) => {
        $(pub fn $name() -> Outcome {
            $run
        })*
    };
}

mod allocation;
mod api;
mod bounce;
mod channels;
mod copy;
mod counts;
mod exports;
mod exports_ends;
mod fuzz;
mod interface;
mod kept;
mod late;
mod limits;
mod messages;
mod moments;
mod oracles;
mod overlap;
mod page_faults;
mod pages;
mod programs;
mod providers;
mod refusals;
mod rings;
mod statistics;
mod traps;
mod unbind;
mod visible;
mod wreck;
mod wreck_dead;
mod wreck_ends;
mod wreck_exports;
mod yama;

/// A test is of the longest of these that its name begins with. A file whose tests take longer than a
/// subject may has several names. A checker of mappings
/// gives up for good when its own allocations fail, and Yama stays at 3 for good: z, last.
const SUBJECTS: &str = "
    bounce api api_end channel copy count fuzz interface kept late limit message message_end
    message_killed moment oracle oracle_one overlap page page_fault export export_end program provider refusal
    ring statistics trap visible wreck wreck_dead wreck_end wreck_export wreck_unbind z_allocation
    z_yama";

pub fn subjects() -> impl Iterator<Item = &'static str> {
    SUBJECTS.split_whitespace()
}

pub const TESTS: &[Test] = include!(concat!(env!("OUT_DIR"), "/tests.rs"));

/// Returns the subject of a test.
fn subject_of(test: &Test) -> Option<&'static str> {
    let is_of =
        |subject: &&str| test.name.strip_prefix(*subject).is_some_and(|rest| rest.starts_with('_'));
    subjects().filter(is_of).max_by_key(|subject| subject.len())
}

/// Returns the tests of a subject, or one test.
pub fn named(name: &str) -> Vec<&'static Test> {
    TESTS.iter().filter(|test| test.name == name || subject_of(test) == Some(name)).collect()
}

/// Returns whether the module may count errors meanwhile.
pub fn wrecks(test: &Test) -> bool {
    ["wreck_", "provider_error_", "late_"].iter().any(|prefix| test.name.starts_with(prefix))
        || test.name.contains("_takes_nothing_")
        // Swapping keeps the processor from the driver for longer than its timer.
        || test.name.contains("_control_group_smaller_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_has_a_subject_and_every_subject_tests() {
        assert!(TESTS.iter().all(|test| subject_of(test).is_some()));
        assert!(subjects().all(|subject| !named(subject).is_empty()));
        assert!(TESTS.iter().all(|test| named(test.name).len() == 1));
        assert!(TESTS.len() > 250, "{} tests are found", TESTS.len());
    }
}
