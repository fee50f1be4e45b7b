//! Learns how long before the expected end of a copy a sleeping caller has to wake up.
//!
//! Plain numbers, shared by all threads without locks: a lost update costs a sample.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use zerocopy::FromZeros;

/// Ticks before the expected end at which a sleeper has to wake up: the latency of timers and of
/// waking on this machine.
#[derive(FromZeros, Default)]
pub struct Lead {
    ticks: AtomicU64,
    /// Consecutive times that it was too short.
    too_short: AtomicU32,
}

impl Lead {
    /// Bounds: about 20 us to 0.4 ms.
    const LEAST: u64 = 50_000;
    const MOST: u64 = 1_000_000;
    /// Ticks of waiting below which a caller was in time.
    const IN_TIME: u64 = 12_500;
    /// Consecutive late sleepers that indicate another reason: half of all are a little late.
    const SUSPICIOUS: u32 = 8;

    pub fn get(&self) -> u64 {
        self.ticks.load(Relaxed).clamp(Self::LEAST, Self::MOST)
    }

    /// Notes that the copy ended before its sleeper woke up. Returns whether this has happened repeatedly.
    pub fn was_too_short(&self) -> bool {
        let now = self.get();
        self.ticks.store(now + now / 16, Relaxed);
        let times = self.too_short.load(Relaxed) + 1;
        self.too_short.store(times % Self::SUSPICIOUS, Relaxed);
        times >= Self::SUSPICIOUS
    }

    /// Notes that the lead left no time to sleep. It shrinks, so that sleeping is tried again.
    pub fn was_too_long_to_sleep(&self) {
        let now = self.get();
        self.ticks.store(now - now / 64, Relaxed);
    }

    /// Notes that a caller that slept then waited for this many ticks.
    pub fn was_long_enough(&self, waited: u64) {
        self.too_short.store(0, Relaxed);
        if waited > Self::IN_TIME {
            let now = self.get();
            self.ticks.store(now - now / 16, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::engine::tuning::CopyTimes;
    use crate::os::mapped::zeroed;

    #[test]
    fn sleeper_learns_to_wake_up_in_time_and_not_too_early() {
        // Waking up takes 150 us at 2.5 GHz.
        let (lead, late) = (Lead::default(), 375_000);
        let mut overslept = 0;
        for _ in 0..1000 {
            match lead.get().checked_sub(late) {
                Some(early) => lead.was_long_enough(early),
                None => {
                    assert!(!lead.was_too_short() || overslept < 50, "late for no other reason");
                    overslept += 1;
                }
            }
        }
        assert!(overslept < 600 && lead.get().abs_diff(late) < late / 8, "{overslept}");
        // After large copies the lead may exceed the time of a small copy: small copies shrink it until
        // they sleep again.
        let copies = (0..200).take_while(|_| {
            lead.was_too_long_to_sleep();
            lead.get() > late / 2
        });
        assert!(copies.count() < 60);
    }

    /// The expected time is that of a busy card; now it takes an eighth of that.
    #[test]
    fn estimate_falls_when_every_sleeper_wakes_late() {
        let (times, lead, late, takes) = (zeroed::<CopyTimes>(), Lead::default(), 140_000, 4_000_000);
        times.note(64 << 20, 8 * takes);
        let mut copies = 0;
        while times.expected(64 << 20) > takes + takes / 4 {
            copies += 1;
            assert!(copies < 60, "{}", times.expected(64 << 20));
            let awake = times.expected(64 << 20) - lead.get() + late;
            if awake < takes {
                lead.was_long_enough(takes - awake);
                times.note(64 << 20, takes);
            } else if lead.was_too_short() {
                times.forget_half(64 << 20);
            } else {
                times.note_at_most(64 << 20, awake);
            }
        }
    }
}
