//! What measuring has shown: for which copies the engine beats libc.
//!
//! Copies are sorted by size, by temperature (the time their first bytes took: a copy out of
//! the cache and one out of memory differ by an order of magnitude and in what help is
//! worth), and by pace (right after another one the workers are awake, after a pause they
//! have to be woken). In each such cell every way is tried in a series of copies, then the
//! best is used and the others are tried again now and then. Changing one's mind takes a
//! clear difference, so that noise does not.
//!
//! Costs and times are plain numbers here; nothing is timed or copied in this file. All
//! threads share the numbers without locks: a lost update costs a sample, not a copy.
#![forbid(unsafe_code)]

use crate::backend::crew::SPIN_TICKS;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};

/// No copy below this is considered. Half as large a copy would gain a fifth at best, in a
/// row and out of memory; in cache already the looking costs it three percent.
pub const FLOOR: usize = 256 << 10;

/// Every considered copy begins with this many bytes by libc; their time is the temperature.
pub const SAMPLE: usize = 8 << 10;

/// From 16 MiB up all copies share a row: the cost of a page no longer depends on how many
/// there are, and few programs make enough of each size to judge it by itself.
const SIZES: usize = 7;
const TEMPERATURES: usize = 4;
const PACES: usize = 2;

/// A copy that begins within so many ticks of the end of the last one comes in a row: the
/// workers still spin.
const ROW_TICKS: u64 = SPIN_TICKS;

/// Samples a verdict rests on, for each way: the median of so many shrugs off two outliers.
const ENOUGH: u32 = 5;

/// A series of the engine goes on so long (about half a millisecond), for its first copies
/// may find the workers asleep or not yet made; the last `ENOUGH` of it count. Not longer
/// than so many.
const SERIES_TICKS: u64 = 1_000_000;
const SERIES_MOST: u32 = 24;

/// Where libc is settled, one call in so many is looked at; the others cost nothing.
const GLANCE: u32 = 16;

/// The ways a copy can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Libc,
    /// Shared with the workers, by libc's kernel.
    Shared,
    /// Shared with the workers, by streaming stores.
    Streamed,
}

impl Way {
    const ALL: [Way; 3] = [Way::Libc, Way::Shared, Way::Streamed];

    fn numbered(number: u32) -> Way {
        Self::ALL.get(number as usize).copied().unwrap_or(Way::Libc)
    }
}

pub struct Learner {
    rows: [Row; SIZES],
    /// When the last large copy ended that anybody looked at.
    last_end: AtomicU64,
}

/// How closely a copy is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// libc, without a look at the clock.
    Away,
    /// libc, and its end is noted: the next one is looked at closely.
    AtItsEnd,
    Closely,
}

/// Copies of one size class: from a power of two up to the next.
pub struct Row {
    calls: AtomicU32,
    /// Verdicts have been reached, all are for libc, and no trial is on.
    settled: AtomicBool,
    /// By temperature; those of copies in a row come after those of copies after a pause.
    cells: [Cell; TEMPERATURES * PACES],
}

/// Copies of one size, temperature and pace.
pub struct Cell {
    winner: AtomicU32,
    judged: AtomicBool,
    /// The winner's cost at the last verdict.
    expected: AtomicU32,
    /// The way on trial, or `NO_TRIAL`; when the series began and how many it has had.
    trial: AtomicU32,
    trial_begun: AtomicU64,
    trial_copies: AtomicU32,
    may_stream: AtomicBool,
    /// Copies since the last trial, and from one to the next (0: `SHORTEST`; a fresh learner
    /// is all zeros and takes no room in the file).
    calls: AtomicU32,
    period: AtomicU32,
    ways: [Samples; Way::ALL.len()],
}

/// The last costs seen, in ticks per page.
struct Samples {
    count: AtomicU32,
    recent: [AtomicU32; ENOUGH as usize],
    /// Moving average. Of a way that is used day by day it tells more than the last few: a
    /// shared copy after a pause costs twice as much as the next ones, which find the workers
    /// awake.
    average: AtomicU32,
}

impl Learner {
    pub const fn new() -> Self {
        Self { rows: [const { Row::new() }; SIZES], last_end: AtomicU64::new(0) }
    }

    /// A large copy has ended.
    pub fn note_end(&self, now: u64) {
        self.last_end.store(now, Relaxed);
    }

    /// Whether a copy of `len` bytes that begins now finds the workers awake, or need not.
    pub fn is_in_a_row(&self, len: usize, now: u64) -> bool {
        // Beside the largest copies the waking is nothing.
        class(len) == SIZES - 1 || now.wrapping_sub(self.last_end.load(Relaxed)) < ROW_TICKS
    }

    pub fn row(&self, len: usize) -> &Row {
        &self.rows[class(len)]
    }

    /// The smallest size for which the engine has won, and libc at no temperature: as a fixed
    /// threshold it would not harm.
    pub fn threshold(&self) -> Option<usize> {
        let clear = |row: &Row| row.engine_wins() && !row.libc_wins();
        self.rows.iter().position(clear).map(|class| FLOOR << class)
    }
}

fn class(len: usize) -> usize {
    ((len / FLOOR).max(1).ilog2() as usize).min(SIZES - 1)
}

/// What is known of one cell, for the log.
pub struct Verdict {
    pub size: usize,
    pub temperature: usize,
    pub in_a_row: bool,
    pub winner: Way,
    /// Ticks per page and copies seen, by way.
    pub costs: [(u32, u32); Way::ALL.len()],
}

impl Learner {
    /// Every cell that copies have come to.
    pub fn verdicts(&self) -> impl Iterator<Item = Verdict> {
        let cells = |(class, row)| {
            let row: &Row = row;
            row.cells.iter().enumerate().map(move |(number, cell)| Verdict {
                size: FLOOR << class,
                temperature: number % TEMPERATURES,
                in_a_row: number >= TEMPERATURES,
                winner: cell.winner(),
                costs: core::array::from_fn(|way| {
                    let samples = &cell.ways[way];
                    (samples.median().unwrap_or(0), samples.count.load(Relaxed))
                }),
            })
        };
        let rows = self.rows.iter().enumerate();
        rows.flat_map(cells).filter(|verdict| verdict.costs[0].1 > 0)
    }
}

impl Row {
    const fn new() -> Self {
        Self {
            calls: AtomicU32::new(0),
            settled: AtomicBool::new(false),
            cells: [const { Cell::new() }; TEMPERATURES * PACES],
        }
    }

    pub fn look(&self) -> Look {
        if !self.settled.load(Relaxed) {
            return Look::Closely;
        }
        match self.calls.fetch_add(1, Relaxed) % GLANCE {
            0 => Look::Closely,
            last if last == GLANCE - 1 => Look::AtItsEnd,
            _ => Look::Away,
        }
    }

    /// The cell of a copy whose first `SAMPLE` bytes took so many ticks.
    pub fn cell(&self, sample_ticks: u64, in_a_row: bool) -> &Cell {
        // 8 KiB out of the second-level cache take under 1024 ticks on machines of 2 to 4 GHz,
        // out of memory over 2048, with page faults over 4096.
        let temperature = sample_ticks.max(1).ilog2().saturating_sub(9) as usize;
        &self.cells[temperature.min(TEMPERATURES - 1) + usize::from(in_a_row) * TEMPERATURES]
    }

    /// The way to go at time `now`. `may_stream`: streaming stores are a choice.
    pub fn choose(&self, cell: &Cell, may_stream: bool, now: u64) -> Way {
        // One that is looked at stands for those that are not.
        let copies = if self.settled.load(Relaxed) { GLANCE } else { 1 };
        let way = cell.choose(copies, may_stream, now);
        if cell.is_judged_and_on_trial() {
            self.settled.store(false, Relaxed);
        }
        way
    }

    /// What a copy cost that has ended at time `now`.
    pub fn record(&self, cell: &Cell, way: Way, bytes: usize, ticks: u64, now: u64) {
        let cost = (ticks.saturating_mul(4096) / bytes.max(1) as u64).min(u32::MAX as u64) as u32;
        if cell.record(way, cost, now) {
            self.settle();
        }
    }

    /// The engine is not to be had at all.
    pub fn refused(&self, cell: &Cell) {
        cell.end_trial();
        cell.period.store(Cell::LONGEST, Relaxed);
        cell.judged.store(true, Relaxed);
        self.settle();
    }

    /// Whether shared copies of this size are better made by streaming stores: where it was
    /// tried, what has come of it, and otherwise yes, for `bench/run kernels` shows no case
    /// from `STREAM_FROM` up in which several threads lose by it.
    pub fn streaming_pays(&self) -> bool {
        let tried = |cell: &&Cell| cell.ways[Way::Streamed as usize].median().is_some();
        let mut tried = self.cells.iter().filter(tried).peekable();
        tried.peek().is_none() || tried.any(|cell| cell.winner() == Way::Streamed)
    }

    fn settle(&self) {
        let any_judged = self.cells.iter().any(|cell| cell.judged.load(Relaxed));
        let any_trial = self.cells.iter().any(Cell::is_judged_and_on_trial);
        self.settled.store(any_judged && !any_trial && !self.engine_wins(), Relaxed);
    }

    fn libc_wins(&self) -> bool {
        self.cells.iter().any(|cell| cell.judged.load(Relaxed) && cell.winner() == Way::Libc)
    }

    fn engine_wins(&self) -> bool {
        self.cells.iter().any(|cell| cell.winner() != Way::Libc)
    }
}

impl Cell {
    const NO_TRIAL: u32 = u32::MAX;
    const SHORTEST: u32 = 16;
    const LONGEST: u32 = 8192;

    const fn new() -> Self {
        Self {
            winner: AtomicU32::new(Way::Libc as u32),
            judged: AtomicBool::new(false),
            expected: AtomicU32::new(0),
            // Start from libc, earn the offload.
            trial: AtomicU32::new(Way::Libc as u32),
            trial_begun: AtomicU64::new(0),
            trial_copies: AtomicU32::new(0),
            may_stream: AtomicBool::new(false),
            calls: AtomicU32::new(0),
            period: AtomicU32::new(0),
            ways: [const { Samples::new() }; Way::ALL.len()],
        }
    }

    fn winner(&self) -> Way {
        Way::numbered(self.winner.load(Relaxed))
    }

    fn period(&self) -> u32 {
        self.period.load(Relaxed).max(Self::SHORTEST)
    }

    fn on_trial(&self) -> bool {
        self.trial.load(Relaxed) != Self::NO_TRIAL
    }

    /// A cell that no copy has come to is on its first trial for ever; that is no trial.
    fn is_judged_and_on_trial(&self) -> bool {
        self.judged.load(Relaxed) && self.on_trial()
    }

    fn choose(&self, copies: u32, may_stream: bool, now: u64) -> Way {
        let trial = self.trial.load(Relaxed);
        if trial != Self::NO_TRIAL {
            return Way::numbered(trial);
        }
        let winner = self.winner();
        let untried = may_stream
            && winner != Way::Libc
            && self.ways[Way::Streamed as usize].count.load(Relaxed) == 0;
        if untried || self.calls.fetch_add(copies, Relaxed) >= self.period() {
            // Where libc wins its own series comes first: most of its copies are not timed, and
            // both are to be judged by the same weather.
            let first =
                if winner == Way::Libc { winner } else { self.next_to_try(winner, may_stream) };
            self.may_stream.store(may_stream, Relaxed);
            self.begin_trial(first, now);
            return first;
        }
        winner
    }

    /// The way besides the winner that was tried least.
    fn next_to_try(&self, winner: Way, may_stream: bool) -> Way {
        let tried = |way: Way| self.ways[way as usize].count.load(Relaxed);
        Way::ALL
            .into_iter()
            .filter(|&way| way != winner && (may_stream || way != Way::Streamed))
            .min_by_key(|&way| tried(way))
            .unwrap_or(Way::Libc)
    }

    fn begin_trial(&self, way: Way, now: u64) {
        self.calls.store(0, Relaxed);
        self.trial_begun.store(now, Relaxed);
        self.trial_copies.store(0, Relaxed);
        self.trial.store(way as u32, Relaxed);
    }

    fn end_trial(&self) {
        self.trial.store(Self::NO_TRIAL, Relaxed);
        self.calls.store(0, Relaxed);
    }

    /// True when there is a new verdict.
    fn record(&self, way: Way, cost: u32, now: u64) -> bool {
        let samples = &self.ways[way as usize];
        samples.push(cost);
        if self.trial.load(Relaxed) != way as u32 {
            self.doubt(way, now);
            return false;
        }
        let copies = self.trial_copies.fetch_add(1, Relaxed) + 1;
        let passed = now.wrapping_sub(self.trial_begun.load(Relaxed));
        let warm = way == Way::Libc || passed >= SERIES_TICKS || copies >= SERIES_MOST;
        if copies < ENOUGH || !warm {
            return false;
        }
        self.end_trial();
        if way == Way::Libc && self.winner() == Way::Libc {
            self.begin_trial(self.next_to_try(Way::Libc, self.may_stream.load(Relaxed)), now);
            return false;
        }
        self.judge(copies);
        true
    }

    /// Of the engine in daily use the average, of a way on trial the median of its series.
    fn cost(&self, way: Way) -> Option<u32> {
        let samples = &self.ways[way as usize];
        let daily = way != Way::Libc && way == self.winner();
        if daily { Some(samples.average.load(Relaxed)) } else { samples.median() }
    }

    fn judge(&self, series: u32) {
        let before = self.winner();
        let mut best = (before, self.cost(before).unwrap_or(u32::MAX));
        for way in Way::ALL {
            let Some(cost) = self.cost(way) else { continue };
            // libc is left for a gain of a tenth and taken up again when nothing is left of
            // it; between two ways of sharing a twentieth decides.
            let enough = match (best.0, way) {
                (Way::Libc, _) => u64::from(cost) * 100 <= u64::from(best.1) * 90,
                (_, Way::Libc) => u64::from(best.1) * 100 > u64::from(cost) * 97,
                _ => u64::from(cost) * 100 <= u64::from(best.1) * 95,
            };
            if way != best.0 && enough {
                best = (way, cost);
            }
        }
        // A trial costs; the longer its series, the rarer it is.
        let least = Self::SHORTEST.max(4 * series);
        let longer = (2 * self.period()).min(Self::LONGEST);
        self.period.store(if best.0 == before { longer.max(least) } else { least }, Relaxed);
        if best.0 != before {
            self.ways[best.0 as usize].start_average(best.1);
        }
        self.expected.store(best.1, Relaxed);
        self.winner.store(best.0 as u32, Relaxed);
        self.judged.store(true, Relaxed);
    }

    /// The engine has become slower by a quarter: the world has changed, ask libc now.
    /// Not the other way round: a slower libc is most often a colder copy, and asking the
    /// engine costs more.
    fn doubt(&self, way: Way, now: u64) {
        let expected = self.expected.load(Relaxed);
        let cost = self.cost(way).unwrap_or(0);
        let slower = cost > expected.saturating_add(expected / 4);
        if way != Way::Libc && way == self.winner() && !self.on_trial() && slower {
            self.expected.store(cost, Relaxed);
            self.begin_trial(Way::Libc, now);
        }
    }
}

impl Samples {
    const fn new() -> Self {
        Self {
            count: AtomicU32::new(0),
            recent: [const { AtomicU32::new(0) }; ENOUGH as usize],
            average: AtomicU32::new(0),
        }
    }

    fn push(&self, cost: u32) {
        let count = self.count.load(Relaxed);
        self.recent[count as usize % self.recent.len()].store(cost, Relaxed);
        // Stays at or above ENOUGH when it wraps.
        self.count.store(count.checked_add(1).unwrap_or(ENOUGH), Relaxed);
        let average = self.average.load(Relaxed);
        // A preempted copy counts for no more than four.
        let cost = cost.min(average.saturating_mul(4));
        let average = (u64::from(average) * 15 + u64::from(cost)) / 16;
        self.average.store(average as u32, Relaxed);
    }

    /// Forgets the past of the moving average.
    fn start_average(&self, cost: u32) {
        self.average.store(cost, Relaxed);
    }

    fn median(&self) -> Option<u32> {
        if self.count.load(Relaxed) < ENOUGH {
            return None;
        }
        let mut costs = [0; ENOUGH as usize];
        for (cost, recent) in costs.iter_mut().zip(&self.recent) {
            *cost = recent.load(Relaxed);
        }
        costs.sort_unstable();
        Some(costs[costs.len() / 2])
    }
}

#[cfg(test)]
#[path = "learn_tests.rs"]
mod tests;
