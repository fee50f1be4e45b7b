//! Choice between streaming and ordinary stores, for copies of one size.
//!
//! Alternating pieces of one copy show which stores are faster (`record_pieces`). But streaming
//! stores leave nothing in the caches, so a program that reads the destination next waits for
//! memory. So whole copies are compared too, each with the time until the next large call. A few
//! copies go the other way now and then, see `Cell`.

use super::{Cell, Cost, ONE, PAIRS_FIRST, STREAM_FROM, is_turn, ratio};
use crate::backend::copy_loop::CopyLoop;
use crate::backend::threads::{Pieces, Seen};
use crate::os::mapped::Zeroed;
use crate::stats::Fallback;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Ticks per MiB until the next large call that count: twice what it takes to write and read that
/// much memory with cold caches. After a longer time the cost of the copy would be lost in other
/// work.
const MOST_AFTERWARDS: u64 = 1_000_000;

/// Of the first copies that fit into caches, one in `SETTLED` has alternating pieces, and the others ordinary
/// stores: right after workers or streaming stores, which leave nothing in the cache, streaming seems to gain.
const SETTLED: u32 = 4;

/// Copies between two with alternating pieces. While streaming loses, that doubles for copies that
/// fit into caches: what was streamed is missing there for the next one.
const PIECES_EVERY: u32 = 32;
const MOST_DOUBLINGS: u32 = 4;

/// Ratio above which a difference is not believed: the caller was preempted meanwhile.
const IMPLAUSIBLE: u32 = 3;

/// Threads that make a copy, on which the better stores depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copier {
    /// Caller and workers.
    Together,
    /// The caller.
    Alone,
}

/// Choice of stores for one size.
pub struct Stores {
    /// Streaming takes the place of sharing here, and ordinary stores that of libc.
    cell: Cell,
    /// Set if streaming was better and the last pieces deny it: the next copy has pieces again. Not for the
    /// contrary, since what pieces have streamed is missing in the cache for the next copy.
    is_doubted: AtomicBool,
}

/// The last copy that has ended; the next large call tells the time after it.
pub struct LastCopy {
    /// Bytes in the upper bits, then whether stores were chosen, `Copier`, streaming; 0: no copy.
    copy: AtomicU64,
    ticks: AtomicU64,
    end: AtomicU64,
    /// Set if the time after the copy before was too long to count.
    was_long: AtomicBool,
}

// SAFETY: atomics.
unsafe impl Zeroed for Stores {}
// SAFETY: atomics.
unsafe impl Zeroed for LastCopy {}

impl LastCopy {
    /// Stores a copy; `chosen`: with these stores, which the learner has chosen.
    pub fn set(&self, whole: Cost, by: Copier, chosen: Option<CopyLoop>, end: u64) {
        self.ticks.store(whole.ticks, Relaxed);
        self.end.store(end, Relaxed);
        let bits = u64::from(chosen.is_some()) << 2
            | (by as u64) << 1
            | u64::from(chosen == Some(CopyLoop::Stream));
        self.copy.store((whole.bytes as u64) << 3 | bits, Relaxed);
    }

    /// Takes the copy, with the ticks until `now` added. Returns its copier, too, and whether it
    /// was streamed if the learner has chosen that. Copies of threads in one slot can be mixed up,
    /// which costs a sample. `None` also for the first and the last copy of a burst: the one is
    /// slow after a pause, the other would count without what the program does after it.
    pub fn take(&self, now: u64) -> Option<(Cost, Copier, Option<bool>)> {
        let copy = self.copy.load(Relaxed);
        if copy == 0 {
            return None;
        }
        self.copy.store(0, Relaxed);
        let bytes = copy >> 3;
        let most = (bytes >> 10).saturating_mul(MOST_AFTERWARDS) >> 10;
        let after = now.saturating_sub(self.end.load(Relaxed));
        let (is_long, was_long) = (after > most, self.was_long.load(Relaxed));
        self.was_long.store(is_long, Relaxed);
        if is_long != was_long {
            return None;
        }
        let ticks = self.ticks.load(Relaxed) + if is_long { 0 } else { after };
        let by = if copy & 2 == 0 { Copier::Together } else { Copier::Alone };
        let streamed = (copy & 4 != 0).then_some(copy & 1 == 1);
        Some((Cost { bytes: bytes as usize, ticks }, by, streamed))
    }
}

impl Stores {
    /// Returns the stores for the next copy of `len` bytes.
    pub fn choose(&self, len: usize) -> Pieces {
        let (calls, tries) = self.cell.turn(len, false);
        let pays = self.pieces_pay(len);
        let is_turn = match len >= STREAM_FROM {
            true => is_turn(calls, PIECES_EVERY),
            false if calls < SETTLED * PAIRS_FIRST => calls % SETTLED == SETTLED - 1,
            false if pays => calls.is_multiple_of(PIECES_EVERY),
            false => {
                let doublings = self.cell.confirmed.load(Relaxed).min(MOST_DOUBLINGS);
                calls.is_multiple_of(PIECES_EVERY << doublings)
            }
        };
        if is_turn || self.is_doubted.load(Relaxed) {
            return Pieces::Alternate;
        }
        let streams = pays && self.cell.is_shared() != tries;
        Pieces::All(if streams { CopyLoop::Stream } else { CopyLoop::Ordinary })
    }

    /// Returns whether streaming is better for `len` bytes. Assumed until tried from `STREAM_FROM` up, where
    /// several threads have lost by it in no case that was measured.
    pub fn streaming_pays(&self, len: usize) -> bool {
        self.pieces_pay(len) && self.cell.is_shared()
    }

    fn pieces_pay(&self, len: usize) -> bool {
        let gain = self.pieces_gain();
        gain > ONE || gain == 0 && len >= STREAM_FROM
    }

    /// Returns the gain of streaming by pieces in parts of `ONE`; 0: not known.
    pub fn pieces_gain(&self) -> u32 {
        self.cell.pair.load(Relaxed)
    }

    /// Records the alternating pieces of one copy.
    pub fn record_pieces(&self, seen: &Seen) {
        let [ordinary, streamed] = [seen.ordinary, seen.streamed];
        if ordinary.bytes > 0 && streamed.bytes > 0 {
            let gain = ratio(ordinary.per_mebibyte(), streamed.per_mebibyte());
            if (ONE / IMPLAUSIBLE..=ONE * IMPLAUSIBLE).contains(&gain) {
                self.cell.record_pair(ordinary, streamed);
                self.is_doubted.store(gain <= ONE && self.pieces_gain() > ONE, Relaxed);
                match gain > ONE {
                    true => self.cell.confirmed.store(0, Relaxed),
                    false => _ = super::add(&self.cell.confirmed),
                }
            }
        }
    }

    /// Records a whole copy and the time after it.
    pub fn record(&self, whole: Cost, streamed: bool) {
        if self.pieces_pay(whole.bytes) {
            let verdict = if streamed { Ok(0) } else { Err(Fallback::Compared) };
            self.cell.record_with_rest(verdict, whole);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::mapped::zeroed;

    fn seen(ordinary: u64, streamed: u64) -> Seen {
        Seen {
            ordinary: Cost { bytes: 1 << 20, ticks: ordinary },
            streamed: Cost { bytes: 1 << 20, ticks: streamed },
            ..Seen::default()
        }
    }

    #[test]
    fn pieces_are_known_after_three_copies_and_looked_at_again() {
        let stores: Stores = zeroed();
        assert!(stores.streaming_pays(8 << 20));
        for _ in 0..3 {
            assert_eq!(stores.choose(8 << 20), Pieces::Alternate);
            stores.record_pieces(&seen(100, 150));
        }
        assert_eq!(stores.choose(8 << 20), Pieces::All(CopyLoop::Ordinary));
        stores.record_pieces(&seen(2000, 100)); // preempted
        assert!(!stores.streaming_pays(8 << 20));
        stores.record_pieces(&Seen { streamed: Cost::default(), ..seen(100, 0) });
        let mut compared = 0;
        for _ in 0..10 * PIECES_EVERY {
            if stores.choose(8 << 20) == Pieces::Alternate {
                compared += 1;
                stores.record_pieces(&seen(150, 100));
            }
        }
        assert!((5..15).contains(&compared));
        assert!(stores.streaming_pays(8 << 20));
    }

    #[test]
    fn streaming_that_ceases_to_gain_is_found_out_at_once() {
        let stores: Stores = zeroed();
        let copies = |count: u32, cost: u64| {
            let copy = |_: &u32| match stores.choose(1 << 20) {
                Pieces::Alternate => {
                    stores.record_pieces(&seen(100, cost));
                    true
                }
                pieces => pieces == Pieces::All(CopyLoop::Stream),
            };
            (0..count).filter(copy).count()
        };
        assert_eq!(copies(100, 60), 97, "all but those before the first pieces");
        assert!(copies(100, 150) < 45, "streamed until the next pieces, and some pieces");
        assert!(!stores.streaming_pays(1 << 20));
    }

    #[test]
    fn streaming_that_loses_is_tried_less_often_where_copies_fit_into_caches() {
        let stores: Stores = zeroed();
        let tried = |copies: u32, cost: u64| {
            let alternates = |_: &u32| stores.choose(1 << 20) == Pieces::Alternate;
            let record = |_: &u32| stores.record_pieces(&seen(100, cost));
            (0..copies).filter(alternates).inspect(record).count()
        };
        let while_losing = tried(2048, 150);
        assert!((5..12).contains(&while_losing), "{while_losing}");
        let gaining = tried(4096, 60);
        assert!(gaining > 30, "{gaining}");
        assert!(stores.streaming_pays(1 << 20));
    }

    /// Makes copies of 4 MiB; `after` tells how long the program takes after a streamed one and
    /// after another; each fourth time it does something else as well. Returns how many of the last
    /// hundred were streamed.
    fn streamed(stores: &Stores, copies: u32, after: [u64; 2]) -> usize {
        let (last, len, mut now, mut streamed) =
            (zeroed::<LastCopy>(), 4 << 20, 1 << 30, Vec::new());
        for copy in 0..copies {
            if let Some((whole, _, Some(streamed))) = last.take(now) {
                stores.record(whole, streamed);
            }
            let pieces = stores.choose(len);
            let ticks = if pieces == Pieces::All(CopyLoop::Stream) { 100_000 } else { 200_000 };
            now += ticks;
            match pieces {
                Pieces::Alternate => stores.record_pieces(&seen(200, 100)),
                Pieces::All(copy_loop) => {
                    last.set(Cost { bytes: len, ticks }, Copier::Alone, Some(copy_loop), now)
                }
            }
            streamed.push(pieces == Pieces::All(CopyLoop::Stream));
            now += after[usize::from(!streamed[streamed.len() - 1])];
            now += if copy % 4 == 0 { u64::from(copy % 7) * 500_000 } else { 0 };
        }
        streamed.iter().rev().take(100).filter(|&&streamed| streamed).count()
    }

    #[test]
    fn streaming_that_costs_the_program_more_afterwards_is_left() {
        let stores: Stores = zeroed();
        assert!(streamed(&stores, 2000, [2_000_000, 1_000_000]) < 20);
        assert!(!stores.streaming_pays(4 << 20));
        // Streaming is taken up again when it gains.
        assert!(streamed(&stores, 8000, [1_000_000, 1_000_000]) > 60);
    }

    #[test]
    fn streaming_stays_where_what_comes_afterwards_does_not_depend_on_it() {
        for after in [0, 1_000_000, 1 << 40] {
            assert!(streamed(&zeroed(), 2000, [after; 2]) > 60, "{after}");
        }
    }
}
