//! Tests of the learner with simulated times of copies.

use super::*;
use crate::os::mapped::zeroed;

/// A machine in numbers: ticks for `len` bytes by libc, and shared.
struct World {
    libc: fn(usize) -> u64,
    shared: fn(usize) -> u64,
}

/// 6 GB/s alone, nearly twice that with help that costs 4 µs to call.
const COLD: World = World { libc: |n| n as u64 / 3, shared: |n| n as u64 / 6 + 8000 };
/// 30 GB/s alone; help hardly helps and costs 8 µs.
const HOT: World = World { libc: |n| n as u64 / 14, shared: |n| n as u64 / 16 + 16000 };
/// The other CPU is busy: begun pieces are waited for.
const BUSY: World = World { libc: |n| n as u64 / 3, shared: |n| n as u64 / 3 + 40_000 };

/// One process: its clock and its noise, and its ticks by path.
struct Process {
    learner: Learner,
    noise: u64,
    now: u64,
    /// Percent by which the rest of a copy costs more than its first bytes.
    uphill: u64,
    /// Percent of shared copies that take three times as long: a worker has lost its CPU.
    late: u64,
    /// Percent of copies that are held up for two milliseconds, whichever way they go; then, for half
    /// of the time, all copies take half as long again.
    held_up: u64,
}

#[derive(Default, Debug)]
struct Ways {
    shared: u64,
    libc: u64,
    compared: u64,
    /// Copies by libc that were not timed.
    untimed: u64,
    ticks: u64,
}

impl Process {
    fn new() -> Self {
        Self { learner: zeroed(), noise: 7, now: 0, uphill: 100, late: 0, held_up: 0 }
    }

    /// A small deterministic noise: up to +12 %, now and then a preemption.
    fn noisy(&mut self, ticks: u64) -> u64 {
        self.noise = self.noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let random = (self.noise >> 33) % 1000;
        let slow = self.held_up > 0 && self.now / 200_000_000 % 2 == 1;
        let ticks = if slow { ticks + ticks / 2 } else { ticks };
        if random / 10 < self.held_up && ticks > 0 {
            return ticks + 4_000_000;
        }
        if random < 4 { ticks * 20 } else { ticks + ticks * random / 8000 }
    }

    /// Makes `turns` copies, as the dispatcher does, with `pause` ticks between them.
    fn run(&mut self, len: usize, world: &World, turns: u64, pause: u64) -> Ways {
        let mut ways = Ways::default();
        for _ in 0..turns {
            self.now += pause;
            if self.learner.passes_untimed(len, || self.now) {
                let ticks = self.noisy((world.libc)(len));
                self.now += ticks;
                ways.ticks += ticks;
                ways.libc += 1;
                ways.untimed += 1;
                self.learner.note_end(self.now);
                continue;
            }
            let back_to_back = self.learner.is_back_to_back(self.now);
            let verdict = self.learner.cell(len, back_to_back).decide(len, back_to_back);
            let first = verdict.unwrap_or(0);
            let rest = len - first;
            let late = (self.noise >> 40) % 100 < self.late;
            let (rest_ticks, waited) = match verdict {
                Ok(_) if late => (3 * (world.shared)(rest), 2 * (world.shared)(rest)),
                Ok(_) => ((world.shared)(rest), 0),
                _ => ((world.libc)(rest), 0),
            };
            let first_ticks = (world.libc)(first) * 100 / self.uphill;
            let (first_ticks, rest_ticks) = (self.noisy(first_ticks), self.noisy(rest_ticks));
            match verdict {
                Ok(_) => ways.shared += 1,
                Err(Fallback::Learned) => ways.libc += 1,
                Err(_) => ways.compared += 1,
            }
            let cell = self.learner.cell(len, back_to_back);
            if first > 0 {
                cell.record_pair(
                    Cost { bytes: first, ticks: first_ticks },
                    Cost { bytes: rest, ticks: rest_ticks },
                );
            }
            let whole = Cost { bytes: len, ticks: first_ticks + rest_ticks };
            cell.record(verdict, whole, waited, back_to_back);
            if verdict == Err(Fallback::Learned) && back_to_back && len < UNTIMED_BELOW {
                self.learner.leave_untimed(whole, false);
            }
            if verdict.is_err() {
                cell.note_libc(whole);
            }
            self.now += first_ticks + rest_ticks;
            ways.ticks += first_ticks + rest_ticks;
            self.learner.note_end(self.now);
        }
        ways
    }
}

/// Value of `Kind::untimed_below` for copies.
const UNTIMED_BELOW: usize = 1 << 20;

#[test]
fn first_copy_of_a_process_is_shared() {
    for len in [FLOOR, 1 << 20, 64 << 20] {
        let ways = Process::new().run(len, &COLD, 1, 0);
        assert_eq!(ways.shared, 1, "{len}");
    }
}

#[test]
fn most_copies_left_to_libc_back_to_back_are_not_timed() {
    let ways = Process::new().run(FLOOR, &HOT, 4000, 0);
    assert!(ways.untimed * 10 > ways.libc * 8, "{ways:?}");
    assert!(ways.compared < 200 && ways.shared < 400, "{ways:?}");
    let paused = Process::new().run(FLOOR, &HOT, 4000, 2 * SPIN_TICKS);
    let large = Process::new().run(UNTIMED_BELOW, &HOT, 4000, 0);
    assert_eq!([paused.untimed, large.untimed], [0, 0]);
    // A later gain is found as soon as before.
    let mut process = Process::new();
    process.run(FLOOR, &HOT, 4000, 0);
    assert!(process.run(FLOOR, &COLD, 4000, 0).shared > 2000);
}

#[test]
fn what_gains_is_shared_but_for_what_comparing_needs() {
    for len in [512 << 10, 1 << 20, 4 << 20, 64 << 20] {
        let ways = Process::new().run(len, &COLD, 1000, 0);
        assert!(ways.shared >= 950, "{len}: {ways:?}");
        assert!(ways.compared > 0, "{len}: {ways:?}");
    }
}

#[test]
fn what_does_not_gain_goes_to_libc_soon_and_is_tried_by_time() {
    for len in [FLOOR, 512 << 10] {
        let mut process = Process::new();
        let first = process.run(len, &HOT, 100, 0);
        assert!(first.libc + first.compared >= 60, "{len}: {first:?}");
        let later = process.run(len, &HOT, 10_000, 0);
        assert!((1..1000).contains(&later.shared), "{len}: {later:?}");
        let plain = (0..10_000).map(|_| process.noisy((HOT.libc)(len))).sum::<u64>();
        assert!(later.ticks < plain + plain / 20, "{len}: {} of {plain}", later.ticks);
    }
}

#[test]
fn both_directions_are_equally_quick() {
    let mut process = Process::new();
    process.run(1 << 20, &COLD, 200, 0);
    let leaving = process.run(1 << 20, &BUSY, 100, 0);
    assert!(leaving.libc > 20, "{leaving:?}");
    process.run(1 << 20, &BUSY, 1000, 0);
    let coming_back = process.run(1 << 20, &COLD, 200, 0);
    assert!(coming_back.shared > 100, "{coming_back:?}");
}

#[test]
fn preempted_copies_do_not_change_a_verdict_for_long() {
    let mut process = Process::new();
    process.run(16 << 20, &COLD, 50, 0);
    let cell = process.learner.cell(16 << 20, true);
    for _ in 0..2 {
        let (first, rest) =
            (Cost { bytes: 1 << 16, ticks: 20_000 }, Cost { bytes: 16 << 20, ticks: 90_000_000 });
        cell.record_pair(first, rest);
        cell.record(Ok(1 << 16), rest, 0, true);
    }
    let after = process.run(16 << 20, &COLD, 100, 0);
    assert!(after.shared > 90, "{after:?}");
}

/// Two processes that copy on two CPUs: now and then one of them has both.
#[test]
fn long_copies_by_libc_that_were_lucky_do_not_change_the_way() {
    let (cell, len) = (zeroed::<Cell>(), 16 << 20);
    let record = |verdict: Verdict, ticks: u64| {
        cell.record(verdict, Cost { bytes: len, ticks }, 0, true);
        cell.decide(len, true)
    };
    let (mut verdict, mut lucky) = (Ok(0), 0);
    cell.record_pair(Cost { bytes: 1 << 17, ticks: 40_000 }, Cost { bytes: len, ticks: 3_000_000 });
    while lucky + 1 < ENOUGH {
        lucky += u32::from(verdict.is_err());
        verdict = record(verdict, if verdict.is_ok() { 3_000_000 } else { 2_000_000 });
        assert_ne!(verdict, Err(Fallback::Learned), "{lucky} are not enough");
    }
    while verdict.is_ok() {
        verdict = record(verdict, 3_000_000);
    }
    let _ = record(verdict, 3_000_000);
    assert!(cell.is_shared() && !cell.trying.load(Relaxed), "one of them was no faster");
}

/// One job in many runs: two processes of two threads each on two CPUs. Copies are held up for a time
/// slice, whichever way they go, and for tens of them everything is slower.
#[test]
fn noise_that_is_the_same_either_way_changes_nothing() {
    let (len, helped) = (16 << 20, World { libc: |n| n as u64 / 3, shared: |n| n as u64 / 4 });
    let in_vain = World { libc: |n| n as u64 / 3, shared: |n| n as u64 / 3 + 20_000 };
    for world in [helped, in_vain] {
        let mut shares: Vec<u64> = (0..1000)
            .map(|run| {
                let mut process = Process { held_up: 25, noise: run * 77_777, ..Process::new() };
                let pauses = [0, 10 * SPIN_TICKS];
                (0..200).map(|i| process.run(len, &world, 1, pauses[i % 2]).shared).sum()
            })
            .collect();
        shares.sort_unstable();
        // All but the unluckiest two percent.
        let (least, most) = (shares[20], shares[999]);
        assert!(most - least <= 20, "{least} to {most} of 200 were shared");
    }
}

/// Programs copy by patterns: out of a buffer that is cold, and then on from one that is hot.
#[test]
fn every_second_copy_is_cheaper_and_still_the_better_way_is_found() {
    let gains = [
        World { libc: |n| n as u64 / 3, shared: |n| n as u64 / 4 },
        World { libc: |n| n as u64 / 6, shared: |n| n as u64 / 8 },
    ];
    for (len, pause) in [(16 << 20, 0), (2 << 20, 10 * SPIN_TICKS)] {
        for first in 0..2 {
            let mut process = Process::new();
            let shared: u64 =
                (0..2000).map(|i| process.run(len, &gains[(first + i) % 2], 1, pause).shared).sum();
            assert!(shared > 1800, "{len} {first}: {shared} of 2000 were shared");
        }
    }
}

/// With one of many CPUs busy most shared copies are fast, and the others wait for the worker
/// there. What counts is all of them.
#[test]
fn what_is_faster_at_best_and_slower_on_average_goes_to_libc() {
    let mut process = Process { late: 30, ..Process::new() };
    let world = World { libc: |n| n as u64 / 12, shared: |n| n as u64 / 15 };
    process.run(1 << 20, &world, 1000, 0);
    let ways = process.run(1 << 20, &world, 20_000, 0);
    let plain = (0..20_000).map(|_| process.noisy((world.libc)(1 << 20))).sum::<u64>();
    assert!(ways.ticks < plain + plain * 3 / 100, "{} of {plain}: {ways:?}", ways.ticks);
}

/// The end of what is copied is in the cache and its beginning is not: libc is faster than its
/// first bytes let expect, and comparing finds out.
#[test]
fn copies_whose_first_bytes_mislead_are_found_out_by_comparing() {
    let flat = World { libc: |n| n as u64 / 6, shared: |n| n as u64 / 6 + 40_000 };
    let mut process = Process { uphill: 60, ..Process::new() };
    process.run(1 << 20, &flat, 300, 0);
    let ways = process.run(1 << 20, &flat, 1000, 0);
    assert!(ways.libc > 850, "{ways:?}");
}

#[test]
fn pauses_are_judged_apart() {
    let sleepy = World { libc: |n| n as u64 / 6, shared: |n| n as u64 / 6 + 60_000 };
    let mut process = Process::new();
    let back_to_back = process.run(FLOOR, &COLD, 300, 0);
    let after_pauses = process.run(FLOOR, &sleepy, 300, 10 * SPIN_TICKS);
    let again = process.run(FLOOR, &COLD, 300, 0);
    assert!(back_to_back.shared > 250 && again.shared > 250, "{back_to_back:?} {again:?}");
    assert!(after_pauses.libc > 240, "{after_pauses:?}");
}

#[test]
fn smaller_copies_begin_with_what_larger_ones_have_shown() {
    let mut process = Process::new();
    process.run(512 << 10, &HOT, 200, 0);
    let ways = process.run(FLOOR, &HOT, 10, 0);
    assert_eq!(ways.libc, 10, "{ways:?}");
}

#[test]
fn threshold_is_the_first_size_that_gains() {
    let mut process = Process::new();
    assert_eq!(process.learner.threshold(), None);
    process.run(FLOOR, &HOT, 100, 0);
    assert_eq!(process.learner.threshold(), None);
    process.run(4 << 20, &COLD, 10, 0);
    assert_eq!(process.learner.threshold(), Some(4 << 20));
    for (size, shared) in [(FLOOR, false), (4 << 20, true)] {
        let mut known = process.learner.known();
        assert!(known.any(|(from, _, cell, _)| from == size && cell.is_shared() == shared));
    }
}

/// Asking whether memory is fresh costs a system call. It is saved while copies are quick, and made
/// again soon after they are not.
#[test]
fn fresh_memory_is_not_asked_about_while_libc_is_quick() {
    let mut process = Process::new();
    let len = 1 << 20;
    let quick = |process: &Process| process.learner.cell(len, true).libc_is_fault_free();
    assert!(!quick(&process));
    process.run(len, &HOT, 2000, 0);
    assert!(quick(&process));
    let faulting = World { libc: |n| n as u64 * 2, shared: |n| n as u64 * 2 + 40_000 };
    process.run(len, &faulting, 8, 0);
    assert!(!quick(&process));
}

#[test]
fn busy_calls_after_one_into_memory_in_use_do_not_ask_for_a_while() {
    let learner: Learner = zeroed();
    assert!(!learner.is_unasked());
    learner.leave_unasked();
    assert!((0..UNASKED).all(|_| learner.is_unasked()));
    assert!(!learner.is_unasked());
}

#[test]
fn samples_for_statistics_are_larger_at_first_and_then_rare() {
    let (cell, mib) = (zeroed::<Cell>(), 1 << 20);
    let timed = |len| cell.sample(cell.decide(len, true).unwrap(), len);
    assert_eq!([timed(64 * mib), timed(4 * mib), timed(256 * mib)], [4 * mib, mib / 2, 16 * mib]);
    assert_eq!(timed(4 * mib), 0, "one in eight");
    let later: Vec<_> = (4..320).map(|_| timed(64 * mib)).filter(|&first| first > 0).collect();
    assert_eq!(later.iter().filter(|&&first| first == 4 * mib).count(), 3 + 9);
    assert_eq!(later.iter().filter(|&&first| first == 128 << 10).count(), 27);
}

/// Whole page tables are timed, so that huge pages cost what they cost by the byte.
#[test]
fn fresh_memory_is_timed_by_whole_page_tables() {
    let fresh = zeroed::<Cell>();
    let first = |dst, len| fresh.decide_fresh(dst, len);
    assert_eq!(first(4096, 1 << 20), Ok(0));
    assert_eq!(first(4096, 64 << 20), Ok((6 << 20) - 4096));
    assert_eq!(first(4 << 20, 64 << 20), Ok(4 << 20));
    assert_eq!((Cell::untimed(4096), Cell::untimed(4 << 20)), ((2 << 20) - 4096, 0));
    let later = (0..160).filter(|_| first(4096, 64 << 20) != Ok(0)).count();
    assert_eq!(later, 14 + 9, "every second one at first, then one in 16");
}

/// Makes copies of 1 MiB, hot, twice as fast if shared; `after` tells how long the program takes after
/// a shared one and after another. Pauses after each `burst`. Returns how many of the last hundred were
/// shared.
fn shared_with_rest(learner: &Learner, copies: u32, after: [u64; 2], burst: u32) -> usize {
    let (len, mut now, mut shared) = (1 << 20, 1 << 30, Vec::new());
    let cell = learner.cell(len, true);
    for copy in 0..copies {
        learner.note_begin(now);
        let by = match learner.rest_speaks_against(len, cell) {
            None => Copier::Together,
            Some(_) => Copier::Alone,
        };
        let ticks = if by == Copier::Together { 40_000 } else { 80_000 };
        now += ticks;
        learner.note_copy(by, None, Cost { bytes: len, ticks }, &Seen::default(), now);
        shared.push(by == Copier::Together);
        now += after[by as usize] + if copy % 4 == 0 { u64::from(copy % 7) * 20_000 } else { 0 };
        now += if copy % burst == 0 { 1 << 30 } else { 0 };
    }
    shared.iter().rev().take(100).filter(|&&shared| shared).count()
}

#[test]
fn sharing_that_costs_the_program_more_afterwards_is_left_and_taken_up_again() {
    let hot = || {
        let learner: Learner = zeroed();
        learner.cell(1 << 20, true).note_libc(Cost { bytes: 1 << 20, ticks: 80_000 });
        learner
    };
    let learner = hot();
    assert!(shared_with_rest(&learner, 2000, [400_000, 200_000], 2000) < 20);
    assert!(shared_with_rest(&learner, 8000, [100_000, 100_000], 8000) > 60);
    for after in [0, 100_000, 1 << 40] {
        assert!(shared_with_rest(&hot(), 2000, [after; 2], 2000) > 60, "{after}");
    }
    // The first bytes of shared copies, in the caches of other CPUs, do not make them cold.
    let learner: Learner = zeroed();
    let pair = [400_000, 20_000].map(|ticks| Cost { bytes: 1 << 20, ticks });
    learner.cell(1 << 20, true).record_pair(pair[0], pair[1]);
    assert_eq!(shared_with_rest(&learner, 2000, [400_000, 200_000], 2000), 100);
    learner.cell(1 << 20, true).note_libc(Cost { bytes: 1 << 20, ticks: 80_000 });
    learner.cell(1 << 20, true).record_pair(pair[0], pair[1]);
    assert!(shared_with_rest(&learner, 2000, [400_000, 200_000], 2000) < 20);
    for burst in [3, 8, 40] {
        assert!(shared_with_rest(&hot(), 4000, [400_000, 200_000], burst) < 25, "{burst}");
        assert!(shared_with_rest(&hot(), 4000, [100_000; 2], burst) > 60, "{burst}");
    }
}
