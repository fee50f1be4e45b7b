//! Asynchronous copies: carried by the workers or by an engine's channels, ended by the thread that
//! finishes last.
//!
//! The caller works too, but only when it waits: then it claims pieces like a worker.
//!
//! The caller promises that source, destination and word stay as they are until the end is
//! reported.

mod begin;
mod end;
mod per_process;
#[cfg(test)]
mod tests;

use crate::backend::threads::workers::{PENDING, QUEUE};
use crate::os::process;

#[cfg(not(test))]
pub use crate::backend::threads::cookies::Notice;
pub use crate::backend::threads::cookies::{Cookie, CookieState};
pub use begin::{By, FLOOR, Wanted, begin};
#[cfg(not(test))]
pub use end::{AT_END, VERIFY, copied};
pub use end::{check, init, wait};
#[cfg(not(test))]
pub use per_process::{pack, poll_fd, unpack};

/// One copy, as the caller gives it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    pub src: usize,
    pub dst: usize,
    pub len: usize,
}

/// Forgets copies in flight in the child of a fork: they are the parent's.
pub fn forget_after_fork() {
    if process::Own::get().is_some() {
        PENDING.forget_everything();
    }
}

/// Prefetches what `begin` will change, while the caller decides.
pub fn prefetch() {
    process::prefetch();
    PENDING.prefetch();
    QUEUE.prefetch();
}
