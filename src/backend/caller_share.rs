//! How much of a copy the caller does itself while an engine does the rest.
//!
//! One number, shared by all threads without a lock: a lost update costs a sample.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The caller's part, in 256ths. It is right when the caller and the engine finish together, so it
/// is moved by `STEP` after every copy, between nothing and `MOST`.
pub struct CallerShare<const MOST: u32, const STEP: u32>(AtomicU32);

impl<const MOST: u32, const STEP: u32> CallerShare<MOST, STEP> {
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    pub fn of(&self, len: usize) -> usize {
        len / 256 * self.0.load(Relaxed) as usize
    }

    /// Whether the engine was over when the caller had done its part: then that part was too
    /// large, else too small.
    pub fn note(&self, engine_was_first: bool) {
        let now = self.0.load(Relaxed);
        let next = if engine_was_first { now.saturating_sub(STEP) } else { (now + STEP).min(MOST) };
        if next != now {
            self.0.store(next, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_ends_where_both_come_to_an_end_together() {
        // The engine is three times as fast as the caller: a quarter is right.
        let share = CallerShare::<192, 4>::new();
        let len = 1 << 20;
        for _ in 0..500 {
            let own = share.of(len);
            share.note((len - own) < own * 3);
        }
        let part = share.of(len) as f64 / len as f64;
        assert!((0.22..0.28).contains(&part), "{part}");
        (0..500).for_each(|_| share.note(false));
        assert_eq!(share.of(len), len / 4 * 3);
        (0..500).for_each(|_| share.note(true));
        assert_eq!(share.of(len), 0);
    }
}
