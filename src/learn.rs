//! What measuring inside the copies has shown: for which of them the engine beats libc.
//!
//! Every kind of copy is shared from the first one on, and finds out by itself whether that was
//! right, in two ways.
//!
//! *Pairs.* The caller copies the first bytes of a copy alone, by libc: that is libc's speed for
//! this very copy, as hot or cold, as fresh or crowded as it is. The rest is shared, and the
//! ratio of the two is a gain. It is known after one copy, and costs next to nothing.
//!
//! *Series.* First bytes can mislead: where copies are shared again and again they lie in the
//! caller's cache because the rest does not. So now and then a few copies in a row go the other
//! way, whole, and those that find caches and workers settled are compared with the others. A
//! verdict rests on such a series; a pair that says something else than the last series makes
//! the next one come at once.
//!
//! Series are made by time: whenever fifty times as much has been spent in a cell as the last
//! series has cost, in both directions. So trying costs about two percent of the time of copying,
//! and no verdict is for ever.
//!
//! Cells are kept by size, and by pace: right after another copy the workers are awake, after a
//! pause they have to be woken. Nothing is timed or copied in this file. All threads share the
//! numbers without locks: a lost update costs a sample, not a copy.
#![forbid(unsafe_code)]

use crate::backend::copy_loop::CopyLoop;
use crate::backend::threads::workers::SPIN_TICKS;
use crate::backend::threads::{Cost, Pieces, Seen};
use crate::stats::Fallback;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

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
const MOST: u32 = 4 * ONE;
const LEAST: u32 = ONE / 4;

/// Sharing goes on as long as it gains at all, and is taken up again for a little more.
const STAYS: u32 = ONE + ONE / 50;
const RETURNS: u32 = ONE + ONE / 16;

/// From this size on copies are measured in pairs: the first ones of a cell, then one in so many.
/// Smaller ones are made in such numbers that series do.
const PAIRS_FROM: usize = 1 << 20;
const PAIRS_FIRST: u32 = 3;
const PAIRS_THEN: u32 = 8;

/// Ticks for a mebibyte. Making its pages takes five times as long.
const QUICK: u32 = 200_000;

/// After a change of ways caches and workers need about so long to settle, or so many copies.
const SETTLING_TICKS: u64 = 1_000_000;
const SETTLING_COPIES: u32 = 16;
/// So many settled copies make a series.
const ENOUGH: u32 = 3;

/// Of the time spent in a cell one part in so many may go into trying the other way; and five
/// times as much where a pair has raised doubts.
const BUDGET: u64 = 50;
const BUDGET_IN_DOUBT: u64 = 10;

pub struct Learner {
    /// By size; copies after a pause, and in a row.
    cells: [[Cell; 2]; SIZES],
    streams: [Streaming; SIZES],
    pub fresh: Fresh,
    /// When the last large copy ended.
    last_end: AtomicU64,
}

/// How a copy is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// By the engine; `paired`: after its first bytes.
    Share { paired: bool },
    /// By libc, which was as fast.
    Libc,
    /// By libc, to know how it compares.
    Compare,
}

impl Verdict {
    /// How many bytes the caller copies alone first; or why libc copies them all.
    pub fn first_bytes(self, len: usize) -> Result<usize, Fallback> {
        match self {
            Verdict::Share { paired: true } => Ok(first_bytes(len)),
            Verdict::Share { paired: false } => Ok(0),
            Verdict::Libc => Err(Fallback::Learned),
            Verdict::Compare => Err(Fallback::Compared),
        }
    }

    fn shares(self) -> bool {
        matches!(self, Verdict::Share { .. })
    }
}

/// Copies of one size and pace. All zeros: nothing is known, and they are shared.
pub struct Cell {
    libc_won: AtomicBool,
    /// What the chosen way costs: ticks for a mebibyte, a moving average; 0: unknown.
    cost: AtomicU32,
    /// Of the last series: the gain of sharing in parts of `ONE`; 0: there was none.
    gain: AtomicU32,
    /// The average gain of pairs; and what it was at the last series.
    pair: AtomicU32,
    pair_then: AtomicU32,
    pairs: AtomicU32,
    calls: AtomicU32,
    /// Copies since the way has changed, in or out of a series, and when that was.
    since: AtomicU32,
    changed: AtomicU64,
    /// A series is on: so many copies of it were settled, and what they have cost on average; the
    /// bytes of all.
    trying: AtomicBool,
    settled: AtomicU32,
    settled_cost: AtomicU32,
    tried_bytes: AtomicU64,
    /// Ticks spent since the last series, and what that cost more than the chosen way.
    spent: AtomicU64,
    price: AtomicU64,
}

/// How many bytes of a copy its caller copies alone when it is paired: whole lines of the cache.
fn first_bytes(len: usize) -> usize {
    (len / 32).clamp(32 << 10, 128 << 10) & !63
}

/// Ticks for a mebibyte.
fn per_mebibyte(cost: Cost) -> u32 {
    let ticks = u128::from(cost.ticks.max(1)) << 20;
    (ticks / cost.bytes.max(1) as u128).clamp(1, u32::MAX.into()) as u32
}

/// How much faster `b` is than `a`, in parts of `ONE`.
fn ratio(a: u32, b: u32) -> u32 {
    let ratio = u64::from(a) * u64::from(ONE) / u64::from(b.max(1));
    ratio.clamp(LEAST.into(), MOST.into()) as u32
}

/// Adds without a locked instruction: a lost update costs nothing that matters.
fn add(count: &AtomicU32) -> u32 {
    let before = count.load(Relaxed);
    count.store(before.wrapping_add(1), Relaxed);
    before
}

/// Moves an average towards a sample by one part in `weight`; 0 is no average yet.
fn blend(average: &AtomicU32, sample: u32, weight: u64) {
    let before = u64::from(average.load(Relaxed));
    // A preempted copy counts for no more than four.
    let sample = u64::from(sample);
    let next = match before {
        0 => sample,
        _ => (before * (weight - 1) + sample.min(4 * before)) / weight,
    };
    average.store(next.max(1) as u32, Relaxed);
}

fn class(len: usize) -> usize {
    ((len / FLOOR).max(1).ilog2() as usize).min(SIZES - 1)
}

impl Learner {
    pub const fn new() -> Self {
        Self {
            cells: [const { [const { Cell::new() }; 2] }; SIZES],
            streams: [const { Streaming::new() }; SIZES],
            fresh: Fresh::new(),
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
        if cell.calls.load(Relaxed) == 0
            && let Some(larger) = self.cells.get(size + 1).map(|cells| &cells[pace])
            && larger.libc_won.load(Relaxed)
        {
            cell.libc_won.store(true, Relaxed);
            cell.price.store(larger.price.load(Relaxed), Relaxed);
        }
        cell
    }

    pub fn streaming(&self, len: usize) -> &Streaming {
        &self.streams[class(len)]
    }

    /// The smallest size for which the engine is used, and libc at no pace: as a fixed threshold
    /// it would not harm.
    pub fn threshold(&self) -> Option<usize> {
        let seen = |cell: &Cell| cell.calls.load(Relaxed) > 0;
        let clear = |cells: &[Cell; 2]| {
            cells.iter().any(seen) && !cells.iter().any(|cell| cell.libc_won.load(Relaxed))
        };
        self.cells.iter().position(clear).map(|class| FLOOR << class)
    }

    /// Every cell that copies have come to, for the log.
    pub fn known(&self) -> impl Iterator<Item = Known> {
        let of = |(size, cells): (usize, &[Cell; 2])| {
            [0, 1].map(|pace| {
                let cell = &cells[pace];
                let part = |value: &AtomicU32| value.load(Relaxed) as f32 / ONE as f32;
                Known {
                    size: FLOOR << size,
                    in_a_row: pace == 1,
                    shared: !cell.libc_won.load(Relaxed),
                    calls: cell.calls.load(Relaxed),
                    gain: part(&cell.gain),
                    pair: part(&cell.pair),
                    streamed: part(&self.streams[size].gain),
                }
            })
        };
        self.cells.iter().enumerate().flat_map(of).filter(|known| known.calls > 0)
    }
}

/// What is known of one cell. Gains are 0 where nothing has been tried.
pub struct Known {
    pub size: usize,
    pub in_a_row: bool,
    pub shared: bool,
    pub calls: u32,
    /// By the last series, and by pairs since.
    pub gain: f32,
    pub pair: f32,
    /// What streaming stores gain over ordinary ones.
    pub streamed: f32,
}

impl Cell {
    const fn new() -> Self {
        Self {
            libc_won: AtomicBool::new(false),
            cost: AtomicU32::new(0),
            gain: AtomicU32::new(0),
            pair: AtomicU32::new(0),
            pair_then: AtomicU32::new(0),
            pairs: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            since: AtomicU32::new(0),
            changed: AtomicU64::new(0),
            trying: AtomicBool::new(false),
            settled: AtomicU32::new(0),
            settled_cost: AtomicU32::new(0),
            tried_bytes: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            price: AtomicU64::new(0),
        }
    }

    /// The way of a copy of `len` bytes that begins now.
    pub fn decide(&self, len: usize, now: u64) -> Verdict {
        let calls = add(&self.calls);
        if !self.trying.load(Relaxed) && self.is_time_to_try(len) {
            self.trying.store(true, Relaxed);
            self.settled.store(0, Relaxed);
            self.settled_cost.store(0, Relaxed);
            self.tried_bytes.store(0, Relaxed);
            self.change(now);
        }
        match (self.libc_won.load(Relaxed), self.trying.load(Relaxed)) {
            (false, true) => Verdict::Compare,
            (true, false) => Verdict::Libc,
            (true, true) => Verdict::Share { paired: false },
            (false, false) => Verdict::Share {
                paired: len >= PAIRS_FROM
                    && (calls < PAIRS_FIRST || calls.is_multiple_of(PAIRS_THEN)),
            },
        }
    }

    /// Libc copies so fast here that no page fault can be among it, which spares asking whether
    /// memory is fresh. Copies that are slower, and be it for faults, make us ask again.
    pub fn libc_is_too_quick_for_page_faults(&self) -> bool {
        self.libc_won.load(Relaxed) && (1..QUICK).contains(&self.cost.load(Relaxed))
    }

    fn is_time_to_try(&self, len: usize) -> bool {
        let (spent, price) = (self.spent.load(Relaxed), self.price.load(Relaxed));
        if self.libc_won.load(Relaxed) {
            return spent >= BUDGET * price;
        }
        if price == 0 {
            // Of small copies nothing is known before the first series.
            return len < PAIRS_FROM && self.since.load(Relaxed) >= 2 * SETTLING_COPIES;
        }
        spent >= BUDGET * price || self.is_in_doubt() && spent >= BUDGET_IN_DOUBT * price
    }

    /// How many ticks a shared copy has saved that took `whole`, less than none if it has cost
    /// some: by the gain of the last series, or of pairs before there was one. `None`: nothing is
    /// known yet. A copy that took longer than they usually do was not held up by sharing, and has
    /// not saved more by it either.
    pub fn saved(&self, whole: Cost) -> Option<i64> {
        let [gain, pair] = [&self.gain, &self.pair].map(|part| part.load(Relaxed));
        let gain = if gain > 0 { gain } else { pair };
        let usual = match self.libc_won.load(Relaxed) {
            true => u64::MAX,
            false => u64::from(self.cost.load(Relaxed)).saturating_mul(whole.bytes as u64) >> 20,
        };
        let more = i64::from(gain) - i64::from(ONE);
        let ticks = whole.ticks.min(usual) as i64;
        (gain > 0).then(|| ticks.saturating_mul(more) / i64::from(ONE))
    }

    /// Whether pairs say that sharing has ceased to gain. What they say is worth what it was at
    /// the last series.
    fn is_in_doubt(&self) -> bool {
        let [pair, then, gain] =
            [&self.pair, &self.pair_then, &self.gain].map(|part| u64::from(part.load(Relaxed)));
        let gain = (pair * gain).checked_div(then).unwrap_or(pair);
        self.pairs.load(Relaxed) >= PAIRS_FIRST && gain < u64::from(STAYS)
    }

    fn change(&self, now: u64) {
        self.since.store(0, Relaxed);
        self.changed.store(now, Relaxed);
    }

    /// What a copy of this cell has cost that ended now; `in_a_row`: it followed another one.
    pub fn record(&self, verdict: Verdict, whole: Cost, now: u64, in_a_row: bool) {
        let cost = per_mebibyte(whole);
        let since = add(&self.since) + 1;
        let passed = now.wrapping_sub(self.changed.load(Relaxed));
        let settled = !in_a_row || passed >= SETTLING_TICKS || since > SETTLING_COPIES;
        if !self.trying.load(Relaxed) {
            self.spent.store(self.spent.load(Relaxed) + whole.ticks, Relaxed);
            if settled || self.cost.load(Relaxed) == 0 {
                blend(&self.cost, cost, 8);
            }
            return;
        }
        if verdict.shares() != self.libc_won.load(Relaxed) {
            return; // one that was begun before the series
        }
        self.tried_bytes.fetch_add(whole.bytes as u64, Relaxed);
        if settled {
            // The mean of a few, as the other way's cost is one: the best of them would flatter
            // what is fast most of the time only.
            let (count, chosen) = (self.settled.load(Relaxed), self.cost.load(Relaxed));
            let sum = u64::from(self.settled_cost.load(Relaxed)) * u64::from(count);
            let mean = (sum + u64::from(cost.min(chosen.saturating_mul(4)))) / u64::from(count + 1);
            self.settled_cost.store(mean as u32, Relaxed);
            let long = whole.ticks >= SETTLING_TICKS;
            if self.settled.fetch_add(1, Relaxed) + 1 >= if long { 1 } else { ENOUGH } {
                self.judge(now);
            }
        }
    }

    /// The end of a series.
    fn judge(&self, now: u64) {
        let (tried, chosen) = (self.settled_cost.load(Relaxed), self.cost.load(Relaxed));
        let libc_won = self.libc_won.load(Relaxed);
        let gain = if libc_won { ratio(chosen, tried) } else { ratio(tried, chosen) };
        self.gain.store(gain, Relaxed);
        self.pair_then.store(self.pair.load(Relaxed), Relaxed);
        let kibibytes = self.tried_bytes.load(Relaxed) >> 10;
        let ticks_at = |cost: u32| kibibytes * u64::from(cost) / 1024;
        let (was, would_be) = (ticks_at(tried), ticks_at(chosen));
        // Never nothing: a series takes its time also where it shows no difference.
        self.price.store(was.saturating_sub(would_be).max(was / 16).max(1), Relaxed);
        self.spent.store(0, Relaxed);
        let changes = if libc_won { gain >= RETURNS } else { gain < STAYS };
        if changes {
            self.libc_won.store(!libc_won, Relaxed);
            self.cost.store(tried, Relaxed);
        }
        self.trying.store(false, Relaxed);
        self.change(now);
    }

    /// What a pair has shown: the first bytes by libc, the rest by the engine.
    pub fn record_pair(&self, first: Cost, rest: Cost) {
        let gain = ratio(per_mebibyte(first), per_mebibyte(rest));
        // The first copy of a process finds workers that are only being made.
        let weight = if self.pairs.fetch_add(1, Relaxed) < 2 { 2 } else { 4 };
        blend(&self.pair, gain, weight);
        if self.price.load(Relaxed) == 0 {
            let gained = rest.ticks * u64::from(gain.saturating_sub(ONE)) / u64::from(ONE);
            self.price.store(gained.max(rest.ticks / 16).max(1), Relaxed);
        }
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
        let calls = add(&self.calls);
        if calls < Self::FIRST || calls.is_multiple_of(Self::THEN) {
            return Pieces::Alternate;
        }
        Pieces::All(if self.pays() { CopyLoop::Stream } else { CopyLoop::Ordinary })
    }

    /// Untried it is believed to: `bench/run kernels` shows no case from `STREAM_FROM` up in
    /// which several threads lose by it.
    pub fn pays(&self) -> bool {
        let gain = self.gain.load(Relaxed);
        gain == 0 || gain > ONE
    }

    pub fn record(&self, seen: &Seen) {
        if seen.ordinary.bytes > 0 && seen.streamed.bytes > 0 {
            let gain = ratio(per_mebibyte(seen.ordinary), per_mebibyte(seen.streamed));
            blend(&self.gain, gain, 4);
        }
    }
}

/// What libc takes where memory was never written. No verdict rests on it, for such calls are
/// always shared: it is there to tell what that was worth.
pub struct Fresh {
    cost: AtomicU32,
    calls: AtomicU32,
}

impl Fresh {
    /// Smaller ones are not timed: their first bytes would have to pay for all of a huge page.
    const FROM: usize = 8 << 20;
    const PAGE_TABLE: usize = 2 << 20;
    const FIRST: u32 = 2;
    const THEN: u32 = 16;

    const fn new() -> Self {
        Self { cost: AtomicU32::new(0), calls: AtomicU32::new(0) }
    }

    /// How many bytes of such a call its caller does alone, by libc, to be timed.
    pub fn first_bytes(&self, dst: usize, len: usize) -> usize {
        if len < Self::FROM {
            return 0;
        }
        let calls = add(&self.calls);
        match calls < Self::FIRST || calls.is_multiple_of(Self::THEN) {
            true => (dst + Self::PAGE_TABLE).next_multiple_of(Self::PAGE_TABLE) - dst,
            false => 0,
        }
    }

    /// The least of all counts: what is told to be saved should rather be too little.
    pub fn record(&self, first: Cost) {
        let (least, cost) = (self.cost.load(Relaxed), per_mebibyte(first));
        if least == 0 || cost < least {
            self.cost.store(cost, Relaxed);
        }
    }

    /// As `Cell::saved`.
    pub fn saved(&self, whole: Cost) -> Option<i64> {
        let cost = u64::from(self.cost.load(Relaxed));
        let by_libc = cost.saturating_mul(whole.bytes as u64) >> 20;
        (cost > 0).then(|| by_libc as i64 - whole.ticks as i64)
    }
}

#[cfg(test)]
#[path = "learn_tests.rs"]
mod tests;
