//! What measuring has shown: for which copies the engine beats libc.
//!
//! Copies are sorted by size and by temperature, the time their first bytes took: a copy
//! out of the cache and one out of memory differ by an order of magnitude and in what help
//! is worth. In each such cell both ways are tried a few times, then the better one is used
//! and the other one asked again now and then. Changing one's mind takes a clear
//! difference, so that noise does not.
//!
//! Costs are plain numbers here; nothing is timed or copied in this file.
#![forbid(unsafe_code)]

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

/// No copy below this is considered: waking somebody costs more than copying.
pub const FLOOR: usize = 64 << 10;

/// Every considered copy begins with this many bytes by libc; their time is the temperature.
pub const SAMPLE: usize = 16 << 10;

const SIZES: usize = 16;
const TEMPERATURES: usize = 4;

/// Samples a verdict rests on, for each way: the median of so many shrugs off one outlier.
const ENOUGH: u32 = 3;

/// Where libc is settled, one call in so many is looked at; the others cost nothing.
const GLANCE: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Libc,
    Engine,
}

pub struct Learner {
    rows: [Row; SIZES],
}

/// Copies of one size class: from a power of two up to the next.
pub struct Row {
    calls: AtomicU32,
    /// Verdicts have been reached, and all are for libc.
    settled: AtomicBool,
    cells: [Cell; TEMPERATURES],
}

/// Copies of one size and temperature.
pub struct Cell {
    calls: AtomicU32,
    judged: AtomicBool,
    engine_wins: AtomicBool,
    /// Trials of the other way still to be made.
    trials: AtomicU32,
    /// Calls from one series of trials to the next.
    period: AtomicU32,
    /// The winner's cost at the last verdict.
    expected: AtomicU32,
    libc: Samples,
    engine: Samples,
}

/// The last costs seen, in ticks per page.
struct Samples {
    count: AtomicU32,
    recent: [AtomicU32; ENOUGH as usize],
}

impl Learner {
    pub const fn new() -> Self {
        Self { rows: [const { Row::new() }; SIZES] }
    }

    pub fn row(&self, len: usize) -> &Row {
        let class = (len / FLOOR).max(1).ilog2() as usize;
        &self.rows[class.min(SIZES - 1)]
    }

    /// The smallest size for which the engine has won at any temperature.
    pub fn threshold(&self) -> Option<usize> {
        self.rows.iter().position(Row::engine_wins).map(|class| FLOOR << class)
    }
}

impl Row {
    const fn new() -> Self {
        Self {
            calls: AtomicU32::new(0),
            settled: AtomicBool::new(false),
            cells: [const { Cell::new() }; TEMPERATURES],
        }
    }

    /// False: libc, without a look at the clock.
    pub fn is_worth_watching(&self) -> bool {
        !self.settled.load(Relaxed) || self.calls.fetch_add(1, Relaxed).is_multiple_of(GLANCE)
    }

    /// The cell of a copy whose first `SAMPLE` bytes took so many ticks.
    pub fn cell(&self, sample_ticks: u64) -> &Cell {
        // 16 KiB out of the second-level cache take under 2048 ticks on machines of 2 to
        // 4 GHz, out of memory over 4096, with page faults over 8192.
        let temperature = sample_ticks.max(1).ilog2().saturating_sub(10) as usize;
        &self.cells[temperature.min(TEMPERATURES - 1)]
    }

    pub fn record(&self, cell: &Cell, way: Way, bytes: usize, ticks: u64) {
        let cost = (ticks.saturating_mul(4096) / bytes.max(1) as u64).min(u32::MAX as u64) as u32;
        if cell.record(way, cost) {
            let any_judged = self.cells.iter().any(|cell| cell.judged.load(Relaxed));
            self.settled.store(any_judged && !self.engine_wins(), Relaxed);
        }
    }

    fn engine_wins(&self) -> bool {
        self.cells.iter().any(|cell| cell.engine_wins.load(Relaxed))
    }
}

impl Cell {
    const SHORTEST: u32 = 64;
    const LONGEST: u32 = 4096;

    const fn new() -> Self {
        Self {
            calls: AtomicU32::new(0),
            judged: AtomicBool::new(false),
            engine_wins: AtomicBool::new(false),
            trials: AtomicU32::new(0),
            period: AtomicU32::new(Self::SHORTEST),
            expected: AtomicU32::new(0),
            libc: Samples::new(),
            engine: Samples::new(),
        }
    }

    fn winner(&self) -> Way {
        if self.engine_wins.load(Relaxed) { Way::Engine } else { Way::Libc }
    }

    pub fn choose(&self) -> Way {
        let (libc, engine) = (self.libc.count.load(Relaxed), self.engine.count.load(Relaxed));
        if libc.min(engine) < ENOUGH {
            return if libc <= engine { Way::Libc } else { Way::Engine };
        }
        let winner = self.winner();
        let other = if winner == Way::Libc { Way::Engine } else { Way::Libc };
        let calls = self.calls.fetch_add(1, Relaxed) + 1;
        if calls >= self.period.load(Relaxed) {
            self.calls.store(0, Relaxed);
            self.trials.store(ENOUGH, Relaxed);
        }
        let left = self.trials.load(Relaxed);
        if left == 0 {
            return winner;
        }
        self.trials.store(left - 1, Relaxed);
        other
    }

    /// True when there is a new verdict.
    fn record(&self, way: Way, cost: u32) -> bool {
        let winner = self.winner();
        let samples = if way == Way::Libc { &self.libc } else { &self.engine };
        samples.push(cost);
        let (Some(libc), Some(engine)) = (self.libc.median(), self.engine.median()) else {
            return false;
        };
        let judged = self.judged.load(Relaxed);
        if judged && way == winner {
            self.doubt(if winner == Way::Libc { libc } else { engine });
            return false;
        }
        if self.trials.load(Relaxed) > 0 {
            return false; // in the middle of a series
        }
        // libc is left for a gain of a tenth, and taken up again when nothing is left of it.
        let limit = if winner == Way::Engine && judged { 97 } else { 90 };
        let engine_wins = u64::from(engine) * 100 <= u64::from(libc) * limit;
        let changed = engine_wins != (winner == Way::Engine);
        let period = self.period.load(Relaxed);
        let longer = (2 * period).min(Self::LONGEST);
        self.period.store(if changed { Self::SHORTEST } else { longer }, Relaxed);
        self.expected.store(if engine_wins { engine } else { libc }, Relaxed);
        self.engine_wins.store(engine_wins, Relaxed);
        self.judged.store(true, Relaxed);
        true
    }

    /// The winner has become slower by a quarter: the world has changed, ask again now.
    /// Not for libc: a slower libc is most often a colder copy, and asking costs more there.
    fn doubt(&self, cost: u32) {
        let expected = self.expected.load(Relaxed);
        if self.engine_wins.load(Relaxed) && cost > expected.saturating_add(expected / 4) {
            self.expected.store(cost, Relaxed);
            self.trials.store(ENOUGH, Relaxed);
        }
    }
}

impl Samples {
    const fn new() -> Self {
        Self { count: AtomicU32::new(0), recent: [const { AtomicU32::new(0) }; ENOUGH as usize] }
    }

    fn push(&self, cost: u32) {
        let count = self.count.load(Relaxed);
        self.recent[count as usize % self.recent.len()].store(cost, Relaxed);
        // Stays at or above ENOUGH when it wraps.
        self.count.store(count.checked_add(1).unwrap_or(ENOUGH), Relaxed);
    }

    fn median(&self) -> Option<u32> {
        if self.count.load(Relaxed) < ENOUGH {
            return None;
        }
        let [a, b, c] = [0, 1, 2].map(|i| self.recent[i].load(Relaxed));
        Some(a.max(b).min(a.min(b).max(c)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine in numbers: ticks for `len` bytes, by way.
    struct World {
        libc: fn(usize) -> u64,
        engine: fn(usize) -> u64,
    }

    const COLD_SAMPLE: u64 = 7000;
    const HOT_SAMPLE: u64 = 900;
    /// 6 GB/s alone, 1.9 times that with help that costs 4 µs to call.
    const COLD: World = World { libc: |n| n as u64 / 3, engine: |n| n as u64 / 6 + 8000 };
    /// 30 GB/s alone; help hardly helps and costs 8 µs.
    const HOT: World = World { libc: |n| n as u64 / 14, engine: |n| n as u64 / 16 + 16000 };

    /// A small deterministic noise: up to +12 %, now and then a preemption.
    fn noisy(ticks: u64, state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let random = (*state >> 33) % 1000;
        if random < 4 { ticks * 20 } else { ticks + ticks * random / 8000 }
    }

    /// Runs `turns` copies and returns how many went by the engine.
    fn run(learner: &Learner, len: usize, sample: u64, world: &World, turns: u64) -> u64 {
        run_with_noise(learner, len, sample, world, turns, &mut 7)
    }

    fn run_with_noise(
        learner: &Learner,
        len: usize,
        sample: u64,
        world: &World,
        turns: u64,
        noise: &mut u64,
    ) -> u64 {
        let mut carried = 0;
        for _ in 0..turns {
            let row = learner.row(len);
            if !row.is_worth_watching() {
                continue;
            }
            let cell = row.cell(sample);
            let way = cell.choose();
            let ticks = if way == Way::Libc { (world.libc)(len) } else { (world.engine)(len) };
            row.record(cell, way, len, noisy(ticks, noise));
            carried += u64::from(way == Way::Engine);
        }
        carried
    }

    #[test]
    fn cold_megabyte_is_given_to_the_engine_within_a_few_copies() {
        let learner = Learner::new();
        run(&learner, 1 << 20, COLD_SAMPLE, &COLD, 6);
        assert_eq!(learner.threshold(), Some(1 << 20));
        let carried = run(&learner, 1 << 20, COLD_SAMPLE, &COLD, 1000);
        assert!(carried > 950, "{carried}");
    }

    #[test]
    fn hot_copy_stays_with_libc_and_trials_are_rare() {
        let learner = Learner::new();
        let carried = run(&learner, 64 << 10, HOT_SAMPLE, &HOT, 10_000);
        assert_eq!(learner.threshold(), None);
        assert!(carried < 60, "{carried}");
    }

    #[test]
    fn hot_and_cold_copies_of_one_size_mixed_each_go_their_way() {
        let learner = Learner::new();
        let (mut hot, mut cold, mut noise) = (0, 0, 7);
        for _ in 0..400 {
            hot += run_with_noise(&learner, 256 << 10, HOT_SAMPLE, &HOT, 3, &mut noise);
            cold += run_with_noise(&learner, 256 << 10, COLD_SAMPLE, &COLD, 2, &mut noise);
        }
        assert!(hot < 100, "{hot} of 1200 hot copies");
        assert!(cold > 700, "{cold} of 800 cold copies");
    }

    #[test]
    fn engine_is_left_at_once_when_its_help_gets_slow_and_found_again_later() {
        const CROWDED: World = World { libc: COLD.libc, engine: |n| n as u64 / 2 + 400_000 };
        let learner = Learner::new();
        run(&learner, 1 << 20, COLD_SAMPLE, &COLD, 500);
        let carried = run(&learner, 1 << 20, COLD_SAMPLE, &CROWDED, 2000);
        assert!(carried < 60, "{carried} of 2000 while crowded");
        let carried = run(&learner, 1 << 20, COLD_SAMPLE, &COLD, 60_000);
        assert!(carried > 20_000, "{carried} of 60000 afterwards");
    }

    #[test]
    fn gain_of_a_few_percent_is_not_taken_and_does_not_flap() {
        const EVEN: World = World { libc: |n| n as u64 / 3, engine: |n| n as u64 * 96 / 300 };
        let learner = Learner::new();
        let carried = run(&learner, 1 << 20, COLD_SAMPLE, &EVEN, 5000);
        assert!(carried < 150, "{carried}");
    }

    #[test]
    fn sizes_beyond_the_table_share_the_last_row() {
        let learner = Learner::new();
        assert!(core::ptr::eq(learner.row(1 << 40), learner.row(usize::MAX)));
        assert!(core::ptr::eq(learner.row(1), learner.row(FLOOR)));
    }
}
