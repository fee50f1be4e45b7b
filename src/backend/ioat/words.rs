//! Words by which channels report the end of a request.

use super::abi;
use crate::os::sync::pause;
use crate::os::sys;
use core::sync::atomic::Ordering::{Acquire, Relaxed};
use core::sync::atomic::{AtomicU64, AtomicUsize};

/// The words of one request.
pub struct Words<'a> {
    pub pages: &'a [AtomicUsize; abi::MAX_CHANNELS],
    pub channels: u32,
    pub offset: usize,
    pub id: u64,
}

impl Words<'_> {
    /// Returns the pages of the request's channels.
    pub fn each(&self) -> impl Iterator<Item = usize> {
        let mut left = self.channels;
        core::iter::from_fn(move || {
            let page = self.pages.get(left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(page.load(Relaxed))
        })
    }

    /// Returns the address of a word that has not come yet. `None`: the request is over and its
    /// bytes can be seen.
    #[inline]
    pub fn missing(&self) -> Option<usize> {
        self.each().map(|page| page + self.offset).find(|&word| {
            // SAFETY: `words_of` has checked that the pages are mapped and the slot is one;
            // they stay mapped. The engine writes them behind our back, as atomics may be.
            unsafe { (*(word as *const AtomicU64)).load(Acquire) != self.id }
        })
    }

    /// Returns whether each word holds the request's id or a later one.
    pub fn have_passed(&self) -> bool {
        self.each().map(|page| page + self.offset).all(|word| {
            // SAFETY: `words_of` has checked that the pages are mapped and the slot is one;
            // they stay mapped. The engine writes them behind our back, as atomics may be.
            unsafe { (*(word as *const AtomicU64)).load(Acquire) >= self.id }
        })
    }

    /// Returns whether the words come within `ticks`.
    pub fn come_within(&self, ticks: u64) -> bool {
        let begun = sys::ticks();
        while self.missing().is_some() {
            if sys::ticks().wrapping_sub(begun) >= ticks {
                return false;
            }
            pause();
        }
        true
    }
}
