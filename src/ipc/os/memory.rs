//! Memory that two processes map: memfd files, their seals and their pages.

use super::{Fd, Result, call, fd};
use crate::os::sys::{self, syscall};
use crate::plan::PAGE;
use core::ffi::{CStr, c_void};

/// Seals on the size, and on the seals: touching pages beyond a reduced size raises SIGBUS.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Flag since Linux 6.3, which a system may demand.
const MFD_NOEXEC_SEAL: u32 = 8;

/// Makes a memfd of `size` zeros whose size is sealed; `name` is for /proc.
pub fn sealed_memory(name: &CStr, size: usize) -> Result<Fd> {
    // Asked for more than RLIMIT_FSIZE, the kernel sends SIGXFSZ as well.
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the kernel fills the limits, or leaves them alone; a terminated name; the other
    // calls take no memory.
    unsafe {
        syscall!(SYS_prlimit64, 0, libc::RLIMIT_FSIZE, 0, &raw mut limit);
        if size > limit.rlim_cur as usize {
            return Err(libc::EFBIG);
        }
        let create = |flags| fd(call!(SYS_memfd_create, name.as_ptr(), flags));
        let memory = match create(flags | MFD_NOEXEC_SEAL) {
            Err(libc::EINVAL) => create(flags)?,
            memory => memory?,
        };
        call!(SYS_ftruncate, memory.raw(), size)?;
        call!(SYS_fcntl, memory.raw(), libc::F_ADD_SEALS, SEALS)?;
        Ok(memory)
    }
}

/// Returns the seals of a memfd; an error for any other file, which is asked nothing else: a FUSE
/// file might never answer.
pub(super) fn seals(fd: i32) -> Result<i32> {
    // SAFETY: takes numbers only; the kernel touches no memory of ours.
    unsafe { call!(SYS_fcntl, fd, libc::F_GET_SEALS) }.map(|seals: usize| seals as i32)
}

/// Allocates all pages of a mapping now, so that touching one later cannot kill the process.
/// Kernels before 5.14 lack the call: there the pages are touched one by one.
///
/// # Safety
/// Mapped, to be written, with at least this size.
pub unsafe fn find_pages(at: usize, size: usize) -> Result<()> {
    loop {
        // SAFETY: a mapping of ours, as the caller has ensured; nothing in it is changed.
        match unsafe { call!(SYS_madvise, at, size, libc::MADV_POPULATE_WRITE) } {
            Err(libc::EINTR | libc::EAGAIN) => {}
            Ok(_) => return Ok(()),
            Err(libc::EINVAL) => break,
            Err(_) => return Err(libc::ENOMEM),
        }
    }
    for page in (at..at + size).step_by(PAGE) {
        // SAFETY: the caller has all of it mapped; a page of a fresh file can be read.
        unsafe { (page as *const u8).read_volatile() };
    }
    Ok(())
}

/// Returns the size of a memfd that a peer has made as `sealed_memory` does, and whether all its
/// pages are allocated. `None`: its owner could truncate it, which would raise SIGBUS here; or it
/// has huge pages, which may run out.
pub fn sealed_size(memory: &Fd) -> Option<(usize, bool)> {
    const SIZE_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    seals(memory.raw()).ok().filter(|seals| seals & SIZE_SEALS == SIZE_SEALS)?;
    // Memory of huge pages has larger blocks; for where fstatfs is refused.
    let has_small_blocks = || sys::stat(memory.raw(), |stat| stat.st_blksize as usize == PAGE);
    if !sys::is_in_memory(memory.raw()).or_else(has_small_blocks)? {
        return None;
    }
    let size = sys::stat(memory.raw(), |stat| stat.st_size as usize)?;
    let whole = sys::stat(memory.raw(), |stat| stat.st_blocks as usize >= size / 512)?;
    Some((size, whole))
}

/// Allocates all pages of a memfd now, so that touching one later cannot kill the process.
///
/// In steps: until Linux 6.12 a signal ends the call and gives back what it has allocated. Where a
/// seccomp filter refuses it, the pages are found in a mapping.
pub fn fill_with_pages(memory: &Fd, size: usize) -> Result<()> {
    const STEP: usize = 256 << 10;
    let mut from = 0;
    while from < size {
        // SAFETY: takes numbers only; the file grows, and no byte of it changes.
        match unsafe { call!(SYS_fallocate, memory.raw(), 0, from, STEP.min(size - from)) } {
            Err(libc::EINTR) => {}
            Err(libc::ENOSYS | libc::EPERM) => {
                let mapping = Mapping::new(memory, size)?;
                // SAFETY: mapped with this size, to be written, until this returns.
                return unsafe { find_pages(mapping.at, size) };
            }
            Err(errno) => return Err(errno),
            Ok(_) => from += STEP,
        }
    }
    Ok(())
}

/// Frees the pages of a writable mapping in all processes; they read as zeros afterwards. Needs no
/// descriptor, because the program may have closed it.
///
/// # Safety
/// Mapped with this size, and its contents are not needed.
pub unsafe fn take_pages_away(at: *mut c_void, size: usize) {
    // SAFETY: no one reads these pages any more, as the caller has ensured. Pages that are locked would stay.
    unsafe {
        syscall!(SYS_munlock, at, size);
        syscall!(SYS_madvise, at, size, libc::MADV_REMOVE);
    }
}

/// Maps a memfd where the kernel chooses; a child of a fork inherits the mapping.
pub fn map_inherited(memory: &Fd, size: usize) -> Result<*mut c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses free addresses, so nothing is replaced.
    unsafe { call!(SYS_mmap, 0, size, protection, libc::MAP_SHARED, memory.raw()) }
        .map(|at: usize| at as *mut c_void)
}

/// A memfd in our address space until this is dropped; a child of a fork does not inherit it.
#[derive(Debug)]
pub struct Mapping {
    at: usize,
    size: usize,
}

impl Mapping {
    pub fn new(memory: &Fd, size: usize) -> Result<Self> {
        let at = map_inherited(memory, size)?;
        // SAFETY: advice about a mapping of ours.
        unsafe { syscall!(SYS_madvise, at, size, libc::MADV_DONTFORK) };
        Ok(Self { at: at as usize, size })
    }

    /// Returns the address of a part; `None`: it is outside.
    pub fn at(&self, offset: usize, len: usize) -> Option<usize> {
        let inside = offset <= self.size && len <= self.size - offset;
        inside.then(|| self.at + offset)
    }

    pub fn start(&self) -> *mut c_void {
        self.at as *mut c_void
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; what reaches it borrows it or holds a count.
        unsafe { sys::unmap(self.start(), self.size) };
    }
}
