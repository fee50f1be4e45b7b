//! The functions of the interface, in Rust: arguments are checked here.

use super::half::{NUMBER_BITS, Role};
use super::link::Link;
use super::settings::settings;
use super::wire::Met;
use super::{blocks, doorway, os, table, wire};
use crate::os::sys;
use core::ffi::{CStr, c_void};

fn answer(result: os::Result<i32>) -> i32 {
    result.unwrap_or_else(|errno| -errno)
}

pub fn listen(path: &CStr) -> i32 {
    answer(wire::listen(path.to_bytes()).map(os::Fd::into_raw))
}

pub fn accept(listener: i32) -> i32 {
    let settings = settings();
    let owner = table::become_owner();
    answer(owner.and_then(|owner| entered(doorway::accept(listener, &settings)?, owner)))
}

pub fn connect(path: &CStr) -> i32 {
    let socket = wire::connect(path.to_bytes(), &settings());
    answer(socket.and_then(|socket| attached(socket.raw())))
}

pub fn attach(socket: i32) -> i32 {
    answer(attached(socket))
}

fn attached(socket: i32) -> os::Result<i32> {
    let owner = table::become_owner()?;
    entered(wire::meet(socket, &settings())?, owner)
}

fn entered(mut met: Met, owner: u64) -> os::Result<i32> {
    let settings = settings();
    let _hidden = core::mem::take(&mut met.hidden);
    let link = Box::new(Link::new(met, &settings, owner));
    if settings.tell {
        sys::say(format_args!("connection: {}", link.story));
    }
    table::enter(link)
}

pub fn close(handle: i32) -> i32 {
    if os::is_listener(handle) {
        doorway::forget(handle);
        sys::close(handle);
        return 0;
    }
    table::close(handle) as i32
}

/// Null: there is no memory, or no descriptor.
pub fn alloc(len: usize) -> *mut c_void {
    let block = table::become_owner().and_then(|owner| blocks::allocate(len, owner));
    block.unwrap_or(core::ptr::null_mut())
}

/// # Safety
/// Nobody uses the block any more.
pub unsafe fn free(addr: usize) -> i32 {
    if addr == 0 {
        return 0;
    }
    // SAFETY: the caller's promise.
    answer(unsafe { blocks::free(addr, table::owner()) }.map(|()| 0))
}

/// Which engine a connection uses, as text; see `snprintf` for the answer.
///
/// # Safety
/// `text` is writable for `size` bytes.
pub unsafe fn info(handle: i32, text: *mut u8, size: usize) -> i32 {
    let link = match table::find(handle) {
        Ok(link) => link,
        Err(errno) => return errno as i32,
    };
    let story = link.story.as_bytes();
    if size > 0 {
        let len = story.len().min(size - 1);
        // SAFETY: the caller's promise.
        unsafe {
            core::ptr::copy_nonoverlapping(story.as_ptr(), text, len);
            *text.add(len) = 0;
        }
    }
    story.len() as i32
}

/// Larger than any buffer.
fn is_too_long(addr: usize, len: usize) -> bool {
    len > isize::MAX as usize || addr.checked_add(len).is_none()
}

/// # Safety
/// The buffer is the caller's, for as long as this takes.
#[inline]
pub unsafe fn transfer(role: Role, handle: i32, addr: usize, len: usize) -> isize {
    if is_too_long(addr, len) {
        return -libc::EINVAL as isize;
    }
    match table::find(handle) {
        // SAFETY: the caller's promise.
        Ok(link) => unsafe { link.transfer(role, addr, len) },
        Err(errno) => errno,
    }
}

/// # Safety
/// The buffer is the caller's until the cookie was waited for.
pub unsafe fn start(role: Role, handle: i32, addr: usize, len: usize) -> i64 {
    if is_too_long(addr, len) {
        return i64::from(-libc::EINVAL);
    }
    match table::find(handle) {
        // SAFETY: the caller's promise.
        Ok(link) => match unsafe { link.start(role, addr, len) } {
            Ok(number) => cookie(handle, role, number),
            Err(errno) => errno as i64,
        },
        Err(errno) => errno as i64,
    }
}

/// 62      32 31   30      0
/// handle     role message
fn cookie(handle: i32, role: Role, number: u32) -> i64 {
    let role = u32::from(role == Role::Reader) << 31;
    i64::from(handle) << 32 | i64::from(role | (number & NUMBER_BITS))
}

fn parts(cookie: i64) -> Option<(i32, Role, u32)> {
    let handle = i32::try_from(cookie >> 32).ok().filter(|handle| *handle > 0)?;
    let role = if cookie as u32 >> 31 == 1 { Role::Reader } else { Role::Writer };
    Some((handle, role, cookie as u32 & NUMBER_BITS))
}

pub fn check(cookie: i64) -> isize {
    with_cookie(cookie, |link, role, number| {
        link.check(role, number).unwrap_or_else(|| {
            link.end_wait(role, number);
            -libc::EINPROGRESS as isize
        })
    })
}

pub fn wait(cookie: i64) -> isize {
    with_cookie(cookie, |link, role, number| link.wait(role, number))
}

/// Negative: without end.
pub fn wait_for(cookie: i64, milliseconds: i32) -> isize {
    let Ok(milliseconds) = u64::try_from(milliseconds) else { return wait(cookie) };
    let limit = sys::nanoseconds() + milliseconds * 1_000_000;
    with_cookie(cookie, |link, role, number| {
        link.wait_until(role, number, Some(limit)).unwrap_or_else(|| {
            link.end_wait(role, number);
            -libc::ETIMEDOUT as isize
        })
    })
}

fn with_cookie(cookie: i64, work: impl FnOnce(&Link, Role, u32) -> isize) -> isize {
    let invalid = -libc::EINVAL as isize;
    let Some((handle, role, number)) = parts(cookie) else { return invalid };
    let link = match table::find(handle) {
        Ok(link) => link,
        Err(errno) if errno == -libc::EPERM as isize => return errno,
        Err(_) => return invalid,
    };
    // A cookie of somebody else, one used before, or one that another thread waits with.
    match link.begin_wait(role, number) {
        Some(number) => work(&link, role, number),
        None => invalid,
    }
}
