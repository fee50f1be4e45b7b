//! Adapts the number of threads to page table locks, for one transfer between processes.
//!
//! For every small page the kernel takes the lock of the page table that maps it in the other
//! process, so threads in one table wait for each other. (On sixteen CPUs 1 MiB by one thread 95
//! µs, by two 80, by four 108; 4 MiB, which has two tables, 500, 275, 180, and by seven 210.) Huge
//! pages have no such lock. The cost of the caller's own bytes shows which it is. Two threads for
//! each table at first, twice as many while it stays near its best, and half as many once it
//! doubles. A step up that failed is tried again after twice as many calls.

use crate::backend::threads::Cost;
use crate::plan::Cut;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use zerocopy::FromZeros;

const LEAST: u32 = 2;
const MOST: u32 = 16;
/// Good calls before the first step up, and before the last.
const FIRST_STEP: u32 = 8;
const LAST_STEP: u32 = 1024;

#[derive(FromZeros)]
pub struct TableThreads {
    /// Threads for each table, less `LEAST`.
    more: AtomicU32,
    /// Least ticks per MiB of the caller's bytes; rises slowly. 0: none was seen.
    best: AtomicU32,
    /// Good calls since the last step, and how many the next step up takes, less `FIRST_STEP`.
    good: AtomicU32,
    patience: AtomicU32,
}

impl TableThreads {
    fn per_table(&self) -> u32 {
        LEAST + self.more.load(Relaxed)
    }

    /// Returns how many threads are to share a transfer of `len` bytes.
    pub fn of(&self, len: usize) -> usize {
        self.per_table() as usize * len.div_ceil(Cut::TABLE).max(1)
    }

    /// Notes the cost of the caller's own bytes in a shared transfer.
    pub fn note(&self, own: Cost) {
        if own.bytes == 0 {
            return;
        }
        let cost = own.per_mebibyte();
        let best = match self.best.load(Relaxed) {
            0 => cost,
            best => cost.min(best.saturating_add(best / 64)),
        };
        self.best.store(best, Relaxed);
        let patience = FIRST_STEP + self.patience.load(Relaxed);
        if cost > best.saturating_mul(2) {
            if self.per_table() > LEAST {
                self.patience.store((2 * patience).min(LAST_STEP) - FIRST_STEP, Relaxed);
            }
            self.step((self.per_table() / 2).max(LEAST));
        } else if cost <= best.saturating_add(best / 2) {
            let good = self.good.load(Relaxed) + 1;
            self.good.store(good, Relaxed);
            if good >= patience {
                self.step((2 * self.per_table()).min(MOST));
            }
        }
    }

    fn step(&self, per_table: u32) {
        self.more.store(per_table - LEAST, Relaxed);
        self.good.store(0, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::mapped::zeroed;

    /// Notes transfers that cost `cost(threads)`. Returns how many threads each had in a table.
    fn calls(threads: &TableThreads, count: usize, cost: impl Fn(usize) -> u64) -> Vec<usize> {
        let one = |_| {
            let each = threads.of(Cut::TABLE);
            threads.note(Cost { bytes: 1 << 20, ticks: cost(each) });
            each
        };
        (0..count).map(one).collect()
    }

    #[test]
    fn threads_of_a_table_grow_where_they_do_not_wait_for_each_other() {
        let threads = zeroed::<TableThreads>();
        assert_eq!((threads.of(1 << 20), threads.of(4 << 20)), (2, 4));
        calls(&threads, 100, |each| 1000 + each as u64);
        assert_eq!(threads.of(Cut::TABLE), MOST as usize);
        calls(&threads, 10, |each| 600 * each as u64);
        assert_eq!(threads.of(Cut::TABLE), 2, "they wait for each other from now on");
    }

    #[test]
    fn step_that_fails_is_tried_less_and_less() {
        let threads = zeroed::<TableThreads>();
        let tried = calls(&threads, 4000, |each| if each > 2 { 5000 } else { 1000 });
        let steps = tried.iter().filter(|&&each| each > 2).count();
        assert!((2..20).contains(&steps), "{steps} of 4000");
        let last = &tried[3000..];
        assert!(last.iter().filter(|&&each| each > 2).count() <= 2);
    }
}
