//! Programs in numbers, which the learner sees as it would see real ones: a table of what their looks,
//! copies and the work between them take, by the way of the last copies.

use super::*;
use crate::os::mapped::zeroed;
use core::ops::Range;
use std::collections::BTreeSet;

const MIB: usize = 1 << 20;

/// Ticks for each MiB.
#[derive(Clone, Copy)]
struct Program {
    /// Distance of the bytes, in multiples of the cache, after copies by each way.
    distance: [u32; 4],
    copy: [u64; 4],
    /// Time until the next call, after copies by each way.
    after: [u64; 4],
}

const ALL: Ways = Ways::all();

/// Copies from memory to memory, nothing else: six times as fast if shared, eight if streamed too.
const COLD: Program =
    Program { distance: [16; 4], copy: [320_000, 230_000, 52_000, 40_000], after: [0; 4] };
/// Copies that are read afterwards, from memory: ordinary stores are best.
const COLD_READ: Program = Program { after: [180_000, 220_000, 120_000, 220_000], ..COLD };
/// A program that writes, copies and reads within its caches: nothing is better than libc.
const USED: Program = Program {
    distance: [8, 9, 9, 10],
    copy: [130_000, 120_000, 15_000, 16_000],
    after: [190_000, 310_000, 400_000, 480_000],
};
/// The same bytes again and again, which are not used.
const HOT: Program =
    Program { distance: [8, 9, 8, 9], copy: [130_000, 120_000, 15_000, 16_000], after: [0; 4] };
/// Bytes in the L2 cache.
const NEAR_BYTES: Program =
    Program { distance: [3; 4], copy: [40_000, 120_000, 20_000, 20_000], after: [60_000; 4] };

struct Machine {
    learner: Learner,
    now: u64,
    noise: u64,
    /// Way of the last copies.
    last: Way,
    /// Ticks per MiB of a look; 0: libc's.
    look: u64,
    /// Percent of copies during which the thread is preempted, and by how many ticks.
    preempted: (u64, u64),
}

impl Machine {
    fn new() -> Self {
        Self {
            learner: zeroed(),
            now: 1 << 40,
            noise: 7,
            last: Way::Libc,
            look: 0,
            preempted: (0, 0),
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.noise = self.noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.noise >> 33) % below
    }

    /// Adds up to an eighth, and preemption.
    fn noisy(&mut self, ticks: u64) -> u64 {
        let held_up = if self.random(100) < self.preempted.0 { self.preempted.1 } else { 0 };
        ticks + ticks * self.random(128) / 1024 + held_up
    }

    /// Makes a call of `len` bytes and what follows it, as the dispatcher does; returns its way and ticks.
    fn call(&mut self, program: &Program, len: usize, ways: Ways, pause: u64) -> (Way, u64) {
        let (site, begun) = (0x1234, self.now);
        let mib = |ticks: u64| (ticks * len as u64) >> 20;
        let distance = u64::from(program.distance[self.last as usize] * CACHE);
        let distance = (distance - distance / 8 + self.random(distance / 4 + 1)) as u32;
        let libc = if self.look > 0 { self.look } else { program.copy[0] };
        self.learner.note_begin();
        let place = self.learner.place(site, len, distance);
        let way = if place == Place::Near {
            Way::Libc
        } else {
            let cell = self.learner.cell_at(site, len, place, mib(libc), begun);
            cell.note_look(Cost { bytes: MIB, ticks: libc });
            self.learner.close(site, len, cell, begun);
            cell.count();
            cell.choose(len, ways)
        };
        let took = self.noisy(mib(program.copy[way as usize]));
        self.now += took;
        if place != Place::Near {
            let cell = self.learner.cell_at(site, len, place, mib(libc), begun);
            self.learner.open(cell, site, way, Cost { bytes: len, ticks: took }, self.now);
        }
        // What follows depends on where the copy has left the bytes.
        let after = self.noisy(mib(program.after[way as usize]));
        self.now += after + pause;
        self.last = way;
        (way, took + after)
    }

    /// Makes `calls`; returns how many took each way, and their ticks.
    fn run(&mut self, program: &Program, len: usize, calls: u32, ways: Ways) -> ([u32; 4], u64) {
        let (mut counts, mut ticks) = ([0; 4], 0);
        for _ in 0..calls {
            let (way, took) = self.call(program, len, ways, 0);
            counts[way as usize] += 1;
            ticks += took;
        }
        (counts, ticks)
    }
}

/// Returns the way that costs the program least.
fn best_way(program: &Program, ways: Ways) -> Way {
    let cost = |way: &Way| program.copy[*way as usize] + program.after[*way as usize];
    ways.iter().min_by_key(cost).unwrap()
}

/// Returns what `calls` would cost by one way, without noise but its average.
fn ideal(program: &Program, len: usize, calls: u32, way: Way) -> u64 {
    let ticks = program.copy[way as usize] + program.after[way as usize];
    (ticks + ticks / 16) * (len as u64 >> 10) / 1024 * u64::from(calls)
}

#[test]
fn every_program_is_within_three_percent_of_its_best_way_after_32_calls() {
    for (name, program) in
        [("cold", COLD), ("cold, read", COLD_READ), ("used", USED), ("near", NEAR_BYTES)]
    {
        for len in [MIB / 4, MIB, 4 * MIB, 16 * MIB] {
            for seed in 0..3 {
                let mut machine = Machine { noise: seed * 977, ..Machine::new() };
                machine.run(&program, len, 40, ALL);
                let (ways, ticks) = machine.run(&program, len, 1000, ALL);
                let best =
                    if program.distance[0] == 3 { Way::Libc } else { best_way(&program, ALL) };
                let least = ideal(&program, len, 1000, best);
                assert!(ticks < least + least / 33, "{name} {len}: {ways:?}, {ticks} for {least}");
            }
        }
    }
}

#[test]
fn program_that_changes_is_followed_within_40_calls() {
    for (before, after) in [
        (COLD, USED),
        (USED, COLD),
        (HOT, USED),
        (COLD_READ, USED),
        (USED, COLD_READ),
        (NEAR_BYTES, COLD),
    ] {
        for (len, seed) in [2, 4, 8].into_iter().flat_map(|mib| (0..4).map(move |s| (mib * MIB, s)))
        {
            let mut machine = Machine { noise: seed * 977, ..Machine::new() };
            for _ in 0..3 {
                machine.run(&before, len, 200, ALL);
                machine.run(&after, len, 40, ALL);
                let (ways, ticks) = machine.run(&after, len, 200, ALL);
                let least = ideal(&after, len, 200, best_way(&after, ALL));
                assert!(ticks < least + least / 10, "{len} {seed}: {ways:?}, {ticks} for {least}");
            }
        }
    }
}

#[test]
fn near_bytes_go_to_libc_at_once_whatever_was_learned() {
    let mut machine = Machine::new();
    machine.run(&COLD, MIB, 300, ALL);
    let (ways, _) = machine.run(&NEAR_BYTES, MIB, 300, ALL);
    assert_eq!(ways, [300, 0, 0, 0]);
}

#[test]
fn libc_is_not_tried_where_its_copy_alone_takes_longer_than_the_period() {
    let (ways, _) = Machine::new().run(&COLD, 4 * MIB, 3000, ALL);
    assert_eq!([ways[0], ways[1]], [0, 0], "{ways:?}");
    assert!(ways[2] < 100, "{ways:?}");
}

/// One CPU, on a machine where streaming gains nothing and looks take longer than their part of a copy.
#[test]
fn libc_is_tried_where_only_looks_say_that_it_is_slow() {
    let slow = Program { copy: [230_000, 245_000, 0, 0], ..COLD };
    let mut machine = Machine { look: 345_000, ..Machine::new() };
    let (ways, _) = machine.run(&slow, 64 * MIB, 200, Ways::LIBC | Ways::ALONE);
    assert!(ways[0] > 170, "{ways:?}");
}

#[test]
fn first_copies_from_memory_are_shared() {
    for (len, way) in [(MIB / 4, Way::Shared), (64 * MIB, Way::Shared)] {
        assert_eq!(Machine::new().call(&COLD, len, ALL, 0).0, way);
    }
}

#[test]
fn unused_bytes_between_cache_and_memory_stay_with_libc() {
    let (ways, _) = Machine::new().run(&HOT, 4 * MIB, 1000, ALL);
    assert!(ways[0] > 990, "{ways:?}");
}

/// Other processes: a tenth of all copies, and of what follows them, is held up for a time slice.
#[test]
fn preemption_that_hits_every_way_costs_little() {
    for (program, seed) in
        [COLD, COLD_READ, USED].into_iter().flat_map(|p| (1..8).map(move |s| (p, s)))
    {
        let mut machine =
            Machine { preempted: (10, 4_000_000), noise: seed * 77_777, ..Machine::new() };
        machine.run(&program, 16 * MIB, 40, ALL);
        let ticks = machine.run(&program, 16 * MIB, 400, ALL).1;
        let mut machine =
            Machine { preempted: (10, 4_000_000), noise: seed * 77_777, ..Machine::new() };
        let only = Ways::from_bits_truncate(1 << best_way(&program, ALL) as u32);
        let least = machine.run(&program, 16 * MIB, 400, only).1;
        assert!(ticks < least + least / 8, "{seed}: {ticks} for {least}");
    }
}

#[test]
fn pauses_do_not_hide_what_a_copy_costs() {
    let mut machine = Machine::new();
    let mut shared = 0;
    for _ in 0..300 {
        shared += u32::from(machine.call(&COLD_READ, 4 * MIB, ALL, 1 << 32).0.is_shared());
    }
    assert!(shared > 250, "{shared} of 300 were shared");
}

/// The first copy of each burst comes after a pause and has a cell of its own; what it costs ends with the
/// second one, not with the next burst.
#[test]
fn first_copies_of_bursts_cost_what_passes_until_the_second_ones() {
    for (len, seed) in [4, 16].into_iter().flat_map(|mib| (0..8).map(move |s| (mib * MIB, s))) {
        let mut machine = Machine { noise: seed * 977, ..Machine::new() };
        let mut shared = 0;
        for _ in 0..200 {
            shared += u32::from(machine.call(&COLD, len, ALL, 0).0.is_shared());
            machine.call(&COLD, len, ALL, 0);
            machine.call(&COLD, len, ALL, 0);
            let pause = (len as u64 >> 20) * (500_000 + machine.random(2_000_000));
            machine.call(&COLD, len, ALL, pause);
        }
        assert!(shared > 180, "{len} {seed}: {shared} of 200 were shared");
    }
}

#[test]
fn ways_that_come_and_go_are_followed() {
    let mut machine = Machine::new();
    let one_cpu = Ways::LIBC | Ways::ALONE;
    let (ways, _) = machine.run(&COLD, 4 * MIB, 200, one_cpu);
    assert!(ways[1] > 180, "{ways:?}");
    let (ways, _) = machine.run(&COLD, 4 * MIB, 200, ALL);
    assert!(ways[2] + ways[3] > 150, "{ways:?}");
    let (ways, _) = machine.run(&COLD, 4 * MIB, 200, one_cpu);
    assert!(ways[0] + ways[1] == 200 && ways[1] > 150, "{ways:?}");
}

#[test]
fn best_of_some_ways_is_the_cheaper_one_that_was_tried() {
    let cell: Cell = zeroed();
    let record = |way, ticks| cell.record(way, Cost { bytes: MIB, ticks });
    assert_eq!(cell.best_of(8 * MIB, Ways::LIBC | Ways::ALONE), Way::Alone);
    record(Way::Alone, 200_000);
    record(Way::Libc, 100_000);
    assert_eq!(cell.best_of(8 * MIB, Ways::LIBC | Ways::ALONE), Way::Libc);
}

#[test]
fn calls_best_by_libc_pass_and_are_tried_again_later() {
    let cell: Cell = zeroed();
    let mut shared = 0;
    for _ in 0..3000 {
        if cell.passes() {
            continue;
        }
        let way = cell.choose(MIB, Ways::LIBC | Ways::SHARED);
        shared += u32::from(way == Way::Shared);
        let ticks = if way == Way::Libc { 100_000 } else { 150_000 };
        cell.record(way, Cost { bytes: MIB, ticks });
        if way == Way::Libc {
            cell.let_pass(ticks);
        }
    }
    assert!((12..120).contains(&shared), "{shared}");
}

#[test]
fn sample_of_another_thread_or_of_long_ago_is_not_closed() {
    let cell: Cell = zeroed();
    let whole = Cost { bytes: MIB, ticks: 1000 };
    cell.choose(MIB, Ways::SHARED);
    let spent = || cell.cost(Way::Libc);
    cell.open(Way::Libc, whole, 1, 10, 5000);
    cell.close(2, 11, 6000);
    assert_eq!(spent(), 0, "of another thread");
    cell.open(Way::Libc, whole, 2, 11, 6000);
    cell.close(1, 11, 7000);
    assert!(spent() > 0, "the other thread's sample was not opened");
    let cell: Cell = zeroed();
    cell.open(Way::Libc, whole, 1, 10, 5000);
    cell.close(1, 20, 6000);
    assert_eq!(cell.cost(Way::Libc), 0, "nine calls in between");
}

/// Of a thread on each CPU, each ends sooner by workers that take time from the others: what one thread alone
/// has shown does not hold.
#[test]
fn several_threads_that_call_from_one_place_have_a_cell_of_their_own() {
    let (learner, site, us, mut now) = (zeroed::<Learner>(), 48, thread(), 0);
    let mut is_crowd = |last: u64| {
        now += 100;
        learner.base(site, MIB).note_end(last, now, Context::empty());
        let cell = learner.cell_at(site, MIB, Place::Far, 10_000, now + 1);
        assert_eq!(cell.size(), Some(class(MIB)));
        cell.context().contains(Context::CROWD)
    };
    let them = us + 1;
    assert!([us, us, us, them, us, us, us, us].iter().all(|&last| !is_crowd(last)), "alone");
    assert_eq!([them; 4].map(&mut is_crowd), [false, true, true, true]);
    assert!([us, us, them].repeat(20).into_iter().all(&mut is_crowd), "one in three");
    assert_eq!([us; 8].map(&mut is_crowd)[4..], [false; 4], "alone again");
}

#[test]
fn threshold_is_the_first_size_that_is_shared_everywhere() {
    let mut machine = Machine::new();
    assert_eq!(machine.learner.threshold(), None);
    machine.run(&USED, 2 * MIB, 100, ALL);
    assert_eq!(machine.learner.threshold(), None);
    machine.run(&COLD, 4 * MIB, 100, ALL);
    assert_eq!(machine.learner.threshold(), Some(4 * MIB));
    assert!(machine.learner.known().any(|(size, _)| size == 4 * MIB));
}

#[test]
fn many_sites_share_the_table() {
    let learner: Learner = zeroed();
    for site in 0..10_000 {
        learner.base(site * 48, MIB).count();
    }
    assert_eq!(learner.known().map(|(_, cell)| cell.calls()).sum::<u32>(), 10_000);
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
fn samples_for_reports_are_larger_at_first_and_then_rare() {
    assert_eq!(
        [sample(0, 64 * MIB), sample(1, 4 * MIB), sample(2, 256 * MIB)],
        [4 * MIB, MIB / 2, 16 * MIB]
    );
    assert_eq!(sample(3, 4 * MIB), 0, "one in eight");
    let later: Vec<_> =
        (4..320).map(|calls| sample(calls, 64 * MIB)).filter(|&len| len > 0).collect();
    assert_eq!(later.iter().filter(|&&first| first == 4 * MIB).count(), 3 + 9);
    assert_eq!(later.iter().filter(|&&first| first == 128 << 10).count(), 27);
}

#[test]
fn fresh_memory_is_timed_by_whole_page_tables() {
    assert_eq!(sample_fresh(0, 4096, MIB), 0, "short ones are timed whole");
    assert_eq!(sample_fresh(1, 4096, 64 * MIB), 6 * MIB - 4096);
    assert_eq!(sample_fresh(2, 4 * MIB, 64 * MIB), 4 * MIB);
    assert_eq!((untimed(4096), untimed(4 * MIB)), (2 * MIB - 4096, 0));
    let later = (3..163).filter(|&calls| sample_fresh(calls, 4096, 64 * MIB) > 0).count();
    assert_eq!(later, 14 + 9, "every second one at first, then one in 16");
}

#[test]
fn short_calls_into_fresh_memory_are_timed_whole_now_and_then() {
    let timed = |calls: Range<u32>, len: usize| -> Vec<u32> {
        calls.filter(|&calls| is_time_for_libc(calls, len)).collect()
    };
    assert!(timed(0..32, MIB).is_empty(), "what a program begins with is not like the rest");
    assert_eq!(timed(0..256, MIB).len(), 4);
    assert_eq!(timed(256..25_356, MIB).len(), 100, "one in 251");
    assert!(timed(0..10_000, FRESH_PAIRS_FROM).is_empty(), "parts of these are timed");
    // Of a program that makes 64 copies each time, each of them.
    let turns: BTreeSet<u32> = timed(0..100_000, MIB).into_iter().map(|calls| calls % 64).collect();
    assert_eq!(turns.len(), 64);
}
