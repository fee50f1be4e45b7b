//! Background work for other connections while a thread waits, checks or arms: one epoll set of all
//! sockets that may need this process, so that only ready ones are looked at.
//!
//! Members are the doorbell sockets of connections that cannot go on alone (streamed messages), and
//! the sockets of clients that are greeting.

use crate::ipc::os::{self, Epoll};
use crate::os::lock::Lock;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, Ordering};

/// Upper half of a key: it is a connection's handle, or a greeting's number.
pub const CONNECTION: u64 = 1 << 32;
pub const GREETING: u64 = 2 << 32;

/// Most members that are served in one go.
pub const AT_ONCE: usize = 16;

static BACKGROUND: Lock<Option<Arc<Epoll>>> = Lock::new(None);

/// Returns the set if it is still ours: a program that closes all descriptors has closed it, too, and
/// may have an epoll set of its own under the number.
fn existing() -> Option<Arc<Epoll>> {
    let mut held = BACKGROUND.lock();
    held.take_if(|set| !set.is_there());
    held.clone()
}

fn existing_or_new() -> os::Result<Arc<Epoll>> {
    if let Some(set) = existing() {
        return Ok(set);
    }
    let made = Epoll::new()?;
    Ok(BACKGROUND.lock().get_or_insert_with(|| Arc::new(made)).clone())
}

/// Adds a descriptor under a key, or changes its events.
pub fn watch(fd: i32, events: i16, key: u64) -> os::Result<()> {
    existing_or_new()?.watch(fd, events, key)
}

/// Removes a descriptor that is not closed yet.
pub fn forget(fd: i32) {
    if let Some(set) = existing() {
        set.forget(fd);
    }
}

/// Members that threads of this process have marked as ready.
static NOTED: Lock<Vec<u64>> = Lock::new(Vec::new());
static ANY_NOTED: AtomicBool = AtomicBool::new(false);

/// Marks a member as ready, although its peer has not rung.
pub fn note(key: u64) {
    let mut noted = NOTED.lock();
    // Without memory, only its own waiter serves it.
    if !noted.contains(&key) && noted.try_reserve(1).is_ok() {
        noted.push(key);
        ANY_NOTED.store(true, Ordering::Release);
    }
}

/// Set if a member was left although it may be ready: the next sleep is short.
static SKIPPED: AtomicBool = AtomicBool::new(false);

/// Leaves a member that another thread is in, which may have looked at it before the change.
pub fn skip(key: u64) {
    note(key);
    SKIPPED.store(true, Ordering::Release);
}

/// Returns whether a member was skipped since the last call, and is to be looked at soon.
pub fn was_skipped() -> bool {
    SKIPPED.load(Ordering::Relaxed) && SKIPPED.swap(false, Ordering::AcqRel)
}

/// Returns the keys of some members that are ready.
pub fn ready(keys: &mut [u64; AT_ONCE]) -> usize {
    if ANY_NOTED.load(Ordering::Acquire) {
        let mut noted = NOTED.lock();
        let count = noted.len().min(AT_ONCE);
        for (key, noted) in keys.iter_mut().zip(noted.drain(..count)) {
            *key = noted;
        }
        ANY_NOTED.store(!noted.is_empty(), Ordering::Release);
        if count > 0 {
            return count;
        }
    }
    existing().map_or(0, |set| set.ready(keys))
}

/// Returns the set's descriptor, to be polled.
pub fn raw() -> os::Result<i32> {
    existing_or_new().map(|set| set.raw())
}

/// Forgets the parent's set in the child of a fork.
pub fn forget_after_fork() {
    BACKGROUND.renew();
    NOTED.renew();
    ANY_NOTED.store(false, Ordering::Release);
}
