//! Atomics and a word to sleep on: the real ones, or loom's when interleavings are explored.

#[cfg(not(loom))]
use zerocopy::FromZeros;

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Sets the lowest clear bit among the first `count` of a word and returns its index. `None`: all
/// are set.
pub fn take_bit(word: &AtomicU64, count: u32) -> Option<usize> {
    let mut taken = word.load(Ordering::Relaxed);
    loop {
        let bit = taken.trailing_ones();
        if bit >= count {
            return None;
        }
        let with = taken | 1 << bit;
        match word.compare_exchange_weak(taken, with, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return Some(bit as usize),
            Err(other) => taken = other,
        }
    }
}

/// A 64-bit word whose low half threads can sleep on. It may lie in memory that processes
/// share.
#[cfg_attr(not(loom), repr(transparent))]
#[cfg_attr(loom, derive(Default))]
#[cfg_attr(not(loom), derive(FromZeros))]
pub struct Sleepable {
    word: AtomicU64,
    #[cfg(loom)]
    gate: model::Gate,
}

/// Reason why a sleep ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Woken {
    /// The word changed, a wake arrived, or the sleep ended spuriously: look again.
    LookAgain,
    TimedOut,
    /// The system call itself was refused: sleeping is impossible.
    Refused,
}

impl Woken {
    #[cfg(not(loom))]
    fn by(answer: crate::os::sys::SysResult) -> Self {
        match -answer as i32 {
            0 | libc::EAGAIN | libc::EINTR => Woken::LookAgain,
            libc::ETIMEDOUT => Woken::TimedOut,
            _ => Woken::Refused,
        }
    }
}

impl Sleepable {
    #[cfg(loom)]
    pub fn new(value: u64) -> Self {
        Self { word: AtomicU64::new(value), gate: model::Gate::default() }
    }

    pub fn atomic(&self) -> &AtomicU64 {
        &self.word
    }

    /// Sleeps while the low half equals that of `seen`, at most `nanos` (0: without end).
    #[cfg(not(loom))]
    pub fn sleep_while(&self, seen: u64, nanos: u64) -> Woken {
        Woken::by(crate::os::sys::futex_wait(self.low_half(), seen as u32, nanos))
    }

    /// Wakes up to `count` sleepers; false when the system refuses.
    #[cfg(not(loom))]
    pub fn wake(&self, count: u32) -> bool {
        crate::os::sys::futex_wake(self.low_half(), count)
    }

    /// Like `sleep_while`, on a word that processes share.
    #[cfg(not(loom))]
    pub fn sleep_shared_while(&self, seen: u64, nanos: u64) -> Woken {
        Woken::by(crate::os::sys::futex_wait_shared(self.low_half(), seen as u32, nanos))
    }

    /// Wakes every sleeper, whatever its process.
    #[cfg(not(loom))]
    pub fn wake_shared(&self) {
        crate::os::sys::futex_wake_shared(self.low_half());
    }

    #[cfg(not(loom))]
    fn low_half(&self) -> *const u32 {
        self.word.as_ptr().cast_const().cast() // little-endian
    }

    #[cfg(loom)]
    pub fn sleep_while(&self, seen: u64, _nanos: u64) -> Woken {
        self.gate.sleep_while(|| self.word.load(Ordering::Acquire) as u32 == seen as u32);
        Woken::LookAgain
    }

    #[cfg(loom)]
    pub fn wake(&self, _count: u32) -> bool {
        self.gate.wake();
        true
    }

    #[cfg(loom)]
    pub fn sleep_shared_while(&self, seen: u64, nanos: u64) -> Woken {
        self.sleep_while(seen, nanos)
    }

    #[cfg(loom)]
    pub fn wake_shared(&self) {
        self.gate.wake();
    }
}

/// Orders earlier stores before later loads (store-load barrier).
pub fn full_fence() {
    #[cfg(not(loom))]
    crate::os::arch::full_fence();
    #[cfg(loom)]
    loom::sync::atomic::fence(Ordering::SeqCst);
}

/// Prefetches a line that will be changed, and its address translation. Only a hint: any address is allowed.
pub fn fetch_to_change(_address: usize) {
    #[cfg(not(loom))]
    crate::os::arch::fetch_to_change(_address);
}

#[cfg(not(loom))]
pub use crate::os::arch::fetch;

/// Pauses for one turn of a spin loop.
pub fn pause() {
    #[cfg(not(loom))]
    core::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

#[cfg(loom)]
mod model {
    use loom::sync::{Condvar, Mutex};

    /// Gate that makes compare and sleep one step, as a futex does.
    #[derive(Default)]
    pub struct Gate(Mutex<()>, Condvar);

    impl Gate {
        pub fn sleep_while(&self, unchanged: impl Fn() -> bool) {
            let guard = self.0.lock().unwrap();
            if unchanged() {
                drop(self.1.wait(guard).unwrap());
            }
        }

        pub fn wake(&self) {
            let _guard = self.0.lock().unwrap();
            self.1.notify_all();
        }
    }
}
