//! Memory worth registering: ranges that copies needed and that were not registered.

use super::Engine;
use super::registrations::LINE;
use crate::os::sys;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use zerocopy::FromZeros;

/// Range that copies have missed.
#[derive(FromZeros)]
pub struct Wish {
    /// 0: free. 1: being written. 2: for the service thread.
    pub state: AtomicU32,
    pub start: AtomicUsize,
    pub len: AtomicUsize,
}

/// Number of missed lines that are remembered.
pub const MISSED: usize = 1024;

impl Engine {
    /// Notes a miss. The second one has the memory registered; if that was refused, or did not pay,
    /// the 8th, the 64th and every 64th one after that.
    #[cold]
    pub fn miss(&self, at: usize, start: usize, len: usize) {
        let line = (at / LINE) as u64;
        let cell = self.misses_of(at / LINE);
        let before = cell.load(Relaxed);
        let times = if before >> 8 == line { (before & 0xff) + 1 } else { 1 };
        cell.store(line << 8 | if times == 128 { 64 } else { times }, Relaxed);
        if !matches!(times, 2 | 8 | 64 | 128) {
            return;
        }
        for wish in &self.wishes {
            if wish.state.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                wish.start.store(start, Relaxed);
                wish.len.store(len, Relaxed);
                wish.state.store(2, Release);
                self.ring();
                return;
            }
        }
    }

    fn misses_of(&self, line: usize) -> &AtomicU64 {
        &self.missed[(line ^ (line / MISSED)) % MISSED]
    }

    /// Forgets misses of memory whose registration has paid: it is registered as early as before.
    pub fn forgive_misses(&self, start: usize, end: usize) {
        for line in start / LINE..=(end - 1) / LINE {
            self.misses_of(line).store(0, Relaxed);
        }
    }

    /// For `--check`: has ranges registered, and waits for it. False: it was not possible.
    pub fn register(&self, ranges: [(usize, usize); 2]) -> bool {
        for _ in 0..2000 {
            let now = sys::ticks();
            if ranges.iter().all(|&(start, len)| self.registrations.covers(start, len, now).is_ok())
            {
                return true;
            }
            if !self.is_up() {
                return false;
            }
            for (start, len) in ranges {
                let there = self.registrations.covers(start, len, now);
                there.err().inspect(|&at| self.miss(at, start, len));
            }
            sys::sleep(1_000_000);
        }
        false
    }
}
