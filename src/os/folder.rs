//! A private folder of the user's, in memory, and files in it that are mapped.
//!
//! In memory (tmpfs), because whoever stores to a mapped file on a disk waits for that disk now
//! and then, and may find it full. Nothing here allocates, and no descriptor stays open.

use super::{sys, text};
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
    /// Opens a folder that nobody but this user can look into, and that is no link, made if need
    /// be. `None`: that is not possible.
    pub fn open_or_make(path: &CStr, allowed: sys::NoFilter) -> Option<Self> {
        let folder = Self::open(path, allowed.into()).or_else(|| {
            // SAFETY: `path` is terminated.
            unsafe {
                let (at, path) = (libc::AT_FDCWD as usize, path.as_ptr() as usize);
                sys::syscall(libc::SYS_mkdirat, [at, path, 0o700, 0, 0, 0]);
            }
            Self::open(path, allowed.into())
        })?;
        (folder.is_private() && folder.is_in_memory()).then_some(folder)
    }

    /// Opens a folder that somebody we trust has made; under a seccomp filter no more can be
    /// asked.
    pub fn open(path: &CStr, _: sys::NoNewFilter) -> Option<Self> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        // SAFETY: `path` is terminated.
        let fd = unsafe {
            let (at, path) = (libc::AT_FDCWD as usize, path.as_ptr() as usize);
            sys::syscall(libc::SYS_openat, [at, path, flags as usize, 0, 0, 0])
        };
        (fd >= 0).then_some(Self { fd: fd as i32 })
    }

    pub fn is_private(&self) -> bool {
        let is_private =
            |stat: &libc::stat| stat.st_uid == sys::geteuid() as u32 && stat.st_mode & 0o077 == 0;
        sys::stat(self.fd, is_private).unwrap_or(false)
    }

    pub fn is_in_memory(&self) -> bool {
        let mut about = core::mem::MaybeUninit::<libc::statfs>::uninit();
        // SAFETY: the kernel fills it, and it is read only after it has.
        unsafe {
            let at = about.as_mut_ptr() as usize;
            sys::syscall(libc::SYS_fstatfs, [self.fd as usize, at, 0, 0, 0, 0]) == 0
                && about.assume_init_ref().f_type == libc::TMPFS_MAGIC
        }
    }

    /// A new file of `len` zeros, mapped for reading and writing. All of it is written before it is
    /// mapped: a folder without room, or a limit on the size of files, is found now and not by a
    /// signal later. Its mode lets nobody open it for writing, not even its user: truncating a
    /// mapped file kills those that have it mapped, and nobody should do that by mistake. `None`:
    /// that was not possible; then a file may be left, which readers remove.
    pub fn map_new_file(&self, name: &CStr, len: usize) -> Option<*mut c_void> {
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let flags = (flags | libc::O_CLOEXEC) as usize;
        let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
        // SAFETY: `name` is terminated, the descriptors are ours, the bytes written are those of
        // a mapping made and unmapped here, and a fresh mapping touches no other.
        unsafe {
            let (folder, name) = (self.fd as usize, name.as_ptr() as usize);
            let fd = sys::syscall(libc::SYS_openat, [folder, name, flags, 0o400, 0, 0]);
            if fd < 0 {
                return None;
            }
            let zeros = sys::map(len);
            let written = zeros.is_some_and(|zeros| {
                let bytes = core::slice::from_raw_parts(zeros.cast::<u8>(), len);
                let written = text::write_all(fd as i32, bytes) == 0;
                sys::unmap(zeros, len);
                written
            });
            let shared = libc::MAP_SHARED as usize;
            let mapped = if written {
                sys::syscall(libc::SYS_mmap, [0, len, protection, shared, fd as usize, 0])
            } else {
                -1
            };
            sys::close(fd as i32);
            usize::try_from(mapped).ok().map(|at| at as *mut c_void)
        }
    }

    pub fn remove(&self, name: &CStr, _: sys::NoFilter) {
        // SAFETY: `name` is terminated.
        unsafe {
            let (folder, name) = (self.fd as usize, name.as_ptr() as usize);
            sys::syscall(libc::SYS_unlinkat, [folder, name, 0, 0, 0, 0]);
        }
    }
}

/// Puts zeros of this process's own in the place of a mapping.
///
/// # Safety
/// A mapping of `len` bytes of which only atomics are in use.
pub unsafe fn map_zeros_over(at: *mut c_void, len: usize) {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    let (at, flags) = (at as usize, flags as usize);
    // SAFETY: the caller's promise.
    unsafe { sys::syscall(libc::SYS_mmap, [at, len, protection, flags, usize::MAX, 0]) };
}

/// Nanoseconds since the machine was started, by the clock that goes on while it sleeps.
pub fn since_boot() -> u64 {
    sys::nanoseconds_of(libc::CLOCK_BOOTTIME)
}

/// The number of the namespace that process numbers belong to; 0: unknown.
pub fn pid_namespace() -> u64 {
    let mut room = [0; 32];
    let link = sys::read_link(c"/proc/self/ns/pid", &mut room).unwrap_or_default();
    let digits = link.iter().filter(|byte| byte.is_ascii_digit());
    digits.fold(0, |number, digit| number * 10 + u64::from(digit - b'0'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn scratch(name: &str) -> std::path::PathBuf {
        let path = format!("/dev/shm/adma-test-{name}-{}", std::process::id());
        let _ = std::fs::remove_dir_all(&path);
        path.into()
    }

    fn path(path: &std::path::Path) -> CString {
        CString::new(path.to_str().unwrap()).unwrap()
    }

    #[test]
    fn folder_is_made_private_and_used_again() {
        let place = scratch("made");
        assert!(Folder::open_or_make(&path(&place), sys::NoFilter::assumed()).is_some());
        let mode = std::fs::metadata(&place).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        let folder = Folder::open_or_make(&path(&place), sys::NoFilter::assumed()).unwrap();
        let at = folder.map_new_file(c"file", 8192).unwrap();
        // SAFETY: just mapped.
        unsafe { at.cast::<u8>().add(8191).write(7) };
        assert_eq!(std::fs::read(place.join("file")).unwrap()[8191], 7);
        assert!(folder.map_new_file(c"file", 8192).is_none(), "never somebody else's file");
        // SAFETY: mapped above.
        unsafe { map_zeros_over(at, 8192) };
        // SAFETY: still mapped.
        assert_eq!(unsafe { at.cast::<u8>().add(8191).read() }, 0);
        assert_eq!(std::fs::read(place.join("file")).unwrap()[8191], 7);
        folder.remove(c"file", sys::NoFilter::assumed());
        assert!(!place.join("file").exists());
        std::fs::remove_dir_all(&place).unwrap();
    }

    #[test]
    fn links_open_folders_and_disks_are_refused() {
        let place = scratch("refused");
        std::fs::create_dir(&place).unwrap();
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o750)).unwrap();
        assert!(
            Folder::open_or_make(&path(&place), sys::NoFilter::assumed()).is_none(),
            "others may look into it"
        );
        std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o700)).unwrap();
        let link = scratch("link");
        let _ = std::fs::remove_file(&link);
        symlink(&place, &link).unwrap();
        assert!(Folder::open_or_make(&path(&link), sys::NoFilter::assumed()).is_none(), "a link");
        std::fs::remove_file(&link).unwrap();
        std::fs::remove_dir(&place).unwrap();
        assert!(
            Folder::open_or_make(c"/proc/self", sys::NoFilter::assumed()).is_none(),
            "no tmpfs"
        );
    }

    #[test]
    fn clock_and_namespace_are_known() {
        assert!(since_boot() > 0);
        assert!(pid_namespace() > 0);
    }
}
