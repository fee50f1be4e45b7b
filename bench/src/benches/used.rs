//! Programs that use what they copy: whole loops of writing, copying and reading, not the copy alone.
//!
//! All loops copy from one place in the code, in one process and on the same buffers, with libc in
//! turn: the same loop differs between two processes by where its pages lie in the caches. Each loop
//! is measured steadily, after others, and by turns with cold copies. What it takes the library to
//! adapt, 32 loops or 20 ms, is not counted. Last come as many threads as CPUs, each with its loop.

use crate::arms::{describe_shim, interposed_memcpy, real_memcpy};
use crate::machine;
use crate::measure::now;
use crate::memory::{CopyFn, Pair, Walk};
use crate::options::{MIB, Options};
use crate::out::{Table, median, progress, range, size as short, spread};
use crate::turns::{self, buffer_size, in_turn};
use std::sync::Barrier;

/// A loop: its name, and whether it writes the source, takes the next place, and reads the destination.
#[derive(Clone, Copy)]
struct Loop {
    name: &'static str,
    writes: bool,
    is_cold: bool,
    reads: bool,
}

const fn one(name: &'static str, writes: bool, is_cold: bool, reads: bool) -> Loop {
    Loop { name, writes, is_cold, reads }
}

impl Loop {
    fn key(self, when: &str) -> String {
        let [when, name] = [when, self.name].map(|name| name.replace(", ", "_").replace(' ', "_"));
        format!("{when}.{name}")
    }
}

/// Returns whether `--jobs` may name a loop so, as in "after_cold.write_copy_read".
pub fn is_a_loop(name: &str) -> bool {
    let moments = BEFORE.iter().map(|(when, _)| *when).chain([CROWD]);
    let mut keys = moments.flat_map(|when| LOOPS.map(|each| each.key(when)));
    keys.any(|key| key == name)
}

const HOT: Loop = one("copy", false, false, false);
const COLD: Loop = one("cold copy", false, true, false);
const LOOPS: [Loop; 6] = [
    HOT,
    one("copy, read", false, false, true),
    one("write, copy", true, false, false),
    one("write, copy, read", true, false, true),
    COLD,
    one("cold copy, read", false, true, true),
];

/// What comes before a turn, or between its loops.
const BEFORE: [(&str, Option<Loop>); 4] = [
    ("steady", None),
    ("after cold", Some(COLD)),
    ("after hot", Some(HOT)),
    ("by turns", Some(COLD)),
];
const BY_TURNS: usize = 3;
const CROWD: &str = "a thread on each CPU";

/// Nanoseconds of a turn, and of what is not counted before it.
const TURN: u64 = 10_000_000;
const ADAPTS: u64 = 20_000_000;
/// Loops of either, at least.
const LEAST_IN_TURN: u32 = 8;
const LEAST_TO_ADAPT: u32 = 32;

struct Place {
    pair: Pair,
    walk: Walk,
}

pub fn run(options: &Options) {
    println!("{}; whole loops, x libc in turn, median and q1-q3\n", describe_shim());
    let mut place = Place::new(buffer_size(options));
    let sizes = options.sizes(MIB / 16, 16 * MIB);
    for (number, (when, before)) in BEFORE.into_iter().enumerate() {
        table(options, when, &sizes, |copy, each, size| {
            place.turn(copy, each, size, number, before)
        });
    }
    drop(place);
    let threads = machine::cpu_count();
    if threads > 1 {
        let largest = sizes.iter().max().expect("a size is given");
        let len = (buffer_size(options) / threads).max(2 * largest);
        let mut places: Vec<Place> = (0..threads).map(|_| Place::new(len)).collect();
        table(options, CROWD, &sizes, |copy, each, size| at_once(&mut places, copy, each, size));
    }
}

/// Measures and prints all loops of all sizes; `turn` returns the nanoseconds of one loop.
fn table(
    options: &Options,
    when: &str,
    sizes: &[usize],
    mut turn: impl FnMut(CopyFn, Loop, usize) -> f64,
) {
    let mut table = Table::of("loop|size|x libc|q1-q3");
    let is_wanted = |each: &Loop| {
        options.jobs.as_ref().is_none_or(|jobs| jobs.iter().any(|job| each.key(when) == *job))
    };
    let loops: Vec<Loop> = LOOPS.into_iter().filter(is_wanted).collect();
    if loops.is_empty() {
        return;
    }
    for each in loops {
        for &size in sizes {
            progress(&format!("used: {when}, {}, {}", each.name, short(size)));
            let copies = [real_memcpy(), interposed_memcpy()];
            let (_, gain) =
                in_turn(options.seconds / 4.0, |arm: usize| turn(copies[arm], each, size));
            spread(&format!("used.{}.{}", each.key(when), short(size)), &gain);
            table.row([each.name.into(), short(size), median(&gain), range(&gain, 0.25)]);
        }
    }
    println!("{when}");
    table.print();
}

/// Returns the nanoseconds for each loop of as many threads at once, each with a place of its own.
fn at_once(places: &mut [Place], copy: CopyFn, each: Loop, size: usize) -> f64 {
    let ready = Barrier::new(places.len());
    let loops_in_a_nanosecond: f64 = std::thread::scope(|scope| {
        let turn = |place| {
            let (ready, place): (&Barrier, &mut Place) = (&ready, place);
            scope.spawn(move || {
                ready.wait();
                place.repeat(copy, each, None, size, [LEAST_TO_ADAPT.into(), ADAPTS]);
                place.repeat(copy, each, None, size, [LEAST_IN_TURN.into(), TURN])
            })
        };
        let threads: Vec<_> = places.iter_mut().map(turn).collect();
        threads.into_iter().map(|thread| 1.0 / thread.join().expect("a loop ends")).sum()
    });
    1.0 / loops_in_a_nanosecond
}

impl Place {
    fn new(len: usize) -> Self {
        Place { pair: Pair::new(len), walk: Walk::new(0, len) }
    }

    /// Returns the nanoseconds of one loop of a turn.
    fn turn(
        &mut self,
        copy: CopyFn,
        each: Loop,
        size: usize,
        when: usize,
        before: Option<Loop>,
    ) -> f64 {
        let between = before.filter(|_| when == BY_TURNS);
        if let Some(before) = before.filter(|_| when != BY_TURNS) {
            self.repeat(copy, before, None, size, [LEAST_TO_ADAPT.into(), 0]);
        }
        if before.is_some() {
            self.repeat(copy, each, between, size, [LEAST_TO_ADAPT.into(), ADAPTS]);
        }
        self.repeat(copy, each, between, size, [LEAST_IN_TURN.into(), TURN])
    }

    /// Runs a loop, and `between` before each: at least so often, and for so many nanoseconds. Returns
    /// the nanoseconds for each.
    fn repeat(
        &mut self,
        copy: CopyFn,
        each: Loop,
        between: Option<Loop>,
        size: usize,
        [least, nanoseconds]: [u64; 2],
    ) -> f64 {
        let (begun, mut count) = (now(), 0u64);
        while count < least || now() - begun < nanoseconds {
            if let Some(between) = between {
                self.once(copy, between, size);
            }
            self.once(copy, each, size);
            count += 1;
        }
        (now() - begun) as f64 / count as f64
    }

    /// Never inlined: one place in the code makes all copies.
    #[inline(never)]
    fn once(&mut self, copy: CopyFn, each: Loop, size: usize) {
        let spot = match each.is_cold {
            true => self.walk.step(size, &self.pair),
            false => self.pair.spot(0),
        };
        if each.writes {
            turns::write(spot, size);
        }
        // SAFETY: both ways to a spot keep `size` inside the pair.
        unsafe { copy(spot.dst.cast(), spot.src.cast(), size) };
        if each.reads {
            turns::read(spot.dst, size);
        }
    }
}
