//! Values that begin as zeros: in memory of the library that takes no room in its file, or, for
//! tables that most programs never need, in a mapping made when they are first needed.

use crate::os::sys;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use zerocopy::FromZeros;

/// A value that begins as zeros and is shared by threads. Types derive `FromZeros`, by which the compiler
/// checks every field; only types of other packages in a field need an implementation by hand.
///
/// # Safety
/// All zeros is a valid value.
pub unsafe trait Zeroed: Sync {}

// SAFETY: `FromZeros`: all zeros is a valid value.
unsafe impl<T: FromZeros + Sync> Zeroed for T {}

/// Returns a value of zeros. A static of it takes no room in the file.
pub const fn zeroed<T: Zeroed>() -> T {
    // SAFETY: `Zeroed`: all zeros is a valid value.
    unsafe { core::mem::zeroed() }
}

/// A value that begins as zeros in a mapping of its own, which is never unmapped.
#[derive(FromZeros)]
pub struct Mapped<T>(AtomicPtr<T>);

impl<T: Zeroed> Mapped<T> {
    pub const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()))
    }

    /// Returns the value. `None`: it is not mapped yet.
    #[inline]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: the pointer is null, or a mapping of a whole `T` that `map` has made and that is never
        // unmapped.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Returns the value, mapped if need be. `None`: there is no memory for it.
    #[inline]
    pub fn get_or_map(&self) -> Option<&'static T> {
        self.get().or_else(|| self.map())
    }

    #[cold]
    fn map(&self) -> Option<&'static T> {
        const { assert!(align_of::<T>() <= 4096) };
        let fresh: *mut T = sys::map(size_of::<T>())?.cast();
        let made = self.0.compare_exchange(null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire);
        if made.is_err() {
            // SAFETY: `fresh` was mapped above, and no other thread has seen it.
            unsafe { sys::unmap(fresh.cast(), size_of::<T>()) };
        }
        self.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::AtomicU64;

    #[derive(FromZeros)]
    struct Numbers([AtomicU64; 1000]);

    #[test]
    fn value_is_mapped_once_and_begins_with_zeros() {
        static MAPPED: Mapped<Numbers> = Mapped::new();
        assert!(MAPPED.get().is_none());
        std::thread::scope(|scope| {
            for number in 0..8 {
                scope.spawn(move || {
                    let numbers = MAPPED.get_or_map().unwrap();
                    assert_eq!(numbers.0[100 + number].load(Ordering::Relaxed), 0);
                    numbers.0[number].fetch_add(1, Ordering::Relaxed);
                });
            }
        });
        let sum = |n: &Numbers| n.0.iter().map(|n| n.load(Ordering::Relaxed)).sum::<u64>();
        assert_eq!(MAPPED.get().map(sum), Some(8));
    }
}
