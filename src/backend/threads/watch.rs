//! One worker at a time watches over callers that hold signals, instead of copying: see
//! `os::holders`. It never hangs, because it touches no memory of the program's.
//!
//! A caller that finds no worker in this role sets it to `WANTED`. The next worker that looks for
//! work takes the role, or makes another worker that takes it. The role is given back when no
//! caller has held signals for a while.

use crate::backend::signals;
use crate::os::holders;
use crate::os::signal_mask::SignalsHeld;
use crate::os::sys::{self, NoFilter};
use core::sync::atomic::{AtomicU32, Ordering};

/// State of the role; the worker that watches sleeps on it.
static ROLE: AtomicU32 = AtomicU32::new(role::NONE);

mod role {
    pub const NONE: u32 = 0;
    pub const WANTED: u32 = 1;
    pub const TAKEN: u32 = 2;
    /// Taken, and the worker is to look at once.
    pub const HURRIED: u32 = 3;
}

/// Time between two looks. A signal sent to the process is delayed by one or two of them.
const LOOK_NANOS: u64 = 4_000_000;
/// Looks without a holder, about 100 ms, after which the role is given back: taking it again costs
/// a caller one more wake-up.
const IDLE_LOOKS: u32 = 25;

fn change(from: u32, to: u32) -> bool {
    ROLE.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

/// Asks for a worker that watches over this caller. True: no worker had the role, so the caller
/// wakes one worker more than it needs for copying.
pub fn ask_for(held: &SignalsHeld) -> bool {
    // An exchange, not a load: either a worker that is giving the role back sees this holder, or
    // this exchange sees that the role is given back.
    held.is_watched()
        && ROLE.fetch_add(0, Ordering::AcqRel) == role::NONE
        && change(role::NONE, role::WANTED)
}

/// Returns whether the next worker is to watch.
pub fn is_wanted() -> bool {
    ROLE.load(Ordering::Acquire) == role::WANTED
}

/// Returns the workers beside those that copy: one while the role is taken or wanted.
pub fn workers() -> u32 {
    u32::from(ROLE.load(Ordering::Relaxed) != role::NONE)
}

/// Watches, in a worker, as long as callers hold signals and the worker `is_wanted`.
pub(super) fn keep(is_wanted: impl Fn() -> bool) {
    if !change(role::WANTED, role::TAKEN) {
        return;
    }
    let may_send = || NoFilter::look().is_some() && signals::handlers_are_installed();
    let mut idle = 0;
    loop {
        change(role::HURRIED, role::TAKEN);
        idle = if holders::look(may_send) { 0 } else { idle + 1 };
        if idle > IDLE_LOOKS || idle > 0 && !is_wanted() {
            ROLE.swap(role::NONE, Ordering::AcqRel);
            if !holders::is_any() || !change(role::NONE, role::TAKEN) {
                return;
            }
        }
        sys::futex_wait(ROLE.as_ptr(), role::TAKEN, LOOK_NANOS);
    }
}

/// Wakes the worker that watches, because workers are sent away.
pub(super) fn hurry() {
    if change(role::TAKEN, role::HURRIED) {
        sys::futex_wake(ROLE.as_ptr(), 1);
    }
}

/// Resets the role in the child of a fork.
pub fn forget_after_fork() {
    ROLE.store(role::NONE, Ordering::Relaxed);
}
