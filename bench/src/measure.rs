//! Time, medians, and their confidence intervals.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pause after which the workers sleep: longer than any sensible worker spins.
pub const PAUSE_US: u64 = 300;

/// Returns the nanoseconds of CLOCK_MONOTONIC, read without a system call.
#[inline]
pub fn now() -> u64 {
    clock(libc::CLOCK_MONOTONIC)
}

/// Returns the nanoseconds of CPU time of all threads of this process.
pub fn cpu_time() -> u64 {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID)
}

#[inline]
fn clock(which: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a timespec of ours; both clocks exist on every Linux.
    unsafe { libc::clock_gettime(which, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the difference of two consecutive readings of the clock.
pub fn clock_cost() -> u64 {
    let pair = || {
        let start = now();
        now() - start
    };
    (0..1000).map(|_| pair()).min().unwrap_or(0)
}

/// Keeps this CPU busy for a while: spinning threads of another arm fall asleep, and our own core
/// does not clock down.
pub fn settle(us: u64) {
    let end = now() + us * 1000;
    while now() < end {
        std::hint::spin_loop();
    }
}

pub fn median(values: &[f64]) -> f64 {
    Samples(values.to_vec()).median()
}

#[derive(Default, Clone)]
pub struct Samples(Vec<f64>);

impl Samples {
    pub fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub fn append(&mut self, mut more: Samples) {
        self.0.append(&mut more.0);
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the q-th quantile, by linear interpolation; NaN when empty.
    pub fn quantile(&self, q: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        if sorted.is_empty() {
            return f64::NAN;
        }
        let at = q * (sorted.len() - 1) as f64;
        let (low, high) = (at.floor() as usize, at.ceil() as usize);
        sorted[low] + (sorted[high] - sorted[low]) * at.fract()
    }

    pub fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Returns the 95 % confidence interval of the median: the order statistics 0.98 √n away from
    /// the middle, for any distribution.
    pub fn median_interval(&self) -> (f64, f64) {
        let away = 0.98 / (self.len().max(1) as f64).sqrt();
        (self.quantile((0.5 - away).max(0.0)), self.quantile((0.5 + away).min(1.0)))
    }

    /// Returns whether more samples would move the median by little.
    pub fn steady(&self, relative: f64) -> bool {
        let (low, high) = self.median_interval();
        self.len() >= 40 && high - low <= 2.0 * relative * self.median()
    }
}

impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Samples(values.into_iter().collect())
    }
}

/// Returns the numbers below `count`, in random order (xorshift64*), for turns of a round.
pub fn shuffled(count: usize) -> Vec<usize> {
    static STATE: AtomicU64 = AtomicU64::new(0);
    let mut state = STATE.load(Relaxed);
    if state == 0 {
        state = now() | 1;
    }
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let random = state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
        order.swap(last, random as usize % (last + 1));
    }
    STATE.store(state, Relaxed);
    order
}

/// Returns how many copies a learner needed: the first from which the running median of five stays
/// within a tenth of where the sequence ends.
pub fn copies_until_steady(times: &[f64]) -> usize {
    const WINDOW: usize = 5;
    if times.len() < 4 * WINDOW {
        return 0;
    }
    let bound = median(&times[times.len() / 2..]) * 1.1;
    times.windows(WINDOW).position(|window| median(window) <= bound).unwrap_or(times.len())
}
