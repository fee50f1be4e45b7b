//! Choice between huge and small pages for fresh memory, of one size.
//!
//! Huge ones take half of the time, and less when they are freed. Except on a virtual machine whose
//! host has reclaimed free memory (ballooning) and returns it 4 KiB at a time: there they took 2.7
//! times as long, for seconds after a large program had ended.

use super::{Cost, ONE, add, blend, ratio};
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use zerocopy::FromZeros;

/// Ratio of costs from which small pages replace huge ones: reading and freeing huge pages gains, too.
const LEAVES: u32 = ONE + ONE / 3;

/// Ticks per MiB from which huge pages are slow: twice what they take elsewhere.
const SLOW: u32 = 1_000_000;

/// Consecutive slow calls that count: one may be an outlier.
const ENOUGH: u32 = 2;

/// Calls between two that try the other page size.
const OTHERS: u32 = 32;

#[derive(FromZeros)]
pub struct Marks {
    /// Ticks per MiB; 0: not known.
    huge: AtomicU32,
    small: AtomicU32,
    /// Consecutive slow calls with huge pages.
    slow: AtomicU32,
    /// Calls since the other page size was tried.
    since: AtomicU32,
}

impl Marks {
    /// Returns whether the next call is to have huge pages; counts it.
    pub fn are_wanted(&self) -> bool {
        let is_time = add(&self.since) >= OTHERS || self.small.load(Relaxed) == 0;
        let tries = is_time && self.slow.load(Relaxed) >= ENOUGH;
        if tries {
            self.since.store(0, Relaxed);
        }
        tries == self.small_pay()
    }

    fn small_pay(&self) -> bool {
        let [huge, small] = [&self.huge, &self.small].map(|cost| cost.load(Relaxed));
        small > 0 && self.slow.load(Relaxed) >= ENOUGH && ratio(huge, small) > LEAVES
    }

    /// Notes a call.
    pub fn record(&self, huge: bool, whole: Cost) {
        let cost = whole.per_mebibyte();
        match huge {
            true if cost < SLOW => self.slow.store(0, Relaxed),
            true => drop(add(&self.slow)),
            false => {}
        }
        blend(if huge { &self.huge } else { &self.small }, cost, 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::mapped::zeroed;

    /// Makes `calls`; returns how many had huge pages.
    fn run(marks: &Marks, calls: u32, [huge, small]: [u64; 2]) -> u32 {
        let one = |_| {
            let is_huge = marks.are_wanted();
            let ticks = if is_huge { huge } else { small };
            marks.record(is_huge, Cost { bytes: 16 << 20, ticks });
            u32::from(is_huge)
        };
        (0..calls).map(one).sum()
    }

    #[test]
    fn small_pages_are_made_only_while_huge_ones_take_longer() {
        let marks: Marks = zeroed();
        assert_eq!(run(&marks, 100, [10_000_000, 30_000_000]), 100, "not slow");
        assert_eq!(run(&marks, 1, [90_000_000, 30_000_000]), 1);
        assert_eq!(run(&marks, 100, [10_000_000, 30_000_000]), 100, "one was held up");
        assert!(run(&marks, 100, [90_000_000, 30_000_000]) < 8);
        assert!(run(&marks, 100, [10_000_000, 30_000_000]) > 65, "and no longer");
        assert!(run(&zeroed(), 10, [90_000_000, 30_000_000]) < 4);
        assert!(run(&zeroed(), 100, [36_000_000, 30_000_000]) > 95, "not a third faster");
    }
}
