//! A lock whose sleeping leaves errno alone, and which costs one atomic step when it is free; and one
//! that nobody waits for, which is the only kind for the hook.

use super::sys;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::{AtomicU32, Ordering};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
const WANTED: u32 = 2;

pub struct Lock<T> {
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a `Held`, of which there is one at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

pub struct Held<'a, T>(&'a Lock<T>);

/// Proof that a lock was let go. That was a locked instruction, so what was written before is
/// seen by others before what is read after was read: it is a full fence.
pub struct Released(());

impl<T> Lock<T> {
    pub const fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), value: UnsafeCell::new(value) }
    }

    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        self.try_lock().unwrap_or_else(|| self.wait())
    }

    #[inline]
    pub fn try_lock(&self) -> Option<Held<'_, T>> {
        let taken = self.state.compare_exchange(FREE, TAKEN, Ordering::Acquire, Ordering::Relaxed);
        taken.is_ok().then(|| Held(self))
    }

    /// In the child of a fork: whoever had it locked was a thread of the parent.
    fn free_after_fork(&self) {
        // A page that is written would be copied for the child.
        if self.state.load(Ordering::Relaxed) != FREE {
            self.state.store(FREE, Ordering::Release);
        }
    }

    #[inline]
    fn unlock(&self) -> Released {
        if self.state.swap(FREE, Ordering::AcqRel) == WANTED {
            sys::futex_wake(self.state.as_ptr(), 1);
        }
        Released(())
    }

    #[cold]
    fn wait(&self) -> Held<'_, T> {
        for _ in 0..100 {
            core::hint::spin_loop();
            if let Some(held) = self.try_lock() {
                return held;
            }
        }
        while self.state.swap(WANTED, Ordering::Acquire) != FREE {
            sys::futex_wait(self.state.as_ptr(), WANTED, 0);
        }
        Held(self)
    }
}

impl<T: Default> Default for Lock<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: Default> Lock<T> {
    /// In the child of a fork, which may have got it locked and half changed: what was there
    /// is forgotten, not dropped.
    pub fn renew(&self) {
        // SAFETY: who had it locked is not in this process, and nobody else uses it yet.
        unsafe { self.value.get().write(T::default()) };
        self.free_after_fork();
    }
}

impl<T> Held<'_, T> {
    /// As dropping it.
    #[inline]
    pub fn release(self) -> Released {
        let lock = self.0;
        core::mem::forget(self);
        lock.unlock()
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: we hold the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: we hold the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Held<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.unlock();
    }
}

/// Whoever finds it taken does without.
pub struct TryLock<T>(Lock<T>);

impl<T> TryLock<T> {
    pub const fn new(value: T) -> Self {
        Self(Lock::new(value))
    }

    pub fn try_take(&self) -> Option<Held<'_, T>> {
        self.0.try_lock()
    }

    pub fn forget_after_fork(&self) {
        self.0.free_after_fork();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_that_nobody_waits_for_is_had_by_one_at_a_time() {
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
