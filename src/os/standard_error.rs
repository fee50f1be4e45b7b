//! The standard error that the program started with. The program may have closed it since, as coreutils do at
//! exit, or opened another file under its number, to which we must not write.

use super::sys;
use core::sync::atomic::{AtomicI32, Ordering};

pub struct StandardError {
    /// Device and inode.
    identity: Option<(u64, u64)>,
    duplicate: AtomicI32,
}

impl StandardError {
    const NONE: i32 = -1;

    pub fn none() -> Self {
        Self { identity: None, duplicate: AtomicI32::new(Self::NONE) }
    }

    pub fn noted() -> Self {
        let fd = libc::STDERR_FILENO;
        let Some(identity) = sys::file_of(fd) else { return Self::none() };
        let duplicate = sys::duplicate(fd, sys::LEAST_KEPT).max(Self::NONE as isize);
        Self { identity: Some(identity), duplicate: AtomicI32::new(duplicate as i32) }
    }

    /// Notes the standard error without a duplicate: if the program closes it, `still_open` returns `None`.
    pub fn identified() -> Self {
        Self { identity: sys::file_of(libc::STDERR_FILENO), ..Self::none() }
    }

    pub fn still_open(&self) -> Option<i32> {
        let identity = self.identity?;
        [libc::STDERR_FILENO, self.duplicate.load(Ordering::Relaxed)]
            .into_iter()
            .find(|&fd| sys::file_of(fd) == Some(identity))
    }

    /// Closes the duplicate in a child, so that a daemon does not keep its parent's pipe open.
    pub fn forget_after_fork(&self) {
        let duplicate = self.duplicate.swap(Self::NONE, Ordering::Relaxed);
        // Close it only if the number still refers to our duplicate, as far as device and inode show.
        if duplicate != Self::NONE && sys::file_of(duplicate) == self.identity {
            sys::close(duplicate);
        }
    }
}
