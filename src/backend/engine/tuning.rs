//! Estimates from a DMA engine's past copies: how long the next one takes, how large a
//! request may be, and how much the caller does itself.
//!
//! Plain numbers, shared by all threads without locks: a lost update costs a sample.
#![forbid(unsafe_code)]

use crate::os::sys;
use crate::plan::PAGE;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use zerocopy::FromZeros;

/// Moves an average towards a sample by one part in `weight`; 0 means no average yet. A sample above
/// `most` times the average is an outlier, of a copy that was preempted, and counts as `most` times the
/// average.
pub fn blend(average: u64, sample: u64, weight: u64, most: u64) -> u64 {
    match average {
        0 => sample.max(1),
        _ => (average * (weight - 1) + sample.min(most * average)).div_ceil(weight),
    }
}

/// Ticks that the engine takes for a copy, by its size: one number for each power of two, because
/// the fixed cost weighs more in small ones.
#[derive(FromZeros)]
pub struct CopyTimes([AtomicU64; 64]);

impl CopyTimes {
    /// Returns the ticks for `bytes`; 0: nothing is known yet.
    pub fn expected(&self, bytes: usize) -> u64 {
        let class = bytes.max(1).ilog2();
        let known = self.0[class as usize].load(Relaxed);
        ((u128::from(known) * bytes as u128) >> class) as u64
    }

    pub fn note(&self, bytes: usize, ticks: u64) {
        let class = bytes.max(1).ilog2();
        let now = ((u128::from(ticks) << class) / bytes.max(1) as u128) as u64;
        let cell = &self.0[class as usize];
        cell.store(blend(cell.load(Relaxed), now, 4, 2), Relaxed);
    }

    /// Notes an upper bound: the caller looked only after the end.
    pub fn note_at_most(&self, bytes: usize, ticks: u64) {
        if ticks < self.expected(bytes) {
            self.note(bytes, ticks);
        }
    }

    /// Halves the estimate: callers have overslept for a while, so it may date from a time when the
    /// engine was busy.
    pub fn forget_half(&self, bytes: usize) {
        let cell = &self.0[bytes.max(1).ilog2() as usize];
        cell.store((cell.load(Relaxed) / 2).max(1), Relaxed);
    }
}

/// Most bytes of one request.
#[derive(FromZeros, Default)]
pub struct Limit {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Limit {
    const STEP: usize = 64 << 10;

    /// Sets the limit, rounded to whole pages, and four of them at least.
    pub fn set(&self, most: usize) {
        let most = (most / PAGE * PAGE).max(4 * PAGE);
        self.most.store(most, Relaxed);
        self.now.store(most, Relaxed);
    }

    /// Returns how much of `rest` bytes the next request takes, leaving no small one for the end.
    pub fn part_of(&self, rest: usize) -> usize {
        let now = self.now.load(Relaxed).max(PAGE);
        match rest {
            _ if rest <= now => rest,
            _ if rest < 2 * now => (rest / 2).next_multiple_of(PAGE),
            _ => now,
        }
    }

    /// Notes that no more than `taken` bytes could be pinned.
    pub fn lower(&self, taken: usize) {
        let now = self.now.load(Relaxed);
        let next = if taken > 0 { taken.min(now) } else { now / 2 };
        let least = Self::STEP.min(self.most.load(Relaxed));
        self.now.store((next / PAGE * PAGE).max(least), Relaxed);
    }

    /// Notes that a request of `bytes` was taken whole.
    pub fn note_taken(&self, bytes: usize) {
        let (now, most) = (self.now.load(Relaxed), self.most.load(Relaxed));
        if now < most && bytes >= now / 2 {
            self.now.store((now + Self::STEP).min(most), Relaxed);
        }
    }
}

/// Part of a copy that the caller does while an engine does the rest, in 256ths. Both should finish
/// together, so it is moved by `STEP` after every copy, between nothing and `MOST`.
#[derive(FromZeros, Default)]
pub struct CallerShare<const MOST: u32, const STEP: u32>(AtomicU32);

impl<const MOST: u32, const STEP: u32> CallerShare<MOST, STEP> {
    pub fn of(&self, len: usize) -> usize {
        len / 256 * self.0.load(Relaxed) as usize
    }

    /// Notes whether the engine was over when the caller had done its part: then that part was too
    /// large, else too small.
    pub fn note(&self, engine_was_first: bool) {
        let now = self.0.load(Relaxed);
        let next = if engine_was_first { now.saturating_sub(STEP) } else { (now + STEP).min(MOST) };
        if next != now {
            self.0.store(next, Relaxed);
        }
    }
}

/// Two clocks read at once, for converting ticks to nanoseconds.
#[derive(FromZeros, Default)]
pub struct Clock {
    ticks: AtomicU64,
    nanoseconds: AtomicU64,
    per_ms: AtomicU64,
}

impl Clock {
    pub fn set(&self) {
        self.ticks.store(sys::ticks(), Relaxed);
        self.nanoseconds.store(sys::nanoseconds(), Relaxed);
    }

    /// Measures how long a tick is. Not in a worker, which calls nothing of libc.
    pub fn measure(&self) {
        let passed = sys::ticks().wrapping_sub(self.ticks.load(Relaxed));
        if passed >= 4_000_000 {
            let nanos = sys::nanoseconds().wrapping_sub(self.nanoseconds.load(Relaxed)).max(1);
            let per_ms = u128::from(passed) * 1_000_000 / u128::from(nanos);
            self.per_ms.store(per_ms as u64, Relaxed);
        }
    }

    /// Returns the ticks of a millisecond; before they are measured those of 4 GHz, so that sleeps
    /// are too short rather than too long.
    pub fn ticks_per_ms(&self) -> u64 {
        match self.per_ms.load(Relaxed) {
            0 => 4_000_000,
            known => known,
        }
    }

    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        (u128::from(ticks) * 1_000_000 / u128::from(self.ticks_per_ms())) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times() -> CopyTimes {
        CopyTimes([const { AtomicU64::new(0) }; 64])
    }

    #[test]
    fn pace_is_kept_for_each_size_and_follows_slowly() {
        let (times, size) = (times(), 4 << 20);
        assert_eq!(times.expected(size), 0);
        times.note_at_most(size, 7);
        assert_eq!(times.expected(size), 0, "a bound is no pace");
        times.note(size, 1000);
        assert_eq!((times.expected(size), times.expected(6 << 20)), (1000, 1500));
        assert_eq!(times.expected(64 << 20), 0);
        (0..100).for_each(|_| times.note_at_most(size, 5000));
        assert_eq!(times.expected(size), 1000);
        times.note_at_most(size, 800);
        assert_eq!(times.expected(size), 950);
        times.note(size, 1 << 40);
        assert_eq!(times.expected(size), 1188, "a copy that hung counts for no more than two");
        times.note(64, 0);
        assert!(times.expected(64) > 0, "known stays known");
    }

    #[test]
    fn limit_goes_down_at_once_and_up_step_by_step_and_its_parts_cover_a_copy() {
        let limit = Limit::default();
        limit.set(16 << 20);
        for len in [1, 4095, 16 << 20, (16 << 20) + 1, (31 << 20) + 7, 100 << 20] {
            let (mut at, mut parts) = (0, 0);
            while at < len {
                let part = limit.part_of(len - at);
                assert!((1..=16 << 20).contains(&part));
                assert!(len <= 16 << 20 || part >= 4 << 20, "small part {part} of {len}");
                (at, parts) = (at + part, parts + 1);
            }
            assert!(at == len && parts <= len.div_ceil(16 << 20) + 1);
        }
        let lowered = |taken| {
            limit.lower(taken);
            limit.part_of(100 << 20)
        };
        assert_eq!((lowered(3 << 20), lowered(0)), (3 << 20, 3 << 19));
        (0..40).for_each(|_| limit.lower(0));
        limit.note_taken(4096);
        assert_eq!(limit.part_of(100 << 20), 64 << 10, "a small one tells nothing");
        (0..1000).for_each(|_| limit.note_taken(64 << 20));
        assert_eq!(limit.part_of(100 << 20), 16 << 20);
    }

    #[test]
    fn share_ends_where_both_come_to_an_end_together() {
        // The engine is three times as fast as the caller: a quarter is right.
        let (share, len) = (CallerShare::<192, 4>::default(), 1 << 20);
        for _ in 0..500 {
            let own = share.of(len);
            share.note((len - own) < own * 3);
        }
        let part = share.of(len) as f64 / len as f64;
        assert!((0.22..0.28).contains(&part), "{part}");
        for (engine_was_first, end) in [(false, len / 4 * 3), (true, 0)] {
            (0..500).for_each(|_| share.note(engine_was_first));
            assert_eq!(share.of(len), end);
        }
    }
}
