//! Per-process state of asynchronous copies: the tag of its cookies, and the descriptor that
//! becomes readable when a copy has ended.

use crate::backend::threads::cookies::Cookie;
use crate::os::process::Own;
use crate::os::sys;
use core::sync::atomic::{AtomicU64, Ordering};

/// Device and inode of the descriptor for ends.
static POLL_FILE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

pub fn pack(cookie: Cookie) -> i64 {
    let tag = &Own::get_or_make().cookies;
    if tag.load(Ordering::Relaxed) == 0 {
        tag.store(sys::getpid() as u32, Ordering::Relaxed);
    }
    cookie.pack(tag.load(Ordering::Relaxed))
}

pub fn unpack(cookie: i64) -> Option<Cookie> {
    let tag = Own::get()?.cookies.load(Ordering::Relaxed);
    if tag == 0 { None } else { Cookie::unpack(cookie, tag) }
}

/// Returns the descriptor for ends, if the program has asked for one.
pub(super) fn poll() -> Option<i32> {
    let stored = Own::get()?.poll.load(Ordering::Acquire);
    (stored > 0).then(|| stored - 1)
}

/// Returns whether the number still stands for our descriptor: the program may have closed it.
pub(super) fn is_our_poll(fd: i32) -> bool {
    let [device, inode] = POLL_FILE.each_ref().map(|half| half.load(Ordering::Relaxed));
    sys::file_of(fd) == Some((device, inode))
}

/// Returns the descriptor that becomes readable when a copy has ended, or an errno.
pub fn poll_fd() -> Result<i32, i32> {
    let stored = &Own::get_or_make().poll;
    let before = stored.load(Ordering::Acquire);
    if before > 0 && is_our_poll(before - 1) {
        return Ok(before - 1);
    }
    let answer = sys::new_event();
    if answer < 0 {
        return Err(-answer as i32);
    }
    let new = answer as i32;
    if let Some((device, inode)) = sys::file_of(new) {
        POLL_FILE[0].store(device, Ordering::Relaxed);
        POLL_FILE[1].store(inode, Ordering::Relaxed);
    }
    match stored.compare_exchange(before, new + 1, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(new),
        Err(other) => {
            sys::close(new);
            Ok(other - 1)
        }
    }
}
