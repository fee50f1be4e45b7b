//! Lists of pieces of a request, as the kernel reads them: ranges, each with its channel.

use super::abi;
use crate::os::sync::take_bit;
use crate::plan::Cut;
use core::cell::UnsafeCell;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};
use zerocopy::FromZeros;

/// Channels of a copy: `used` of them from `first` on, in a circle of `all`.
#[derive(Clone, Copy)]
pub struct Turn {
    pub first: usize,
    pub used: usize,
    pub all: usize,
    /// Set if the kernel chooses: it knows which channels are near the memory.
    pub any: bool,
}

impl Turn {
    pub fn channel(self, piece: usize) -> u32 {
        if self.any {
            return abi::CHANNEL_ANY;
        }
        (self.first.wrapping_add(piece % self.used) % self.all) as u32
    }
}

/// Memory for lists of pieces. Not on the stack, which may be a small one of a signal handler.
#[derive(FromZeros)]
pub struct PieceLists {
    /// Lists in use, one bit each.
    pub(super) taken: AtomicU64,
    all: [PieceList; abi::SLOTS],
}

#[repr(align(64))]
#[derive(FromZeros)]
struct PieceList(UnsafeCell<[abi::Piece; abi::MAX_PIECES]>);

// SAFETY: only the thread that has taken a list touches it.
unsafe impl Sync for PieceList {}

/// List that is taken until this is dropped.
pub struct TakenList<'a> {
    lists: &'a PieceLists,
    number: usize,
}

impl PieceLists {
    pub fn take(&self) -> Option<TakenList<'_>> {
        let number = take_bit(&self.taken, abi::SLOTS as u32)?;
        Some(TakenList { lists: self, number })
    }

    /// Frees all lists in the child of a fork: requests of other threads never end here.
    pub fn forget_everything(&self) {
        self.taken.store(0, Relaxed);
    }
}

impl TakenList<'_> {
    fn list(&self) -> *mut [abi::Piece; abi::MAX_PIECES] {
        self.lists.all[self.number].0.get()
    }

    /// Fills in the pieces, and returns the request for them.
    pub fn fill(&self, cut: Cut, dst: usize, src: usize, turn: Turn) -> abi::Submit {
        // SAFETY: its bit is taken, so no other thread uses the list until this is dropped.
        let list = unsafe { &mut *self.list() };
        let count = cut.count().min(list.len());
        for (index, piece) in list.iter_mut().enumerate().take(count) {
            let stretch = cut.piece(index);
            *piece = abi::Piece {
                dst: (dst + stretch.offset) as u64,
                src: (src + stretch.offset) as u64,
                len: stretch.len as u64,
                channel: turn.channel(index),
                flags: 0,
            };
        }
        abi::Submit {
            size: size_of::<abi::Submit>() as u32,
            pieces: self.list() as u64,
            count: count as u32,
            ..Default::default()
        }
    }

    /// Returns the pieces, with the fields that the kernel has written.
    pub fn pieces(&self) -> &[abi::Piece] {
        // SAFETY: its bit is taken, so no other thread uses the list, and the call that wrote to it has returned.
        unsafe { &*self.list() }
    }
}

impl Drop for TakenList<'_> {
    fn drop(&mut self) {
        self.lists.taken.fetch_and(!(1 << self.number), Release);
    }
}
