//! Waking threads of this process from long sleeps (`wait::long_sleep`, `setup::accept`), and the count
//! of connections that need help.

use crate::ipc::os::{self, Fd};
use crate::os::lock::Lock;
use crate::os::sync::full_fence;
use crate::os::sys;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

/// Approximate count of connections that go on only with our help: a child made without fork
/// handlers has its parent's, until it has a connection of its own.
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

/// Wakes long sleepers: a connection that needs help has a new post, or one sleeper less.
pub fn kick() {
    if NEEDY.load(Ordering::Relaxed) != 0 {
        kick_all();
    }
}

/// Wakes long sleepers after a change that this process has made: the peer does not tell them.
pub fn kick_all() {
    full_fence();
    if ASLEEP.load(Ordering::Relaxed) != 0 {
        SLEEPERS.lock().iter().for_each(|&socket| os::send_byte(socket));
    }
}

/// While this lives, a kick makes the first of the pair readable. Sockets, for a byte that is sent
/// to a number which the program has given to a file of its own is refused.
pub struct Kicks([Fd; 2]);

impl Kicks {
    /// `None`: there is no other thread, or no memory or descriptor.
    pub fn new() -> Option<Self> {
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
        Some(Self(pair))
    }

    pub fn raw(&self) -> i32 {
        self.0[0].raw()
    }
}

impl Drop for Kicks {
    fn drop(&mut self) {
        let mut sleepers = SLEEPERS.lock();
        sleepers.retain(|&socket| socket != self.0[1].raw());
        ASLEEP.store(sleepers.len() as u32, Ordering::Relaxed);
    }
}
