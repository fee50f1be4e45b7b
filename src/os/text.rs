//! Text that is made without allocating and written without stdio: the program may be inside its
//! own allocator, or hold a lock of stdio's.

use super::signal_mask::SignalsHeld;
use super::signal_set::signal_set;
use super::sys::syscall;
use core::fmt::{self, Write};

/// Text in a given buffer, because the program may exit inside its own allocator. Text beyond the end of the
/// buffer is dropped.
pub struct Text<'a> {
    bytes: &'a mut [u8],
    used: usize,
    pub overflowed: bool,
}

impl<'a> Text<'a> {
    pub fn over(bytes: &'a mut [u8]) -> Self {
        Self { bytes, used: 0, overflowed: false }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    pub fn into_text(self) -> &'a str {
        as_text(&mut self.bytes[..self.used])
    }

    pub fn push(&mut self, more: &[u8]) {
        let take = more.len().min(self.bytes.len() - self.used);
        self.bytes[self.used..self.used + take].copy_from_slice(&more[..take]);
        self.used += take;
        self.overflowed |= take < more.len();
    }
}

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Converts bytes to text; invalid bytes become question marks, in place.
pub fn as_text(bytes: &mut [u8]) -> &str {
    while let Err(error) = core::str::from_utf8(bytes) {
        bytes[error.valid_up_to()] = b'?';
    }
    core::str::from_utf8(bytes).unwrap_or_default()
}

/// Writes items with commas between.
pub fn write_list<T>(
    out: &mut dyn Write,
    items: impl IntoIterator<Item = T>,
    write: impl Fn(&mut dyn Write, T) -> fmt::Result,
) -> fmt::Result {
    for (number, item) in items.into_iter().enumerate() {
        out.write_str(if number == 0 { "" } else { "," })?;
        write(out, item)?;
    }
    Ok(())
}

/// Writes the members of a JSON object.
pub fn write_numbers<'a>(
    out: &mut dyn Write,
    numbers: impl IntoIterator<Item = (&'a str, u64)>,
) -> fmt::Result {
    write_list(out, numbers, |out, (name, number)| write!(out, "\"{name}\":{number}"))
}

/// Describes an errno, of the few that opening and writing a file give. libc's own texts may have
/// to be translated, which allocates.
pub fn meaning(errno: i32) -> &'static str {
    match errno {
        libc::EPERM => "Operation not permitted",
        libc::ENOENT => "No such file or directory",
        libc::EIO => "Input/output error",
        libc::ENXIO => "No such device or address",
        libc::EBADF => "Bad file descriptor",
        libc::ENOMEM => "Cannot allocate memory",
        libc::EACCES => "Permission denied",
        libc::EEXIST => "File exists",
        libc::ENODEV => "No such device",
        libc::ENOTDIR => "Not a directory",
        libc::EISDIR => "Is a directory",
        libc::EINVAL => "Invalid argument",
        libc::ENFILE => "Too many open files in system",
        libc::EMFILE => "Too many open files",
        libc::ENOTTY => "Inappropriate ioctl for device",
        libc::EFBIG => "File too large",
        libc::ENOSPC => "No space left on device",
        libc::EROFS => "Read-only file system",
        libc::EPIPE => "Broken pipe",
        libc::ENAMETOOLONG => "File name too long",
        libc::ENOSYS => "Function not implemented",
        libc::ELOOP => "Too many levels of symbolic links",
        libc::EDQUOT => "Disk quota exceeded",
        _ => "an error of the system",
    }
}

/// Writes one line to standard error; a line that does not fit into 512 bytes is cut off.
pub fn say(line: fmt::Arguments<'_>) {
    say_to(libc::STDERR_FILENO, line);
}

/// Writes one line to a descriptor that is known to be the standard error.
pub fn say_to(fd: i32, line: fmt::Arguments<'_>) {
    let mut room = [0; 512];
    let mut text = Text::over(&mut room[..508]);
    let _ = write!(text, "adma: {line}"); // a `Text` takes what fits
    let tail: &[u8] = if text.overflowed { b"...\n" } else { b"\n" };
    let (used, end) = (text.used, text.used + tail.len());
    room[used..end].copy_from_slice(tail);
    write_all(fd, &room[..end]);
}

/// Writes everything, in one piece where the file takes it, so that reports of several
/// processes do not mix. No stdio, whose locks the program may hold. Returns the errno of
/// the write that failed, or 0.
pub fn write_all(fd: i32, bytes: &[u8]) -> i32 {
    // A pipe without reader, or RLIMIT_FSIZE, must not kill the program: the signal that a write raises is
    // held, and removed before signals are unblocked.
    let held = SignalsHeld::these(signal_set(libc::SIGPIPE) | signal_set(libc::SIGXFSZ), false);
    let mut pending_before = 0u64;
    // SAFETY: the kernel writes 8 bytes, the size of `pending_before`.
    unsafe { syscall!(SYS_rt_sigpending, &raw mut pending_before, 8) };
    let (mut sent, mut failed) = (0, 0);
    while sent < bytes.len() && failed == 0 {
        let rest = &bytes[sent..];
        // SAFETY: `rest` is readable.
        match unsafe { syscall!(SYS_write, fd, rest.as_ptr(), rest.len()) } {
            written @ 1.. => sent += written as usize,
            0 => failed = libc::EIO,
            error if -error as i32 == libc::EINTR => {}
            error => failed = -error as i32,
        }
    }
    let raised = match failed {
        libc::EPIPE => signal_set(libc::SIGPIPE),
        libc::EFBIG => signal_set(libc::SIGXFSZ),
        _ => 0,
    };
    // A signal that was pending before is the program's.
    if held.is_some() && raised & !pending_before != 0 {
        let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the kernel only reads `raised` and `now`, which live through the call.
        unsafe { syscall!(SYS_rt_sigtimedwait, &raw const raised, 0, &raw const now, 8) };
    }
    failed
}
