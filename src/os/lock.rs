//! A lock that leaves errno alone and costs one atomic step when it is free; and a try-lock, which
//! is the only kind for the hook.

use super::mapped::Zeroed;
use super::signal_mask::SignalsHeld;
use super::sys;
use core::sync::atomic::{AtomicU32, Ordering};
use lock_api::{GuardSend, Mutex, MutexGuard, RawMutex};
use zerocopy::FromZeros;

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Taken, and a thread sleeps until it is free.
const WANTED: u32 = 2;

/// The state word of a lock, on which threads sleep.
pub struct Futex(AtomicU32);

// SAFETY: one thread at a time changes the word from `FREE` to another value, by an atomic step, and holds
// the lock until it stores `FREE`.
unsafe impl RawMutex for Futex {
    #[allow(clippy::declare_interior_mutable_const)] // how `lock_api` makes one
    const INIT: Self = Self(AtomicU32::new(FREE));
    type GuardMarker = GuardSend;

    #[inline]
    fn try_lock(&self) -> bool {
        self.0.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[inline]
    unsafe fn unlock(&self) {
        if self.0.swap(FREE, Ordering::AcqRel) == WANTED {
            sys::futex_wake(self.0.as_ptr(), 1);
        }
    }
}

impl Futex {
    #[cold]
    fn wait(&self) {
        for _ in 0..100 {
            core::hint::spin_loop();
            if self.try_lock() {
                return;
            }
        }
        while self.0.swap(WANTED, Ordering::Acquire) != FREE {
            sys::futex_wait(self.0.as_ptr(), WANTED, 0);
        }
    }

    /// Frees the lock in the child of a fork, as a thread of the parent may have held it. Writes only if
    /// needed: a page that is written is copied for the child.
    fn free_after_fork(&self) {
        if self.0.load(Ordering::Relaxed) != FREE {
            self.0.store(FREE, Ordering::Release);
        }
    }
}

#[derive(Default)]
pub struct Lock<T>(Mutex<Futex, T>);
pub type Held<'a, T> = MutexGuard<'a, Futex, T>;

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        self.0.lock()
    }

    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        self.0.try_lock()
    }

    /// Renews the value in the child of a fork, which may have inherited it locked and half
    /// changed: the old one is forgotten, not dropped.
    pub fn renew(&self)
    where
        T: Default,
    {
        // SAFETY: the thread that held it is not in this process, and no other uses it yet.
        unsafe {
            self.0.data_ptr().write(T::default());
            self.0.raw().free_after_fork();
        }
    }
}

/// Proof that a lock was unlocked. Unlocking is a locked instruction: it orders earlier stores before later
/// loads (store-load barrier).
pub struct Released(());

pub trait Release {
    /// Unlocks.
    fn release(self) -> Released;
}

impl<T> Release for Held<'_, T> {
    #[inline]
    fn release(self) -> Released {
        drop(self);
        Released(())
    }
}

/// A lock that is only tried: a thread that finds it taken does without.
pub struct TryLock<T>(Mutex<Futex, T>);

// SAFETY: a futex of zero is `FREE`, `T` has `FromZeros`, and a mutex of `lock_api` has no other field.
unsafe impl<T: FromZeros + Send> Zeroed for TryLock<T> {}

impl<T> TryLock<T> {
    pub const fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }

    /// Takes the lock if it is free. Signals are held until it is released: a handler that jumped out would
    /// leave it locked.
    pub fn try_take<'a>(&'a self, _: &'a SignalsHeld) -> Option<Held<'a, T>> {
        self.0.try_lock()
    }

    /// Takes the lock, if it is free, for the rest of the process.
    pub fn try_take_at_exit(&self) -> Option<Held<'_, T>> {
        self.0.try_lock()
    }

    pub fn forget_after_fork(&self) {
        // SAFETY: the thread that held the lock is not in this process, and no other uses it yet.
        unsafe { self.0.raw().free_after_fork() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_count_without_losing_any() {
        static COUNT: Lock<u64> = Lock::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..20_000).for_each(|_| *COUNT.lock() += 1));
            }
        });
        assert_eq!(*COUNT.lock(), 80_000);
    }
}
