//! The exported symbols. What they promise is written in include/adma.h; no logic here.

use super::calls;
use super::half::Role;
use crate::export::export;
use core::ffi::{CStr, c_char, c_int, c_void};

export! {
    adma_listen,
    adma_accept,
    adma_connect,
    adma_attach,
    adma_close,
    adma_connection_info,
    adma_alloc,
    adma_free,
    adma_read,
    adma_write,
    adma_iread,
    adma_iwrite,
    adma_check,
    adma_wait,
    adma_wait_for,
}

/// # Safety
/// `path` is a terminated string.
unsafe extern "C" fn adma_listen(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    calls::listen(unsafe { CStr::from_ptr(path) })
}

extern "C" fn adma_accept(listener: c_int) -> c_int {
    calls::accept(listener)
}

/// # Safety
/// `path` is a terminated string.
unsafe extern "C" fn adma_connect(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    calls::connect(unsafe { CStr::from_ptr(path) })
}

extern "C" fn adma_attach(socket: c_int) -> c_int {
    calls::attach(socket)
}

extern "C" fn adma_close(connection: c_int) -> c_int {
    calls::close(connection)
}

/// # Safety
/// `text` is writable for `size` bytes.
unsafe extern "C" fn adma_connection_info(
    connection: c_int,
    text: *mut c_char,
    size: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { calls::info(connection, text.cast(), size) }
}

extern "C" fn adma_alloc(len: usize) -> *mut c_void {
    calls::alloc(len)
}

/// # Safety
/// Nobody uses the memory any more.
unsafe extern "C" fn adma_free(addr: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { calls::free(addr as usize) }
}

/// # Safety
/// `addr` is writable for `len` bytes.
unsafe extern "C" fn adma_read(connection: c_int, addr: *mut c_void, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { calls::transfer(Role::Reader, connection, addr as usize, len) }
}

/// # Safety
/// `addr` is readable for `len` bytes.
unsafe extern "C" fn adma_write(connection: c_int, addr: *const c_void, len: usize) -> isize {
    // SAFETY: the caller's promise.
    unsafe { calls::transfer(Role::Writer, connection, addr as usize, len) }
}

/// # Safety
/// `addr` is writable for `len` bytes until the cookie was waited for.
unsafe extern "C" fn adma_iread(connection: c_int, addr: *mut c_void, len: usize) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { calls::start(Role::Reader, connection, addr as usize, len) }
}

/// # Safety
/// `addr` is readable for `len` bytes until the cookie was waited for.
unsafe extern "C" fn adma_iwrite(connection: c_int, addr: *const c_void, len: usize) -> i64 {
    // SAFETY: the caller's promise.
    unsafe { calls::start(Role::Writer, connection, addr as usize, len) }
}

extern "C" fn adma_check(cookie: i64) -> isize {
    calls::check(cookie)
}

extern "C" fn adma_wait(cookie: i64) -> isize {
    calls::wait(cookie)
}

extern "C" fn adma_wait_for(cookie: i64, milliseconds: c_int) -> isize {
    calls::wait_for(cookie, milliseconds)
}
