//! The functions of include/adma.h: what they promise is written there. Arguments are checked
//! here, handles and cookies turned into connections and messages.

use super::endpoint::{NUMBER_BITS, Role};
use super::handshake::Established;
use super::link::Link;
use super::settings::settings;
use super::{accept, blocks, connect, handshake, os, table};
use crate::os::{sys, text};
use alloc::boxed::Box;
use core::ffi::{CStr, c_char, c_int, c_void};

#[cfg(not(any(test, loom)))]
crate::export::export! {
    adma_listen,
    adma_accept,
    adma_connect,
    adma_attach,
    adma_close,
    adma_connection_info,
    adma_alloc,
    adma_free,
    adma_lend,
    adma_read,
    adma_write,
    adma_iread,
    adma_iwrite,
    adma_check,
    adma_wait,
    adma_wait_for,
}

fn answer(result: os::Result<i32>) -> c_int {
    result.unwrap_or_else(|errno| -errno)
}

fn nothing_or(result: os::Result<()>) -> c_int {
    answer(result.map(|()| 0))
}

/// # Safety
/// `path` is a terminated string.
pub unsafe extern "C" fn adma_listen(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    answer(connect::listen(path.to_bytes()).map(os::Fd::into_raw))
}

pub extern "C" fn adma_accept(listener: c_int) -> c_int {
    entered(|| accept::accept(listener, settings()))
}

/// # Safety
/// `path` is a terminated string.
pub unsafe extern "C" fn adma_connect(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) };
    entered(|| connect::connect(path.to_bytes(), settings()))
}

pub extern "C" fn adma_attach(socket: c_int) -> c_int {
    entered(|| handshake::meet(socket, settings()))
}

fn entered(establish: impl FnOnce() -> os::Result<Established>) -> c_int {
    let link = table::become_owner().and_then(|owner| Ok(Link::new(establish()?, owner)));
    answer(link.and_then(|link| {
        if settings().tell {
            text::say(format_args!("connection: {}", link.story));
        }
        table::enter(Box::new(link))
    }))
}

pub extern "C" fn adma_close(connection: c_int) -> c_int {
    if os::is_listener(connection) {
        let file = sys::file_of(connection);
        os::close_listener(connection, settings().patience);
        accept::forget(file); // also what another thread has just accepted
        return 0;
    }
    nothing_or(table::close(connection))
}

/// Null: there is no memory, or no descriptor.
pub extern "C" fn adma_alloc(len: usize) -> *mut c_void {
    let block = table::become_owner().and_then(|owner| blocks::allocate(len, owner));
    block.unwrap_or(core::ptr::null_mut())
}

/// # Safety
/// Nobody uses the memory any more.
pub unsafe extern "C" fn adma_free(addr: *mut c_void) -> c_int {
    if addr.is_null() {
        return 0;
    }
    // SAFETY: the caller's promise.
    nothing_or(unsafe { blocks::free(addr as usize, table::owner()) })
}

pub extern "C" fn adma_lend(connection: c_int, addr: *mut c_void) -> c_int {
    nothing_or(table::find(connection).and_then(|link| link.lend(addr as usize)))
}

/// Which engine a connection uses, as text; see `snprintf` for the answer.
///
/// # Safety
/// `text` is writable for `size` bytes.
pub unsafe extern "C" fn adma_connection_info(
    connection: c_int,
    text: *mut c_char,
    size: usize,
) -> c_int {
    answer(table::find(connection).map(|link| {
        let story = link.story.as_bytes();
        if size > 0 {
            let len = story.len().min(size - 1);
            // SAFETY: the caller's promise.
            unsafe {
                core::ptr::copy_nonoverlapping(story.as_ptr(), text.cast(), len);
                *text.add(len) = 0;
            }
        }
        story.len() as c_int
    }))
}

/// The connection of a handle for a buffer, or a negated errno.
#[inline]
fn find(handle: i32, addr: usize, len: usize) -> Result<table::Used, isize> {
    if len > isize::MAX as usize || addr.checked_add(len).is_none() {
        return Err(-libc::EINVAL as isize);
    }
    table::find(handle).map_err(|errno| -errno as isize)
}

/// # Safety
/// The buffer is the caller's, for as long as this takes.
#[inline(always)]
unsafe fn transfer(role: Role, handle: i32, addr: usize, len: usize) -> isize {
    // SAFETY: the caller's promise.
    find(handle, addr, len)
        .map_or_else(|errno| errno, |link| unsafe { link.transfer(role, addr, len) })
}

/// # Safety
/// The buffer is the caller's until the cookie was waited for.
unsafe fn start(role: Role, handle: i32, addr: usize, len: usize) -> i64 {
    // SAFETY: the caller's promise.
    let started = find(handle, addr, len).and_then(|link| unsafe { link.start(role, addr, len) });
    started.map_or_else(|errno| errno as i64, |number| cookie(handle, role, number))
}

/// # Safety
/// `addr` is writable for `len` bytes.
pub unsafe extern "C" fn adma_read(connection: c_int, addr: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { transfer(Role::Reader, connection, addr as usize, len) }
}

/// # Safety
/// `addr` is readable for `len` bytes.
pub unsafe extern "C" fn adma_write(connection: c_int, addr: *const c_void, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { transfer(Role::Writer, connection, addr as usize, len) }
}

/// # Safety
/// `addr` is writable for `len` bytes until the cookie was waited for.
pub unsafe extern "C" fn adma_iread(connection: c_int, addr: *mut c_void, len: usize) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { start(Role::Reader, connection, addr as usize, len) }
}

/// # Safety
/// `addr` is readable for `len` bytes until the cookie was waited for.
pub unsafe extern "C" fn adma_iwrite(connection: c_int, addr: *const c_void, len: usize) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { start(Role::Writer, connection, addr as usize, len) }
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

pub extern "C" fn adma_check(cookie: i64) -> isize {
    with_cookie(cookie, -libc::EINPROGRESS, |link, role, number| link.check(role, number))
}

pub extern "C" fn adma_wait(cookie: i64) -> isize {
    with_cookie(cookie, 0, |link, role, number| Some(link.wait(role, number)))
}

/// Negative: without end.
pub extern "C" fn adma_wait_for(cookie: i64, milliseconds: c_int) -> isize {
    let Ok(milliseconds) = u64::try_from(milliseconds) else { return adma_wait(cookie) };
    let limit = Some(sys::nanoseconds() + milliseconds * 1_000_000);
    with_cookie(cookie, -libc::ETIMEDOUT, |link, role, number| link.wait_until(role, number, limit))
}

/// `unfinished` is the answer where the message is not over.
fn with_cookie(
    cookie: i64,
    unfinished: c_int,
    work: impl FnOnce(&Link, Role, u32) -> Option<isize>,
) -> isize {
    let invalid = -libc::EINVAL as isize;
    let Some((handle, role, number)) = parts(cookie) else { return invalid };
    let link = match table::find(handle) {
        Ok(link) => link,
        Err(libc::EPERM) => return -libc::EPERM as isize,
        Err(_) => return invalid,
    };
    // A cookie of somebody else, one used before, or one that another thread waits with.
    let (endpoint, _) = link.endpoint(role);
    let Some(number) = endpoint.lock().begin_wait(number) else { return invalid };
    work(&link, role, number).unwrap_or_else(|| {
        endpoint.lock().end_wait(number);
        unfinished as isize
    })
}
