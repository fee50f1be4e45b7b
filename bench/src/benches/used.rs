//! Programs that use what they copy: whole loops of writing, copying and reading, not the copy alone.
//!
//! All loops copy from one place in the code, in one process and on the same buffers, with libc in
//! turn: the same loop differs between two processes by where its pages lie in the caches. Each loop
//! is measured steadily, after others, and by turns with cold copies. What it takes the library to
//! adapt, 32 loops or 20 ms, is not counted. Last come as many threads as CPUs, each with its loop.

use crate::arms::{describe_shim, interposed_memcpy};
use crate::machine;
use crate::measure::now;
use crate::memory::{CopyFn, Pair, Walk};
use crate::options::{MIB, Options};
use crate::out::{Table, median, progress, range, size as short, spread};
use crate::rival::{self, Rival};
use crate::turns::{self, buffer_size, in_turn_with};
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
    fn key(self, when: usize) -> String {
        let [when, name] =
            [name_of(when), self.name].map(|name| name.replace(", ", "_").replace(' ', "_"));
        format!("{when}.{name}")
    }
}

/// Returns whether `--jobs` may name a loop so, as in "after_cold.write_copy_read".
pub fn is_a_loop(name: &str) -> bool {
    find(name).is_some()
}

/// Returns when a loop is measured, and the loop, by its key.
fn find(key: &str) -> Option<(usize, Loop)> {
    let all = (0..=CROWD).flat_map(|when| LOOPS.map(|each| (when, each)));
    all.into_iter().find(|(when, each)| each.key(*when) == key)
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
/// As many threads as CPUs, each with its loop: after all of `BEFORE`.
const CROWD: usize = BEFORE.len();

fn name_of(when: usize) -> &'static str {
    BEFORE.get(when).map_or("a thread on each CPU", |(name, _)| *name)
}

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

/// Buffers of one thread, or of one for each CPU.
struct Places {
    is_crowd: bool,
    each: Vec<Place>,
}

pub fn run(options: &Options) {
    println!(
        "{}; whole loops, x libc in turn, median and q1-q3; last columns, with --against: the same\n\
         in another process, x libc\n",
        describe_shim()
    );
    let sizes = options.sizes(MIB / 16, 16 * MIB);
    let rivals = Rival::all("used-rival", options);
    let mut places = Places::new(false, options);
    for when in 0..CROWD {
        table(options, when, &sizes, &mut places, &rivals);
    }
    drop(places);
    if machine::cpu_count() > 1 {
        table(options, CROWD, &sizes, &mut Places::new(true, options), &rivals);
    }
}

/// Measures and prints all loops of all sizes.
fn table(options: &Options, when: usize, sizes: &[usize], places: &mut Places, rivals: &[Rival]) {
    let names = rivals.iter().map(|rival| rival.name);
    let mut table = Table::new("loop|size|x libc|q1-q3".split('|').chain(names));
    let is_wanted = |each: &Loop| {
        options.jobs.as_ref().is_none_or(|jobs| jobs.iter().any(|job| each.key(when) == *job))
    };
    let loops: Vec<Loop> = LOOPS.into_iter().filter(is_wanted).collect();
    if loops.is_empty() {
        return;
    }
    for each in loops {
        for &size in sizes {
            progress(&format!("used: {}, {}, {}", name_of(when), each.name, short(size)));
            let (order, seconds) = (format!("{} {size}", each.key(when)), options.seconds / 4.0);
            let turn = |copy| places.turn(copy, each, size, when);
            let (_, gains) = in_turn_with(rivals, &order, seconds, turn);
            let key = format!("used.{}.{}", each.key(when), short(size));
            spread(&key, &gains[0]);
            let mut row =
                vec![each.name.into(), short(size), median(&gains[0]), range(&gains[0], 0.25)];
            row.extend(rival::cells(rivals, &key, &gains[1..]));
            table.row(row);
        }
    }
    println!("{}", name_of(when));
    table.print();
}

/// Makes turns on request, in the process of a `Rival`.
pub fn serve(options: &Options) {
    let mut places = Places::new(false, options);
    rival::serve(|words| {
        let [key, size] = words else { return None };
        let (when, each) = find(key)?;
        if places.is_crowd != (when == CROWD) {
            places.each.clear(); // there may be no room for both
            places = Places::new(when == CROWD, options);
        }
        Some(vec![places.turn(interposed_memcpy(), each, size.parse().ok()?, when)])
    });
}

impl Places {
    fn new(is_crowd: bool, options: &Options) -> Self {
        let threads = if is_crowd { machine::cpu_count() } else { 1 };
        let largest = options.sizes(MIB / 16, 16 * MIB).into_iter().max().unwrap_or(MIB);
        let len = (buffer_size(options) / threads).max(2 * largest);
        Places { is_crowd, each: (0..threads).map(|_| Place::new(len)).collect() }
    }

    /// Returns the nanoseconds of one loop of a turn.
    fn turn(&mut self, copy: CopyFn, each: Loop, size: usize, when: usize) -> f64 {
        match BEFORE.get(when) {
            Some((_, before)) => self.each[0].turn(copy, each, size, when, *before),
            None => self.at_once(copy, each, size),
        }
    }

    /// Returns the nanoseconds for each loop of as many threads at once.
    fn at_once(&mut self, copy: CopyFn, each: Loop, size: usize) -> f64 {
        let ready = Barrier::new(self.each.len());
        let loops_in_a_nanosecond: f64 = std::thread::scope(|scope| {
            let turn = |place| {
                let (ready, place): (&Barrier, &mut Place) = (&ready, place);
                scope.spawn(move || {
                    ready.wait();
                    place.repeat(copy, each, None, size, [LEAST_TO_ADAPT.into(), ADAPTS]);
                    place.repeat(copy, each, None, size, [LEAST_IN_TURN.into(), TURN])
                })
            };
            let threads: Vec<_> = self.each.iter_mut().map(turn).collect();
            threads.into_iter().map(|thread| 1.0 / thread.join().expect("a loop ends")).sum()
        });
        1.0 / loops_in_a_nanosecond
    }
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
