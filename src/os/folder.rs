//! A private folder of the user, in memory, with files that are mapped.
//!
//! In memory (tmpfs), because a thread that stores to a mapped file on a disk waits for that disk
//! now and then, and may find it full. Nothing here allocates, and no descriptor stays open.

use super::sys::{self, NoFilter, NoNewFilter, syscall};
use super::text;
use core::ffi::{CStr, c_void};

/// Reason why a folder cannot hold live files: an errno, or one of the constants.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Unusable(pub i32);

impl Unusable {
    pub const NOT_IN_MEMORY: Self = Self(-1);
    pub const NOT_PRIVATE: Self = Self(-2);

    /// Converts the result of a failed system call, a negated errno.
    fn of(result: isize) -> Self {
        Self(-result as i32)
    }

    pub fn meaning(self) -> &'static str {
        match self {
            Self::NOT_IN_MEMORY => "not a file system in memory (tmpfs)",
            Self::NOT_PRIVATE => "not a folder of this user with mode 0700",
            Self(errno) => text::meaning(errno),
        }
    }
}

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
    /// Opens a folder that only this user can access and that is not a symbolic link; makes it if it cannot
    /// be opened.
    pub fn open_or_make(path: &CStr, allowed: NoFilter) -> Result<Self, Unusable> {
        let folder = Self::open(path, allowed.into()).or_else(|_| {
            // SAFETY: `path` is terminated.
            unsafe { syscall!(SYS_mkdirat, libc::AT_FDCWD, path.as_ptr(), 0o700) };
            Self::open(path, allowed.into())
        })?;
        match folder.is_private() {
            true if sys::is_in_memory(folder.fd) == Some(true) => Ok(folder),
            true => Err(Unusable::NOT_IN_MEMORY),
            false => Err(Unusable::NOT_PRIVATE),
        }
    }

    /// Opens a folder that a trusted process has made; under a seccomp filter its owner and mode are not
    /// checked.
    pub fn open(path: &CStr, _: NoNewFilter) -> Result<Self, Unusable> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: `path` is terminated.
        let fd = unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) };
        if fd < 0 { Err(Unusable::of(fd)) } else { Ok(Self { fd: fd as i32 }) }
    }

    pub fn is_private(&self) -> bool {
        let is_private =
            |stat: &libc::stat| stat.st_uid == sys::geteuid() as u32 && stat.st_mode & 0o077 == 0;
        sys::stat(self.fd, is_private).unwrap_or(false)
    }

    /// Makes a file of `len` zeros, mapped for reading and writing. All of it is written before it
    /// is mapped, so that lack of room or a file size limit shows now and not by a signal later.
    /// Its mode forbids opening it for writing, even to its user: truncating it by mistake would
    /// kill processes that map it. A file that is left after an error is removed by readers.
    pub fn map_new_file(&self, name: &CStr, len: usize) -> Result<*mut c_void, Unusable> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let flags = flags | libc::O_CLOEXEC;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: `name` is terminated, the descriptors are ours, the bytes written are those of
        // a mapping made and unmapped here, and a fresh mapping touches no other.
        unsafe {
            let fd = syscall!(SYS_openat, self.fd, name.as_ptr(), flags, 0o400);
            if fd < 0 {
                return Err(Unusable::of(fd));
            }
            let errno = sys::map(len).map_or(libc::ENOMEM, |zeros| {
                let bytes = core::slice::from_raw_parts(zeros.cast::<u8>(), len);
                let errno = text::write_all(fd as i32, bytes);
                sys::unmap(zeros, len);
                errno
            });
            let mapped = match errno {
                0 => syscall!(SYS_mmap, 0, len, protection, libc::MAP_SHARED, fd),
                _ => -errno as isize,
            };
            sys::close(fd as i32);
            if mapped < 0 { Err(Unusable::of(mapped)) } else { Ok(mapped as *mut c_void) }
        }
    }

    /// Makes an empty file, which takes no room.
    pub fn make_empty(&self, name: &CStr, _: NoFilter) {
        let flags = libc::O_RDONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        // SAFETY: `name` is terminated.
        let fd = unsafe { syscall!(SYS_openat, self.fd, name.as_ptr(), flags, 0o400) };
        if fd >= 0 {
            sys::close(fd as i32);
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
/// `at` is a mapping of `len` bytes that is accessed only through atomics.
pub unsafe fn map_zeros_over(at: *mut c_void, len: usize) {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: the caller's mapping has `len` bytes and is accessed only through atomics, for which zeros are
    // valid.
    unsafe { syscall!(SYS_mmap, at, len, protection, flags, usize::MAX) };
}

/// Returns the inode of our pid namespace; 0: unknown.
pub fn pid_namespace() -> u64 {
    let mut room = [0; 32];
    let link = sys::read_link(c"/proc/self/ns/pid", &mut room).unwrap_or_default();
    let digits = link.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}
