//! Waking threads of this process from long sleeps (`wait::long_sleep`, `setup::accept`), and the count
//! of connections that need help.

use crate::ipc::os::{self, Fd};
use crate::os::lock::Lock;
use crate::os::sync::full_fence;
use crate::os::sys;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

/// Approximate count of needy connections, which progress only with our help: a child made without
/// fork handlers has its parent's, until it has a connection of its own.
pub static NEEDY: AtomicU32 = AtomicU32::new(0);

/// Sockets of sleepers, and their number.
static SLEEPERS: Lock<Vec<i32>> = Lock::new(Vec::new());
static ASLEEP: AtomicU32 = AtomicU32::new(0);

/// Forgets the parent's sleepers in a process that has no connections yet.
pub fn forget_sleepers() {
    NEEDY.store(0, Ordering::Relaxed);
    ASLEEP.store(0, Ordering::Relaxed);
    SLEEPERS.renew();
}

/// Wakes long sleepers: a needy connection has a new post, or one sleeper less.
pub fn wake_if_needed() {
    if NEEDY.load(Ordering::Relaxed) != 0 {
        wake_all();
    }
}

/// Wakes long sleepers after a change by this process, which the peer does not report.
pub fn wake_all() {
    full_fence();
    if ASLEEP.load(Ordering::Relaxed) != 0 {
        SLEEPERS.lock().iter().for_each(|&socket| os::send_byte(socket));
    }
}

/// Longest sleep, in milliseconds, without a descriptor to be woken by.
const DEAF_MS: i32 = 10;

/// While this lives, a wake-up makes the first of the pair readable. Sockets, because a byte sent
/// to a number that the program has reused for a file is refused.
pub struct Wakeups(Option<[Fd; 2]>);

impl Wakeups {
    pub fn new() -> Self {
        Self(Self::listed())
    }

    /// Adds a pair to the list. `None`: there is no other thread, or no memory or descriptor.
    fn listed() -> Option<[Fd; 2]> {
        if sys::has_one_thread() {
            return None;
        }
        let pair = os::unix_pair().ok()?;
        let mut sleepers = SLEEPERS.lock();
        sleepers.try_reserve(1).ok()?;
        sleepers.push(pair[1].raw());
        ASLEEP.store(sleepers.len() as u32, Ordering::Relaxed);
        drop(sleepers);
        full_fence();
        Some(pair)
    }

    /// Returns the descriptor to poll, or -1.
    pub fn raw(&self) -> i32 {
        self.0.as_ref().map_or(-1, |pair| pair[0].raw())
    }

    /// Returns how long to sleep at most, with a limit in milliseconds.
    pub fn limit(&self, ms: i32) -> i32 {
        if self.0.is_some() || sys::has_one_thread() { ms } else { ms.min(DEAF_MS) }
    }
}

impl Drop for Wakeups {
    fn drop(&mut self) {
        let Some([_, socket]) = &self.0 else { return };
        let mut sleepers = SLEEPERS.lock();
        sleepers.retain(|&sleeper| sleeper != socket.raw());
        ASLEEP.store(sleepers.len() as u32, Ordering::Relaxed);
    }
}
