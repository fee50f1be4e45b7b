//! Exponential backoff after the system has refused a request. A refusal is an event, not a state:
//! the request is tried again after a while, and each further refusal makes the pause longer.

use crate::os::sys;
use core::sync::atomic::{AtomicU64, Ordering};
use zerocopy::FromZeros;

/// Shortest backoff in ticks: a second, within a factor of two.
const SHORTEST: u64 = 1 << 31;
/// Longest backoff in ticks: about a minute.
const LONGEST: u64 = SHORTEST << 6;

/// Time before which the request is not tried again. Bounds of the backoff in ticks are in the
/// type, so that a fresh value is all zeros and takes no room in the file.
#[derive(FromZeros)]
pub struct Refusal<const LEAST: u64 = SHORTEST, const MOST: u64 = LONGEST> {
    /// End of the backoff in ticks; 0: nothing was ever refused.
    until: AtomicU64,
    pause: AtomicU64,
}

impl<const LEAST: u64, const MOST: u64> Refusal<LEAST, MOST> {
    pub const fn new() -> Self {
        Self { until: AtomicU64::new(0), pause: AtomicU64::new(0) }
    }

    /// Returns whether it is too early to ask again.
    #[inline]
    pub fn is_recent(&self) -> bool {
        self.until.load(Ordering::Relaxed) != 0 && self.is_recent_at(sys::ticks())
    }

    /// Notes a refusal, which begins a backoff: twice as long as the last one, if that has just ended.
    #[cold]
    pub fn note(&self) {
        self.note_at(sys::ticks());
    }

    /// Ends the backoff, for the child of a fork.
    pub fn forget(&self) {
        self.until.store(0, Ordering::Relaxed);
        self.pause.store(0, Ordering::Relaxed);
    }

    fn is_recent_at(&self, now: u64) -> bool {
        // `until` is at most `MOST` ahead: a counter that a suspension has reset ends the backoff.
        self.until.load(Ordering::Relaxed).wrapping_sub(now) <= MOST
    }

    fn note_at(&self, now: u64) {
        // Several threads may be refused at once: that is one event.
        if self.is_recent_at(now) {
            return;
        }
        let before = self.pause.load(Ordering::Relaxed);
        let since = now.wrapping_sub(self.until.load(Ordering::Relaxed));
        let pause = if since < before { 2 * before } else { 0 }.clamp(LEAST, MOST);
        self.pause.store(pause, Ordering::Relaxed);
        self.until.store(now.wrapping_add(pause).max(1), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_repeated_backs_off_for_longer() {
        let refusal = <Refusal>::new();
        assert!(!refusal.is_recent());
        let mut now = 1 << 40;
        for expected in [1, 2, 4, 8, 16, 32, 64, 64, 64].map(|times| times * SHORTEST) {
            refusal.note_at(now);
            refusal.note_at(now + 1); // the same event
            assert!(refusal.is_recent_at(now) && refusal.is_recent_at(now + expected));
            assert!(!refusal.is_recent_at(now + expected + 1), "{expected}");
            now += expected + 1000;
        }
        now += 2 * LONGEST;
        refusal.note_at(now);
        assert!(!refusal.is_recent_at(now + SHORTEST + 1), "a good while makes up for it");
        assert!(!refusal.is_recent_at(5), "the counter has begun anew");
    }
}
