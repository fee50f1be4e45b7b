//! Which memory of the program's the card may reach: registered regions, found by lines.
//!
//! ```text
//! address -> line (2 MiB) -> set of 4 -> region: start, end, state
//! empty -> filling -> live -> stale -> empty
//! ```
//!
//! The table is that of the papers' translation caches: set-associative, a small request fills
//! a whole line, the region used least recently goes first. The hook only reads it, the service
//! thread fills and empties it, and anybody who learns that memory goes away marks the regions
//! stale: from then on no copy begins with them.
//!
//! Addresses are numbers here and are never dereferenced.
#![forbid(unsafe_code)]

use crate::plan::PAGE;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};

pub const LINE: usize = 2 << 20;
const PAGES: usize = LINE / PAGE;
const SETS: usize = 1024;
const WAYS: usize = 4;
pub const MOST: usize = 512;

mod state {
    pub const EMPTY: u32 = 0;
    pub const FILLING: u32 = 1;
    pub const LIVE: u32 = 2;
    pub const STALE: u32 = 3;
}

pub struct Region {
    start: AtomicUsize,
    end: AtomicUsize,
    state: AtomicU32,
    /// When it was last asked for, in ticks.
    used: AtomicU64,
}

impl Region {
    const fn new() -> Self {
        Self {
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            state: AtomicU32::new(state::EMPTY),
            used: AtomicU64::new(0),
        }
    }

    pub fn start(&self) -> usize {
        self.start.load(Relaxed)
    }

    pub fn end(&self) -> usize {
        self.end.load(Relaxed)
    }

    pub fn used(&self) -> u64 {
        self.used.load(Relaxed)
    }

    pub fn is_live(&self) -> bool {
        self.state.load(Acquire) == state::LIVE
    }

    pub fn is_stale(&self) -> bool {
        self.state.load(Acquire) == state::STALE
    }

    pub fn is_empty(&self) -> bool {
        self.state.load(Acquire) == state::EMPTY
    }
}

/// The part of a line that belongs to a region, in one word: line 36 bits | region + 1, 10 bits
/// | first page 9 bits | last page 9 bits. 0: nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line(u64);

impl Line {
    fn new(number: usize, region: usize, first: usize, last: usize) -> Self {
        Self((number as u64) << 28 | (region as u64 + 1) << 18 | (first as u64) << 9 | last as u64)
    }

    fn region(self) -> Option<usize> {
        ((self.0 >> 18 & 0x3ff) as usize).checked_sub(1)
    }

    fn holds(self, number: usize, page: usize) -> bool {
        let (first, last) = ((self.0 >> 9 & 0x1ff) as usize, (self.0 & 0x1ff) as usize);
        self.0 >> 28 == number as u64 && self.0 != 0 && (first..=last).contains(&page)
    }
}

pub struct Regions {
    lines: [[AtomicU64; WAYS]; SETS],
    regions: [Region; MOST],
}

impl Regions {
    pub const fn new() -> Self {
        Self {
            lines: [const { [const { AtomicU64::new(0) }; WAYS] }; SETS],
            regions: [const { Region::new() }; MOST],
        }
    }

    pub fn get(&self, index: usize) -> &Region {
        &self.regions[index]
    }

    pub fn all(&self) -> impl Iterator<Item = (usize, &Region)> {
        self.regions.iter().enumerate()
    }

    fn set(&self, number: usize) -> &[AtomicU64; WAYS] {
        &self.lines[(number ^ (number / SETS)) % SETS]
    }

    /// The live region that an address lies in.
    pub fn find(&self, address: usize) -> Option<usize> {
        let (number, page) = (address / LINE, address / PAGE % PAGES);
        let line = self.set(number).iter().map(|way| Line(way.load(Acquire)));
        let index = line.filter(|line| line.holds(number, page)).find_map(Line::region)?;
        let region = self.regions.get(index)?;
        // The line may be that of a region which has just gone, and its place another's.
        (region.is_live() && (region.start()..region.end()).contains(&address)).then_some(index)
    }

    /// Whether all of a range lies in live regions; else the first address that does not.
    pub fn covers(&self, start: usize, len: usize, now: u64) -> Result<(), usize> {
        let (mut at, end) = (start, start.saturating_add(len));
        while at < end {
            let region = &self.regions[self.find(at).ok_or(at)?];
            region.used.store(now, Relaxed);
            at = region.end();
        }
        Ok(())
    }

    /// Memory goes away, or what may be done with it changes. By any thread; true when there
    /// were regions in it.
    pub fn mark_stale(&self, start: usize, end: usize) -> bool {
        let mut marked = false;
        for region in &self.regions {
            let now = region.state.load(Acquire);
            if matches!(now, state::LIVE | state::FILLING)
                && region.start() < end
                && start < region.end()
            {
                // Else the service thread was quicker, and has let it go or begun with it anew:
                // look again.
                if region.state.compare_exchange(now, state::STALE, AcqRel, Relaxed).is_err() {
                    return self.mark_stale(start, end);
                }
                marked = true;
            }
        }
        marked
    }

    /// Whether a region of ours, in whatever state, lies in a range.
    pub fn touches(&self, start: usize, end: usize) -> bool {
        self.regions
            .iter()
            .any(|region| !region.is_empty() && region.start() < end && start < region.end())
    }

    /// The lowest address from `at` on, and below `end`, at which a region begins.
    pub fn next_start(&self, at: usize, end: usize) -> usize {
        let starts = self.regions.iter().filter(|region| !region.is_empty()).map(Region::start);
        starts.filter(|start| (at..end).contains(start)).min().unwrap_or(end)
    }

    /// A new region, not to be used yet. For the service thread, as all below.
    pub fn begin(&self, start: usize, end: usize, now: u64) -> Option<usize> {
        let index = self.regions.iter().position(Region::is_empty)?;
        let region = &self.regions[index];
        region.start.store(start, Relaxed);
        region.end.store(end, Relaxed);
        region.used.store(now, Relaxed);
        region.state.store(state::FILLING, Release);
        Some(index)
    }

    /// Puts the lines of a region into the table. `Err`: a set is full of these regions.
    pub fn fill(&self, index: usize) -> Result<(), [usize; WAYS]> {
        let (start, end) = (self.regions[index].start(), self.regions[index].end());
        for number in start / LINE..=(end - 1) / LINE {
            let first = start.saturating_sub(number * LINE) / PAGE;
            let last = (end - 1 - number * LINE).min(LINE - 1) / PAGE;
            let (line, set) = (Line::new(number, index, first, last), self.set(number));
            if set.iter().any(|way| way.load(Relaxed) == line.0) {
                continue; // an earlier attempt got so far
            }
            match set.iter().find(|way| way.load(Relaxed) == 0) {
                Some(way) => way.store(line.0, Release),
                None => {
                    let region = |way: &AtomicU64| Line(way.load(Relaxed)).region().unwrap_or(0);
                    return Err(set.each_ref().map(region));
                }
            }
        }
        Ok(())
    }

    /// From now on copies may use it; false: it went stale while it was filled.
    pub fn publish(&self, index: usize) -> bool {
        let state = &self.regions[index].state;
        state.compare_exchange(state::FILLING, state::LIVE, AcqRel, Relaxed).is_ok()
    }

    /// No copy begins with it any more.
    pub fn retire(&self, index: usize) {
        self.regions[index].state.store(state::STALE, Release);
    }

    /// Takes it out of the table.
    pub fn remove(&self, index: usize) {
        let region = &self.regions[index];
        for number in region.start() / LINE..=(region.end() - 1) / LINE {
            for way in self.set(number) {
                if Line(way.load(Relaxed)).region() == Some(index) {
                    way.store(0, Release);
                }
            }
        }
        region.state.store(state::EMPTY, Release);
    }

    /// In the child of a fork: nothing is registered.
    pub fn forget_everything(&self) {
        self.regions.iter().for_each(|region| region.state.store(state::EMPTY, Relaxed));
        self.lines.iter().flatten().for_each(|way| way.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn with(ranges: &[(usize, usize)]) -> Box<Regions> {
        let regions = Box::new(Regions::new());
        for &(start, end) in ranges {
            let index = regions.begin(start, end, 1).unwrap();
            regions.fill(index).unwrap();
            assert!(regions.publish(index));
        }
        regions
    }

    #[test]
    fn range_is_covered_by_neighbours_that_share_a_line_and_not_across_a_gap() {
        let base = 0x7f12_3450_0000;
        let middle = base + 5 * MIB + 3 * PAGE;
        let regions = with(&[(base, middle), (middle, middle + MIB)]);
        assert_eq!(regions.covers(base, 6 * MIB + 3 * PAGE, 2), Ok(()));
        assert_eq!(regions.covers(base + 7, 5 * MIB, 2), Ok(()));
        assert_eq!(regions.covers(base, 6 * MIB + 3 * PAGE + 1, 2), Err(middle + MIB));
        assert_eq!(regions.covers(base - 1, 2, 2), Err(base - 1));
        assert!(regions.find(base + 3 * MIB) == Some(0) && regions.find(middle) == Some(1));
        assert_eq!((regions.get(0).used(), regions.get(1).used()), (2, 2));
    }

    #[test]
    fn stale_region_covers_nothing_and_only_what_it_touches_goes_stale() {
        let regions = with(&[(4 * MIB, 8 * MIB), (8 * MIB, 9 * MIB), (64 * MIB, 65 * MIB)]);
        assert!(!regions.mark_stale(9 * MIB, 64 * MIB), "nothing lies between them");
        assert!(regions.mark_stale(8 * MIB - 1, 8 * MIB));
        assert_eq!(regions.covers(4 * MIB, 1, 2), Err(4 * MIB));
        assert_eq!(regions.covers(8 * MIB, MIB, 2), Ok(()));
        regions.remove(0);
        assert!(regions.get(0).is_empty() && regions.find(5 * MIB).is_none());
        assert!(!regions.touches(4 * MIB, 8 * MIB) && regions.touches(0, 9 * MIB));
        assert_eq!(regions.next_start(0, 100 * MIB), 8 * MIB);
    }

    #[test]
    fn region_that_goes_stale_while_it_is_filled_is_never_live() {
        let regions = Regions::new();
        let index = regions.begin(LINE, 2 * LINE, 1).unwrap();
        assert!(regions.mark_stale(LINE, LINE + PAGE));
        assert!(!regions.publish(index));
        assert!(regions.find(LINE).is_none());
    }

    #[test]
    fn full_set_names_who_is_in_it_and_has_room_when_one_has_gone() {
        // The same set: numbers that differ by what the hash folds together.
        let alike = |i: usize| (i * SETS + i) * LINE;
        let regions = with(&[0, 1, 2, 3].map(|i| (alike(i + 1), alike(i + 1) + LINE)));
        let index = regions.begin(alike(9), alike(9) + LINE, 1).unwrap();
        let mut there = regions.fill(index).unwrap_err();
        there.sort_unstable();
        assert_eq!(there, [0, 1, 2, 3]);
        regions.remove(2);
        assert_eq!(regions.fill(index), Ok(()));
        assert!(regions.publish(index) && regions.find(alike(9)) == Some(index));
    }
}
