//! Blocks of the other process, mapped here; see `blocks`.
//!
//! Nothing here is an error: what cannot be mapped is copied another way. There are views only of
//! processes of the same user: who has made a block can take its pages away, and whoever touches
//! it then finds new ones at his own cost.

use super::blocks::Place;
use super::lock::Lock;
use super::os::{self, Fd, Sealed};
use core::ffi::c_void;
use std::sync::Arc;

/// So many are kept. A block that its owner has freed costs address space only.
const MOST: usize = 64;

/// One block. It stays mapped while somebody copies.
#[derive(Debug)]
pub struct View {
    at: usize,
    size: usize,
}

impl View {
    fn new(process: &Fd, place: Place) -> os::Result<Self> {
        let memory = os::take_descriptor(process, place.fd)?;
        let Sealed { size, file, whole } =
            os::sealed_memory_of_others(&memory).ok_or(libc::EINVAL)?;
        if file != place.file {
            return Err(libc::ESTALE);
        }
        if !whole {
            // Without pages it could be as large as our address space.
            return Err(libc::EINVAL);
        }
        let at = os::map_shared(&memory, size)? as usize;
        Ok(Self { at, size })
    }

    /// The address of a part, here; `None`: there is no such part.
    pub fn at(&self, offset: usize, len: usize) -> Option<usize> {
        let inside = offset <= self.size && len <= self.size - offset;
        inside.then(|| self.at + offset)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`; who copies holds a count.
        unsafe { os::unmap(self.at as *mut c_void, self.size) };
    }
}

/// The blocks of one process that were met last.
#[derive(Default)]
pub struct Views(Lock<Vec<(u64, Option<Arc<View>>)>>);

impl core::fmt::Debug for Views {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(out, "{} views", self.0.lock().len())
    }
}

impl Views {
    /// The block of a place. What could not be mapped once is not tried again.
    pub fn find(&self, process: &Fd, place: Place) -> Option<Arc<View>> {
        let mut views = self.0.lock();
        if let Some(index) = views.iter().position(|(serial, _)| *serial == place.serial) {
            views[..=index].rotate_right(1);
            return views[0].1.clone();
        }
        let view = View::new(process, place).ok().map(Arc::new);
        let forgotten = if views.len() < MOST { None } else { views.pop() };
        views.insert(0, (place.serial, view.clone()));
        drop(views);
        drop(forgotten);
        view
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ipc::blocks;

    #[test]
    fn only_what_lies_in_a_block_is_mapped() {
        let process = os::watch_process(crate::sys::getpid()).unwrap();
        let block = blocks::allocate(10_000, 1).unwrap() as usize;
        let place = blocks::find(block + 100, 9_000).unwrap();
        assert_eq!(place.offset, 100);
        assert_eq!(blocks::find(block + 100, 3 * 4096), None, "longer than the block");
        assert_eq!(blocks::find(block - 1, 2), None);

        let view = View::new(&process, place).unwrap();
        assert_eq!(view.at(0, 3 * 4096), Some(view.at));
        assert_eq!(view.at(3 * 4096, 0), Some(view.at + 3 * 4096));
        for (offset, len) in [(0, 3 * 4096 + 1), (3 * 4096, 1), (usize::MAX, 2), (2, usize::MAX)] {
            assert_eq!(view.at(offset, len), None, "{offset} {len}");
        }
        // SAFETY: both are mapped.
        unsafe {
            ((block + 100) as *mut u8).write_volatile(7);
            assert_eq!((view.at(100, 1).unwrap() as *const u8).read_volatile(), 7);
        }

        let wrong = |place| View::new(&process, place).map(drop);
        assert_eq!(wrong(Place { file: place.file + 1, ..place }), Err(libc::ESTALE));
        assert_eq!(wrong(Place { fd: process.raw(), ..place }), Err(libc::EINVAL), "no memory");
        assert_eq!(wrong(Place { fd: i32::MAX, ..place }), Err(libc::EBADF));
        // SAFETY: nobody uses it any more.
        unsafe { blocks::free(block, 1) }.unwrap();
        assert_eq!(blocks::find(block, 1), None);
    }

    /// A fault in such memory can be fatal, whoever has made it.
    #[test]
    fn huge_pages_are_not_taken_for_a_block() {
        const SIZE: i64 = 2 << 20;
        for (flag, taken) in [(0, true), (libc::MFD_HUGETLB | libc::MFD_HUGE_2MB, false)] {
            let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | flag;
            let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
            // SAFETY: a terminated name, and a descriptor of our own.
            let memory = unsafe {
                let memory = libc::memfd_create(c"test".as_ptr(), flags);
                libc::ftruncate(memory, SIZE);
                libc::fcntl(memory, libc::F_ADD_SEALS, seals);
                memory
            };
            if memory < 0 {
                return; // no huge pages in this kernel
            }
            let found = os::sealed_memory_of_others(&Fd::owned(memory));
            assert_eq!(found.is_some_and(|found| found.size == SIZE as usize), taken);
        }
    }

    #[test]
    fn those_met_last_are_kept() {
        let process = os::watch_process(crate::sys::getpid()).unwrap();
        let views = Views::default();
        let block = blocks::allocate(1, 2).unwrap() as usize;
        let place = blocks::find(block, 1).unwrap();
        let called = |serial| Place { serial, ..place };
        let first = views.find(&process, called(1)).unwrap();
        for serial in 2..=MOST as u64 {
            views.find(&process, called(serial)).unwrap();
        }
        assert!(Arc::ptr_eq(&first, &views.find(&process, called(1)).unwrap()), "kept");
        views.find(&process, called(1000)).unwrap();
        assert!(Arc::ptr_eq(&first, &views.find(&process, called(1)).unwrap()), "not the oldest");
        assert_eq!(views.0.lock().len(), MOST);
        assert!(views.0.lock().iter().all(|(serial, _)| *serial != 2), "the oldest is gone");
        // SAFETY: nobody uses it any more.
        unsafe { blocks::free(block, 2) }.unwrap();
        let gone = views.find(&process, called(2000));
        assert!(gone.is_none() && views.find(&process, called(2000)).is_none());
    }
}
