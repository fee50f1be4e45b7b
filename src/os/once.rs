//! A value that start-up sets once and any thread reads.
//!
//! `once_cell::race` serves values that fit into a word (`cpus`) and boxes (`ipc/link`). This one holds larger
//! values in place: a static of it allocates nothing, needs no second load, and is zeros at first. The cells of
//! `once_cell` that hold any value wait for the thread that sets it, for which they need std or critical-section.

use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU8, Ordering};
use zerocopy::FromZeros;

#[derive(FromZeros)]
pub struct Once<T> {
    state: AtomicU8,
    value: UnsafeCell<MaybeUninit<T>>,
}

// SAFETY: written by the thread that has taken the state from `EMPTY`, read by others only when it
// is `SET`.
unsafe impl<T: Send + Sync> Sync for Once<T> {}

const EMPTY: u8 = 0;
const TAKEN: u8 = 1;
const SET: u8 = 2;

impl<T> Once<T> {
    pub const fn new() -> Self {
        Self { state: AtomicU8::new(EMPTY), value: UnsafeCell::new(MaybeUninit::uninit()) }
    }

    /// Sets the value, unless one was set; returns the first one. No thread waits for another that
    /// is setting it.
    pub fn set(&self, value: T) -> Option<&T> {
        let (empty, taken) = (EMPTY, TAKEN);
        if self.state.compare_exchange(empty, taken, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            // SAFETY: no other thread writes, and none reads yet.
            unsafe { (*self.value.get()).write(value) };
            self.state.store(SET, Ordering::Release);
        }
        self.get()
    }

    pub fn get(&self) -> Option<&T> {
        // SAFETY: written before the state was set, and never again.
        (self.state.load(Ordering::Acquire) == SET)
            .then(|| unsafe { (*self.value.get()).assume_init_ref() })
    }
}
