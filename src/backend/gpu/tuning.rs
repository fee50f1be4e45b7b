//! What past copies tell about the next one: how long it takes, and when whoever sleeps through it
//! has to wake up. Plain numbers, shared by all threads without locks.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Ticks that the card takes for a copy, by its size: one number for each power of two, because
/// what it takes to begin counts for more in small ones.
pub struct CopyTimes([AtomicU64; 64]);

impl CopyTimes {
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 64])
    }

    /// For `bytes`; 0: nothing is known yet.
    pub fn expected(&self, bytes: usize) -> u64 {
        let class = bytes.max(1).ilog2();
        let known = self.0[class as usize].load(Relaxed);
        ((u128::from(known) * bytes as u128) >> class) as u64
    }

    pub fn note(&self, bytes: usize, ticks: u64) {
        let class = bytes.max(1).ilog2();
        let now = ((u128::from(ticks) << class) / bytes.max(1) as u128) as u64;
        let cell = &self.0[class as usize];
        let before = cell.load(Relaxed);
        // A copy that was held up counts for no more than two.
        let next = if before == 0 { now } else { (3 * before + now.min(2 * before)).div_ceil(4) };
        cell.store(next.max(1), Relaxed);
    }
}

impl CopyTimes {
    /// It took at most this long: the caller was asleep when it ended.
    pub fn note_at_most(&self, bytes: usize, ticks: u64) {
        let expected = self.expected(bytes);
        if expected == 0 || ticks < expected {
            self.note(bytes, ticks);
        }
    }

    /// Everybody has slept through the end for a while: what is known may be about a time when
    /// the card was busy.
    pub fn forget_half(&self, bytes: usize) {
        let cell = &self.0[bytes.max(1).ilog2() as usize];
        cell.store((cell.load(Relaxed) / 2).max(1), Relaxed);
    }
}

/// How long before the expected end a sleeper has to wake up, in ticks: what timers and the way
/// out of sleep take on this machine.
pub struct Lead {
    ticks: AtomicU64,
    /// How often in a row it was too short.
    too_short: AtomicU32,
}

impl Lead {
    /// About 20 us to 0.4 ms.
    const LEAST: u64 = 50_000;
    const MOST: u64 = 1_000_000;
    /// This much is in time.
    const LITTLE: u64 = 12_500;
    /// Half of all sleepers are a little late: this many in a row must have another reason.
    const SUSPICIOUS: u32 = 8;

    pub const fn new() -> Self {
        Self { ticks: AtomicU64::new(0), too_short: AtomicU32::new(0) }
    }

    pub fn get(&self) -> u64 {
        self.ticks.load(Relaxed).clamp(Self::LEAST, Self::MOST)
    }

    /// The copy was over before who slept woke up. True when that has been so for a while.
    pub fn was_too_short(&self) -> bool {
        let now = self.get();
        self.ticks.store(now + now / 16, Relaxed);
        let times = self.too_short.load(Relaxed) + 1;
        self.too_short.store(times % Self::SUSPICIOUS, Relaxed);
        times >= Self::SUSPICIOUS
    }

    /// There was no time to sleep, as it seems: some day there is again.
    pub fn was_too_long_to_sleep(&self) {
        let now = self.get();
        self.ticks.store(now - now / 64, Relaxed);
    }

    /// A caller that slept had to wait for this many ticks.
    pub fn was_long_enough(&self, waited: u64) {
        self.too_short.store(0, Relaxed);
        if waited > Self::LITTLE {
            let now = self.get();
            self.ticks.store(now - now / 16, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pace_is_kept_for_each_size_and_follows_slowly() {
        let times = CopyTimes::new();
        assert_eq!(times.expected(4 << 20), 0);
        times.note(4 << 20, 1000);
        assert_eq!((times.expected(4 << 20), times.expected(6 << 20)), (1000, 1500));
        assert_eq!(times.expected(64 << 20), 0);
        times.note(4 << 20, 1 << 40);
        assert_eq!(times.expected(4 << 20), 1250);
    }

    #[test]
    fn sleeper_that_comes_too_late_says_nothing_but_that_it_took_no_longer() {
        let times = CopyTimes::new();
        times.note(4 << 20, 1000);
        (0..100).for_each(|_| times.note_at_most(4 << 20, 5000));
        assert_eq!(times.expected(4 << 20), 1000);
        times.note_at_most(4 << 20, 800);
        assert_eq!(times.expected(4 << 20), 950);
    }

    #[test]
    fn sleeper_learns_to_wake_up_in_time_and_not_too_early() {
        // It takes 150 us of 2.5 GHz to wake up.
        let (lead, late) = (Lead::new(), 375_000);
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
    }

    /// Large copies wake up late by more than small ones take; those sleep again some day.
    #[test]
    fn lead_that_leaves_no_time_to_sleep_is_tried_again() {
        let (lead, takes) = (Lead::new(), 350_000);
        while lead.get() < takes {
            lead.was_too_short();
        }
        let copies = (0..200).take_while(|_| {
            lead.was_too_long_to_sleep();
            lead.get() > takes / 2
        });
        assert!(copies.count() < 60);
    }

    /// Expected is what the card took while it was busy; now it takes an eighth of that.
    #[test]
    fn sleepers_that_are_always_late_find_out_that_the_card_is_quicker_now() {
        let (times, lead, late, takes) = (CopyTimes::new(), Lead::new(), 140_000, 4_000_000);
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
