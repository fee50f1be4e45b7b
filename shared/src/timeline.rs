//! Timeline of large calls: bytes over time, in a fixed number of steps that grow with the run.

use crate::Counters;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zerocopy::{FromBytes, IntoBytes};

pub const STEPS: usize = 64;
/// Ticks of a step at first, as a power of two: less than a millisecond.
const FIRST: u64 = 20;
const LAST: u64 = 63;

#[repr(C)] // lies in live files
#[derive(FromBytes, IntoBytes)]
pub struct Timeline {
    /// Start of the first call and end of the last one, in ticks; 0: there was none.
    pub start: AtomicU64,
    pub end: AtomicU64,
    /// Number of times that the length of a step was doubled.
    doubled: AtomicU64,
    /// Bytes by the engine, by libc.
    bytes: [[AtomicU64; STEPS]; 2],
}

// SAFETY: atomic numbers of 64 bits.
unsafe impl Counters for Timeline {}

impl Timeline {
    /// Counts a call by its start and end.
    pub fn note(&self, begun: u64, ended: u64, by_libc: bool, bytes: u64) {
        let start = match self.start.compare_exchange(0, begun, Relaxed, Relaxed) {
            Ok(_) => begun,
            Err(start) => start,
        };
        if ended > self.end.load(Relaxed) {
            self.end.fetch_max(ended, Relaxed);
        }
        let passed = begun.saturating_sub(start);
        loop {
            let doubled = self.doubled.load(Relaxed);
            let step = (passed >> (FIRST + doubled).min(LAST)) as usize;
            if let Some(count) = self.bytes[usize::from(by_libc)].get(step) {
                count.fetch_add(bytes, Relaxed);
                return;
            }
            // Two steps are merged. A call that is counted meanwhile may go to a wrong one.
            if self.doubled.compare_exchange(doubled, doubled + 1, Relaxed, Relaxed).is_ok() {
                for steps in &self.bytes {
                    for step in 0..STEPS {
                        let bytes = steps[step].swap(0, Relaxed);
                        steps[step / 2].fetch_add(bytes, Relaxed);
                    }
                }
            }
        }
    }

    /// Returns the ticks of a step.
    pub fn step(&self) -> u64 {
        1 << (FIRST + self.doubled.load(Relaxed)).min(LAST)
    }

    /// Returns the bytes by step, by the engine and by libc, up to the last step in use.
    pub fn bytes(&self) -> [impl Iterator<Item = u64>; 2] {
        let [engine, libc] = &self.bytes;
        let is_used = |step: &usize| engine[*step].load(Relaxed) | libc[*step].load(Relaxed) > 0;
        let used = (0..STEPS).rfind(is_used).map_or(0, |last| last + 1);
        [engine, libc].map(|steps| steps.iter().take(used).map(|bytes| bytes.load(Relaxed)))
    }

    /// Moves the counts of another one here.
    pub fn absorb(&self, from: &Self) {
        let (start, end, step) = (from.start.load(Relaxed), from.end.load(Relaxed), from.step());
        for (by_libc, steps) in from.bytes.iter().enumerate() {
            for (number, bytes) in steps.iter().enumerate().filter(|(_, b)| b.load(Relaxed) > 0) {
                let begun = start + step.saturating_mul(number as u64);
                self.note(begun, end, by_libc == 1, bytes.swap(0, Relaxed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn steps_grow_with_the_run_and_keep_every_byte() {
        let (line, day) = (Timeline::ZERO, 3_000_000_000u64 * 86_400);
        for hour in 0..24 {
            line.note(1 + hour * (day / 24), 2 + hour * (day / 24), hour % 4 == 3, 100);
        }
        let [engine, libc] = line.bytes().map(|steps| steps.collect::<Vec<_>>());
        assert_eq!((engine.iter().sum::<u64>(), libc.iter().sum::<u64>()), (1800, 600));
        assert!(engine.len() > STEPS / 2 - 2 && engine.len() == libc.len(), "{}", engine.len());
        assert!(engine[0] > 0 && libc[0] == 0 && libc.last() > Some(&0));
        assert_eq!((line.start.load(Relaxed), line.end.load(Relaxed)), (1, 2 + day / 24 * 23));
        let other = Timeline::ZERO;
        other.absorb(&line);
        assert_eq!(other.step(), line.step());
        assert_eq!(other.bytes().map(|steps| steps.collect::<Vec<_>>()), [engine, libc]);
    }
}
