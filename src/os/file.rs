//! Facts about the program's open files, by calls that wait neither for a disk nor for a server.

use super::sys::{NoFilter, SysResult, syscall};
use core::mem::MaybeUninit;

/// A regular file that can be read.
#[derive(Clone, Copy, Debug)]
pub struct RegularFile {
    pub id: FileId,
    pub size: usize,
    /// Set if only memory holds it (tmpfs, memfd): reading it waits for no disk.
    pub is_memory: bool,
}

/// Device and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId([u64; 2]);

impl RegularFile {
    /// Returns the file of a descriptor. `None`: it is not a regular file, is not open for reading, or
    /// bypasses the page cache (O_DIRECT).
    pub fn of(fd: usize, allowed: NoFilter) -> Option<Self> {
        let flags = i32::try_from(fcntl(fd, libc::F_GETFL)).ok().filter(|&flags| flags >= 0)?;
        let is_write_only = flags & libc::O_ACCMODE == libc::O_WRONLY;
        if is_write_only || flags & (libc::O_DIRECT | libc::O_PATH) != 0 {
            return None;
        }
        let (id, size) = stat(fd, allowed)?;
        // Only files in memory have seals, used or not.
        Some(Self { id, size, is_memory: fcntl(fd, libc::F_GET_SEALS) >= 0 })
    }

    /// Returns whether `fd` refers to this file in the calling thread: threads can have separate tables of
    /// descriptors.
    pub fn is_here(&self, fd: usize, allowed: NoFilter) -> bool {
        stat(fd, allowed).is_some_and(|(id, _)| id == self.id)
    }
}

fn fcntl(fd: usize, command: i32) -> SysResult {
    // SAFETY: the call accesses no memory of ours.
    unsafe { syscall!(SYS_fcntl, fd, command) }
}

/// Returns identity and size of a regular file from local caches: no server is asked.
fn stat(fd: usize, _: NoFilter) -> Option<(FileId, usize)> {
    let mut stat = MaybeUninit::<libc::statx>::uninit();
    let flags = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    let mask = libc::STATX_TYPE | libc::STATX_INO | libc::STATX_SIZE;
    // SAFETY: the path is empty and terminated; the kernel fills `stat`, which is read only after success.
    unsafe {
        if syscall!(SYS_statx, fd, c"".as_ptr(), flags, mask, stat.as_mut_ptr()) != 0 {
            return None;
        }
        let stat = stat.assume_init_ref();
        let device = u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor);
        let is_regular = libc::mode_t::from(stat.stx_mode) & libc::S_IFMT == libc::S_IFREG;
        is_regular.then_some((FileId([device, stat.stx_ino]), stat.stx_size as usize))
    }
}

/// Moves the file position by `by`; returns the new one, or the negated errno.
pub fn seek_by(fd: usize, by: isize) -> SysResult {
    // SAFETY: the call accesses no memory of ours.
    unsafe { syscall!(SYS_lseek, fd, by, libc::SEEK_CUR) }
}

/// Reads like preadv2; `list` is an array of struct iovec.
///
/// # Safety
/// The arguments are those of the program's own read, or of a part of it: the kernel may write to every
/// buffer of `list`.
pub unsafe fn read(fd: usize, list: usize, count: usize, at: usize, flags: usize) -> SysResult {
    // SAFETY: the kernel reads the list, and writes only to its buffers, which the program has passed for
    // that.
    unsafe { syscall!(SYS_preadv2, fd, list, count, at, 0, flags) }
}
