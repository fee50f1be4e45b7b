//! What measuring inside the copies has shown: for which of them the engine beats libc.
//!
//! Copies of every kind are shared from the first one on. Whether that was right is measured in two
//! ways.
//!
//! *Pairs.* The caller copies the first bytes of a copy alone, by libc. That is libc's speed for
//! this very copy, whether it is hot or cold, fresh or crowded. The rest is shared, and the ratio
//! of the two speeds is the gain. It is known after one copy, and costs next to nothing.
//!
//! *Series.* First bytes can mislead: where copies are shared again and again, the first bytes stay
//! in the caller's cache because the rest does not go there. So now and then a few copies in a row
//! go the other way, whole, and those of them that find caches and workers settled are compared
//! with the others. Verdicts rest on such series. A pair that contradicts the last series brings
//! the next one forward.
//!
//! A series is due, in either direction, when fifty times as much time has been spent in a cell as
//! the last series has cost. So trying costs about two percent of the time of copying, and no
//! verdict is for ever.
//!
//! There is a cell for each size and pace: right after another copy the workers are awake, after a
//! pause they have to be woken. Nothing is timed or copied in this file. All threads share the
//! numbers without locks: a lost update costs a sample, not a copy.
#![forbid(unsafe_code)]

use crate::backend::copy_loop::CopyLoop;
use crate::backend::threads::workers::SPIN_TICKS;
use crate::backend::threads::{Cost, Pieces, Seen};
use crate::stats::Fallback;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// No copy below this is considered. One half as large would gain a fifth at best, and that only
/// in a row and out of memory.
pub const FLOOR: usize = 256 << 10;

/// From 16 MiB up all copies share a row: the cost of a byte no longer depends on how many
/// there are, and few programs make enough of each size to judge it by itself.
const SIZES: usize = 7;

/// Streaming stores leave the cache alone, so whoever reads the destination next pays for them.
/// From twice the usual second-level cache up it would have left the cache anyway.
pub const STREAM_FROM: usize = 4 << 20;

/// Gains are told in parts of this: it stands for 1.
const ONE: u32 = 1024;

/// Gains are clamped to these: a larger one makes no difference, and would take long to forget.
const MOST: u32 = 4 * ONE;
const LEAST: u32 = ONE / 4;

/// Sharing goes on as long as it gains at all, and is resumed only for a little more than that.
const STAYS: u32 = ONE + ONE / 50;
const RETURNS: u32 = ONE + ONE / 16;

/// From this size up copies are measured in pairs: the first ones of a cell, then one in so many.
/// Smaller copies are made in such numbers that series are enough.
const PAIRS_FROM: usize = 1 << 20;
const PAIRS_FIRST: u32 = 3;
const PAIRS_THEN: u32 = 8;
/// The same into memory that was never written: the first bytes are many there.
const FRESH_PAIRS_FROM: usize = 8 << 20;
const FRESH_PAIRS_THEN: u32 = 16;
const PAGE_TABLE: usize = 2 << 20;

/// In ticks for a mebibyte. Making its pages takes five times as long.
const QUICK: u32 = 200_000;

/// When the way changes, caches and workers need about so long to settle, or so many copies.
const SETTLING_TICKS: u64 = 1_000_000;
const SETTLING_COPIES: u32 = 16;
/// A series is over after so many settled copies.
const ENOUGH: u32 = 3;

/// Of the time spent in a cell one part in so many may go into trying the other way, and five
/// times as much where pairs have raised doubts.
const BUDGET: u64 = 50;
const BUDGET_IN_DOUBT: u64 = 10;

pub struct Learner {
    /// By size, and for each size: copies after a pause, copies in a row.
    cells: [[Cell; 2]; SIZES],
    streams: [Streaming; SIZES],
    /// Those into memory that was never written, of any size. Always shared: what is known of
    /// them tells what that was worth.
    pub fresh: Cell,
    /// When the last large copy ended.
    last_end: AtomicU64,
}

/// How a copy is to go: by the engine, after so many bytes by libc to compare it with, 0 if none;
/// or why by libc: it was as fast (`Learned`), or is to show how fast it is (`Compared`).
pub type Verdict = Result<usize, Fallback>;

/// What is known of copies of one size and pace. All zeros: nothing, and they are shared.
pub struct Cell {
    libc_won: AtomicBool,
    /// What the chosen way costs: ticks for a mebibyte, a moving average; 0: unknown.
    cost: AtomicU32,
    /// The same of the last one that libc has made; 0: none.
    libc_cost: AtomicU32,
    /// Of the last series: the gain of sharing in parts of `ONE`; 0: there was none.
    gain: AtomicU32,
    /// The average gain of pairs, and what it was at the last series.
    pair: AtomicU32,
    pair_then: AtomicU32,
    calls: AtomicU32,
    /// How many copies were made since the way last changed, into or out of a series, and when
    /// that was.
    since: AtomicU32,
    changed: AtomicU64,
    /// A series is on: so many copies of it were settled, and the sum of what they have cost; the
    /// bytes of all.
    trying: AtomicBool,
    settled: AtomicU32,
    settled_costs: AtomicU64,
    tried: AtomicU64,
    /// Ticks spent since the last series; and how many more that series has taken than the chosen
    /// way would have.
    spent: AtomicU64,
    price: AtomicU64,
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

/// Adds one without a locked instruction: a lost update costs nothing that matters.
fn add(count: &AtomicU32) -> u32 {
    let before = count.load(Relaxed);
    count.store(before.wrapping_add(1), Relaxed);
    before
}

/// Moves an average towards a sample by one part in `weight`; 0 means no average yet.
fn blend(average: &AtomicU32, sample: u32, weight: u64) {
    let before = u64::from(average.load(Relaxed));
    // A copy that was preempted counts for no more than four.
    let sample = u64::from(sample);
    let next = match before {
        0 => sample,
        _ => (before * (weight - 1) + sample.min(4 * before)) / weight,
    };
    average.store(next.max(1) as u32, Relaxed);
}

/// Whether it is time for what is done in the first calls and then in one of `then`.
fn is_turn(calls: u32, then: u32) -> bool {
    calls < PAIRS_FIRST || calls.is_multiple_of(then)
}

fn class(len: usize) -> usize {
    ((len / FLOOR).max(1).ilog2() as usize).min(SIZES - 1)
}

impl Learner {
    pub const fn new() -> Self {
        Self {
            cells: [const { [const { Cell::new() }; 2] }; SIZES],
            streams: [const { Streaming::new() }; SIZES],
            fresh: Cell::new(),
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
        // Where larger copies do not gain, smaller ones need not be tried at once.
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

    /// The smallest size for which the engine is used at every pace that was seen: as a fixed
    /// threshold it would do no harm.
    pub fn threshold(&self) -> Option<usize> {
        let clear = |cells: &[Cell; 2]| {
            cells.iter().any(|cell| cell.calls() > 0) && cells.iter().all(Cell::is_shared)
        };
        self.cells.iter().position(clear).map(|class| FLOOR << class)
    }

    /// For the log, every cell that copies have come to: from which size, whether in a row, and
    /// what sharing gains by series and by pairs, and streaming stores; 0 where it was not tried.
    pub fn known(&self) -> impl Iterator<Item = (usize, bool, &Cell, [f32; 3])> {
        let number = |parts: &AtomicU32| parts.load(Relaxed) as f32 / ONE as f32;
        let of = move |at: usize| {
            let (cell, streaming) = (&self.cells[at / 2][at % 2], &self.streams[at / 2]);
            let gains = [&cell.gain, &cell.pair, &streaming.gain].map(number);
            (FLOOR << (at / 2), at % 2 == 1, cell, gains)
        };
        (0..2 * SIZES).map(of).filter(|(_, _, cell, _)| cell.calls() > 0)
    }
}

impl Cell {
    const fn new() -> Self {
        Self {
            libc_won: AtomicBool::new(false),
            cost: AtomicU32::new(0),
            libc_cost: AtomicU32::new(0),
            gain: AtomicU32::new(0),
            pair: AtomicU32::new(0),
            pair_then: AtomicU32::new(0),
            calls: AtomicU32::new(0),
            since: AtomicU32::new(0),
            changed: AtomicU64::new(0),
            trying: AtomicBool::new(false),
            settled: AtomicU32::new(0),
            settled_costs: AtomicU64::new(0),
            tried: AtomicU64::new(0),
            spent: AtomicU64::new(0),
            price: AtomicU64::new(0),
        }
    }

    pub fn calls(&self) -> u32 {
        self.calls.load(Relaxed)
    }

    pub fn is_shared(&self) -> bool {
        !self.libc_won.load(Relaxed)
    }

    /// Which way a copy of `len` bytes goes that begins now.
    pub fn decide(&self, len: usize, now: u64) -> Verdict {
        let calls = add(&self.calls);
        if !self.trying.load(Relaxed) && self.is_time_to_try(len) {
            self.trying.store(true, Relaxed);
            self.settled.store(0, Relaxed);
            self.settled_costs.store(0, Relaxed);
            self.tried.store(0, Relaxed);
            self.since.store(0, Relaxed);
            self.changed.store(now, Relaxed);
        }
        match (self.libc_won.load(Relaxed), self.trying.load(Relaxed)) {
            (false, true) => Err(Fallback::Compared),
            (true, false) => Err(Fallback::Learned),
            (false, false) if len >= PAIRS_FROM && is_turn(calls, PAIRS_THEN) => {
                Ok((len / 32).clamp(32 << 10, 128 << 10) & !63) // whole lines of the cache
            }
            _ => Ok(0),
        }
    }

    /// The same into memory that was never written. Now and then the first bytes from `dst` on are
    /// timed: whole page tables, so that huge pages cost what they cost by the byte.
    pub fn decide_fresh(&self, dst: usize, len: usize) -> Verdict {
        let timed = is_turn(add(&self.calls), FRESH_PAIRS_THEN) && len >= FRESH_PAIRS_FROM;
        let first = (dst + PAGE_TABLE).next_multiple_of(PAGE_TABLE) - dst;
        Ok(if timed { first } else { 0 })
    }

    /// Libc has copied so fast here that no page fault can have been among it, which spares asking
    /// whether memory is fresh. A copy that is slower, and be it for faults, makes us ask again.
    pub fn libc_is_too_quick_for_page_faults(&self) -> bool {
        (1..QUICK).contains(&self.libc_cost.load(Relaxed))
    }

    /// Libc has made a copy, for whatever reason.
    pub fn note_libc(&self, whole: Cost) {
        self.libc_cost.store(per_mebibyte(whole), Relaxed);
    }

    fn is_time_to_try(&self, len: usize) -> bool {
        let (spent, price) = (self.spent.load(Relaxed), self.price.load(Relaxed));
        if self.libc_won.load(Relaxed) {
            return spent >= BUDGET * price;
        }
        if price == 0 {
            // Small copies are not paired, so nothing is known of them before the first series.
            return len < PAIRS_FROM && self.since.load(Relaxed) >= 2 * SETTLING_COPIES;
        }
        spent >= BUDGET * price || self.is_in_doubt() && spent >= BUDGET_IN_DOUBT * price
    }

    /// How many ticks a shared copy that took `whole` has saved; below 0 if sharing made it slower.
    /// This rests on the gain of the last series, or of pairs before the first one. `None`: nothing
    /// is known yet. A copy that took longer than usual was held up by something else, and has not
    /// saved more for it: only the usual time counts.
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

    /// Whether pairs say that sharing has ceased to gain. They are scaled by what series and pairs
    /// showed when there last was a series.
    fn is_in_doubt(&self) -> bool {
        let [pair, then, gain] =
            [&self.pair, &self.pair_then, &self.gain].map(|part| u64::from(part.load(Relaxed)));
        let gain = (pair * gain).checked_div(then).unwrap_or(pair);
        self.calls.load(Relaxed) > PAIRS_FIRST && pair > 0 && gain < u64::from(STAYS)
    }

    /// Notes the cost of a copy that has just ended; `in_a_row`: it followed another one.
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
        if verdict.is_ok() != self.libc_won.load(Relaxed) {
            return; // it began before the series
        }
        self.tried.fetch_add(whole.bytes as u64, Relaxed);
        if settled {
            let most = self.cost.load(Relaxed).saturating_mul(4);
            self.settled_costs.fetch_add(cost.min(most).into(), Relaxed);
            let settled = self.settled.fetch_add(1, Relaxed) + 1;
            if settled >= ENOUGH || whole.ticks >= SETTLING_TICKS {
                self.judge(settled, now);
            }
        }
    }

    /// The end of a series. One long copy may confirm the way that is gone; to change it takes as
    /// many as of short ones, for each may have been held up.
    fn judge(&self, settled: u32, now: u64) {
        // The mean of a few, as the other way's cost is one: the best of them would flatter what is
        // fast most of the time only.
        let tried = (self.settled_costs.load(Relaxed) / u64::from(settled)).max(1) as u32;
        let chosen = self.cost.load(Relaxed);
        let libc_won = self.libc_won.load(Relaxed);
        let gain = if libc_won { ratio(chosen, tried) } else { ratio(tried, chosen) };
        let changes = if libc_won { gain >= RETURNS } else { gain < STAYS };
        if changes && settled < ENOUGH {
            return;
        }
        self.gain.store(gain, Relaxed);
        self.pair_then.store(self.pair.load(Relaxed), Relaxed);
        let ticks_at = |cost: u32| (self.tried.load(Relaxed) >> 10) * u64::from(cost) / 1024;
        let (was, would_be) = (ticks_at(tried), ticks_at(chosen));
        // Never 0: a series takes time even where it shows no difference.
        self.price.store(was.saturating_sub(would_be).max(was / 16).max(1), Relaxed);
        self.spent.store(0, Relaxed);
        if changes {
            self.libc_won.store(!libc_won, Relaxed);
            self.cost.store(tried, Relaxed);
        }
        self.trying.store(false, Relaxed);
        self.since.store(0, Relaxed);
        self.changed.store(now, Relaxed);
    }

    /// What a pair has shown: the first bytes by libc, the rest by the engine.
    pub fn record_pair(&self, first: Cost, rest: Cost) {
        let gain = ratio(per_mebibyte(first), per_mebibyte(rest));
        // During the first copy of a process the workers are still being made.
        blend(&self.pair, gain, if self.calls.load(Relaxed) < PAIRS_FIRST { 2 } else { 4 });
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
    /// Both kinds of stores are compared in the first copies, and then in one of so many.
    const THEN: u32 = 32;

    const fn new() -> Self {
        Self { gain: AtomicU32::new(0), calls: AtomicU32::new(0) }
    }

    pub fn choose(&self) -> Pieces {
        let calls = add(&self.calls);
        if is_turn(calls, Self::THEN) {
            return Pieces::Alternate;
        }
        Pieces::All(if self.pays() { CopyLoop::Stream } else { CopyLoop::Ordinary })
    }

    /// Untried it is believed to: `bench/run loops` shows no case from `STREAM_FROM` up in
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

#[cfg(test)]
#[path = "learn_tests.rs"]
mod tests;
