//! Writes the reports: which formats, to which file, and what to do when that fails.

use super::snapshot::Snapshot;
use super::{hlog, json, text};
use crate::config::Formats;
use crate::sys::{self, say};
use std::ffi::CString;
use std::fmt::{self, Write};

/// `file`: the pattern of ADMA_STATS_FILE, or `None` for standard error.
pub fn write_all(
    snapshot: &Snapshot<'_>,
    formats: Formats,
    file: Option<&[u8]>,
    may_complain: bool,
) {
    let wanted = [
        (formats.text, "text", text::write as fn(&Snapshot<'_>, &mut dyn Write) -> fmt::Result),
        (formats.json, "json", json::write),
        (formats.hlog, "hlog", hlog::write),
    ];
    for (_, name, write) in wanted.into_iter().filter(|(wanted, ..)| *wanted) {
        let Some(pattern) = file else {
            send(libc::STDERR_FILENO, snapshot, write);
            continue;
        };
        let mut path = expand(pattern, snapshot);
        if formats.count() > 1 {
            // Several formats never share a file.
            path.push(b'.');
            path.extend_from_slice(name.as_bytes());
        }
        write_file(path, snapshot, write, may_complain);
    }
}

fn send(
    fd: i32,
    snapshot: &Snapshot<'_>,
    write: fn(&Snapshot<'_>, &mut dyn Write) -> fmt::Result,
) -> i32 {
    let mut report = String::new();
    let _ = write(snapshot, &mut report); // a `String` takes everything
    sys::write_all(fd, report.as_bytes())
}

fn write_file(
    path: Vec<u8>,
    snapshot: &Snapshot<'_>,
    write: fn(&Snapshot<'_>, &mut dyn Write) -> fmt::Result,
    may_complain: bool,
) {
    let shown = String::from_utf8_lossy(&path).into_owned();
    let complain = |errno: i32| {
        let why = std::io::Error::from_raw_os_error(errno);
        if may_complain {
            say(format_args!(
                "ADMA_STATS_FILE: {shown}: {why}; statistics of this process are lost"
            ));
        }
    };
    // The environment has no byte 0 in a value.
    let Ok(path) = CString::new(path) else { return };
    // Appended, so that processes that share a file lose nothing of each other.
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    // A pipe nobody reads must not hold the program up at its exit.
    let flags = flags | libc::O_NONBLOCK;
    // SAFETY: a terminated path.
    let fd = unsafe { libc::open(path.as_ptr(), flags, 0o666) };
    if fd < 0 {
        return complain(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
    // SAFETY: opened above; from here on a reader may take its time.
    unsafe { libc::fcntl(fd, libc::F_SETFL, flags & !libc::O_NONBLOCK) };
    let errno = send(fd, snapshot, write);
    // SAFETY: opened above.
    let closed = unsafe { libc::close(fd) };
    if errno != 0 {
        complain(errno);
    } else if closed != 0 {
        complain(std::io::Error::last_os_error().raw_os_error().unwrap_or(0));
    }
}

/// %p: process number, %e: program, %%: a percent sign; anything else stays as it is.
fn expand(pattern: &[u8], snapshot: &Snapshot<'_>) -> Vec<u8> {
    let mut path = Vec::with_capacity(pattern.len() + 32);
    let mut rest = pattern;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let code = if byte == b'%' { after.first() } else { None };
        match code {
            Some(b'p') => path.extend_from_slice(snapshot.pid.to_string().as_bytes()),
            Some(b'e') => path.extend_from_slice(snapshot.program().as_bytes()),
            Some(b'%') => path.push(b'%'),
            _ => {
                path.push(byte);
                continue;
            }
        }
        rest = &after[1..];
    }
    path
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::tests::with_snapshot;
    use super::*;

    #[test]
    fn file_pattern_is_expanded_and_unknown_codes_kept() {
        with_snapshot(false, |snapshot| {
            let expand = |pattern: &str| String::from_utf8(expand(pattern.as_bytes(), snapshot));
            assert_eq!(expand("/tmp/%e.%p").unwrap(), "/tmp/od\"d.4711");
            assert_eq!(expand("100%%-%x-%").unwrap(), "100%-%x-%");
            assert_eq!(expand("").unwrap(), "");
        });
    }
}
