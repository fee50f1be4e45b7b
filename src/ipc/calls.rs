//! The functions of include/adma.h: what they promise is written there, and what they ask for:
//! buffers that are there as long as it says ("the caller's promise"). Arguments are checked here,
//! handles and cookies turned into connections and messages.

use crate::backend::libc as original;
use crate::ipc::handles;
use crate::ipc::link::{Link, STAYS};
use crate::ipc::memory::blocks;
use crate::ipc::messages::{NUMBER_BITS, Role};
use crate::ipc::os;
use crate::ipc::settings::settings;
use crate::ipc::setup;
use crate::ipc::setup::accept;
use crate::ipc::setup::handshake::Established;
use crate::ipc::wait::{Until, moment_in, serve};
use crate::os::{arch, sys, text};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::{CStr, c_char, c_int, c_void};

#[cfg(not(any(test, loom)))]
crate::export::export! {
    adma_listen,
    adma_accept,
    adma_accept_for,
    adma_connect,
    adma_connect_for,
    adma_attach,
    adma_close,
    adma_connection_info,
    adma_alloc,
    adma_free,
    adma_peer,
    adma_event_fd,
    adma_arm,
    adma_next,
    adma_read,
    adma_read_for,
    adma_read_within,
    adma_readv,
    adma_write,
    adma_write_for,
    adma_write_within,
    adma_writev,
    adma_iread,
    adma_iwrite,
}

fn answer(result: os::Result<i32>) -> c_int {
    result.unwrap_or_else(|errno| -errno)
}

fn nothing_or(result: os::Result<()>) -> c_int {
    answer(result.map(|()| 0))
}

pub unsafe extern "C" fn adma_listen(path: *const c_char) -> c_int {
    // SAFETY: adma.h: `path` is a string that ends with a zero.
    let path = unsafe { CStr::from_ptr(path) };
    answer(setup::listen(path.to_bytes()).map(os::Fd::into_raw))
}

pub extern "C" fn adma_accept(listener: c_int) -> c_int {
    adma_accept_for(listener, -1)
}

/// Negative: as `adma_accept`.
pub extern "C" fn adma_accept_for(listener: c_int, milliseconds: c_int) -> c_int {
    entered(|| accept::accept(listener, settings(), moment_in(milliseconds)))
}

pub unsafe extern "C" fn adma_connect(path: *const c_char) -> c_int {
    // SAFETY: adma.h: `path` is a string that ends with a zero.
    unsafe { adma_connect_for(path, -1) }
}

/// Negative: ADMA_IPC_TIMEOUT.
pub unsafe extern "C" fn adma_connect_for(path: *const c_char, milliseconds: c_int) -> c_int {
    // SAFETY: adma.h: `path` is a string that ends with a zero.
    let path = unsafe { CStr::from_ptr(path) };
    let end = || moment_in(milliseconds).unwrap_or(sys::nanoseconds() + settings().patience);
    entered(|| setup::connect(path.to_bytes(), settings(), end()))
}

pub extern "C" fn adma_attach(socket: c_int) -> c_int {
    entered(|| setup::attach(socket, settings()))
}

fn entered(establish: impl FnOnce() -> os::Result<Established>) -> c_int {
    // Connections map files, whose blocks are of pages as x86-64 has them.
    if arch::obstacle().is_some() {
        return -libc::ENOSYS;
    }
    serve::begin();
    let link = handles::become_owner().and_then(|owner| Ok(Link::new(establish()?, owner)));
    answer(link.and_then(|link| {
        if settings().tell {
            text::say(format_args!("connection: {}", link.story));
        }
        handles::enter(Box::new(link))
    }))
}

pub extern "C" fn adma_close(connection: c_int) -> c_int {
    if os::is_listener(connection) {
        let file = sys::file_of(connection);
        sys::close(connection);
        accept::forget(file); // also what another thread has just accepted
        return 0;
    }
    nothing_or(handles::close(connection))
}

/// Null: there is no memory, or no descriptor.
pub extern "C" fn adma_alloc(len: usize) -> *mut c_void {
    let block = handles::become_owner().and_then(|owner| blocks::allocate(len, owner));
    block.unwrap_or(core::ptr::null_mut())
}

pub unsafe extern "C" fn adma_free(addr: *mut c_void) -> c_int {
    if addr.is_null() {
        return 0;
    }
    // SAFETY: adma.h: no message is under way in the block, and the program uses it no more.
    nothing_or(unsafe { blocks::free(addr as usize, handles::owner()) })
}

/// Mirrors `struct adma_peer`.
#[repr(C)]
pub struct PeerInfo {
    /// pid, uid and gid.
    process: os::Credentials,
    proven: c_int,
}

pub unsafe extern "C" fn adma_peer(connection: c_int, info: *mut PeerInfo) -> c_int {
    nothing_or(handles::find(connection).map(|link| {
        let proven = c_int::from(link.proven().is_some());
        // SAFETY: adma.h: `info` points to room for a `struct adma_peer`.
        unsafe { info.write(PeerInfo { process: link.peer, proven }) };
    }))
}

pub extern "C" fn adma_event_fd(connection: c_int) -> c_int {
    serve::begin();
    answer(match os::is_listener(connection) {
        true => handles::become_owner().and_then(|_| accept::event_fd(connection)),
        false => handles::find(connection).and_then(|link| Ok(link.events()?.raw())),
    })
}

pub extern "C" fn adma_arm(connection: c_int) -> c_int {
    serve::begin();
    let news = match os::is_listener(connection) {
        true => handles::become_owner().and_then(|_| accept::arm(connection, settings())),
        false => handles::find(connection).and_then(|link| link.arm()),
    };
    answer(news.map(c_int::from))
}

pub extern "C" fn adma_next(connection: c_int) -> isize {
    handles::find(connection).map_or_else(|errno| -errno as isize, |link| link.next_len())
}

/// Writes which engine a connection uses; returns as `snprintf` does.
pub unsafe extern "C" fn adma_connection_info(
    connection: c_int,
    text: *mut c_char,
    size: usize,
) -> c_int {
    answer(handles::find(connection).map(|link| {
        let story = link.story.as_bytes();
        if size > 0 {
            let len = story.len().min(size - 1);
            // SAFETY: adma.h: `text` has room for `size` bytes, of which `len` is less.
            unsafe {
                core::ptr::copy_nonoverlapping(story.as_ptr(), text.cast(), len);
                *text.add(len) = 0;
            }
        }
        story.len() as c_int
    }))
}

/// Returns the connection of a handle for a buffer, or a negated errno.
#[inline]
fn find(handle: i32, addr: usize, len: usize) -> Result<handles::Used, isize> {
    if len > isize::MAX as usize || addr.checked_add(len).is_none() {
        return Err(-libc::EINVAL as isize);
    }
    handles::find(handle).map_err(|errno| -errno as isize)
}

/// Transfers one message within `ms` milliseconds; negative: without a limit.
#[inline(always)]
unsafe fn transfer(
    role: Role,
    handle: i32,
    (addr, len): (usize, usize),
    ms: c_int,
    until: Until,
) -> isize {
    let link = match find(handle, addr, len) {
        Ok(link) => link,
        Err(errno) => return errno,
    };
    // SAFETY: the buffer is the program's, which stays in this call until the message is over.
    unsafe { link.transfer(role, (addr, len), ms, until) }
}

/// Returns the result as the program gets it.
fn result_of(result: isize) -> isize {
    if result == STAYS { -libc::EMSGSIZE as isize } else { result }
}

unsafe fn start(role: Role, handle: i32, addr: usize, len: usize) -> i64 {
    // SAFETY: the program keeps the buffer valid until the message is over (adma.h).
    let started = find(handle, addr, len).and_then(|link| unsafe { link.start(role, addr, len) });
    started.map_or_else(|errno| result_of(errno) as i64, |number| cookie(handle, role, number))
}

/// Functions for one buffer: name, role, type of the address, meaning of the limit if there is one.
macro_rules! transfers {
    ($($name:ident($role:ident, $address:ty, $until:ident $(, $ms:ident)?);)*) => {
        $(
            pub unsafe extern "C" fn $name(
                c: c_int,
                addr: $address,
                len: usize
                $(, $ms: c_int)?
            ) -> isize {
                // Negative: without a limit.
                let limit = [-1 $(, $ms)?];
                // SAFETY: the program's buffer of `len` bytes; the program stays in this call until
                // the message is over.
                result_of(unsafe {
                    let (ms, buffer) = (limit[limit.len() - 1], (addr as usize, len));
                    transfer(Role::$role, c, buffer, ms, Until::$until)
                })
            }
        )*
    };
}

transfers! {
    adma_read(Reader, *mut c_void, Over);
    adma_read_for(Reader, *mut c_void, Over, ms);
    adma_read_within(Reader, *mut c_void, Begun, ms);
    adma_write(Writer, *const c_void, Over);
    adma_write_for(Writer, *const c_void, Over, ms);
    adma_write_within(Writer, *const c_void, Begun, ms);
}

/// Transfers one message between several buffers, through one of ours.
unsafe fn transfer_parts(
    role: Role,
    handle: c_int,
    parts: *const libc::iovec,
    count: c_int,
) -> isize {
    const MOST_PARTS: usize = 1024; // IOV_MAX
    let invalid = -libc::EINVAL as isize;
    let Ok(count @ 0..=MOST_PARTS) = usize::try_from(count) else { return invalid };
    // SAFETY: adma.h: `parts` points to `count` of them, which do not change meanwhile.
    let parts = if count == 0 { &[] } else { unsafe { core::slice::from_raw_parts(parts, count) } };
    let add = |sum: usize, part: &libc::iovec| sum.checked_add(part.iov_len);
    let Some(len) = parts.iter().try_fold(0, add).filter(|len| isize::try_from(*len).is_ok())
    else {
        return invalid;
    };
    if let [part] = parts {
        // SAFETY: the only part is a buffer of `len` bytes; the program stays in this call.
        return result_of(unsafe {
            transfer(role, handle, (part.iov_base as usize, len), -1, Until::Over)
        });
    }
    let mut room = Vec::<u8>::new();
    if room.try_reserve_exact(len).is_err() {
        return -libc::ENOMEM as isize;
    }
    let at = room.as_mut_ptr() as usize;
    // SAFETY: parts and room do not overlap; `upto` bytes of the room are in use.
    let copy = |upto: usize| {
        let mut done = 0;
        for part in parts {
            let (theirs, bytes) = (part.iov_base as usize, part.iov_len.min(upto - done));
            let (to, from) = match role {
                Role::Writer => (at + done, theirs),
                Role::Reader => (theirs, at + done),
            };
            // SAFETY: `bytes` are left of the part and of the room, which is new memory of ours.
            unsafe { original::copy(to, from, bytes) };
            done += bytes;
        }
    };
    if role == Role::Writer {
        copy(len);
    }
    // SAFETY: `room` lives through the call.
    let result = unsafe { transfer(role, handle, (at, len), -1, Until::Over) };
    match (role, usize::try_from(result)) {
        (Role::Reader, Ok(count)) => copy(count),
        // The beginning of a longer message, of which the rest is dropped.
        (Role::Reader, _) if result == -libc::EMSGSIZE as isize => copy(len),
        _ => {}
    }
    result_of(result)
}

pub unsafe extern "C" fn adma_readv(c: c_int, parts: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: adma.h: `parts` points to `count` of them, and each is a buffer of its length.
    unsafe { transfer_parts(Role::Reader, c, parts, count) }
}

pub unsafe extern "C" fn adma_writev(c: c_int, parts: *const libc::iovec, count: c_int) -> isize {
    // SAFETY: adma.h: `parts` points to `count` of them, and each is a buffer of its length.
    unsafe { transfer_parts(Role::Writer, c, parts, count) }
}

pub unsafe extern "C" fn adma_iread(connection: c_int, addr: *mut c_void, len: usize) -> i64 {
    // SAFETY: the program keeps the buffer valid until the message is over (adma.h).
    unsafe { start(Role::Reader, connection, addr as usize, len) }
}

pub unsafe extern "C" fn adma_iwrite(connection: c_int, addr: *const c_void, len: usize) -> i64 {
    // SAFETY: the program keeps the buffer valid until the message is over (adma.h).
    unsafe { start(Role::Writer, connection, addr as usize, len) }
}

/// 62      32 31   30      0
/// handle     role message
fn cookie(handle: i32, role: Role, number: u32) -> i64 {
    let role = u32::from(role == Role::Reader) << 31;
    i64::from(handle) << 32 | i64::from(role | (number & NUMBER_BITS))
}

/// Returns what a cookie stands for, or a negated errno: -EPERM in the child of a fork.
fn of_cookie(cookie: i64) -> Result<(handles::Used, Role, u32), isize> {
    let link = handles::find((cookie >> 32) as i32).map_err(|errno| match errno {
        libc::EPERM => -libc::EPERM as isize,
        _ => -libc::EINVAL as isize,
    })?;
    let role = if cookie as u32 >> 31 == 1 { Role::Reader } else { Role::Writer };
    Ok((link, role, cookie as u32 & NUMBER_BITS))
}

/// Returns whether a cookie is a message's; those of copies lack this bit.
pub fn is_message(cookie: i64) -> bool {
    cookie > 0 && cookie >> 62 == 1
}

pub fn check(cookie: i64) -> isize {
    with_cookie(cookie, false, -libc::EINPROGRESS, |link, role, number| link.check(role, number))
}

/// Negative: without end.
pub fn wait_for(cookie: i64, milliseconds: c_int) -> isize {
    let limit = moment_in(milliseconds);
    with_cookie(cookie, true, -libc::ETIMEDOUT, |link, role, number| {
        link.wait_until(role, number, limit, limit.is_some())
    })
}

pub fn cancel(cookie: i64) -> isize {
    with_cookie(cookie, true, 0, |link, role, number| Some(link.cancel(role, number)))
}

/// Returns the bytes from the start of a message that are in place.
pub fn copied(cookie: i64) -> isize {
    let copied = of_cookie(cookie).and_then(|(link, role, number)| {
        let (endpoint, lane) = link.endpoint(role);
        endpoint.lock().copied_from_start(lane, number).ok_or(-libc::EINVAL as isize)
    });
    copied.map_or_else(|errno| errno, |bytes| bytes as isize)
}

/// `waits`: the caller moves the message itself meanwhile; `unfinished` is the result where it is not over.
fn with_cookie(
    cookie: i64,
    waits: bool,
    unfinished: c_int,
    work: impl FnOnce(&Link, Role, u32) -> Option<isize>,
) -> isize {
    let (link, role, number) = match of_cookie(cookie) {
        Ok(found) => found,
        Err(errno) => return errno,
    };
    // Not a cookie, one used before, or one that another thread waits with.
    let (endpoint, _) = link.endpoint(role);
    let number = endpoint.lock().begin_wait(number, waits);
    let Some(number) = number else { return -libc::EINVAL as isize };
    if waits {
        link.take_from_service();
    }
    work(&link, role, number).unwrap_or_else(|| {
        endpoint.lock().end_wait(number);
        if waits {
            link.leave_to_service(role, number);
        }
        unfinished as isize
    })
}
