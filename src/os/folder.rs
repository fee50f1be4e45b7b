//! A private folder of the user, in memory, with files that are mapped.
//!
//! In memory (tmpfs), because a thread that stores to a mapped file on a disk waits for that disk
//! now and then, and may find it full. Nothing here allocates, and no descriptor stays open.

use super::sys::{self, NoFilter, NoNewFilter, syscall};
use super::text;
use core::ffi::{CStr, c_void};

/// An open folder.
pub struct Folder {
    fd: i32,
}

impl Drop for Folder {
    fn drop(&mut self) {
        sys::close(self.fd);
    }
}

impl Folder {
    /// Opens a folder that only this user can look into, and that is no link, made if need be. `None`: that is not possible.
    pub fn open_or_make(path: &CStr, allowed: NoFilter) -> Option<Self> {
        let folder = Self::open(path, allowed.into()).or_else(|| {
            // SAFETY: `path` is terminated.
            unsafe { syscall!(SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), 0o700) };
            Self::open(path, allowed.into())
        })?;
        (folder.is_private() && sys::is_in_memory(folder.fd)).then_some(folder)
    }

    /// Opens a folder that a trusted process has made; under a seccomp filter no more can be asked.
    pub fn open(path: &CStr, _: NoNewFilter) -> Option<Self> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: `path` is terminated.
        let fd = unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        (fd >= 0).then_some(Self { fd: fd as i32 })
    }

    pub fn is_private(&self) -> bool {
        let is_private =
            |stat: &libc::stat| stat.st_uid == sys::geteuid() as u32 && stat.st_mode & 0o077 == 0;
        sys::stat(self.fd, is_private).unwrap_or(false)
    }

    /// Makes a file of `len` zeros, mapped for reading and writing. All of it is written before it
    /// is mapped, so that lack of room or a file size limit shows now and not by a signal later.
    /// Its mode forbids opening it for writing, even to its user: truncating it by mistake would
    /// kill processes that map it. `None`: not possible; a file that is left is removed by readers.
    pub fn map_new_file(&self, name: &CStr, len: usize) -> Option<*mut c_void> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let flags = flags | libc::O_CLOEXEC;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: `name` is terminated, the descriptors are ours, the bytes written are those of
        // a mapping made and unmapped here, and a fresh mapping touches no other.
        unsafe {
            let fd = syscall!(SYS_openat, self.fd, name.as_ptr(), flags, 0o400);
            if fd < 0 {
                return None;
            }
            let written = sys::map(len).is_some_and(|zeros| {
                let bytes = core::slice::from_raw_parts(zeros.cast::<u8>(), len);
                let written = text::write_all(fd as i32, bytes) == 0;
                sys::unmap(zeros, len);
                written
            });
            let mapped = match written {
                true => syscall!(SYS_mmap, 0, len, protection, libc::MAP_SHARED, fd),
                false => -1,
            };
            sys::close(fd as i32);
            usize::try_from(mapped).ok().map(|at| at as *mut c_void)
        }
    }

    pub fn remove(&self, name: &CStr, _: NoFilter) {
        // SAFETY: `name` is terminated.
        unsafe { syscall!(SYS_unlinkat, self.fd, name.as_ptr(), 0) };
    }
}

/// Replaces a mapping with zeros of this process's own.
///
/// # Safety
/// A mapping of `len` bytes of which only atomics are in use.
pub unsafe fn map_zeros_over(at: *mut c_void, len: usize) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller's promise.
    unsafe { syscall!(SYS_mmap, at, len, protection, flags, usize::MAX) };
}

/// Returns the inode of our pid namespace; 0: unknown.
pub fn pid_namespace() -> u64 {
    let mut room = [0; 32];
    let link = sys::read_link(c"/proc/self/ns/pid", &mut room).unwrap_or_default();
    let digits = link.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}
