//! Memory of the program that the card may reach: registrations with a start, an end and a state.
//!
//! ```text
//! empty -> filling -> live -> stale -> empty
//! ```
//!
//! As in a translation cache, a small request registers a whole line of 2 MiB, and eviction is LRU. The
//! hook only reads the table, the service thread fills and empties it, and a thread that learns that
//! memory goes away marks registrations stale: from then on no copy begins with them. Searches are
//! linear, because most programs have a few registrations.
//!
//! Addresses are numbers here and are never dereferenced.
#![forbid(unsafe_code)]

use crate::backend::engine::Hold;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use zerocopy::FromZeros;

/// Bytes that a small request registers.
pub const LINE: usize = 2 << 20;
pub const MOST: usize = 512;

mod state {
    pub const EMPTY: u32 = 0;
    pub const FILLING: u32 = 1;
    pub const LIVE: u32 = 2;
    pub const STALE: u32 = 3;
}

#[derive(FromZeros)]
pub struct Registration {
    start: AtomicUsize,
    end: AtomicUsize,
    state: AtomicU32,
    /// Time of its last use, in ticks.
    used: AtomicU64,
    /// Calls of the program that use it now: see `Hold`.
    holders: AtomicU32,
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

    pub fn is_held(&self) -> bool {
        self.holders.load(SeqCst) > 0
    }

    fn overlaps(&self, start: usize, end: usize) -> bool {
        !self.is_empty() && self.start() < end && start < self.end()
    }
}

#[derive(FromZeros)]
pub struct Registrations {
    /// Places that were ever used: all behind them are empty.
    places: AtomicUsize,
    registrations: [Registration; MOST],
}

impl Registrations {
    pub fn get(&self, index: usize) -> &Registration {
        &self.registrations[index]
    }

    pub fn all(&self) -> impl Iterator<Item = (usize, &Registration)> {
        self.registrations[..self.places.load(Acquire)].iter().enumerate()
    }

    fn used(&self) -> impl Iterator<Item = &Registration> {
        self.all().map(|(_, registration)| registration)
    }

    /// Returns whether there is no place for another one.
    pub fn is_full(&self) -> bool {
        !self.registrations.iter().any(Registration::is_empty)
    }

    /// Returns the live registration that an address lies in.
    pub fn find(&self, address: usize) -> Option<usize> {
        let holds = |registration: &Registration| {
            registration.is_live() && (registration.start()..registration.end()).contains(&address)
        };
        self.all().find(|(_, registration)| holds(registration)).map(|(index, _)| index)
    }

    /// Returns the first address of a range that lies in no live registration, as an error.
    pub fn covers(&self, start: usize, len: usize, now: u64) -> Result<(), usize> {
        let (mut at, end) = (start, start.saturating_add(len));
        while at < end {
            let registration = &self.registrations[self.find(at).ok_or(at)?];
            registration.used.store(now, Relaxed);
            at = registration.end();
        }
        Ok(())
    }

    /// Marks registrations of memory that goes away, or whose rights change. Called by any thread;
    /// true if there were any.
    pub fn mark_stale(&self, start: usize, end: usize) -> bool {
        let mut marked = false;
        for registration in self.used() {
            let now = registration.state.load(Acquire);
            if matches!(now, state::LIVE | state::FILLING) && registration.overlaps(start, end) {
                // If that fails, the service thread has dropped it or reused it: look again.
                if registration.state.compare_exchange(now, state::STALE, AcqRel, Relaxed).is_err()
                {
                    return self.mark_stale(start, end);
                }
                marked = true;
            }
        }
        marked
    }

    /// Returns whether a registration of ours, in whatever state, lies in a range.
    pub fn touches(&self, start: usize, end: usize) -> bool {
        self.used().any(|registration| registration.overlaps(start, end))
    }

    /// Returns whether one live registration holds a whole range.
    pub fn has_whole(&self, start: usize, end: usize) -> bool {
        self.find(start).is_some_and(|index| self.registrations[index].end() >= end)
    }

    /// Holds the registration of a range. `None`: no live one holds the whole of it.
    pub fn hold(&self, start: usize, end: usize) -> Option<Hold<'_>> {
        let registration = &self.registrations[self.find(start)?];
        let hold = Hold::new(&registration.holders);
        // The service thread retires a registration first, then looks for holders.
        let is_live = registration.state.load(SeqCst) == state::LIVE;
        (is_live && registration.start() <= start && end <= registration.end()).then_some(hold)
    }

    /// Returns the lowest address in `at..end` at which a registration begins, or `end`.
    pub fn next_start(&self, at: usize, end: usize) -> usize {
        let there = self.used().filter(|registration| !registration.is_empty());
        let starts = there.map(Registration::start);
        starts.filter(|start| (at..end).contains(start)).min().unwrap_or(end)
    }

    /// Makes a registration that is not to be used yet. For the service thread, as all below.
    pub fn begin(&self, start: usize, end: usize, now: u64) -> Option<usize> {
        let index = self.registrations.iter().position(Registration::is_empty)?;
        let registration = &self.registrations[index];
        registration.start.store(start, Relaxed);
        registration.end.store(end, Relaxed);
        registration.used.store(now, Relaxed);
        registration.state.store(state::FILLING, Release);
        self.places.fetch_max(index + 1, Release);
        Some(index)
    }

    /// Lets copies use it; false: it went stale while it was filled.
    pub fn publish(&self, index: usize) -> bool {
        let state = &self.registrations[index].state;
        state.compare_exchange(state::FILLING, state::LIVE, AcqRel, Relaxed).is_ok()
    }

    /// Lets no further copy use it.
    pub fn retire(&self, index: usize) {
        self.registrations[index].state.store(state::STALE, SeqCst);
    }

    /// Takes it out of the table.
    pub fn remove(&self, index: usize) {
        self.registrations[index].state.store(state::EMPTY, Release);
    }

    /// Clears the table in the child of a fork.
    pub fn forget_everything(&self) {
        for registration in self.used() {
            registration.state.store(state::EMPTY, Relaxed);
            registration.holders.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::mapped::zeroed;
    use crate::plan::PAGE;

    const MIB: usize = 1 << 20;

    fn with(ranges: &[(usize, usize)]) -> Box<Registrations> {
        let registrations = Box::new(zeroed::<Registrations>());
        for &(start, end) in ranges {
            let index = registrations.begin(start, end, 1).unwrap();
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
    fn registration_of_a_whole_range_is_held_and_one_that_goes_is_not() {
        let registrations = with(&[(4 * MIB, 8 * MIB), (8 * MIB, 9 * MIB)]);
        let is_held = |index: usize| registrations.get(index).is_held();
        let hold = registrations.hold(7 * MIB, 8 * MIB).unwrap();
        assert!(is_held(0) && !is_held(1));
        assert!(registrations.hold(7 * MIB, 9 * MIB).is_none(), "two registrations");
        assert!(registrations.hold(9 * MIB, 10 * MIB).is_none());
        drop(hold);
        assert!(!is_held(0));
        registrations.retire(0);
        assert!(registrations.hold(7 * MIB, 8 * MIB).is_none() && !is_held(0));
    }

    #[test]
    fn registration_that_goes_stale_while_it_is_filled_is_never_live() {
        let registrations = with(&[]);
        let index = registrations.begin(LINE, 2 * LINE, 1).unwrap();
        assert!(registrations.mark_stale(LINE, LINE + PAGE));
        assert!(!registrations.publish(index));
        assert!(registrations.find(LINE).is_none());
    }
}
