//! Writes the reports: formats, files, and errors.

use super::snapshot::Snapshot;
use super::{json, text};
use crate::config::Formats;
use crate::os::lock::TryLock;
use crate::os::mapped::Mapped;
use crate::os::sys;
use crate::os::text::{self as os_text, Text, say_to};
use core::ffi::CStr;
use core::fmt::{self, Write};
use zerocopy::FromZeros;

/// Room for a report: not on the stack, which may be a small one, and not from an allocator
/// that the program may be inside of. Mapped at start-up where a report is wanted. Pages that
/// are not used cost nothing.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow, and every fork reads
pub static BUFFERS: Mapped<TryLock<ReportBuffers>> = Mapped::new();

#[derive(FromZeros)]
pub struct ReportBuffers {
    /// More than the longest report: five histograms with every bucket in use.
    report: [u8; 1 << 20],
    path: [u8; 4096],
    exe: [u8; 4096],
}

/// Room for the text of a report, and for the name of its file.
type Space<'a> = (&'a mut [u8], &'a mut [u8]);

impl ReportBuffers {
    /// Returns room for the name of the program, and for `write_all`.
    pub fn parts(&mut self) -> (&mut [u8], Space<'_>) {
        (&mut self.exe, (&mut self.report, &mut self.path))
    }
}

type Format = fn(&Snapshot<'_>, &mut dyn Write) -> fmt::Result;

/// Writes each format to `file`, the pattern of ADMA_STATS_FILE, or where that is `None` to `stderr`,
/// the standard error that the program started with, if it is still open.
pub fn write_all(
    snapshot: &Snapshot<'_>,
    (report, path): Space<'_>,
    formats: Formats,
    file: Option<&[u8]>,
    stderr: Option<i32>,
) {
    let wanted: [(bool, &str, Format); 2] =
        [(formats.text, "text", text::write), (formats.json, "json", json::write)];
    for (_, name, format) in wanted.into_iter().filter(|(wanted, ..)| *wanted) {
        let Some(pattern) = file else {
            if let Some(stderr) = stderr {
                send(stderr, snapshot, report, format);
            }
            continue;
        };
        // Several formats never share a file.
        let suffix = if formats.count() > 1 { Some(name) } else { None };
        let path = expand(Text::over(path), pattern, suffix, snapshot);
        let errno = write_file(&path, snapshot, report, format);
        if let Some(stderr) = stderr.filter(|_| errno != 0) {
            say_to(
                stderr,
                format_args!(
                    "ADMA_STATS_FILE: {}: {} (errno {errno}); statistics of this process are lost",
                    path.into_text().trim_end_matches('\0'),
                    os_text::meaning(errno)
                ),
            );
        }
    }
}

/// Writes one report; returns the errno of what failed, or 0.
fn send(fd: i32, snapshot: &Snapshot<'_>, report: &mut [u8], format: Format) -> i32 {
    let mut report = Text::over(report);
    match format(snapshot, &mut report) {
        Ok(()) if !report.overflowed => os_text::write_all(fd, report.as_bytes()),
        _ => libc::EFBIG,
    }
}

fn write_file(path: &Text<'_>, snapshot: &Snapshot<'_>, report: &mut [u8], format: Format) -> i32 {
    let Ok(path) = CStr::from_bytes_with_nul(path.as_bytes()) else { return libc::ENAMETOOLONG };
    // Appends, so that processes can share a file. A pipe without a reader must not block the
    // program at its exit.
    let fd = sys::open_to_append(path);
    if fd < 0 {
        return -fd as i32;
    }
    let failed = send(fd as i32, snapshot, report, format);
    let closed = -sys::close(fd as i32) as i32;
    if failed == 0 { closed } else { failed }
}

/// Expands %p (process number), %e (program) and %% in a path; anything else stays as it is. Ends
/// with a byte 0, unless it is too long.
fn expand<'a>(
    mut path: Text<'a>,
    pattern: &[u8],
    suffix: Option<&str>,
    snapshot: &Snapshot<'_>,
) -> Text<'a> {
    let mut rest = pattern;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        let code = if byte == b'%' { after.first() } else { None };
        match code {
            Some(b'p') => {
                let _ = write!(path, "{}", snapshot.pid); // a `Text` takes what fits
            }
            Some(b'e') => path.push(snapshot.program().as_bytes()),
            Some(b'%') => path.push(b"%"),
            _ => {
                path.push(&[byte]);
                continue;
            }
        }
        rest = &after[1..];
    }
    if let Some(suffix) = suffix {
        path.push(b".");
        path.push(suffix.as_bytes());
    }
    path.push(b"\0");
    path
}
