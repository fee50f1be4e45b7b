//! The papers' translation cache by its shape, as counts: misses of made-up
//! copies, memory of its tables, and transfers of copies that are not aligned.

use crate::options::Options;
use crate::out::{Table, figure, progress};
use std::collections::HashSet;

const ENTRIES: [u32; 3] = [8 << 10, 16 << 10, 32 << 10];
const LINES: [u32; 4] = [8, 16, 64, 128];
const WAYS: [u32; 3] = [2, 4, 8];
const PAGE: u64 = 4096;
/// The paper's best shape.
const BEST: Shape = Shape { entries: 16 << 10, line: 64, ways: 4 };

/// The copies of this name come back to the same memory.
const AGAIN: &str = "64 GiB 128 MiB again";

/// C, L and A of the paper.
#[derive(Clone, Copy)]
struct Shape {
    entries: u32,
    line: u32,
    ways: u32,
}

/// A set-associative cache of lines, LRU inside a set, the youngest last.
struct Cache {
    sets: Vec<Vec<(u32, u64)>>,
    shape: Shape,
    seen: HashSet<(u32, u64)>,
    lookups: u64,
    cold: u64,
    other: u64,
}

impl Cache {
    fn new(shape: Shape) -> Self {
        let sets = vec![Vec::new(); (shape.entries / shape.line / shape.ways) as usize];
        Cache { sets, shape, seen: HashSet::new(), lookups: 0, cold: 0, other: 0 }
    }

    /// Looks up one page of one process. A miss fills the whole line.
    fn page(&mut self, space: u32, page: u64) {
        let line = page / u64::from(self.shape.line);
        // Neighbouring lines use neighbouring sets; equal addresses of two processes do not meet.
        let set = (line as u32).wrapping_add(space.wrapping_mul(0x9e37_79b1)) as usize;
        let count = self.sets.len();
        let set = &mut self.sets[set % count];
        self.lookups += 1;
        match set.iter().position(|&key| key == (space, line)) {
            Some(at) => drop(set.remove(at)),
            None => {
                if set.len() == self.shape.ways as usize {
                    set.remove(0);
                }
                // The first use of a line misses whatever the cache is like.
                let first = self.seen.insert((space, line));
                *(if first { &mut self.cold } else { &mut self.other }) += 1;
            }
        }
        set.push((space, line));
    }

    /// KiB of a table with eight bytes for each page of every line, and of the cache (an entry
    /// of eight bytes for each page, a tag of eight for each line).
    fn memory(&self) -> (f64, f64) {
        let table = self.seen.len() as u64 * u64::from(self.shape.line) * 8;
        let cache = u64::from(self.shape.entries * 8 + self.shape.entries / self.shape.line * 8);
        (table as f64 / 1024.0, cache as f64 / 1024.0)
    }
}

/// DMA transfers of one copy: none crosses a page on either side.
fn transfers(dst: u64, src: u64, len: u64) -> u64 {
    let mut at = 0;
    let mut count = 0;
    while at < len {
        at += (PAGE - (dst + at) % PAGE).min(PAGE - (src + at) % PAGE).min(len - at);
        count += 1;
    }
    count
}

/// One copy: destination, source, bytes.
type Copy = (u64, u64, u64);

/// What copies by several processes that share the cache, in turns.
struct Work {
    name: String,
    processes: Vec<Vec<Copy>>,
}

pub fn run(options: &Options) {
    println!(
        "misses per 1000 pages looked up, and those of them that are not cold; C entries, L per\n\
         line, A ways (the module pins in ranges of L 64 and finds them in a tree per file)\n"
    );
    let works = made_up(if options.quick { 2_000 } else { 20_000 });
    for work in &works {
        progress(&format!("pins: {}", work.name));
        table(work);
    }
    println!("KiB of a table of all pages, and of a cache of C 16K, L 64, A 4");
    let mut memory = Table::of("copies|table|cache|saved");
    for work in &works {
        let replayed = replay(work, BEST);
        let (table, cache) = replayed.memory();
        if work.name == AGAIN {
            let again = 1000.0 * replayed.other as f64 / replayed.lookups.max(1) as f64;
            figure("pins.again.128M", again);
        }
        let saved = 1.0 - cache / table;
        figure(&format!("pins.memory.{}", work.name.replace(' ', "_")), saved);
        memory.row([
            work.name.clone(),
            format!("{table:.0}"),
            format!("{cache:.0}"),
            format!("{:.0} %", saved * 100.0),
        ]);
    }
    memory.print();
    let [aligned, offset] = [0, 2048].map(|offset| transfers(0, offset, 4 << 20) as f64);
    println!("transfers of a copy of 4 MiB: aligned {aligned}, offsets differ by 2 KiB {offset}\n");
    figure("pins.ranges.4M", (2 * (4 << 20) / (u64::from(BEST.line) * PAGE)) as f64);
    figure("pins.transfers.aligned", aligned);
    figure("pins.transfers.offset_2K", offset);
}

fn table(work: &Work) {
    let copies: usize = work.processes.iter().map(Vec::len).sum();
    println!("{} ({copies} copies, {} processes)", work.name, work.processes.len());
    let mut head = vec!["L".to_string()];
    for entries in ENTRIES {
        head.extend(WAYS.map(|ways| format!("{}K A{ways}", entries >> 10)));
    }
    let mut table = Table::new(head);
    for line in LINES {
        let mut row = vec![line.to_string()];
        for entries in ENTRIES {
            for ways in WAYS {
                let cache = replay(work, Shape { entries, line, ways });
                let per_mille = |count: u64| 1000.0 * count as f64 / cache.lookups.max(1) as f64;
                let (all, other) = (per_mille(cache.cold + cache.other), per_mille(cache.other));
                let key = format!("pins.{}.{}K.{line}.{ways}", work.name, entries >> 10);
                figure(&key.replace(' ', "_"), all);
                row.push(format!("{all:.1}/{other:.1}"));
            }
        }
        table.row(row);
    }
    table.print();
}

/// The processes take turns, a copy each. A copy looks up its pages from the front, the
/// source's and the destination's.
fn replay(work: &Work, shape: Shape) -> Cache {
    let mut cache = Cache::new(shape);
    let longest = work.processes.iter().map(Vec::len).max().unwrap_or(0);
    for turn in 0..longest {
        for (space, copies) in (1..).zip(&work.processes) {
            let Some(&(dst, src, len)) = copies.get(turn) else { continue };
            let pages = |at: u64| at / PAGE..=(at + len.max(1) - 1) / PAGE;
            let (mut from, mut to) = (pages(src), pages(dst));
            loop {
                let (from, to) = (from.next(), to.next());
                from.into_iter().chain(to).for_each(|page| cache.page(space, page));
                if from.is_none() && to.is_none() {
                    break;
                }
            }
        }
    }
    cache
}

const GIB: u64 = 1 << 30;

/// Numbers that look random, below what is asked for.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 20) % limit
    }
}

/// 64 GiB in all: four processes with 16 GiB each, half of it read, half written. `place`
/// tells where the n-th copy lies within a number of bytes.
fn four_processes(name: &str, copies: u64, place: fn(u64, u64, &mut Random) -> u64) -> Work {
    let random = &mut Random(1);
    let mut process = |number: u64| {
        let base = 0x7000_0000_0000 + number * 32 * GIB;
        let copy = |number| {
            let len = 64 << 10 << random.below(5);
            let at = place(number, 8 * GIB - len, random) / 64 * 64;
            (base + at, base + 16 * GIB + at, len)
        };
        (0..copies / 4).map(copy).collect()
    };
    Work { name: name.into(), processes: (0..4).map(&mut process).collect() }
}

fn made_up(copies: u64) -> [Work; 4] {
    [
        four_processes("64 GiB anywhere", copies, |_, below, random| random.below(below)),
        four_processes("64 GiB nine in ten in 16 MiB", copies, |_, below, random| {
            let near = random.below(10) > 0;
            random.below(if near { 16 << 20 } else { below })
        }),
        four_processes("64 GiB front to back", copies, |number, below, _| {
            number * (1 << 20) % below
        }),
        four_processes(AGAIN, copies, |number, _, _| number * (1 << 20) % (128 << 20)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_cold_once_and_other_after_that() {
        let mut cache = Cache::new(Shape { entries: 128, line: 64, ways: 2 });
        (0..64).for_each(|page| cache.page(1, page));
        assert_eq!((cache.lookups, cache.cold, cache.other), (64, 1, 0));
        [64, 128, 0].into_iter().for_each(|page| cache.page(1, page));
        assert_eq!((cache.cold, cache.other), (3, 1), "the first one has made room for the third");
        assert_eq!(cache.memory(), (1.5, 1.015625));
    }

    #[test]
    fn offsets_that_differ_by_half_a_page_double_the_transfers() {
        assert_eq!(transfers(0, 0, 4 << 20), 1024);
        assert_eq!(transfers(0, 2048, 4 << 20), 2048);
        assert_eq!(transfers(100, 100, 4096), 2);
    }
}
