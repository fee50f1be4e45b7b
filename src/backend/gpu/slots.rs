//! Hands a copy from the hook to the service thread: a slot for each copy in flight, and a word for
//! each channel, which the card writes at the end.

use super::{Engine, SLOTS};
use crate::os::sync::take_bit;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use core::sync::atomic::{AtomicU32, AtomicUsize};
use zerocopy::FromZeros;

/// States of a slot: free, posted, then one of the others, then free again.
pub mod slot {
    pub const FREE: u32 = 0;
    pub const POSTED: u32 = 1;
    /// The service thread has the copy.
    pub const RUNNING: u32 = 2;
    /// The copy is over although words are missing: its streams are done.
    pub const OVER: u32 = 3;
    /// No transfer of the copy was begun.
    pub const REFUSED: u32 = 4;
    /// The copy failed, and the card writes no more.
    pub const FAILED: u32 = 5;
}

#[repr(align(64))]
#[derive(FromZeros)]
pub struct CopySlot {
    pub state: AtomicU32,
    /// Number of the copy; the words hold it when it is over.
    pub number: AtomicU32,
    /// One bit for each channel that writes a word; 0: not known yet.
    pub channels: AtomicU32,
    pub dst: AtomicUsize,
    pub src: AtomicUsize,
    pub len: AtomicUsize,
}

/// Result of a look at a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotState {
    Posted,
    UnderWay,
    Done,
    /// To be copied by the CPU: nothing is in flight.
    Undone,
}

impl Engine {
    /// Takes a free slot. Terms are those of `threads::queue`.
    pub fn take(&self) -> Option<usize> {
        take_bit(&self.taken, SLOTS as u32)
    }

    pub fn release(&self, index: usize) {
        self.slots[index].state.store(slot::FREE, Relaxed);
        self.taken.fetch_and(!(1 << index), Release);
    }

    /// Hands a copy to the service thread. Returns its number.
    pub fn post(&self, index: usize, dst: usize, src: usize, len: usize) -> u32 {
        let slot = &self.slots[index];
        let number = slot.number.load(Relaxed).wrapping_add(1).max(1);
        slot.number.store(number, Relaxed);
        slot.channels.store(0, Relaxed);
        slot.dst.store(dst, Relaxed);
        slot.src.store(src, Relaxed);
        slot.len.store(len, Relaxed);
        slot.state.store(slot::POSTED, Release);
        self.posted.fetch_or(1 << index, SeqCst);
        self.ring();
        number
    }

    pub fn look(&self, index: usize) -> SlotState {
        let slot = &self.slots[index];
        match slot.state.load(Acquire) {
            slot::POSTED => SlotState::Posted,
            slot::RUNNING if self.words_have_come(index) => SlotState::Done,
            slot::RUNNING => SlotState::UnderWay,
            slot::OVER => SlotState::Done,
            _ => SlotState::Undone,
        }
    }

    /// Returns whether the card has written all words of a copy: then its bytes can be seen.
    pub fn words_have_come(&self, index: usize) -> bool {
        let slot = &self.slots[index];
        let mut left = slot.channels.load(Acquire);
        let words = self.words.load(Relaxed);
        if left == 0 || words == 0 {
            return false;
        }
        let number = slot.number.load(Relaxed);
        while left != 0 {
            let word = words + index * 64 + left.trailing_zeros() as usize * 4;
            // SAFETY: a word of the page that the card writes to, which stays.
            if unsafe { (*(word as *const AtomicU32)).load(Acquire) } != number {
                return false;
            }
            left &= left - 1;
        }
        true
    }

    /// Notes how a copy has ended. Called by the service thread, which has just read the copy's number
    /// in the slot. False: the words have come meanwhile. Then the caller may be gone, and the slot may
    /// hold another copy, which has not begun: only the service thread makes a slot RUNNING.
    pub fn finish(&self, index: usize, how: u32) -> bool {
        let state = &self.slots[index].state;
        !self.words_have_come(index)
            && state.compare_exchange(slot::RUNNING, how, Release, Relaxed).is_ok()
    }

    /// Takes a copy back that the service thread has not taken.
    pub fn take_back(&self, index: usize) -> bool {
        let (posted, refused) = (slot::POSTED, slot::REFUSED);
        let state = &self.slots[index].state;
        let taken = state.compare_exchange(posted, refused, Acquire, Relaxed).is_ok();
        if taken {
            self.posted.fetch_and(!(1 << index), Relaxed);
            self.counts.taken_back.fetch_add(1, Relaxed);
        }
        taken
    }
}
