//! Memory that both processes have: words that they wait on, chunks and small messages.

use crate::measure::now;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

pub(super) const CHUNK: usize = 64 << 10;
pub(super) const CHUNKS: usize = 8;

/// How long to spin before sleeping: what adma spins, about.
pub const SPIN_NS: u64 = 20_000;

/// A word that two processes wait on.
#[repr(align(128))]
pub(super) struct Word(pub(super) AtomicU32);

impl Word {
    fn set(&self, value: u32) {
        self.0.store(value, Ordering::SeqCst);
        // SAFETY: wakes; reads no memory.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE, 1) };
    }

    /// The other side spins at first: no call is needed while it does.
    pub(super) fn set_quietly(&self, value: u32, asleep: &AtomicU32) {
        self.0.store(value, Ordering::SeqCst);
        if asleep.load(Ordering::SeqCst) != 0 {
            asleep.store(0, Ordering::SeqCst);
            self.set(value);
        }
    }

    fn sleep_while(&self, value: u32) {
        let limit = libc::timespec { tv_sec: 1, tv_nsec: 0 };
        // SAFETY: `limit` lives through the call.
        unsafe {
            libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAIT, value, &limit);
        }
    }

    /// Waits until the word is no longer `value`.
    pub(super) fn wait_while(&self, value: u32, asleep: &AtomicU32) {
        let end = now() + SPIN_NS;
        while now() < end {
            for _ in 0..64 {
                if self.0.load(Ordering::Acquire) != value {
                    return;
                }
                std::hint::spin_loop();
            }
        }
        while self.0.load(Ordering::SeqCst) == value {
            asleep.store(1, Ordering::SeqCst);
            if self.0.load(Ordering::SeqCst) != value {
                return;
            }
            self.sleep_while(value);
        }
    }
}

/// Where a small message lies for `Futex`: as well as one can, the flag, who sleeps, and the
/// bytes each begin a line of their own.
#[repr(C, align(4096))]
pub(super) struct Slot {
    pub(super) sent: Word,
    pub(super) asleep: Word,
    pub(super) data: Page,
}

#[repr(C, align(4096))]
pub(super) struct Page(pub(super) [u8; PAGE]);

pub(super) const PAGE: usize = 4096;

/// Two cores exchange some lines twice as fast as others, by where in the machine such a line
/// has its home. So every turn takes another of these.
pub(super) const SLOTS: usize = 32;

/// One direction in shared memory.
#[repr(C, align(4096))]
pub(super) struct Lane {
    /// Messages, or chunks, that are there, and that were taken.
    pub(super) sent: Word,
    pub(super) taken: Word,
    pub(super) sent_asleep: AtomicU32,
    pub(super) taken_asleep: AtomicU32,
    pub(super) address: AtomicUsize,
    pub(super) data: [[u8; CHUNK]; CHUNKS],
    pub(super) slots: [Slot; SLOTS],
}

pub(super) fn shared<T>(count: usize) -> *mut T {
    let (access, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice.
    let at = unsafe { libc::mmap(ptr::null_mut(), count * size_of::<T>(), access, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}
