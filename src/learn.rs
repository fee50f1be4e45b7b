//! What measuring inside the copies has shown: for which of them the engine beats libc.
//!
//! Every kind of copy is shared from the first one on, and finds out by itself whether that was
//! right. Its caller copies the first bytes alone, by libc: that is libc's speed for this very
//! copy, as hot or cold, as fresh or crowded as it is. The rest is shared, and the ratio of the
//! two is the gain. A pair of figures per copy; a moving average of them per cell decides.
//!
//! ```text
//! gain = libc's cost of the first bytes * slant / cost of the shared rest
//! ```
//!
//! The first bytes of a copy may be colder or hotter than the rest, and much later ones may
//! meet other weather. So now and then a copy is left to libc whole, and its rest compared with
//! its first bytes: that is the slant.
//!
//! The way that was not chosen is tried by time: whenever fifty times as much has been spent in
//! the cell as the last try has cost, in both directions. So trying costs two percent of the time
//! of copying at most, and no verdict is for ever.
//!
//! Cells are kept by size, and by pace: right after another copy the workers are awake, after a
//! pause they have to be woken. Nothing is timed or copied in this file. All threads share the
//! numbers without locks: a lost update costs a sample, not a copy.
#![forbid(unsafe_code)]

use crate::backend::crew::SPIN_TICKS;
use crate::backend::kernel::Kernel;
use crate::backend::threads::{Cost, Pieces, Seen};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// No copy below this is considered. Half as large a copy would gain a fifth at best, in a
/// row and out of memory.
pub const FLOOR: usize = 256 << 10;

/// From 16 MiB up all copies share a row: the cost of a byte no longer depends on how many
/// there are, and few programs make enough of each size to judge it by itself.
const SIZES: usize = 7;

/// Streaming stores leave the cache alone, so who reads the destination next pays for it.
/// From twice a usual second-level cache up it would have left the cache anyway.
pub const STREAM_FROM: usize = 4 << 20;

/// Gains and slants are told in so many parts: this is 1.
const ONE: u32 = 1024;

/// A gain above this makes no difference, and must not take long to be forgotten.
const MOST: u32 = 2 * ONE;
const LEAST: u32 = ONE / 4;

/// Sharing goes on as long as it gains at all, and is taken up again for a little more.
const STAYS: u32 = ONE + ONE / 50;
const RETURNS: u32 = ONE + ONE / 16;

/// The first samples of a cell weigh more, the others a quarter.
const WEIGHT: u32 = 4;
/// A verdict for libc rests on so many samples.
const ENOUGH: u32 = 3;
/// So many copies of a cell are measured in a row, at first and after a bad one; then one in so
/// many. The first bytes of a measured copy wait for no help.
const MEASURED_FIRST: u32 = 6;
const MEASURED_THEN: u32 = 8;

/// Of the time spent in a cell one part in so many may go into trying the other way.
const BUDGET: u64 = 50;

pub struct Learner {
    /// By size; copies after a pause, and in a row.
    cells: [[Cell; 2]; SIZES],
    streams: [Streaming; SIZES],
    /// When the last large copy ended.
    last_end: AtomicU64,
}

/// How a copy is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// By the engine; `measured`: after its first bytes.
    Share { measured: bool },
    /// By libc, which was as fast.
    Libc,
    /// By libc, to know how it compares.
    Compare,
}

/// Copies of one size and pace. All zeros: nothing is known.
pub struct Cell {
    /// The average, in parts of `ONE`; 0: unknown.
    gain: AtomicU32,
    slant: AtomicU32,
    samples: AtomicU32,
    /// Copies that are still to be measured one after the other, less `MEASURED_FIRST`.
    doubt: AtomicU32,
    calls: AtomicU32,
    shared: AtomicU32, // 0: yes; 1: libc has won
    /// Ticks spent since the other way was tried, and what that costs.
    spent: AtomicU64,
    price: AtomicU64,
}

/// How many bytes of a copy its caller copies alone when it is measured.
pub fn first_bytes(len: usize) -> usize {
    (len / 16).clamp(16 << 10, 256 << 10)
}

/// `a` per byte, in parts of what `b` is per byte.
fn ratio(a: Cost, b: Cost) -> u64 {
    let per_byte = |cost: Cost| (cost.ticks.max(1) << 20) / cost.bytes.max(1) as u64;
    per_byte(a).max(1) * u64::from(ONE) / per_byte(b).max(1)
}

/// Moves an average towards a sample; 0 is no average yet.
fn blend(average: &AtomicU32, sample: u32, weight: u32) {
    let before = average.load(Relaxed);
    let next = match before {
        0 => sample,
        _ => (u64::from(before) * u64::from(weight - 1) + u64::from(sample)) as u32 / weight,
    };
    average.store(next.max(1), Relaxed);
}

fn class(len: usize) -> usize {
    ((len / FLOOR).max(1).ilog2() as usize).min(SIZES - 1)
}

impl Learner {
    pub const fn new() -> Self {
        Self {
            cells: [const { [const { Cell::new() }; 2] }; SIZES],
            streams: [const { Streaming::new() }; SIZES],
            last_end: AtomicU64::new(0),
        }
    }

    /// A large copy has ended.
    pub fn note_end(&self, now: u64) {
        self.last_end.store(now, Relaxed);
    }

    /// Whether the workers that helped the last copy are still awake.
    pub fn is_in_a_row(&self, now: u64) -> bool {
        now.wrapping_sub(self.last_end.load(Relaxed)) < SPIN_TICKS
    }

    pub fn cell(&self, len: usize, in_a_row: bool) -> &Cell {
        let (size, pace) = (class(len), usize::from(in_a_row));
        let cell = &self.cells[size][pace];
        // What does not gain for larger copies need not be tried with smaller ones at once.
        if cell.gain.load(Relaxed) == 0
            && let Some(larger) = self.cells.get(size + 1).map(|cells| &cells[pace])
            && !larger.is_shared()
        {
            cell.give_up(larger.gain.load(Relaxed), larger.price.load(Relaxed));
        }
        cell
    }

    pub fn streaming(&self, len: usize) -> &Streaming {
        &self.streams[class(len)]
    }

    /// The smallest size for which the engine is used, and libc at no pace: as a fixed threshold
    /// it would not harm.
    pub fn threshold(&self) -> Option<usize> {
        let known = |cell: &&Cell| cell.gain.load(Relaxed) > 0;
        let clear = |cells: &[Cell; 2]| {
            cells.iter().any(|cell| known(&cell)) && cells.iter().all(Cell::is_shared)
        };
        self.cells.iter().position(clear).map(|class| FLOOR << class)
    }

    /// Every cell that something is known of, for the log.
    pub fn known(&self) -> impl Iterator<Item = Known> {
        let of = |(size, cells): (usize, &[Cell; 2])| {
            [0, 1].map(|pace| {
                let cell = &cells[pace];
                let part = |value: &AtomicU32| value.load(Relaxed) as f32 / ONE as f32;
                Known {
                    size: FLOOR << size,
                    in_a_row: pace == 1,
                    shared: cell.is_shared(),
                    gain: part(&cell.gain),
                    slant: part(&cell.slant),
                    samples: cell.samples.load(Relaxed),
                    streamed: part(&self.streams[size].gain),
                }
            })
        };
        self.cells.iter().enumerate().flat_map(of).filter(|known| known.gain > 0.0)
    }
}

/// What is known of one cell.
pub struct Known {
    pub size: usize,
    pub in_a_row: bool,
    pub shared: bool,
    pub gain: f32,
    pub slant: f32,
    pub samples: u32,
    /// What streaming stores gain over ordinary ones; 0: not tried.
    pub streamed: f32,
}

impl Cell {
    const fn new() -> Self {
        Self {
            gain: AtomicU32::new(0),
            slant: AtomicU32::new(0),
            samples: AtomicU32::new(0),
            doubt: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            shared: AtomicU32::new(0),
            spent: AtomicU64::new(0),
            price: AtomicU64::new(0),
        }
    }

    fn is_shared(&self) -> bool {
        self.shared.load(Relaxed) == 0
    }

    pub fn decide(&self) -> Verdict {
        let price = self.price.load(Relaxed);
        let may_try = price > 0 && self.spent.load(Relaxed) >= BUDGET * price;
        if may_try {
            self.spent.store(0, Relaxed);
        }
        if !self.is_shared() {
            return if may_try { Verdict::Share { measured: true } } else { Verdict::Libc };
        }
        if may_try {
            return Verdict::Compare;
        }
        let calls = self.calls.fetch_add(1, Relaxed);
        let doubt = self.doubt.load(Relaxed);
        self.doubt.store(doubt.saturating_sub(1), Relaxed);
        let measured = doubt > 0 || calls < MEASURED_FIRST || calls.is_multiple_of(MEASURED_THEN);
        Verdict::Share { measured }
    }

    /// So long a copy has taken, whichever way it went.
    pub fn spend(&self, ticks: u64) {
        self.spent.fetch_add(ticks, Relaxed);
    }

    /// What a measured copy has shown: its first bytes by libc, the rest by the engine.
    pub fn record(&self, first: Cost, rest: Cost) {
        let slant = match self.slant.load(Relaxed) {
            0 => ONE,
            slant => slant,
        };
        let gain = ratio(first, rest) * u64::from(slant) / u64::from(ONE);
        let sample = gain.clamp(LEAST.into(), MOST.into()) as u32;
        let count = self.samples.fetch_add(1, Relaxed);
        blend(&self.gain, sample, WEIGHT.min(count.saturating_add(1)));
        if sample < STAYS {
            self.doubt.store(MEASURED_FIRST, Relaxed);
        }
        let average = self.gain.load(Relaxed);
        // What the other way costs more: of a copy of libc's what was gained, of a shared one
        // what was lost; and never nothing, for trying takes its time anyway.
        let by_libc = (u128::from(rest.ticks) * u128::from(gain) / u128::from(ONE)) as u64;
        let least = rest.ticks / 20;
        if self.is_shared() {
            self.price.store(by_libc.saturating_sub(rest.ticks).max(least), Relaxed);
            // The first copies of a process find workers that are only being made.
            if average < STAYS && count + 1 >= ENOUGH {
                self.give_up(average, rest.ticks.saturating_sub(by_libc).max(least));
            }
        } else if average >= RETURNS {
            self.shared.store(0, Relaxed);
            self.spent.store(0, Relaxed);
            self.price.store(by_libc.saturating_sub(rest.ticks).max(least), Relaxed);
        } else {
            self.price.store(rest.ticks.saturating_sub(by_libc).max(least), Relaxed);
        }
    }

    /// What a copy that libc has done whole has shown.
    pub fn record_libc(&self, first: Cost, rest: Cost) {
        let sample = ratio(rest, first).clamp(LEAST.into(), MOST.into()) as u32;
        blend(&self.slant, sample, WEIGHT);
        // What that means for the gain is seen with the next copies.
        self.doubt.store(MEASURED_FIRST, Relaxed);
    }

    fn give_up(&self, gain: u32, price: u64) {
        self.gain.store(gain, Relaxed);
        self.price.store(price, Relaxed);
        self.spent.store(0, Relaxed);
        self.shared.store(1, Relaxed);
    }
}

/// Whether streaming stores pay for copies of one size. All zeros: nothing is known.
pub struct Streaming {
    gain: AtomicU32,
    calls: AtomicU32,
}

impl Streaming {
    /// Both are compared in the first copies, and then in one of so many.
    const FIRST: u32 = 2;
    const THEN: u32 = 32;

    const fn new() -> Self {
        Self { gain: AtomicU32::new(0), calls: AtomicU32::new(0) }
    }

    pub fn choose(&self) -> Pieces {
        let calls = self.calls.fetch_add(1, Relaxed);
        if calls < Self::FIRST || calls.is_multiple_of(Self::THEN) {
            return Pieces::Alternate;
        }
        Pieces::All(if self.pays() { Kernel::Stream } else { Kernel::Ordinary })
    }

    /// Untried it is believed to: `bench/run kernels` shows no case from `STREAM_FROM` up in
    /// which several threads lose by it.
    pub fn pays(&self) -> bool {
        let gain = self.gain.load(Relaxed);
        gain == 0 || gain > ONE
    }

    pub fn record(&self, seen: &Seen) {
        if seen.ordinary.bytes > 0 && seen.streamed.bytes > 0 {
            let gain = ratio(seen.ordinary, seen.streamed);
            blend(&self.gain, gain.clamp(LEAST.into(), MOST.into()) as u32, WEIGHT);
        }
    }
}

#[cfg(test)]
#[path = "learn_tests.rs"]
mod tests;
