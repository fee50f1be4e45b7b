//! Which memory of the program's the card may reach: registered registrations, found by lines.
//!
//! ```text
//! address -> line (2 MiB) -> set of 4 -> registration: start, end, state
//! empty -> filling -> live -> stale -> empty
//! ```
//!
//! The table is that of the papers' translation caches: set-associative, a small request fills
//! a whole line, what was used least recently goes first. The hook only reads it, the service
//! thread fills and empties it, and a thread that learns that memory goes away marks registrations
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

pub struct Registration {
    start: AtomicUsize,
    end: AtomicUsize,
    state: AtomicU32,
    /// When it was last asked for, in ticks.
    used: AtomicU64,
}

impl Registration {
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

/// The part of a line that belongs to a registration, in one word: line 36 bits | number of the
/// registration + 1, 10 bits | first page 9 bits | last page 9 bits. 0: nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Line(u64);

impl Line {
    fn new(number: usize, registration: usize, first: usize, last: usize) -> Self {
        Self(
            (number as u64) << 28
                | (registration as u64 + 1) << 18
                | (first as u64) << 9
                | last as u64,
        )
    }

    fn registration(self) -> Option<usize> {
        ((self.0 >> 18 & 0x3ff) as usize).checked_sub(1)
    }

    fn holds(self, number: usize, page: usize) -> bool {
        let (first, last) = ((self.0 >> 9 & 0x1ff) as usize, (self.0 & 0x1ff) as usize);
        self.0 >> 28 == number as u64 && self.0 != 0 && (first..=last).contains(&page)
    }
}

pub struct Registrations {
    lines: [[AtomicU64; WAYS]; SETS],
    registrations: [Registration; MOST],
}

impl Registrations {
    pub fn get(&self, index: usize) -> &Registration {
        &self.registrations[index]
    }

    pub fn all(&self) -> impl Iterator<Item = (usize, &Registration)> {
        self.registrations.iter().enumerate()
    }

    fn set(&self, number: usize) -> &[AtomicU64; WAYS] {
        &self.lines[(number ^ (number / SETS)) % SETS]
    }

    /// The live registration that an address lies in.
    pub fn find(&self, address: usize) -> Option<usize> {
        let (number, page) = (address / LINE, address / PAGE % PAGES);
        let line = self.set(number).iter().map(|way| Line(way.load(Acquire)));
        let index = line.filter(|line| line.holds(number, page)).find_map(Line::registration)?;
        let registration = self.registrations.get(index)?;
        // The line may be that of a registration which has just gone, and its place another's.
        (registration.is_live() && (registration.start()..registration.end()).contains(&address))
            .then_some(index)
    }

    /// Whether all of a range lies in live registrations; else the first address that does not.
    pub fn covers(&self, start: usize, len: usize, now: u64) -> Result<(), usize> {
        let (mut at, end) = (start, start.saturating_add(len));
        while at < end {
            let registration = &self.registrations[self.find(at).ok_or(at)?];
            registration.used.store(now, Relaxed);
            at = registration.end();
        }
        Ok(())
    }

    /// Memory goes away, or what may be done with it changes. By any thread; true when there
    /// were registrations in it.
    pub fn mark_stale(&self, start: usize, end: usize) -> bool {
        let mut marked = false;
        for registration in &self.registrations {
            let now = registration.state.load(Acquire);
            if matches!(now, state::LIVE | state::FILLING)
                && registration.start() < end
                && start < registration.end()
            {
                // Else the service thread was quicker, and has let it go or begun with it anew:
                // look again.
                if registration.state.compare_exchange(now, state::STALE, AcqRel, Relaxed).is_err()
                {
                    return self.mark_stale(start, end);
                }
                marked = true;
            }
        }
        marked
    }

    /// Whether a registration of ours, in whatever state, lies in a range.
    pub fn touches(&self, start: usize, end: usize) -> bool {
        self.registrations.iter().any(|registration| {
            !registration.is_empty() && registration.start() < end && start < registration.end()
        })
    }

    /// The lowest address from `at` on, and below `end`, at which a registration begins.
    pub fn next_start(&self, at: usize, end: usize) -> usize {
        let starts = self
            .registrations
            .iter()
            .filter(|registration| !registration.is_empty())
            .map(Registration::start);
        starts.filter(|start| (at..end).contains(start)).min().unwrap_or(end)
    }

    /// A new registration, not to be used yet. For the service thread, as all below.
    pub fn begin(&self, start: usize, end: usize, now: u64) -> Option<usize> {
        let index = self.registrations.iter().position(Registration::is_empty)?;
        let registration = &self.registrations[index];
        registration.start.store(start, Relaxed);
        registration.end.store(end, Relaxed);
        registration.used.store(now, Relaxed);
        registration.state.store(state::FILLING, Release);
        Some(index)
    }

    /// Puts the lines of a registration into the table. `Err`: a set is full of these.
    pub fn fill(&self, index: usize) -> Result<(), [usize; WAYS]> {
        let (start, end) = (self.registrations[index].start(), self.registrations[index].end());
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
                    let registration =
                        |way: &AtomicU64| Line(way.load(Relaxed)).registration().unwrap_or(0);
                    return Err(set.each_ref().map(registration));
                }
            }
        }
        Ok(())
    }

    /// From now on copies may use it; false: it went stale while it was filled.
    pub fn publish(&self, index: usize) -> bool {
        let state = &self.registrations[index].state;
        state.compare_exchange(state::FILLING, state::LIVE, AcqRel, Relaxed).is_ok()
    }

    /// No copy begins with it any more.
    pub fn retire(&self, index: usize) {
        self.registrations[index].state.store(state::STALE, Release);
    }

    /// Takes it out of the table.
    pub fn remove(&self, index: usize) {
        let registration = &self.registrations[index];
        for number in registration.start() / LINE..=(registration.end() - 1) / LINE {
            for way in self.set(number) {
                if Line(way.load(Relaxed)).registration() == Some(index) {
                    way.store(0, Release);
                }
            }
        }
        registration.state.store(state::EMPTY, Release);
    }

    /// In the child of a fork: nothing is registered.
    pub fn forget_everything(&self) {
        self.registrations
            .iter()
            .for_each(|registration| registration.state.store(state::EMPTY, Relaxed));
        self.lines.iter().flatten().for_each(|way| way.store(0, Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::mapped::zeroed;

    const MIB: usize = 1 << 20;

    fn with(ranges: &[(usize, usize)]) -> Box<Registrations> {
        let registrations = Box::new(zeroed::<Registrations>());
        for &(start, end) in ranges {
            let index = registrations.begin(start, end, 1).unwrap();
            registrations.fill(index).unwrap();
            assert!(registrations.publish(index));
        }
        registrations
    }

    #[test]
    fn range_is_covered_by_neighbours_that_share_a_line_and_not_across_a_gap() {
        let base = 0x7f12_3450_0000;
        let middle = base + 5 * MIB + 3 * PAGE;
        let registrations = with(&[(base, middle), (middle, middle + MIB)]);
        assert_eq!(registrations.covers(base, 6 * MIB + 3 * PAGE, 2), Ok(()));
        assert_eq!(registrations.covers(base + 7, 5 * MIB, 2), Ok(()));
        assert_eq!(registrations.covers(base, 6 * MIB + 3 * PAGE + 1, 2), Err(middle + MIB));
        assert_eq!(registrations.covers(base - 1, 2, 2), Err(base - 1));
        assert!(
            registrations.find(base + 3 * MIB) == Some(0) && registrations.find(middle) == Some(1)
        );
        assert_eq!((registrations.get(0).used(), registrations.get(1).used()), (2, 2));
    }

    #[test]
    fn stale_registration_covers_nothing_and_only_what_it_touches_goes_stale() {
        let registrations = with(&[(4 * MIB, 8 * MIB), (8 * MIB, 9 * MIB), (64 * MIB, 65 * MIB)]);
        assert!(!registrations.mark_stale(9 * MIB, 64 * MIB), "nothing lies between them");
        assert!(registrations.mark_stale(8 * MIB - 1, 8 * MIB));
        assert_eq!(registrations.covers(4 * MIB, 1, 2), Err(4 * MIB));
        assert_eq!(registrations.covers(8 * MIB, MIB, 2), Ok(()));
        registrations.remove(0);
        assert!(registrations.get(0).is_empty() && registrations.find(5 * MIB).is_none());
        assert!(!registrations.touches(4 * MIB, 8 * MIB) && registrations.touches(0, 9 * MIB));
        assert_eq!(registrations.next_start(0, 100 * MIB), 8 * MIB);
    }

    #[test]
    fn registration_that_goes_stale_while_it_is_filled_is_never_live() {
        let registrations = with(&[]);
        let index = registrations.begin(LINE, 2 * LINE, 1).unwrap();
        assert!(registrations.mark_stale(LINE, LINE + PAGE));
        assert!(!registrations.publish(index));
        assert!(registrations.find(LINE).is_none());
    }

    #[test]
    fn full_set_names_who_is_in_it_and_has_room_when_one_has_gone() {
        // One set: numbers that differ by what the hash folds together.
        let alike = |i: usize| (i * SETS + i) * LINE;
        let registrations = with(&[0, 1, 2, 3].map(|i| (alike(i + 1), alike(i + 1) + LINE)));
        let index = registrations.begin(alike(9), alike(9) + LINE, 1).unwrap();
        let mut there = registrations.fill(index).unwrap_err();
        there.sort_unstable();
        assert_eq!(there, [0, 1, 2, 3]);
        registrations.remove(2);
        assert_eq!(registrations.fill(index), Ok(()));
        assert!(registrations.publish(index) && registrations.find(alike(9)) == Some(index));
    }
}
