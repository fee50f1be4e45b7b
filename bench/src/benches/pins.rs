//! Simulation of the papers' translation cache: misses of real and of synthetic copies, memory of its
//! tables, and transfers of unaligned copies.

use super::traces::{self, Copy, Side};
use crate::options::Options;
use crate::out::{Table, figure, progress};
use std::collections::HashSet;
use std::process::Command;

const PAGE: u64 = 4096;
const GIB: u64 = 1 << 30;
/// The paper's best cache: entries, ways, and pages of a line.
const ENTRIES: u64 = 16 << 10;
const WAYS: u64 = 4;
const LINE: u64 = 64;
/// The paper's sweep.
const SWEEP: ([u64; 3], [u64; 4], [u64; 3]) =
    ([8 << 10, 16 << 10, 32 << 10], [8, 16, 64, 128], [2, 4, 8]);

/// A set-associative cache of lines, LRU inside a set, the most recent last.
struct Cache {
    sets: Vec<Vec<(u64, u64)>>,
    ways: usize,
    line: u64,
    /// Lines that were used: their first use misses in any cache.
    seen: HashSet<(u64, u64)>,
    lookups: u64,
    misses: u64,
}

impl Cache {
    fn new(entries: u64, ways: u64, line: u64) -> Self {
        let sets = vec![Vec::new(); (entries / line / ways) as usize];
        Cache { sets, ways: ways as usize, line, seen: HashSet::new(), lookups: 0, misses: 0 }
    }

    /// Looks up one page of one process. A miss fills the whole line.
    fn page(&mut self, process: u64, page: u64) {
        let line = page / self.line;
        // Neighbouring lines use neighbouring sets; equal addresses of two processes do not meet.
        let set = (line as u32).wrapping_add((process as u32).wrapping_mul(0x9e37_79b1)) as usize;
        let count = self.sets.len();
        let set = &mut self.sets[set % count];
        self.lookups += 1;
        match set.iter().position(|&key| key == (process, line)) {
            Some(at) => drop(set.remove(at)),
            None => {
                if set.len() == self.ways {
                    set.remove(0);
                }
                self.seen.insert((process, line));
                self.misses += 1;
            }
        }
        set.push((process, line));
    }

    /// Looks up the pages of a copy from the front, one of the source and one of the destination in turn.
    fn copy(&mut self, copy: &Copy) {
        let pages = |side: Side| side.at / PAGE..=(side.at + copy.len - 1) / PAGE;
        let (mut src, mut dst) = (pages(copy.src), pages(copy.dst));
        loop {
            let both = (src.next(), dst.next());
            both.0.into_iter().for_each(|page| self.page(copy.src.process, page));
            both.1.into_iter().for_each(|page| self.page(copy.dst.process, page));
            if both == (None, None) {
                return;
            }
        }
    }

    /// Returns misses per thousand pages: all, and those that are not the first use of a line.
    fn per_mille(&self) -> [f64; 2] {
        let again = self.misses - self.seen.len() as u64;
        [self.misses, again].map(|count| 1000.0 * count as f64 / self.lookups.max(1) as f64)
    }
}

/// Returns the DMA transfers of one copy: none crosses a page on either side.
fn transfers(dst: u64, src: u64, len: u64) -> u64 {
    let (mut at, mut count) = (0, 0);
    while at < len {
        at += (PAGE - (dst + at) % PAGE).min(PAGE - (src + at) % PAGE).min(len - at);
        count += 1;
    }
    count
}

pub fn run(options: &Options) {
    println!(
        "misses per 1000 pages looked up, and those of them that are not a line's first use, of a\n\
         cache of 16K entries in 4 ways; KiB of that cache, and of a table of all pages\n"
    );
    let count = if options.quick { 2_000 } else { 20_000 };
    let mut table = Table::of("copies|pages in a line|misses|again|cache|table|saved");
    let near_and_far: Place = |_, below, random| {
        let near = random.below(10) > 0;
        random.below(if near { 16 << 20 } else { below })
    };
    let in_turns: Place = |number, _, _| number * (1 << 20) % (128 << 20);
    for (name, place) in
        [("64 GiB nine in ten in 16 MiB", near_and_far), ("64 GiB 128 MiB again", in_turns)]
    {
        progress(&format!("pins: {name}"));
        let (key, processes) = (name.replace(' ', "_"), four_processes(count, place));
        for line in [8, LINE] {
            let replayed = replay(&processes, Cache::new(ENTRIES, WAYS, line));
            let [misses, again] = replayed.per_mille();
            // Eight bytes for each page, and in the cache a tag of eight for each line.
            let cache = (ENTRIES + ENTRIES / line) as f64 * 8.0 / 1024.0;
            let all = (replayed.seen.len() as u64 * line) as f64 * 8.0 / 1024.0;
            let saved = 1.0 - cache / all;
            figure(&format!("pins.{key}.16K.{line}.{WAYS}"), misses);
            if line == LINE {
                figure(&format!("pins.memory.{key}"), saved);
                if name.ends_with("again") {
                    figure("pins.again.128M", again);
                }
            }
            let mut row = vec![name.to_string(), line.to_string()];
            row.extend([misses, again].map(|count| format!("{count:.1}")));
            row.extend([cache, all].map(|kib| format!("{kib:.0}")));
            row.push(format!("{:.0} %", saved * 100.0));
            table.row(row);
        }
    }
    table.print();
    for (name, copies) in traces::all(options) {
        sweep(name, &copies);
    }
    let [aligned, offset] = [0, 2048].map(|offset| transfers(0, offset, 4 << 20) as f64);
    println!("transfers of a copy of 4 MiB: aligned {aligned}, offsets differ by 2 KiB {offset}\n");
    // A guest takes a minute.
    if !options.quick
        && let Some(part) = overlapped()
    {
        println!(
            "pages of a first copy of 16 MiB pinned while it was in flight: {:.0} %\n",
            100.0 * part
        );
        figure("pins.overlapped.16M", part);
    }
    figure("pins.transfers.aligned", aligned);
    figure("pins.transfers.offset_2K", offset);
}

/// Prints the misses of real copies by the shape of the cache.
fn sweep(name: &str, copies: &[Copy]) {
    let bytes: u64 = copies.iter().map(|copy| copy.len).sum();
    println!(
        "\n{name}: {} copies, {} MiB; misses per 1000 pages, and again",
        copies.len(),
        bytes >> 20
    );
    let mut table = Table::of("entries|pages in a line|2 ways|again|4 ways|again|8 ways|again");
    let (entries, lines, ways) = SWEEP;
    for (entries, line) in entries.into_iter().flat_map(|n| lines.map(|line| (n, line))) {
        let mut row = vec![format!("{}K", entries >> 10), line.to_string()];
        for ways in ways {
            let mut cache = Cache::new(entries, ways, line);
            copies.iter().for_each(|copy| cache.copy(copy));
            let [misses, again] = cache.per_mille();
            figure(&format!("pins.{name}.{}K.{line}.{ways}", entries >> 10), misses);
            row.extend([misses, again].map(|count| format!("{count:.1}")));
        }
        table.row(row);
    }
    table.print();
}

/// Returns the part of a first copy's pages that the kernel helper pins while the copy is in flight, as
/// it counts them in a guest with an emulated engine; `None` where there can be no guest.
fn overlapped() -> Option<f64> {
    progress("pins: the kernel helper in a guest");
    let run = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vm/run");
    let output = Command::new(run).args(["--no-install", "--verbose", "overlap"]).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout);
    let found = said.lines().find_map(|line| counted(line.trim()));
    if found.is_none() {
        println!(
            "no guest with the kernel helper: tests/vm/run overlap ends with {}\n",
            output.status
        );
    }
    found
}

/// Parses `overlapped 8000 of 8192 pages`.
fn counted(line: &str) -> Option<f64> {
    let (part, all) =
        line.strip_prefix("overlapped ")?.strip_suffix(" pages")?.split_once(" of ")?;
    Some(part.parse::<f64>().ok()? / all.parse::<f64>().ok()?)
}

/// The processes take turns, a copy each.
fn replay(processes: &[Vec<Copy>], mut cache: Cache) -> Cache {
    for turn in 0..processes[0].len() {
        processes.iter().for_each(|copies| cache.copy(&copies[turn]));
    }
    cache
}

/// Pseudo-random numbers below a bound.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 20) % limit
    }
}

/// Distance from a destination to its source.
const TO_SOURCE: u64 = 16 * GIB;

/// Returns the place of the n-th copy within a number of bytes.
type Place = fn(u64, u64, &mut Random) -> u64;

/// Makes 64 GiB in all: four processes with 16 GiB each, half of it read, half written.
fn four_processes(copies: u64, place: Place) -> [Vec<Copy>; 4] {
    let random = &mut Random(1);
    [1, 2, 3, 4].map(|process| {
        let base = 0x7000_0000_0000 + (process - 1) * 32 * GIB;
        let copy = |number| {
            let len = 64 << 10 << random.below(5);
            // The source begins at a multiple of pages from there.
            let dst = base + place(number, 8 * GIB - len, random) / 64 * 64;
            let [dst, src] = [dst, dst + TO_SOURCE].map(|at| Side { process, at });
            Copy { dst, src, len }
        };
        (0..copies / 4).map(copy).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overlap_is_read_from_the_guests_line() {
        assert_eq!(counted("overlapped 6144 of 8192 pages"), Some(0.75));
        assert_eq!(counted("6144 of 8192 pages"), None);
    }

    #[test]
    fn misses_are_first_uses_once_and_others_after_that() {
        let mut cache = Cache::new(128, 2, 64);
        (0..64).for_each(|page| cache.page(1, page));
        assert_eq!((cache.lookups, cache.misses, cache.seen.len()), (64, 1, 1));
        [64, 128, 0].into_iter().for_each(|page| cache.page(1, page));
        assert_eq!((cache.misses, cache.seen.len()), (4, 3), "the third has evicted the first");
    }

    #[test]
    fn offsets_that_differ_by_half_a_page_double_the_transfers() {
        assert_eq!(transfers(0, 0, 4 << 20), 1024);
        assert_eq!(transfers(0, 2048, 4 << 20), 2048);
        assert_eq!(transfers(100, 100, 4096), 2);
    }
}
