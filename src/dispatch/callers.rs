//! How many threads of the program are in large calls at once.
//!
//! Workers are for CPUs that nobody else uses. With a caller on every other CPU there is none left
//! for a helper each, and sharing only moves time from one to the other; asking for help to find
//! that out costs time, too. So it is measured: the time that calls have taken together, over the
//! time that has passed, is how many there were at once. Nobody is counted in and out, for a call
//! may be left by a jump out of a signal handler.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// So many ticks are looked at together, a millisecond or two; and at least so many times as long
/// as the call that ends them.
const WINDOW: u64 = 1 << 22;
const CALLS: u64 = 4;

/// Written with every call: in a line of its own.
#[repr(align(64))]
pub struct Callers {
    /// When the window was begun, and how long the calls took that have ended in it.
    since: AtomicU64,
    spent: AtomicU64,
    last_end: AtomicU64,
    /// Of the last window that is over, in halves.
    at_once: AtomicU64,
}

impl Callers {
    pub const fn new() -> Self {
        Self {
            since: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            last_end: AtomicU64::new(0),
            at_once: AtomicU64::new(0),
        }
    }

    /// Whether there is not a worker for each of them on a CPU of its own.
    pub fn are_too_many_for(&self, workers: usize) -> bool {
        self.at_once.load(Relaxed) > workers as u64 + 2
    }

    /// A large call has ended, whichever way it went. Returns whether another one has since it began.
    pub fn note(&self, begun: u64, now: u64) -> bool {
        let took = now.wrapping_sub(begun);
        let last_end = self.last_end.swap(now, Relaxed);
        let idle = begun.saturating_sub(last_end);
        if idle > WINDOW {
            // A pause of all says nothing about how many they are when they come.
            self.since.fetch_add(idle, Relaxed);
        }
        let spent = self.spent.fetch_add(took, Relaxed) + took;
        let since = self.since.load(Relaxed);
        let passed = now.saturating_sub(since);
        if passed > WINDOW.max(CALLS * took)
            && self.since.compare_exchange(since, now, Relaxed, Relaxed).is_ok()
        {
            self.spent.store(0, Relaxed);
            self.at_once.store((2 * spent + passed / 2) / passed, Relaxed);
        }
        last_end > begun
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// So many threads make calls of `took` ticks for `ticks`, one after the other each, and rest
    /// for `rest` ticks between them.
    fn run(callers: &Callers, from: &mut u64, threads: u64, took: u64, rest: u64, ticks: u64) {
        let end = *from + ticks;
        let apart = (took + rest) / threads;
        let mut ends: Vec<u64> = (0..threads).map(|i| *from + took + i * apart).collect();
        while let Some(first) = ends.iter_mut().min().filter(|first| **first < end) {
            callers.note(*first - took, *first);
            *first += took + rest;
        }
        *from = end;
    }

    #[test]
    fn callers_are_too_many_when_half_of_the_cpus_are_theirs() {
        for (cpus, few, many) in [(2, 1, 2), (4, 2, 3), (16, 8, 9), (16, 7, 64)] {
            for took in [20_000, 300_000, 30_000_000] {
                let (callers, mut now) = (Callers::new(), 1 << 40);
                let workers = cpus - 1;
                assert!(!callers.are_too_many_for(workers));
                for (threads, expected) in [(few, false), (many, true), (few, false), (many, true)]
                {
                    run(&callers, &mut now, threads, took, 0, 20 * WINDOW.max(took));
                    assert_eq!(callers.are_too_many_for(workers), expected, "{threads} of {cpus}");
                    // All pause: nothing new is known.
                    now += 50 * WINDOW;
                    assert_eq!(callers.are_too_many_for(workers), expected);
                    run(&callers, &mut now, threads, took, 0, WINDOW / 2);
                    assert_eq!(callers.are_too_many_for(workers), expected);
                }
                // Many that do something else most of the time.
                run(&callers, &mut now, many, took, 19 * took, 20 * WINDOW.max(20 * took));
                assert!(!callers.are_too_many_for(workers.max(9)));
            }
        }
    }
}
