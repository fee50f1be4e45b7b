//! Samples of libc's times inside shared calls, and of whole calls by libc, in a fixed table: from
//! them `worth` estimates what the run would have taken without us.
//!
//! A sample is libc's cost for the caller's first bytes of a shared call, or for a whole call. One
//! during which its thread was preempted is not kept, unless it took much longer than that.

use crate::{Sums, absorb_all};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use zerocopy::{FromBytes, IntoBytes};

/// Size classes of the learner, and two columns for memory that was never written: calls of which parts
/// are timed, and short ones, which are timed whole.
pub const SIZES: usize = 9;
pub const FRESH: usize = SIZES - 2;
pub const FRESH_SHORT: usize = SIZES - 1;
/// Number of kinds in the library's `Kind`.
pub const KINDS: usize = 8;
/// Samples that are kept for one kind and size.
pub const KEPT: usize = 32;
/// Threads whose shared calls are told apart.
const THREADS: usize = 32;

#[repr(C)] // lies in live files
#[derive(FromBytes, IntoBytes)]
pub struct Samples {
    pub rows: [Row; KINDS * SIZES],
    /// Ticks of shared calls during which a large call of another thread has ended.
    pub overlapped: AtomicU64,
    /// Threads by their registers, each with the ticks of its shared calls; and the ticks of more threads.
    threads: [Sums<2>; THREADS],
    more_threads: AtomicU64,
    /// Ticks of asynchronous copies.
    pub background: AtomicU64,
    /// Nanoseconds of the calls that samples come from, and of preemption among them.
    pub timed: AtomicU64,
    pub preempted: AtomicU64,
}

/// Calls of one kind and size.
#[repr(C)]
#[derive(FromBytes, IntoBytes)]
pub struct Row {
    /// Shared calls, their bytes and ticks.
    pub shared: Sums<3>,
    count: AtomicU64,
    /// Ticks per MiB, times two; odd: of a whole call.
    costs: [AtomicU32; KEPT],
}

impl Samples {
    /// Returns the row for calls of a kind and a size class.
    pub fn row(&self, kind: usize, size: usize) -> &Row {
        &self.rows[kind.min(KINDS - 1) * SIZES + size.min(SIZES - 1)]
    }

    fn sums(&self) -> [&AtomicU64; 5] {
        [&self.overlapped, &self.more_threads, &self.background, &self.timed, &self.preempted]
    }

    /// Counts the ticks of a shared call, by the register of its thread (0: not known). One that was
    /// another's before stands for both: they did not run at once.
    pub fn note_thread(&self, register: u64, ticks: u64) {
        // Registers lie apart by the size of a stack.
        let hash = register.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let (wrapped, first) = self.threads.split_at(hash as usize % THREADS);
        let is_ours = |thread: &AtomicU64| match thread.load(Relaxed) {
            0 => match thread.compare_exchange(0, register, Relaxed, Relaxed) {
                Ok(_) => true,
                Err(other) => other == register,
            },
            other => other == register,
        };
        let mut places = first.iter().chain(wrapped).filter(|_| register != 0);
        let sum = match places.find(|Sums([thread, _])| is_ours(thread)) {
            Some(Sums([_, sum])) => sum,
            None => &self.more_threads,
        };
        sum.fetch_add(ticks, Relaxed);
    }

    /// Returns the ticks of shared calls of each thread. `None`: there were more than are told apart.
    pub fn threads(&self) -> Option<impl Iterator<Item = f64> + Clone> {
        let ticks = self.threads.iter().map(|thread| thread.get()[1] as f64);
        (self.more_threads.load(Relaxed) == 0).then(|| ticks.filter(|&ticks| ticks > 0.0))
    }

    pub fn absorb(&self, from: &Self) {
        absorb_all(self.sums(), from.sums());
        for Sums([thread, ticks]) in &from.threads {
            let (thread, ticks) = (thread.swap(0, Relaxed), ticks.swap(0, Relaxed));
            if ticks > 0 {
                self.note_thread(thread, ticks);
            }
        }
        for (to, from) in self.rows.iter().zip(&from.rows) {
            to.shared.absorb(&from.shared);
            let kept = from.count.swap(0, Relaxed).min(KEPT as u64) as usize;
            from.costs.iter().take(kept).for_each(|cost| to.keep(cost.load(Relaxed)));
        }
    }
}

impl Row {
    /// Keeps a time of libc; `is_whole`: for a whole call.
    pub fn note_libc(&self, bytes: u64, ticks: u64, is_whole: bool) {
        let cost = (u128::from(ticks) << 20) / u128::from(bytes.max(1));
        self.keep((cost.clamp(1, (u32::MAX >> 1).into()) as u32) << 1 | u32::from(is_whole));
    }

    /// Fills the table first, then replaces a random sample.
    fn keep(&self, cost: u32) {
        let count = self.count.fetch_add(1, Relaxed);
        let hash = count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let place = if count < KEPT as u64 { count } else { hash % KEPT as u64 };
        self.costs[place as usize].store(cost, Relaxed);
    }

    /// Returns the costs of whole calls, or of first bytes too, in ticks per MiB, in `room`.
    pub fn costs<'a>(&self, only_whole: bool, room: &'a mut [f64; KEPT]) -> &'a mut [f64] {
        let kept = self.count.load(Relaxed).min(KEPT as u64) as usize;
        let mut len = 0;
        for cost in self.costs.iter().take(kept).map(|cost| cost.load(Relaxed)) {
            if !only_whole || cost & 1 == 1 {
                room[len] = f64::from(cost >> 1);
                len += 1;
            }
        }
        &mut room[..len]
    }
}
