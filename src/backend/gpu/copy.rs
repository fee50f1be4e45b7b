//! One copy that its caller waits for, by the caller and the card.

use super::slots::SlotState;
use super::Engine;
use crate::backend::Refused;
use crate::backend::engine::CopyOptions;
use crate::backend::engine::stretch::Stretch;
use crate::os::signal_mask::SignalsHeld;
use crate::os::sync::pause;
use crate::os::sys;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

/// Most bytes of one request: bounds how long signals are held.
pub(super) const STRETCH: usize = 256 << 20;

/// Ticks, about 0.2 ms, that a posted copy may wait for the service thread, beyond the time that it
/// takes itself. A caller that sleeps wakes up this much earlier, because timers are not exact.
const PATIENCE: u64 = 500_000;

/// Shortest sleep, about 10 us: a shorter one costs as much as it saves.
const NAP: u64 = 25_000;

/// A copy that is waited for.
pub(super) struct Waiting {
    pub index: usize,
    pub number: u32,
    pub bytes: usize,
    /// Time of its post, and ticks after which it is taken back if it was not begun.
    pub since: u64,
    pub patience: u64,
    pub naps: bool,
    pub spins: bool,
}

/// How a waiting thread has spent its last moments.
#[derive(Clone, Copy)]
enum Slept {
    NotYet,
    Now,
    /// Slept, and has been awake since this moment.
    Until(u64),
}

impl Engine {
    /// Copies by one request. The caller's own part is the beginning, which the program reads first.
    ///
    /// # Safety
    /// As memcpy.
    pub(super) unsafe fn copy_stretch(&self, whole: Stretch, how: &CopyOptions) -> Result<(), Refused> {
        let Stretch { dst, src, len } = whole;
        let own = match how.share {
            Some(share) => ((len as f64 * f64::from(share)) as usize).min(len),
            None if how.spare_cpus => 0,
            None => self.share.of(len),
        };
        if own == len {
            self.counts.caller_bytes.fetch_add(len as u64, Relaxed);
            // SAFETY: the whole of ranges that memcpy may copy, by the caller's contract.
            unsafe { whole.by_libc(0, len) };
            return Ok(());
        }
        let held = SignalsHeld::handled().ok_or(Refused::Busy)?;
        let index = self.take().ok_or(Refused::Busy)?;
        let number = self.post(index, dst + own, src + own, len - own);
        let since = sys::ticks();
        // SAFETY: the caller's ranges, outside of what the card writes. They are registered, so
        // no page of them is bad.
        unsafe { whole.by_libc(0, own) };
        let mut done = self.look(index);
        if how.share.is_none() && !how.spare_cpus {
            self.share.note(done == SlotState::Done);
        }
        if done != SlotState::Done {
            let bytes = len - own;
            // Waits as long again as the card would take, or as the CPU would where its time is to
            // be saved.
            let patience = PATIENCE + self.times.expected(bytes);
            let patience = if how.spare_cpus { 10 * patience } else { patience };
            let (naps, spins) = (how.spare_cpus, how.spins);
            let waiting = Waiting { index, number, bytes, since, patience, naps, spins };
            done = self.wait(&waiting, u64::MAX, true);
        }
        self.release(index);
        drop(held);
        match done {
            SlotState::Done => {
                self.counts.caller_bytes.fetch_add(own as u64, Relaxed);
                Ok(())
            }
            _ => Err(Refused::Busy),
        }
    }

    /// Waits for the end of a copy for `nanos` at most, or takes it back; `Done` also where another
    /// copy has the slot, because the thread that claimed this one has finished it. Once it is under
    /// way the service thread sees to lost words and lost devices. `seen`: it was seen under way, so
    /// the moment of its end shows how long it took.
    pub(super) fn wait(&self, copy: &Waiting, nanos: u64, mut seen: bool) -> SlotState {
        let &Waiting { index, number, bytes, since, patience, naps, spins } = copy;
        let (begun, expected) = (sys::ticks(), self.times.expected(bytes));
        let mut slept = Slept::NotYet;
        loop {
            if self.slots[index].number.load(Acquire) != number {
                return SlotState::Done;
            }
            let waited = sys::ticks().wrapping_sub(since);
            match self.look(index) {
                SlotState::Done if seen => {
                    self.note_end(bytes, waited, slept);
                    return SlotState::Done;
                }
                SlotState::Posted if waited > patience && self.take_back(index) => {
                    return SlotState::Undone;
                }
                over @ (SlotState::Done | SlotState::Undone) => return over,
                _ => seen = true,
            }
            let passed = self.clock.nanoseconds(sys::ticks().wrapping_sub(begun));
            if passed >= nanos {
                return SlotState::UnderWay;
            }
            match spins {
                true => pause(),
                false => self.pass_time(expected, waited, nanos - passed, naps, &mut slept),
            }
        }
    }

    /// Passes a little of the time until the expected end, at most `most` nanoseconds. A caller
    /// that naps sleeps as long as it can. Others sleep only if there is much time, and wake up too
    /// early rather than too late.
    fn pass_time(&self, expected: u64, waited: u64, most: u64, naps: bool, slept: &mut Slept) {
        let rest = expected.saturating_sub(waited);
        let lead = self.lead.get() + if naps { 0 } else { PATIENCE / 2 };
        if let Slept::Now = slept {
            *slept = Slept::Until(waited);
        }
        let late = if naps { expected / 8 + PATIENCE / 4 } else { expected / 2 + PATIENCE };
        let worth_it = if naps { lead + NAP } else { 2 * lead };
        if rest > worth_it {
            sys::sleep(self.clock.nanoseconds(rest - lead).min(most));
            *slept = Slept::Now;
        } else if waited > expected.saturating_add(late) {
            // Nothing is known yet, or it takes much longer than expected.
            sys::sleep(50_000.min(most));
        } else {
            pause();
        }
    }

    /// Learns from the end of a copy that was waited for.
    fn note_end(&self, bytes: usize, waited: u64, slept: Slept) {
        match slept {
            Slept::Now if self.lead.was_too_short() => return self.times.forget_half(bytes),
            Slept::Now => return self.times.note_at_most(bytes, waited),
            Slept::Until(when) => self.lead.was_long_enough(waited - when),
            Slept::NotYet => self.lead.was_too_long_to_sleep(),
        }
        self.times.note(bytes, waited);
    }
}
