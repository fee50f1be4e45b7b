//! Counters of the library, and the words of every report. Library, command and tests use this
//! crate, so that each layout and word exists once.
//!
//! ```text
//! live        layout of a live file: head, control, facts, recorder, messages; reasons for libc
//! histogram   counts by value; samples: times of libc; sites: who copies; timeline: when;
//!             messages: between processes; under_way: calls that have not returned
//! worth       what the run would have taken without adma, and what was not helped
//! tables      the text report; units: bytes and times
//! knobs       every setting in one table; functions: every intercepted function in one
//! abi         the kernel interface of /dev/adma, which the header of the helper has in C
//! ```
//!
//! Counting is lock-free and async-signal-safe. Nothing here allocates, or knows the system.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod abi;
pub mod functions;
pub mod histogram;
pub mod knobs;
pub mod live;
pub mod messages;
pub mod samples;
pub mod sites;
pub mod tables;
pub mod timeline;
pub mod under_way;
pub mod units;
pub mod worth;

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use zerocopy::{FromBytes, IntoBytes};

/// A struct of atomic numbers. The compiler checks that all zeros and any other bytes are a value, and that
/// there is no padding between them.
///
/// # Safety
/// Every field is atomic: `clear` writes all of them through a shared reference.
pub unsafe trait Counters: FromBytes + IntoBytes + Sized {
    const ZERO: Self = {
        assert!(size_of::<Self>().is_multiple_of(8) && align_of::<Self>() == 8);
        // SAFETY: `FromBytes`: zeros are a value. (`new_zeroed` is no constant function.)
        unsafe { MaybeUninit::zeroed().assume_init() }
    };

    /// Returns the bytes of all numbers, to be filled from a file.
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.as_mut_bytes()
    }

    /// Returns a copy. Not beside other threads.
    fn copy(&self) -> Self {
        // SAFETY: numbers, which own nothing.
        unsafe { core::ptr::read(self) }
    }

    /// Sets all to zero. Writes to no page that was never used. Not beside other threads.
    fn clear(&self) {
        let words = core::ptr::from_ref(self).cast::<AtomicU64>();
        // SAFETY: aligned words of `self`, which are atomic numbers.
        let words = unsafe { core::slice::from_raw_parts(words, size_of::<Self>() / 8) };
        words.iter().filter(|word| word.load(Relaxed) != 0).for_each(|word| word.store(0, Relaxed));
    }
}

/// A text of at most N bytes, padded with zeros.
#[repr(transparent)]
#[derive(FromBytes, IntoBytes)]
pub struct Text<const N: usize>([AtomicU8; N]);

impl<const N: usize> Text<N> {
    /// Stores the beginning of a text. Only once: a shorter one would leave the end of a longer.
    pub fn set(&self, text: &[u8]) {
        self.0.iter().zip(text).for_each(|(to, from)| to.store(*from, Relaxed));
    }

    /// Returns the text, in `room`.
    pub fn get<'a>(&self, room: &'a mut [u8; N]) -> &'a [u8] {
        room.iter_mut().zip(&self.0).for_each(|(to, from)| *to = from.load(Relaxed));
        let end = room.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        &room[..end]
    }
}

/// Sums that grow together, as calls, bytes and ticks do.
#[repr(transparent)]
#[derive(FromBytes, IntoBytes)]
pub struct Sums<const N: usize>([AtomicU64; N]);

impl<const N: usize> Sums<N> {
    #[inline]
    pub fn add(&self, more: [u64; N]) {
        for (sum, more) in self.0.iter().zip(more) {
            sum.fetch_add(more, Relaxed);
        }
    }

    pub fn get(&self) -> [u64; N] {
        self.0.each_ref().map(|sum| sum.load(Relaxed))
    }

    /// Moves the counts of another one here, and leaves zeros there.
    fn absorb(&self, from: &Self) {
        absorb_all(&self.0, &from.0);
    }
}

/// Moves a count.
fn absorb(to: &AtomicU64, from: &AtomicU64) {
    if from.load(Relaxed) != 0 {
        to.fetch_add(from.swap(0, Relaxed), Relaxed);
    }
}

/// Moves pairs of counts.
fn absorb_all<'a>(
    to: impl IntoIterator<Item = &'a AtomicU64>,
    from: impl IntoIterator<Item = &'a AtomicU64>,
) {
    to.into_iter().zip(from).for_each(|(to, from)| absorb(to, from));
}
