//! A lock that nobody waits for: whoever finds it taken does without.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicBool, Ordering};

pub struct TryLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached through `Taken` only, of which there is one at a time.
unsafe impl<T: Send> Sync for TryLock<T> {}

pub struct Taken<'a, T>(&'a TryLock<T>);

impl<T> TryLock<T> {
    pub const fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub fn try_take(&self) -> Option<Taken<'_, T>> {
        let (free, taken) = (false, true);
        self.taken
            .compare_exchange(free, taken, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Taken(self))
    }

    /// In the child of a fork: whoever had taken it was a thread of the parent.
    pub fn forget_after_fork(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: taken by us.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: taken by us, and borrowed mutably.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Taken<'_, T> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_is_had_by_one_at_a_time() {
        let lock = TryLock::new(1);
        let mut taken = lock.try_take().unwrap();
        *taken += 1;
        assert!(lock.try_take().is_none());
        drop(taken);
        assert_eq!(*lock.try_take().unwrap(), 2);
        core::mem::forget(lock.try_take());
        lock.forget_after_fork();
        assert!(lock.try_take().is_some());
    }
}
