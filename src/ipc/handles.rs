//! Handles, and the process they belong to.
//!
//! A handle holds the slot of its connection and a generation, so an old one is never mistaken for
//! a new one. Calls in progress are counted in the slot; closing waits for them.
//!
//! After a fork the connections are the parent's. A page that the kernel wipes in every kind of
//! child shows that without a system call: it holds a number that every connection remembers.
//! Regions are not inherited; descriptors are closed in the child, except some that another thread
//! opens or closes in that very moment.

use crate::ipc::link::Link;
use crate::ipc::memory::blocks;
use crate::ipc::os;
use crate::ipc::os::blocking;
use crate::ipc::setup::accept;
use crate::ipc::wake::service;
use crate::os::{cpus, sys};
use alloc::boxed::Box;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

const PLACES: usize = 4096;
const PLACE_BITS: u32 = PLACES.ilog2();
const GENERATIONS: u32 = 1 << (30 - PLACE_BITS);

/// Bit of every handle, so that none equals a descriptor number.
const MARK: u32 = 1 << 30;

#[repr(align(64))]
struct HandleSlot {
    /// Handle; 0: free, or being opened or closed.
    handle: AtomicU32,
    users: AtomicU32,
    generation: AtomicU32,
    /// Null: the slot is free.
    link: AtomicPtr<Link>,
}

static TABLE: [HandleSlot; PLACES] = [const {
    HandleSlot {
        handle: AtomicU32::new(0),
        users: AtomicU32::new(0),
        generation: AtomicU32::new(0),
        link: AtomicPtr::new(core::ptr::null_mut()),
    }
}; PLACES];

/// One more than the highest slot that was ever used.
static USED: AtomicU32 = AtomicU32::new(0);

/// Slots that are used in turn before a generation wraps: the handle of a closed connection is
/// reused after 2^24 others at the earliest.
const IN_TURN: usize = 64;
static TURN: AtomicU32 = AtomicU32::new(0);

/// The page that the kernel wipes; null until there is a connection.
static OWNER: AtomicPtr<AtomicU64> = AtomicPtr::new(core::ptr::null_mut());

/// Value of that page while the first connection of a process is made.
const BEGINNING: u64 = 1;

/// A connection in use: closing waits for the drop.
pub struct Used {
    place: &'static HandleSlot,
}

impl core::ops::Deref for Used {
    type Target = Link;

    fn deref(&self) -> &Link {
        // SAFETY: `find` has seen it open after it was counted, and closing waits for that.
        unsafe { &*self.place.link.load(Ordering::Acquire) }
    }
}

impl Drop for Used {
    #[inline]
    fn drop(&mut self) {
        let HandleSlot { users, handle, .. } = self.place;
        // Closing sleeps on it; it has taken the handle away first.
        if users.fetch_sub(1, Ordering::AcqRel) == 2 && handle.load(Ordering::Acquire) == 0 {
            sys::futex_wake(users.as_ptr(), 1);
        }
    }
}

/// Returns the connection of a handle.
#[inline]
pub fn find(handle: i32) -> os::Result<Used> {
    let used = find_any(handle)?;
    if used.closing.load(Ordering::Relaxed) { Err(libc::EBADF) } else { Ok(used) }
}

/// Like `find`, also while closing has begun and not ended.
#[inline]
pub fn find_any(handle: i32) -> os::Result<Used> {
    let number = u32::try_from(handle).ok().filter(|handle| handle & MARK != 0);
    let place = &TABLE[number.ok_or(libc::EBADF)? as usize % PLACES];
    place.users.fetch_add(1, Ordering::AcqRel);
    let used = Used { place };
    if place.handle.load(Ordering::Acquire) != handle as u32 {
        return Err(libc::EBADF);
    }
    if used.owner == owner() { Ok(used) } else { Err(libc::EPERM) }
}

/// Returns all connections.
pub fn all() -> impl Iterator<Item = Used> {
    let places = &TABLE[..USED.load(Ordering::Acquire) as usize];
    places.iter().filter_map(|place| find(place.handle.load(Ordering::Acquire) as i32).ok())
}

pub fn owner() -> u64 {
    let page = OWNER.load(Ordering::Acquire);
    // SAFETY: null, or a page that is never unmapped.
    if page.is_null() { 0 } else { unsafe { (*page).load(Ordering::Relaxed) } }
}

/// Returns the number of this process, for connections to remember.
pub fn become_owner() -> os::Result<u64> {
    os::check_heap()?; // every caller needs some
    if OWNER.load(Ordering::Acquire).is_null() {
        let page: *mut AtomicU64 = sys::page_wiped_on_fork(sys::NoFilter::assumed()).cast();
        if page.is_null() {
            return Err(libc::ENOMEM);
        }
        // Another thread may be first; then our page is leaked.
        let null = core::ptr::null_mut();
        let _ = OWNER.compare_exchange(null, page, Ordering::AcqRel, Ordering::Acquire);
    }
    // SAFETY: just made sure of it.
    let word = unsafe { &*OWNER.load(Ordering::Acquire) };
    if word.compare_exchange(0, BEGINNING, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        service::forget_after_fork();
        let fresh = sys::ticks() << 16 | (sys::getpid() as u64 & 0xffff) | 2;
        word.store(fresh, Ordering::Release);
    }
    loop {
        match word.load(Ordering::Acquire) {
            BEGINNING => sys::yield_now(),
            owner => return Ok(owner),
        }
    }
}

/// Gives a connection a handle.
pub fn enter(link: Box<Link>) -> os::Result<i32> {
    let link = Box::into_raw(link);
    let used = IN_TURN.max(USED.load(Ordering::Acquire) as usize);
    let first = TURN.fetch_add(1, Ordering::Relaxed) as usize % used;
    for index in (first..used).chain(0..first).chain(used..PLACES) {
        let (place, free) = (&TABLE[index], core::ptr::null_mut());
        if place.link.compare_exchange(free, link, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            continue;
        }
        USED.fetch_max(index as u32 + 1, Ordering::AcqRel);
        let generation = place.generation.fetch_add(1, Ordering::Relaxed) % GENERATIONS;
        let handle = MARK | generation << PLACE_BITS | index as u32;
        // SAFETY: just made from a box; no other thread knows it.
        let link = unsafe { &*link };
        place.handle.store(handle, Ordering::Release);
        link.enter(handle);
        return Ok(handle as i32);
    }
    // SAFETY: made from a box above; no place of the table has it, so no other thread does.
    drop(unsafe { Box::from_raw(link) });
    Err(libc::EMFILE)
}

/// Closes a connection, once no call uses it any more.
pub fn close(handle: i32) -> os::Result<()> {
    let used = find_any(handle)?;
    let place = used.place;
    let (number, taken) = (handle as u32, Ordering::AcqRel);
    place.handle.compare_exchange(number, 0, taken, Ordering::Relaxed).map_err(|_| libc::EBADF)?;
    let limit = sys::nanoseconds() + used.settings.patience;
    used.begin_close();
    let alone = loop {
        let users = place.users.load(Ordering::Acquire);
        let left = limit.saturating_sub(sys::nanoseconds());
        if users == 1 || left == 0 {
            break users == 1;
        }
        sys::futex_wait(place.users.as_ptr(), users, left);
    };
    if !alone || !used.end_close(limit) {
        // For another attempt: the handle stays valid.
        place.handle.store(number, Ordering::Release);
        return Err(libc::ETIMEDOUT);
    }
    drop(used);
    // SAFETY: made by `enter`; the handle is gone and so are the users.
    drop(unsafe { Box::from_raw(place.link.load(Ordering::Acquire)) });
    place.link.store(core::ptr::null_mut(), Ordering::Release);
    Ok(())
}

/// Forgets the parent's connections in the child of a fork.
pub fn forget_after_fork() {
    accept::forget_after_fork();
    // Skipped without messages: the child need not touch another page.
    if os::was_used() {
        service::forget_after_fork();
        cpus::forget_after_fork();
    }
    blocking::forget_after_fork();
    blocks::forget_after_fork();
    os::forget_proc();
    os::close_after_fork();
}
