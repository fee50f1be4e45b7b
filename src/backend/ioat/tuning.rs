//! What the engine's past tells about the next copy: how long it takes, and how large a request
//! may be.
//!
//! Plain numbers, shared by all threads without locks: a lost update costs a sample.
#![forbid(unsafe_code)]

use crate::os::sys;
use crate::plan::PAGE;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// How long the engine takes for a page, in ticks.
pub struct PageTime(AtomicU64);

impl PageTime {
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Ticks for `bytes`; 0: nothing is known yet.
    pub fn expected(&self, bytes: usize) -> u64 {
        self.0.load(Relaxed).saturating_mul(bytes.div_ceil(PAGE) as u64)
    }

    pub fn note(&self, bytes: usize, ticks: u64) {
        let now = (ticks / bytes.div_ceil(PAGE).max(1) as u64).max(1);
        let before = self.0.load(Relaxed);
        // A copy that was held up counts for no more than two.
        let next = if before == 0 { now } else { (3 * before + now.min(2 * before)).div_ceil(4) };
        self.0.store(next, Relaxed);
    }

    /// It took at most so long: the caller came late to look.
    pub fn note_at_most(&self, bytes: usize, ticks: u64) {
        if ticks < self.expected(bytes) {
            self.note(bytes, ticks);
        }
    }
}

/// How many bytes one request may have.
pub struct Limit {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Limit {
    const STEP: usize = 64 << 10;

    pub const fn new() -> Self {
        Self { now: AtomicUsize::new(0), most: AtomicUsize::new(0) }
    }

    /// Whole pages, and not none.
    pub fn set(&self, most: usize) {
        let most = (most / PAGE * PAGE).max(4 * PAGE);
        self.most.store(most, Relaxed);
        self.now.store(most, Relaxed);
    }

    /// What the next request takes of `rest` bytes: no small one at the end.
    pub fn part_of(&self, rest: usize) -> usize {
        let now = self.now.load(Relaxed).max(PAGE);
        match rest {
            _ if rest <= now => rest,
            _ if rest < 2 * now => (rest / 2).next_multiple_of(PAGE),
            _ => now,
        }
    }

    /// There was not memory enough to pin more than so many bytes.
    pub fn lower(&self, taken: usize) {
        let now = self.now.load(Relaxed);
        let next = if taken > 0 { taken.min(now) } else { now / 2 };
        let least = Self::STEP.min(self.most.load(Relaxed));
        self.now.store((next / PAGE * PAGE).max(least), Relaxed);
    }

    /// A request of `bytes` was taken whole.
    pub fn note_taken(&self, bytes: usize) {
        let (now, most) = (self.now.load(Relaxed), self.most.load(Relaxed));
        if now < most && bytes >= now / 2 {
            self.now.store((now + Self::STEP).min(most), Relaxed);
        }
    }
}

/// Two clocks read at once, for turning ticks into nanoseconds.
pub struct Clock {
    ticks: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Clock {
    pub const fn new() -> Self {
        Self { ticks: AtomicU64::new(0), nanoseconds: AtomicU64::new(0) }
    }

    pub fn set(&self) {
        self.ticks.store(sys::ticks(), Relaxed);
        self.nanoseconds.store(sys::nanoseconds(), Relaxed);
    }

    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        let passed = sys::ticks().wrapping_sub(self.ticks.load(Relaxed));
        // Right after the start the ratio is uncertain: 4 GHz, rather too short.
        if passed < 4_000_000 {
            return ticks / 4;
        }
        let nanos = sys::nanoseconds().wrapping_sub(self.nanoseconds.load(Relaxed));
        (ticks as f64 * nanos as f64 / passed as f64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_follows_the_engine_and_shrugs_off_a_hang() {
        let time = PageTime::new();
        assert_eq!(time.expected(1 << 20), 0);
        for _ in 0..50 {
            time.note(1 << 20, 256 * 1000);
        }
        assert_eq!(time.expected(1 << 20), 256_000);
        time.note(1 << 20, 10_000_000_000);
        assert!(time.expected(1 << 20) < 330_000, "{}", time.expected(1 << 20));
        time.note_at_most(1 << 20, 5_000_000);
        assert!(time.expected(1 << 20) < 330_000, "that it took no longer tells nothing");
        for _ in 0..50 {
            time.note_at_most(1 << 20, 25_600);
        }
        assert!(time.expected(1 << 20) <= 27_000, "{}", time.expected(1 << 20));
        time.note(64, 0);
        assert!(time.expected(64) > 0, "known stays known");
    }

    #[test]
    fn limit_parts_cover_a_copy_and_never_exceed_it() {
        let limit = Limit::new();
        limit.set(16 << 20);
        for len in [1, 4095, 16 << 20, (16 << 20) + 1, (31 << 20) + 7, 100 << 20] {
            let (mut at, mut parts) = (0, 0);
            while at < len {
                let part = limit.part_of(len - at);
                assert!((1..=16 << 20).contains(&part));
                assert!(len <= 16 << 20 || part >= 4 << 20, "small part {part} of {len}");
                (at, parts) = (at + part, parts + 1);
            }
            assert_eq!(at, len);
            assert!(parts <= len.div_ceil(16 << 20) + 1);
        }
    }

    #[test]
    fn limit_goes_down_at_once_and_up_step_by_step() {
        let limit = Limit::new();
        limit.set(16 << 20);
        limit.lower(3 << 20);
        assert_eq!(limit.part_of(100 << 20), 3 << 20);
        limit.lower(0);
        assert_eq!(limit.part_of(100 << 20), 3 << 19);
        (0..40).for_each(|_| limit.lower(0));
        assert_eq!(limit.part_of(100 << 20), 64 << 10);
        limit.note_taken(4096);
        assert_eq!(limit.part_of(100 << 20), 64 << 10, "a small one tells nothing");
        (0..1000).for_each(|_| limit.note_taken(64 << 20));
        assert_eq!(limit.part_of(100 << 20), 16 << 20);
    }
}
