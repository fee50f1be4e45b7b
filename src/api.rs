//! Our own names, as include/adma.h declares and explains them. No logic here: arguments are
//! checked and brought into one form.

use crate::backend::asynchronous::{self, Copy, CopyStatus, Notice, Wanted};
use crate::export::export;
use crate::runtime;
use core::ffi::{CStr, c_char, c_int};

export! {
    adma_copy,
    adma_icopy,
    adma_icopy_batch,
    adma_icopy_notif,
    adma_check_copy,
    adma_wait_copy,
    adma_poll_fd,
    adma_strerror,
}

unsafe extern "C" fn adma_copy(src: usize, dst: usize, len: usize) -> c_int {
    // SAFETY: the program's promise, as to memmove.
    unsafe { runtime::copy_by_name(dst, src, len) };
    0
}

unsafe extern "C" fn adma_icopy(src: usize, dst: usize, len: usize) -> i64 {
    // SAFETY: the program's promise: as memmove, until it is told of the end.
    unsafe { begin(&[Copy { src, dst, len }], Wanted::default()) }
}

unsafe extern "C" fn adma_icopy_batch(copies: *const Copy, count: usize) -> i64 {
    let room = isize::MAX as usize / size_of::<Copy>();
    if count > room || (count > 0 && (copies.is_null() || !copies.is_aligned())) {
        return -i64::from(libc::EINVAL);
    }
    let copies = match count {
        0 => &[],
        // SAFETY: the program's promise: so many copies, until we return.
        _ => unsafe { core::slice::from_raw_parts(copies, count) },
    };
    // SAFETY: the program's promise: as memmove of each, until it is told of the end.
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
    // SAFETY: the callers' promise.
    match unsafe { runtime::begin(copies, wanted) } {
        Some(cookie) => asynchronous::pack(cookie),
        None => -i64::from(libc::EAGAIN),
    }
}

unsafe extern "C" fn adma_check_copy(cookie: i64) -> c_int {
    let Some(cookie) = asynchronous::unpack(cookie) else { return -libc::EINVAL };
    // SAFETY: the program's promise when it started the copies.
    match unsafe { asynchronous::check(cookie) } {
        CopyStatus::Over => 1,
        CopyStatus::UnderWay => 0,
        CopyStatus::Unknown => -libc::EINVAL,
    }
}

unsafe extern "C" fn adma_wait_copy(cookie: i64) -> c_int {
    let Some(cookie) = asynchronous::unpack(cookie) else { return -libc::EINVAL };
    // SAFETY: the program's promise when it started the copies.
    match unsafe { asynchronous::wait(cookie) } {
        CopyStatus::Unknown => -libc::EINVAL,
        _ => 0,
    }
}

extern "C" fn adma_poll_fd() -> c_int {
    asynchronous::poll_fd().unwrap_or_else(|errno| -errno)
}

extern "C" fn adma_strerror(result: c_int) -> *const c_char {
    let text: &CStr = match result.checked_abs().unwrap_or(0) {
        _ if result >= 0 => c"no error",
        libc::EINVAL => c"not a valid argument, or a cookie that is not known (any more)",
        libc::EAGAIN => c"too many copies or messages have been started and not been asked for",
        libc::EINPROGRESS => c"the message is under way",
        libc::EPIPE => c"the other side has closed the connection",
        libc::ECONNRESET => c"the other process has died",
        libc::EPROTO => c"the other side does not keep to the protocol",
        libc::EBADF => c"no such connection",
        libc::ENOENT => c"no such path",
        libc::ECONNREFUSED => c"nobody listens there",
        libc::EADDRINUSE => c"somebody listens there already, or another file is there",
        libc::ENAMETOOLONG => c"the path is too long for a socket",
        libc::ENOTSOCK | libc::EAFNOSUPPORT => c"not a unix socket",
        libc::ENOTCONN => c"the socket is not connected",
        libc::EINTR => c"a signal came first",
        libc::EFAULT => c"a buffer is not mapped",
        libc::ETIMEDOUT => c"the other side does not answer, or not in time",
        libc::EMFILE | libc::ENFILE => c"no descriptor is left",
        libc::ENOMEM => c"no memory is left",
        libc::EBUSY => c"somebody has got this memory already",
        libc::EOPNOTSUPP => c"not with this engine",
        libc::EPERM => c"a connection of the parent process, or the system does not allow it",
        libc::ENOSYS | libc::EACCES => c"the system does not allow it",
        _ => c"unknown error",
    };
    text.as_ptr()
}
