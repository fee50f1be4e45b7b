//! Estimate of how many threads of the program are in large calls at once.
//!
//! Workers are for idle CPUs. With a caller on every other CPU there is none left for a worker
//! each, and sharing only moves time between them; finding that out by calling workers costs time,
//! too. So it is measured: the time of all calls over the time that has passed is their average
//! number at once. Calls are not counted in and out, because a signal handler may jump out of one.
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zerocopy::FromZeros;

/// Ticks of a window, a millisecond or two.
const WINDOW: u64 = 1 << 22;
/// Least length of a window, in multiples of the call that ends it.
const CALLS: u64 = 4;

/// Written with every call, so it has a cache line of its own.
#[repr(align(64))]
#[derive(FromZeros)]
pub struct Callers {
    /// Ticks at which the window was begun.
    since: AtomicU64,
    /// Ticks of the calls that have ended in the window.
    spent: AtomicU64,
    last_end: AtomicU64,
    /// Average calls at once during the last window, in halves.
    at_once: AtomicU64,
}

impl Callers {
    /// Returns whether callers have more than half of the CPUs, so that not each can have a worker.
    pub fn are_too_many_for(&self, workers: usize) -> bool {
        self.at_once.load(Relaxed) > workers as u64 + 2
    }

    /// Returns whether more than one thread makes large calls at once.
    pub fn are_several(&self) -> bool {
        self.at_once.load(Relaxed) > 3
    }

    /// Counts the ticks of calls to come that will not be noted.
    pub fn expect(&self, ticks: u64) {
        self.spent.fetch_add(ticks, Relaxed);
    }

    /// Notes a large call that has ended, whichever way it went. Returns whether another one has ended
    /// since it began.
    pub fn note(&self, begun: u64, now: u64) -> bool {
        let took = now.wrapping_sub(begun);
        let last_end = self.last_end.swap(now, Relaxed);
        let idle = begun.saturating_sub(last_end);
        if idle > WINDOW {
            // A pause of all threads says nothing about concurrency.
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
    use crate::os::mapped::zeroed;

    /// Simulates `threads` threads for `ticks` ticks: each makes calls of `took` ticks, with `rest`
    /// ticks between them.
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
                let (callers, mut now) = (zeroed::<Callers>(), 1 << 40);
                let workers = cpus - 1;
                assert!(!callers.are_too_many_for(workers));
                for (threads, expected) in [(few, false), (many, true), (few, false), (many, true)]
                {
                    run(&callers, &mut now, threads, took, 0, 20 * WINDOW.max(took));
                    assert_eq!(callers.are_too_many_for(workers), expected, "{threads} of {cpus}");
                    assert_eq!(callers.are_several(), threads > 1);
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
