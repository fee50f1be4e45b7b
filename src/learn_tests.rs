//! What the learner makes of copies whose times are told to it.

use super::*;

/// A machine in numbers: ticks for `len` bytes by libc and shared, and how much of the
/// shared time streaming takes, in percent.
struct World {
    libc: fn(usize) -> u64,
    shared: fn(usize) -> u64,
    streamed: u64,
    sample: u64,
}

/// 6 GB/s alone, twice that with help that costs 4 µs to call.
const COLD: World =
    World { libc: |n| n as u64 / 3, shared: |n| n as u64 / 6 + 8000, streamed: 70, sample: 3500 };
/// 30 GB/s alone; help hardly helps and costs 8 µs.
const HOT: World = World {
    libc: |n| n as u64 / 14,
    shared: |n| n as u64 / 16 + 16000,
    streamed: 150,
    sample: 450,
};

/// One process: its clock, its noise, and whether its workers are awake.
struct Process {
    learner: Learner,
    noise: u64,
    now: u64,
    /// The workers are of no use until then.
    awake_at: u64,
}

impl Process {
    fn new() -> Self {
        Self { learner: Learner::new(), noise: 7, now: 0, awake_at: u64::MAX }
    }

    /// A small deterministic noise: up to +12 %, now and then a preemption.
    fn noisy(&mut self, ticks: u64) -> u64 {
        self.noise = self.noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let random = (self.noise >> 33) % 1000;
        if random < 4 { ticks * 20 } else { ticks + ticks * random / 8000 }
    }

    /// Makes `turns` copies and returns how many went by libc, shared, and streamed.
    fn run(&mut self, len: usize, world: &World, turns: u64) -> [u64; 3] {
        let mut ways = [0; 3];
        for _ in 0..turns {
            let look = self.learner.row(len).look();
            if look != Look::Closely {
                ways[0] += 1;
                self.now += (world.libc)(len);
                if look == Look::AtItsEnd {
                    self.learner.note_end(self.now);
                }
                continue;
            }
            let in_a_row = self.learner.is_in_a_row(len, self.now);
            let sample = self.noisy(world.sample);
            let row = self.learner.row(len);
            let cell = row.cell(sample, in_a_row);
            let way = row.choose(cell, len >= 4 << 20, self.now);
            ways[way as usize] += 1;
            let shared = (world.shared)(len);
            let ticks = match way {
                Way::Libc => (world.libc)(len),
                // Called for the first time, workers need a tenth of a millisecond.
                _ if self.awake_at > self.now => {
                    self.awake_at = self.awake_at.min(self.now + 200_000);
                    (world.libc)(len) + 30_000
                }
                Way::Shared => shared,
                Way::Streamed => shared * world.streamed / 100,
            };
            let ticks = self.noisy(ticks);
            self.now += ticks;
            self.learner.note_end(self.now);
            let row = self.learner.row(len);
            row.record(row.cell(sample, in_a_row), way, len, ticks, self.now);
        }
        ways
    }
}

#[test]
fn cold_megabyte_is_given_to_the_engine_within_a_few_copies() {
    let mut process = Process::new();
    process.run(1 << 20, &COLD, 20);
    assert_eq!(process.learner.threshold(), Some(1 << 20));
    let ways = process.run(1 << 20, &COLD, 1000);
    assert!(ways[1] > 950, "{ways:?}");
}

#[test]
fn streaming_pays_until_it_was_tried_and_lost() {
    let len = 8 << 20;
    let mut process = Process::new();
    assert!(process.learner.row(len).streaming_pays());
    process.run(len, &COLD, 300);
    assert!(process.learner.row(len).streaming_pays());
    let mut process = Process::new();
    process.run(len, &World { streamed: 130, ..COLD }, 300);
    assert!(!process.learner.row(len).streaming_pays());
    assert!(process.learner.row(2 * len).streaming_pays(), "of another size nothing is known");
}

#[test]
fn small_hot_copies_that_gain_are_found_though_workers_start_asleep() {
    const GAIN: World =
        World { libc: |n| n as u64 / 14, shared: |n| n as u64 / 24, streamed: 200, sample: 450 };
    let mut process = Process::new();
    let ways = process.run(256 << 10, &GAIN, 2000);
    assert!(ways[1] > 1800, "{ways:?}");
}

#[test]
fn hot_copy_stays_with_libc_and_trials_are_rare() {
    let mut process = Process::new();
    let ways = process.run(FLOOR, &HOT, 50_000);
    assert_eq!(process.learner.threshold(), None);
    assert!(ways[1] < 700 && ways[2] == 0, "{ways:?}");
}

#[test]
fn large_copy_takes_the_kernel_that_is_faster() {
    let ways = Process::new().run(16 << 20, &COLD, 2000);
    assert!(ways[2] > 1600, "{ways:?}");
    const SLOW_STREAM: World = World { streamed: 140, ..COLD };
    let ways = Process::new().run(16 << 20, &SLOW_STREAM, 2000);
    assert!(ways[1] > 1900, "{ways:?}");
}

#[test]
fn hot_and_cold_copies_of_one_size_mixed_each_go_their_way() {
    let mut process = Process::new();
    let (mut hot, mut cold) = (0, 0);
    for _ in 0..2000 {
        hot += process.run(256 << 10, &HOT, 3)[1];
        cold += process.run(256 << 10, &COLD, 2)[1];
    }
    assert!(hot < 300, "{hot} of 6000 hot copies");
    assert!(cold > 3500, "{cold} of 4000 cold copies");
}

#[test]
fn engine_is_left_at_once_when_its_help_gets_slow_and_found_again_later() {
    const CROWDED: World = World { shared: |n| n as u64 / 2 + 400_000, ..COLD };
    let mut process = Process::new();
    process.run(1 << 20, &COLD, 500);
    let ways = process.run(1 << 20, &CROWDED, 2000);
    assert!(ways[1] < 60, "{ways:?} while crowded");
    let ways = process.run(1 << 20, &COLD, 60_000);
    assert!(ways[1] > 20_000, "{ways:?} afterwards");
}

#[test]
fn gain_of_a_few_percent_is_not_taken_and_does_not_flap() {
    const EVEN: World = World { shared: |n| n as u64 * 96 / 300, ..COLD };
    let ways = Process::new().run(1 << 20, &EVEN, 5000);
    assert!(ways[1] < 150, "{ways:?}");
}

#[test]
fn in_bursts_the_first_copy_goes_by_libc_and_the_others_by_the_engine() {
    let mut process = Process::new();
    let (mut first, mut others) = (0, 0);
    for _ in 0..600 {
        process.now += 1_000_000; // a pause: the workers sleep again
        process.awake_at = u64::MAX;
        first += process.run(256 << 10, &COLD, 1)[1];
        others += process.run(256 << 10, &COLD, 15)[1];
    }
    assert!(first < 120, "{first} of 600 after a pause");
    assert!(others > 7500, "{others} of 9000 in a row");
}

#[test]
fn settled_libc_is_looked_at_now_and_then_only() {
    // Without noise one cell alone is ever visited.
    let learner = Learner::new();
    let (mut looked, mut now) = (0, 0);
    for _ in 0..20_000 {
        let row = learner.row(FLOOR);
        if row.look() == Look::Closely {
            looked += 1;
            let cell = row.cell(450, false);
            let way = row.choose(cell, false, now);
            let ticks = if way == Way::Libc { 9000 } else { 20_000 };
            now += ticks;
            row.record(cell, way, FLOOR, ticks, now);
        }
    }
    assert!(looked < 2500, "{looked}");
}

#[test]
fn libc_that_has_become_slow_is_left_though_the_engine_was_slower_than_it_once_was() {
    const BEFORE: World = World { shared: |n| n as u64 / 2, ..COLD };
    const AFTER: World = World { libc: |n| n as u64, shared: |n| n as u64 / 2, ..COLD };
    let mut process = Process::new();
    let ways = process.run(1 << 20, &BEFORE, 2000);
    assert!(ways[1] < 200, "{ways:?} before");
    let ways = process.run(1 << 20, &AFTER, 60_000);
    assert!(ways[1] > 20_000, "{ways:?} after");
}

#[test]
fn refused_engine_leaves_the_cell_with_libc() {
    let learner = Learner::new();
    let row = learner.row(1 << 20);
    let cell = row.cell(3500, false);
    let mut asked = 0;
    for turn in 0..1000 {
        match row.choose(cell, false, turn) {
            Way::Libc => row.record(cell, Way::Libc, 1 << 20, 1000, turn),
            _ => {
                asked += 1;
                row.refused(cell);
            }
        }
    }
    assert!((1..40).contains(&asked), "{asked}");
}

#[test]
fn sizes_beyond_the_table_share_the_last_row() {
    let learner = Learner::new();
    assert!(core::ptr::eq(learner.row(1 << 40), learner.row(usize::MAX)));
    assert!(core::ptr::eq(learner.row(1), learner.row(FLOOR)));
}
