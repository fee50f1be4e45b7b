//! What of asynchronous copies belongs to one process: the tag of its cookies, and the descriptor that
//! becomes readable when something has ended.

use crate::backend::threads::cookies::Cookie;
use crate::os::sync::fetch_to_change;
use crate::os::sys;
use core::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

/// What the descriptor for ends stood for: device and inode.
static POLL_FILE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// What is this process's own. It lies in a page that the kernel wipes in every child, also in
/// one that runs no handlers; null until there is something to know.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow, and every fork reads
static OURS: AtomicPtr<Ours> = AtomicPtr::new(core::ptr::null_mut());
/// Where there is no such page.
static PLAIN: Ours = Ours { tag: AtomicU32::new(0), poll: AtomicI32::new(0) };

struct Ours {
    /// Which process the cookies belong to; 0: there are none.
    tag: AtomicU32,
    /// The descriptor that is readable when something has ended, plus one; 0: there is none.
    poll: AtomicI32,
}

/// Fetches what `pack` will look at.
pub(super) fn prefetch() {
    fetch_to_change(OURS.load(Ordering::Relaxed) as usize);
}

/// In the child of a fork: cookies and descriptor are the parent's. False: there were none.
pub(super) fn forget_after_fork() -> bool {
    if ours().is_none() {
        return false;
    }
    PLAIN.tag.store(0, Ordering::Relaxed);
    PLAIN.poll.store(0, Ordering::Relaxed);
    true
}

pub fn pack(cookie: Cookie) -> i64 {
    let word = &ours_or_new().tag;
    if word.load(Ordering::Relaxed) == 0 {
        word.store(sys::getpid() as u32, Ordering::Relaxed);
    }
    cookie.pack(word.load(Ordering::Relaxed))
}

pub fn unpack(cookie: i64) -> Option<Cookie> {
    let tag = ours()?.tag.load(Ordering::Relaxed);
    if tag == 0 { None } else { Cookie::unpack(cookie, tag) }
}

fn ours() -> Option<&'static Ours> {
    // SAFETY: null, or what `make_ours` has put there, which stays.
    unsafe { OURS.load(Ordering::Acquire).as_ref() }
}

fn ours_or_new() -> &'static Ours {
    ours().unwrap_or_else(make_ours)
}

#[cold]
fn make_ours() -> &'static Ours {
    let wiped = sys::NoFilter::look().map(sys::page_wiped_on_fork).filter(|page| !page.is_null());
    let page = wiped.map_or((&raw const PLAIN).cast_mut(), |page| page.cast());
    // Another thread may be first; a page is lost then.
    let null = core::ptr::null_mut();
    let made = OURS.compare_exchange(null, page, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: `PLAIN`, or a page of zeros that is never unmapped.
    unsafe { &*made.map_or_else(|there| there, |_| page) }
}

/// The descriptor for ends, if the program has asked for one.
pub(super) fn poll() -> Option<i32> {
    ours().map(|ours| ours.poll.load(Ordering::Acquire)).filter(|&stored| stored > 0).map(|n| n - 1)
}

/// The program may have closed the number, and another file may have it now.
pub(super) fn is_our_poll(fd: i32) -> bool {
    let [device, inode] = POLL_FILE.each_ref().map(|half| half.load(Ordering::Relaxed));
    sys::file_of(fd) == Some((device, inode))
}

/// The descriptor that becomes readable when something has ended, or an errno.
pub fn poll_fd() -> Result<i32, i32> {
    let stored = &ours_or_new().poll;
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
