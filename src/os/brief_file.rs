//! Files that a call opens and closes again.
//!
//! If a signal handler jumped out between open and close, the file would stay open, so signals are held. If
//! another thread forks meanwhile, the child inherits the descriptor; so a table lists all that are open, and
//! the child closes them.

use super::signal_mask::SignalsHeld;
use super::sys::{self, NoNewFilter, syscall};
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicI32, AtomicU64};

struct Entry {
    /// `FREE`, `TAKEN`, or the descriptor.
    fd: AtomicI32,
    /// Device and inode, by which the child recognises its copy.
    file: [AtomicU64; 2],
}

const FREE: i32 = -1;
const TAKEN: i32 = -2;

/// Open files: more entries than threads are likely to read a file at the same time. If no entry is free, a
/// file is opened without one, and the child of a fork may inherit it.
static OPEN: [Entry; 16] = [const { Entry::new() }; 16];

impl Entry {
    const fn new() -> Self {
        Self { fd: AtomicI32::new(FREE), file: [const { AtomicU64::new(0) }; 2] }
    }

    fn take(&self) -> bool {
        self.fd.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok()
    }

    fn set(&self, fd: i32) {
        if let Some((device, inode)) = sys::file_of(fd) {
            self.file[0].store(device, Relaxed);
            self.file[1].store(inode, Relaxed);
            self.fd.store(fd, Release);
        }
    }

    fn is_file_of(&self, fd: i32) -> bool {
        sys::file_of(fd) == Some((self.file[0].load(Relaxed), self.file[1].load(Relaxed)))
    }
}

/// Closes the files that other threads of the parent had open, in the child of a fork.
pub fn forget_after_fork() {
    for entry in OPEN.iter().filter(|entry| entry.fd.load(Relaxed) != FREE) {
        let fd = entry.fd.load(Relaxed);
        if fd >= 0 && entry.is_file_of(fd) {
            sys::close(fd);
        }
        entry.fd.store(FREE, Relaxed);
    }
}

/// An open file, closed when this is dropped.
pub struct BriefFile<'a> {
    fd: i32,
    entry: Option<&'static Entry>,
    _held: &'a SignalsHeld,
}

impl<'a> BriefFile<'a> {
    /// Opens a file for reading; not inherited over exec. Not for workers: the number would be taken
    /// from the program.
    pub fn open(path: &CStr, allowed: NoNewFilter, held: &'a SignalsHeld) -> Option<Self> {
        // An entry needs fstat, which a seccomp filter may forbid.
        let entry = OPEN.iter().find(|entry| !sys::started_filtered() && entry.take());
        let fd = i32::try_from(sys::open(path, allowed)).unwrap_or(FREE);
        if fd < 0 {
            entry.inspect(|entry| entry.fd.store(FREE, Release));
            return None;
        }
        entry.inspect(|entry| entry.set(fd));
        Some(Self { fd, entry, _held: held })
    }

    pub fn fd(&self) -> i32 {
        self.fd
    }

    fn read(&self, to: *mut u8, len: usize) -> usize {
        // SAFETY: each caller passes address and length of a buffer of its own.
        usize::try_from(unsafe { syscall!(SYS_read, self.fd, to, len) }).unwrap_or(0)
    }
}

impl Drop for BriefFile<'_> {
    fn drop(&mut self) {
        self.entry.inspect(|entry| entry.fd.store(FREE, Release));
        sys::close(self.fd);
    }
}

/// Reads a small file whole; `None` when it cannot be opened.
pub fn read<'a>(path: &CStr, buffer: &'a mut [u8], allowed: NoNewFilter) -> Option<&'a [u8]> {
    let held = SignalsHeld::all()?;
    let file = BriefFile::open(path, allowed, &held)?;
    let mut filled = 0;
    while filled < buffer.len() {
        let rest = &mut buffer[filled..];
        match file.read(rest.as_mut_ptr(), rest.len()) {
            0 => break,
            got => filled += got,
        }
    }
    Some(&buffer[..filled])
}

/// Counts the lines of a file.
pub fn count_lines(path: &CStr, allowed: NoNewFilter) -> Option<u32> {
    let held = SignalsHeld::all()?;
    let file = BriefFile::open(path, allowed, &held)?;
    let (mut room, mut lines) = (MaybeUninit::<[u8; 512]>::uninit(), 0); // may be a small stack
    while let got @ 1.. = file.read(room.as_mut_ptr().cast(), size_of_val(&room)) {
        // SAFETY: the kernel has filled the first `got` bytes of `room`.
        let filled: &[u8] = unsafe { core::slice::from_raw_parts(room.as_ptr().cast(), got) };
        lines += filled.iter().filter(|&&byte| byte == b'\n').count() as u32;
    }
    Some(lines)
}
