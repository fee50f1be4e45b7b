//! Shared memory of both processes: words that they wait on, chunks and small messages.

use crate::measure::now;
use crate::team::futex;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

pub(super) const CHUNK: usize = 64 << 10;
pub(super) const CHUNKS: usize = 8;

/// Time to spin before sleeping: about as long as adma.
pub const SPIN_NS: u64 = 20_000;

#[repr(align(128))]
struct Line(AtomicU32);

/// A word that two processes wait on; the flag of its sleeper has a cache line of its own.
#[repr(C)]
pub(super) struct Word {
    value: Line,
    asleep: Line,
}

impl Word {
    /// Stores, and wakes the other side if it sleeps: no call is needed while it spins.
    pub(super) fn set(&self, value: u32) {
        self.value.0.store(value, Ordering::SeqCst);
        if self.asleep.0.load(Ordering::SeqCst) != 0 {
            self.asleep.0.store(0, Ordering::SeqCst);
            futex(&self.value.0, libc::FUTEX_WAKE, 1);
        }
    }

    /// Waits until the word is no longer `value`.
    pub(super) fn wait_while(&self, value: u32) {
        let end = now() + SPIN_NS;
        while now() < end {
            for _ in 0..64 {
                if self.value.0.load(Ordering::Acquire) != value {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        while self.value.0.load(Ordering::SeqCst) == value {
            self.asleep.0.store(1, Ordering::SeqCst);
            if self.value.0.load(Ordering::SeqCst) == value {
                futex(&self.value.0, libc::FUTEX_WAIT, value);
            }
        }
    }
}

/// Place of a small message for `Futex`, in the best layout: flag and bytes begin cache lines.
#[repr(C, align(4096))]
pub(super) struct Slot {
    pub(super) sent: Word,
    pub(super) data: Page,
}

#[repr(C, align(4096))]
pub(super) struct Page(pub(super) [u8; PAGE]);

pub(super) const PAGE: usize = 4096;

/// Number of slots, used in turn: two cores exchange some lines twice as fast as others, depending
/// on the line's home slice.
pub(super) const SLOTS: usize = 32;

/// One direction in shared memory.
#[repr(C, align(4096))]
pub(super) struct Lane {
    /// Messages, or chunks, that were sent, and that were taken.
    pub(super) sent: Word,
    pub(super) taken: Word,
    pub(super) address: AtomicUsize,
    pub(super) data: [[u8; CHUNK]; CHUNKS],
    pub(super) slots: [Slot; SLOTS],
}
