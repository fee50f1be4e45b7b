//! Huge or small pages for memory that was never touched, of one size.
//!
//! Huge ones take half of the time, and less when they are freed. Not so on a virtual machine whose
//! host has taken back free memory and gives it again 4 KiB at a time: there they took 2.7 times as
//! long, for seconds after a large program had ended.

use super::{Cost, ONE, add, blend, ratio};
use crate::os::mapped::Zeroed;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Huge pages are left only for this gain: what reads and frees them gains, too.
const LEAVES: u32 = ONE + ONE / 3;

/// Ticks per MiB from which small pages are tried: twice what huge ones take.
const SLOW: u32 = 1_000_000;

/// Where huge ones are slow, the third call and then one in `OTHERS` has small ones.
const OTHERS: u32 = 64;

pub struct Marks {
    calls: AtomicU32,
    /// Ticks per MiB; 0: not known.
    huge: AtomicU32,
    small: AtomicU32,
}

// SAFETY: atomics.
unsafe impl Zeroed for Marks {}

impl Marks {
    /// Counts a call; returns whether it is to have huge pages.
    pub fn are_wanted(&self) -> bool {
        let calls = add(&self.calls);
        match self.small_pay() {
            true => calls.is_power_of_two() || calls.is_multiple_of(OTHERS),
            false => calls % OTHERS != 2 || self.huge.load(Relaxed) < SLOW,
        }
    }

    fn small_pay(&self) -> bool {
        let [huge, small] = [&self.huge, &self.small].map(|cost| cost.load(Relaxed));
        huge > 0 && small > 0 && ratio(huge, small) > LEAVES
    }

    /// Notes a call; not the first one, during which workers are being made.
    pub fn record(&self, huge: bool, whole: Cost) {
        let cost = whole.per_mebibyte();
        match huge {
            _ if self.calls.load(Relaxed) == 1 => {}
            // As soon as the host has given its memory again.
            true if self.small_pay() => self.huge.store(cost, Relaxed),
            true => blend(&self.huge, cost, 4),
            false => blend(&self.small, cost, 4),
        }
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
        assert_eq!(run(&marks, 1, [900_000_000, 0]), 1, "workers are made");
        assert_eq!(run(&marks, 100, [10_000_000, 20_000_000]), 100);
        assert_eq!(run(&marks, 100, [20_000_000, 40_000_000]), 98);
        assert_eq!(run(&marks, 1, [80_000_000, 40_000_000]), 1);
        assert_eq!(run(&marks, 20, [20_000_000, 40_000_000]), 20, "one was held up");
        assert!(run(&marks, 500, [100_000_000, 40_000_000]) < 100);
        assert!(run(&marks, 500, [20_000_000, 40_000_000]) > 350);
        assert!(run(&zeroed(), 10, [100_000_000, 40_000_000]) < 6);
        assert!(run(&zeroed(), 100, [48_000_000, 40_000_000]) > 95);
    }
}
