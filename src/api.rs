//! Our own names, as include/adma.h declares and explains them. No logic here: arguments are
//! checked and converted.

use crate::backend::asynchronous::{self, CookieState, Copy, Notice, Wanted};
use crate::backend::threads::task::{Task, Work};
use crate::export::export;
use crate::ipc;
use crate::os::sys;
use crate::runtime::{self, DISPATCHER};
use core::ffi::{CStr, c_char, c_int};

export! {
    adma_copy,
    adma_icopy,
    adma_icopy_batch,
    adma_icopy_notif,
    adma_check_copy,
    adma_wait_copy,
    adma_check,
    adma_wait,
    adma_wait_for,
    adma_cancel,
    adma_copied,
    adma_poll_fd,
    adma_strerror,
    adma_version,
    adma_stats,
    adma_off,
    adma_on,
}

unsafe extern "C" fn adma_copy(src: usize, dst: usize, len: usize) -> c_int {
    // SAFETY: the program's promise, as to memmove.
    unsafe { DISPATCHER.call(None, 0, &Task { work: Work::Copy, dst, src, len }) };
    0
}

unsafe extern "C" fn adma_icopy(src: usize, dst: usize, len: usize) -> i64 {
    // SAFETY: the program's promise: as memmove, until a call has returned that the copy is over.
    unsafe { begin(&[Copy { src, dst, len }], Wanted::default()) }
}

unsafe extern "C" fn adma_icopy_batch(copies: *const Copy, count: usize) -> i64 {
    let room = isize::MAX as usize / size_of::<Copy>();
    if count > room || (count > 0 && (copies.is_null() || !copies.is_aligned())) {
        return -i64::from(libc::EINVAL);
    }
    let copies = match count {
        0 => &[],
        // SAFETY: the program's promise: `count` copies, until we return.
        _ => unsafe { core::slice::from_raw_parts(copies, count) },
    };
    // SAFETY: the program's promise: as memmove of each, until a call has returned that they are over.
    unsafe { begin(copies, Wanted::default()) }
}

unsafe extern "C" fn adma_icopy_notif(
    src: usize,
    dst: usize,
    len: usize,
    word: usize,
    value: u64,
) -> c_int {
    if word == 0 || !word.is_multiple_of(8) {
        return -libc::EINVAL;
    }
    let wanted = Wanted { notice: Some(Notice { word, value }), detached: true };
    // SAFETY: the program's promise: as memmove, until the word holds the value.
    let cookie = unsafe { begin(&[Copy { src, dst, len }], wanted) };
    if cookie < 0 { cookie as c_int } else { 0 }
}

unsafe fn begin(copies: &[Copy], wanted: Wanted) -> i64 {
    // SAFETY: each caller says until when ranges and word stay.
    match unsafe { DISPATCHER.begin(copies, wanted) } {
        Some(cookie) => asynchronous::pack(cookie),
        None => -i64::from(libc::EAGAIN),
    }
}

/// Result of `adma_check` and `adma_wait` for a copy.
fn result_of(status: CookieState) -> isize {
    match status {
        CookieState::Over(()) => 0,
        CookieState::UnderWay(()) => -libc::EINPROGRESS as isize,
        CookieState::Unknown => -libc::EINVAL as isize,
    }
}

unsafe extern "C" fn adma_check(cookie: i64) -> isize {
    if ipc::is_message(cookie) {
        return ipc::check(cookie);
    }
    let Some(cookie) = asynchronous::unpack(cookie) else { return -libc::EINVAL as isize };
    // SAFETY: the program's promise when it started the copies.
    result_of(unsafe { asynchronous::check(cookie) })
}

unsafe extern "C" fn adma_wait(cookie: i64) -> isize {
    // SAFETY: the program's promise when it started the copies.
    unsafe { adma_wait_for(cookie, -1) }
}

/// Waits at most this long; negative: without a limit.
unsafe extern "C" fn adma_wait_for(cookie: i64, milliseconds: c_int) -> isize {
    if ipc::is_message(cookie) {
        return ipc::wait_for(cookie, milliseconds);
    }
    let Some(copy) = asynchronous::unpack(cookie) else { return -libc::EINVAL as isize };
    let Ok(limit) = u64::try_from(milliseconds) else {
        // SAFETY: the program's promise when it started the copies.
        return result_of(unsafe { asynchronous::wait(copy) });
    };
    let end = sys::nanoseconds() + limit * 1_000_000;
    loop {
        // SAFETY: the program's promise when it started the copies.
        let status = unsafe { asynchronous::check(copy) };
        if status != CookieState::UnderWay(()) {
            return result_of(status);
        }
        if sys::nanoseconds() >= end {
            return -libc::ETIMEDOUT as isize;
        }
        sys::sleep(20_000);
    }
}

/// A copy cannot be cancelled: it is waited for.
unsafe extern "C" fn adma_cancel(cookie: i64) -> isize {
    match ipc::is_message(cookie) {
        true => ipc::cancel(cookie),
        // SAFETY: the program's promise when it started the copies.
        false => unsafe { adma_wait(cookie) },
    }
}

extern "C" fn adma_copied(cookie: i64) -> isize {
    if ipc::is_message(cookie) {
        return ipc::copied(cookie);
    }
    let copied = asynchronous::unpack(cookie).and_then(asynchronous::copied);
    copied.map_or(-libc::EINVAL as isize, |bytes| bytes.min(isize::MAX as usize) as isize)
}

unsafe extern "C" fn adma_check_copy(cookie: i64) -> c_int {
    // SAFETY: the program's promise when it started the copies.
    match unsafe { adma_check(cookie) } {
        0.. => 1,
        under_way if under_way == -libc::EINPROGRESS as isize => 0,
        errno => errno as c_int,
    }
}

unsafe extern "C" fn adma_wait_copy(cookie: i64) -> c_int {
    // SAFETY: the program's promise when it started the copies.
    unsafe { adma_wait(cookie) }.min(0) as c_int
}

extern "C" fn adma_poll_fd() -> c_int {
    asynchronous::poll_fd().unwrap_or_else(|errno| -errno)
}

/// ADMA_VERSION of the header that belongs to this library.
extern "C" fn adma_version() -> u32 {
    const fn number(text: &str) -> u32 {
        match u32::from_str_radix(text, 10) {
            Ok(number) => number,
            Err(_) => panic!("cargo writes numbers"),
        }
    }
    const MAJOR: u32 = number(env!("CARGO_PKG_VERSION_MAJOR"));
    const MINOR: u32 = number(env!("CARGO_PKG_VERSION_MINOR"));
    const PATCH: u32 = number(env!("CARGO_PKG_VERSION_PATCH"));
    MAJOR << 16 | MINOR << 8 | PATCH
}

/// Fills a `struct adma_stats`: its size, and 64-bit numbers behind it.
///
/// # Safety
/// `stats` begins with its size, and that many bytes are writable.
unsafe extern "C" fn adma_stats(stats: *mut usize) -> c_int {
    const WORD: usize = size_of::<u64>();
    if stats.is_null() || !stats.is_aligned() {
        return -libc::EINVAL;
    }
    // SAFETY: the struct begins with its size, which can be read.
    let size = unsafe { *stats };
    if size < 2 * WORD || !size.is_multiple_of(WORD) {
        return -libc::EINVAL;
    }
    let Some(figures) = runtime::figures() else { return -libc::ENODATA };
    for index in 0..size / WORD - 1 {
        // SAFETY: within the size that the struct states, all of which is writable. Unknown fields become zero.
        unsafe { stats.add(1 + index).write(figures.get(index).copied().unwrap_or(0) as usize) };
    }
    0
}

extern "C" fn adma_off() -> c_int {
    DISPATCHER.pause();
    0
}

extern "C" fn adma_on() -> c_int {
    if DISPATCHER.resume() { 0 } else { -libc::EINVAL }
}

extern "C" fn adma_strerror(result: c_int) -> *const c_char {
    let text: &CStr = match result.checked_abs().unwrap_or(0) {
        _ if result >= 0 => c"no error",
        libc::EINVAL => c"not a valid argument, or a cookie that is not known (any more)",
        libc::EAGAIN => c"nothing there yet, or too much has been started and not been asked for",
        libc::EINPROGRESS => c"the message is under way",
        libc::EPIPE => c"the other side has closed the connection",
        libc::ECONNRESET => c"the other process has died",
        libc::EPROTO => c"the other side does not keep to the protocol",
        libc::EBADF => c"no such connection",
        libc::ENOENT => c"no such path",
        libc::ENOBUFS => c"the other process has no descriptor or memory left",
        libc::ECONNREFUSED => c"no process listens there",
        libc::EADDRINUSE => c"a process listens there already, or another file is there",
        libc::ENAMETOOLONG => c"the path is too long for a socket",
        libc::ENOTSOCK | libc::EAFNOSUPPORT => c"not a unix socket",
        libc::ENOTCONN => c"the socket is not connected",
        libc::EINTR => c"a signal came first",
        libc::EFAULT => c"a buffer is not mapped",
        libc::ETIMEDOUT => c"the other side does not answer, or not in time",
        libc::EMFILE | libc::ENFILE => c"no descriptor is left",
        libc::ENOMEM => c"no memory is left",
        libc::EMSGSIZE => c"the message is longer than the buffer",
        libc::ECANCELED => c"the message was cancelled",
        libc::ENODATA => c"nothing is counted",
        libc::EPERM => c"a connection of the parent process, or the system does not allow it",
        libc::EACCES => c"a process of another user, or the system does not allow it",
        libc::ENOSYS => c"the system does not allow it",
        _ => c"unknown error",
    };
    text.as_ptr()
}
