//! Tests of the engine with a fake guest: no threads, and a simulated clock.

use super::*;
use crate::faults::Kind;
use crate::memory::fake;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

const CHANNEL: u32 = 0x80;
const RING: u64 = 0x1000;
const COMPLETION_AT: u64 = 0x800;
const RUN: u64 = 0x1 | 0x4 | 0x8 | 0x10;

struct Bench {
    engine: Arc<Ioat>,
    memory: Arc<Memory>,
    interrupts: Arc<AtomicUsize>,
    start: Instant,
}

impl Bench {
    fn new() -> Bench {
        let memory = Arc::new(fake::memory(0x40_0000));
        let interrupts = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&interrupts);
        let raise = Box::new(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let engine = Arc::new(Ioat::new(1, 20, Arc::clone(&memory), raise));
        let bench = Bench { engine, memory, interrupts, start: Instant::now() };
        bench.engine.write(0x03, 1, MASTER.into());
        bench.set(0x00, 2, RUN);
        bench.set(0x18, 4, COMPLETION_AT);
        bench.set(0x1c, 4, 0);
        bench
    }

    fn set(&self, register: u32, size: u32, value: u64) {
        self.engine.write(CHANNEL + register, size, value);
    }

    fn get(&self, register: u32, size: u32) -> u64 {
        self.engine.read(CHANNEL + register, size)
    }

    /// Writes a ring of 64 descriptors and rings the doorbell for the first ones.
    fn chain(&self, descriptors: &[(u64, u64, u64, u64)]) {
        for (index, (size, control, source, destination)) in descriptors.iter().enumerate() {
            let next = RING + (index as u64 + 1) % 64 * 64;
            let words = [size | control << 32, *source, *destination, next];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            self.memory.write(RING + 64 * index as u64, &bytes);
        }
        self.set(0x10, 4, RING);
        self.set(0x14, 4, 0);
    }

    fn bell(&self, count: u16) {
        self.set(0x06, 2, count.into());
    }

    /// Runs the first `count` descriptors, as far as they go without waiting.
    fn run(&self, count: u16) {
        self.bell(count);
        self.go(0);
    }

    /// Steps until the channel sleeps, at `ms` after the start.
    fn go(&self, ms: u64) -> Next {
        let now = self.start + Duration::from_millis(ms);
        loop {
            let next = self.engine.step(0, &mut self.engine.channels.lock(0), now);
            if next != Next::Step {
                return next;
            }
        }
    }

    fn status(&self) -> u64 {
        self.get(0x08, 8)
    }

    fn completion(&self) -> u64 {
        self.memory.load::<1>(COMPLETION_AT).unwrap()[0]
    }

    fn arm(&self, kind: Kind, after: u32, times: u32, value: u32) {
        self.engine.arm(1, Some(Fault { kind, after, times, value }));
    }

    fn interrupts(&self) -> usize {
        self.interrupts.load(Ordering::SeqCst)
    }
}

const fn slot(index: u64) -> u64 {
    RING + 64 * index
}

fn pattern(size: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 7 + i / 251 + 1) as u8).collect()
}

/// Returns two data descriptors of 0x1000 bytes; only the second one reports.
fn two_pages() -> [(u64, u64, u64, u64); 2] {
    [(0x1000, 0, 0x10_0000, 0x20_0000), (0x1000, 0x9, 0x10_1000, 0x20_1000)]
}

fn bench_with_two_pages() -> Bench {
    let bench = Bench::new();
    bench.memory.write(0x10_0000, &pattern(0x2000));
    bench.chain(&two_pages());
    bench
}

fn copied(bench: &Bench, size: usize) -> bool {
    bench.memory.read(0x20_0000, size) == pattern(0x2000)[..size]
}

/// A new chain, by which a channel goes on.
fn copies_again(bench: &Bench) {
    bench.chain(&two_pages());
    bench.run(2);
    assert!(copied(bench, 0x2000));
}

#[test]
fn chain_copies_the_bytes_and_reports_the_last_descriptor() {
    let bench = bench_with_two_pages();
    bench.bell(2);
    assert_eq!((bench.status(), bench.go(0)), (0, Next::Sleep));
    assert!(copied(&bench, 0x2000));
    assert_eq!((bench.completion(), bench.status()), (slot(1) | 1, slot(1) | 1));
    let counters = bench.engine.counters(0).unwrap();
    assert_eq!((counters.data, counters.bytes, counters.null), (2, 0x2000, 0));
    // An unchanged count starts nothing.
    bench.run(2);
    assert_eq!((bench.status() & 7, bench.interrupts()), (1, 1));
    assert_eq!(bench.engine.counters(0).unwrap().data, 2);
}

#[test]
fn count_is_a_running_total_that_wraps() {
    let bench = Bench::new();
    bench.chain(&[(1, 0x28, 0, 0); 64]);
    (1..=1100u16).for_each(|round| bench.run(round.wrapping_mul(60)));
    assert_eq!(bench.engine.counters(0).unwrap().null, 66_000);
    assert_eq!(bench.completion(), slot(66_000 % 64 - 1) | 1);
}

#[test]
fn suspend_and_reset_stop_the_writes_until_there_is_a_new_chain() {
    for (command, status) in [(SUSPEND, 2), (RESET, 3)] {
        let bench = bench_with_two_pages();
        bench.bell(2);
        bench.set(0x04, 1, command.into());
        assert_eq!((bench.status() & 7, bench.get(0x04, 1)), (status, 0));
        bench.run(2);
        assert!(!copied(&bench, 1));
        copies_again(&bench);
    }
    let bench = bench_with_two_pages();
    bench.bell(2);
    bench.set(0x04, 1, SUSPEND.into());
    bench.set(0x04, 1, RESUME.into());
    bench.go(0);
    assert!(copied(&bench, 0x2000));
}

/// Read and write errors at the first or second descriptor: completion, error, bytes.
#[test]
fn error_leaves_the_completion_at_the_last_good_descriptor() {
    for (kind, after, completion, error, bytes) in [
        (Kind::Read, 1, slot(0) | 3, 0x100, 0x1000),
        (Kind::Read, 0, 3, 0x100, 0),
        (Kind::Write, 0, 3, 0x200, 0x800),
        (Kind::Other, 1, slot(0) | 3, 4, 0x1000),
    ] {
        let bench = bench_with_two_pages();
        bench.arm(kind, after, 1, 0);
        bench.run(2);
        assert!(copied(&bench, bytes) && !copied(&bench, bytes + 1), "{kind:?}");
        assert_eq!((bench.completion(), bench.status()), (completion, completion));
        assert_eq!((bench.get(0x28, 4), bench.interrupts()), (error, 1));
        bench.set(0x28, 4, error);
        assert_eq!(bench.get(0x28, 4), 0);
    }
}

#[test]
fn bad_descriptors_name_their_fault() {
    for (descriptor, error) in [
        ((0x1000, 0, 1 << 40, 0x20_0000), BAD_SOURCE),
        ((0x1000, 0, 0x10_0000, 0x3f_f001), BAD_DESTINATION),
        ((0, 0, 0x10_0000, 0x20_0000), BAD_LENGTH),
        ((0x10_0001, 0, 0x10_0000, 0x20_0000), BAD_LENGTH),
        ((0x1000, 0x8700_0000, 0x10_0000, 0x20_0000), BAD_CONTROL),
    ] {
        let bench = Bench::new();
        bench.chain(&[descriptor]);
        bench.run(1);
        assert_eq!((bench.get(0x28, 4), bench.status()), (error.into(), 3), "{descriptor:x?}");
    }
    let bench = Bench::new();
    bench.set(0x10, 8, 0x77 << 32);
    bench.run(1);
    assert_eq!(bench.get(0x28, 4), BAD_NEXT.into());
}

#[test]
fn interrupt_waits_for_rearm_and_for_the_master_bit() {
    let bench = Bench::new();
    bench.engine.write(0x03, 1, 0);
    bench.chain(&[(1, 0x29, 0, 0); 64]);
    bench.arm(Kind::Lost, 0, 1, 0);
    bench.run(1);
    bench.run(2);
    assert_eq!(bench.interrupts(), 0);
    bench.engine.write(0x03, 1, MASTER.into());
    assert_eq!(bench.interrupts(), 1, "the first is lost, the second has waited");
    (3..=5).for_each(|count| bench.run(count));
    assert_eq!((bench.interrupts(), bench.get(0x00, 2) & 1), (1, 1));
    for _ in 0..2 {
        bench.set(0x00, 2, RUN);
        assert_eq!(bench.interrupts(), 2, "latched events fire once on rearm");
    }
    assert_eq!((bench.engine.read(0x04, 4), bench.engine.read(0x04, 4)), (1, 0));
}

#[test]
fn hung_and_stalled_channels_write_late_or_never() {
    for kind in [Kind::Hang, Kind::Stall] {
        let bench = bench_with_two_pages();
        bench.arm(kind, 1, 2, 300);
        bench.run(2);
        bench.go(299);
        assert_eq!(bench.status(), slot(0));
        assert!(copied(&bench, 0x1000) && !copied(&bench, 0x2000));
        assert_eq!(bench.go(300), Next::Sleep);
        assert_eq!(copied(&bench, 0x2000), kind == Kind::Stall);
        // Once more, and what was to come does not after a reset.
        bench.memory.write(0x20_0000, &[0; 0x2000]);
        bench.chain(&two_pages());
        bench.run(2);
        bench.set(0x04, 1, RESET.into());
        assert_eq!(bench.go(60_000), Next::Sleep);
        assert!(!copied(&bench, 1));
        bench.engine.arm(1, None);
        copies_again(&bench);
    }
}

#[test]
fn dead_channel_fails_after_every_reset() {
    let bench = bench_with_two_pages();
    bench.arm(Kind::Dead, 0, 0, 0);
    for round in 1..4 {
        bench.chain(&[(1, 0x29, 0, 0)]);
        bench.run(1);
        assert_eq!((bench.status(), bench.get(0x28, 4)), (3, 4));
        assert_eq!(bench.engine.counters(0).unwrap().faults, round);
        bench.set(0x04, 1, RESET.into());
    }
    bench.engine.arm(1, None);
    copies_again(&bench);
}

#[test]
fn doorbell_and_reset_do_not_wait_for_a_stalled_channel() {
    let bench = bench_with_two_pages();
    bench.engine.start();
    bench.arm(Kind::Stall, 0, 1, 60_000);
    bench.bell(1);
    let wait_for = |event: &dyn Fn() -> bool| {
        while !event() {
            std::thread::sleep(Duration::from_millis(1));
            assert!(bench.start.elapsed() < Duration::from_secs(30));
        }
    };
    wait_for(&|| bench.engine.counters(0).unwrap().faults == 1);
    bench.bell(2);
    bench.set(0x04, 1, RESET.into());
    bench.chain(&two_pages());
    bench.bell(2);
    wait_for(&|| bench.status() == slot(1) | 1);
    assert!(copied(&bench, 0x2000));
}

/// Two pages and a word; `fence` is on the second page.
fn pages_and_word(fence: u64) -> Bench {
    let bench = bench_with_two_pages();
    bench.memory.write(0x11_0000, b"word");
    let [first, second] = two_pages();
    let second = (second.0, COMPLETION | fence, second.2, second.3);
    bench.chain(&[first, second, (8, COMPLETION | INTERRUPT, 0x11_0000, 0x21_0000)]);
    bench.arm(Kind::Overtaken, 0, 0, 30);
    bench.bell(3);
    bench
}

#[test]
fn overtaken_transfers_come_late_and_so_does_their_completion() {
    let bench = pages_and_word(0);
    let late = bench.start + Duration::from_millis(30);
    assert_eq!(bench.go(0), Next::SleepUntil(late));
    assert_eq!(bench.memory.read(0x21_0000, 4), b"word");
    assert!(bench.memory.read(0x20_0000, 0x2000).iter().all(|byte| *byte == 0));
    assert_eq!((bench.completion(), bench.status() & 7, bench.interrupts()), (0, 0, 0));
    assert_eq!(bench.go(30), Next::Sleep);
    assert!(copied(&bench, 0x2000));
    assert_eq!((bench.completion(), bench.interrupts()), (slot(2) | 1, 1));
    assert_eq!(bench.engine.counters(0).unwrap().faults, 2);
}

#[test]
fn fence_lets_nothing_overtake() {
    let bench = pages_and_word(FENCE);
    assert_eq!(bench.go(0), Next::Sleep);
    assert!(copied(&bench, 0x2000));
    assert_eq!(bench.memory.read(0x21_0000, 4), b"word");
    assert_eq!((bench.completion(), bench.interrupts()), (slot(2) | 1, 1));
}

#[test]
fn reset_forgets_what_was_overtaken() {
    let bench = pages_and_word(0);
    bench.go(0);
    bench.set(0x04, 1, RESET.into());
    assert_eq!(bench.go(60), Next::Sleep);
    assert!(bench.memory.read(0x20_0000, 0x2000).iter().all(|byte| *byte == 0));
}
