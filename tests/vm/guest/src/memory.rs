//! Memory of every kind that a program can have, to copy from and to.
//!
//! The memory law: a region is reached through volatile reads and writes of its own raw address and
//! in no other way. Engine, kernel and other processes change it at any time, so no Rust reference
//! ever covers it.
//!
//! Every region lies between guard pages, and is unmapped with its owner.

use crate::device::call;
use crate::kernel;
use crate::verdict::{Context, Outcome};
use parking_lot::Mutex;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

pub const PAGE: usize = 4096;
/// What the helper pins and keeps together.
pub const RANGE: usize = 64 * PAGE;
pub const HUGE: usize = 2 << 20;

pub const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PageKind {
    Anonymous,
    SharedAnonymous,
    PrivateFile,
    SharedFile,
    /// A file of the layered file system, not of tmpfs itself.
    LayeredFile,
    /// Reserved huge pages.
    Huge,
    /// Huge pages if the kernel chooses to.
    Transparent,
}

impl PageKind {
    pub const ALL: [PageKind; 7] = [
        PageKind::Anonymous,
        PageKind::SharedAnonymous,
        PageKind::PrivateFile,
        PageKind::SharedFile,
        PageKind::LayeredFile,
        PageKind::Huge,
        PageKind::Transparent,
    ];
}

pub struct Region {
    base: usize,
    len: usize,
    /// Range with the guard pages: unmapped at the end, except for holes, where other mappings may
    /// be by then.
    whole: (usize, usize),
    holes: Mutex<Vec<(usize, usize)>>,
}

/// Reserves addresses without access.
fn reserve(len: usize) -> io::Result<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    mmap(0, len, libc::PROT_NONE, flags, -1, 0)
}

fn mmap(
    at: usize,
    len: usize,
    rights: i32,
    flags: i32,
    fd: RawFd,
    from: usize,
) -> io::Result<usize> {
    // SAFETY: either the kernel chooses the address, or it lies within a reservation of
    // ours (memory law): nothing of Rust's is replaced.
    let found = unsafe { libc::mmap(at as *mut _, len, rights, flags, fd, from as i64) };
    if found == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(found as usize) }
}

fn checked(result: i32) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Region {
    /// Reserves addresses and lets `fill` map something in the middle.
    fn between_guards(
        len: usize,
        align: usize,
        fill: impl FnOnce(usize) -> io::Result<usize>,
    ) -> io::Result<Region> {
        let len = len.next_multiple_of(align);
        let room = len + 2 * align.max(PAGE) + align;
        let start = reserve(room)?;
        let base = (start + PAGE).next_multiple_of(align);
        let region = Region { base, len, whole: (start, room), holes: Mutex::default() };
        fill(base)?;
        Ok(region)
    }

    pub fn map_file(
        fd: RawFd,
        from: usize,
        len: usize,
        rights: i32,
        flags: i32,
    ) -> io::Result<Region> {
        Region::between_guards(len, PAGE, |base| {
            mmap(base, len, rights, flags | libc::MAP_FIXED, fd, from)
        })
    }

    /// Maps all of a file, readable and writable.
    pub fn of_file(file: &File, flags: i32) -> Outcome<Region> {
        let len = file.metadata()?.len() as usize;
        Ok(Region::map_file(file.as_raw_fd(), 0, len, READ_WRITE, flags)?)
    }

    fn without_file(len: usize, align: usize, flags: i32) -> io::Result<Region> {
        Region::between_guards(len, align, |base| {
            let flags = flags | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
            mmap(base, len.next_multiple_of(align), READ_WRITE, flags, -1, 0)
        })
    }

    /// Maps ordinary memory, populated by the first touch.
    pub fn anonymous(len: usize) -> Outcome<Region> {
        Region::without_file(len, PAGE, libc::MAP_PRIVATE).context("anonymous memory")
    }

    /// Maps memory that parent and child share.
    pub fn shared(len: usize) -> Outcome<Region> {
        Region::without_file(len, PAGE, libc::MAP_SHARED).context("shared memory")
    }

    /// Maps pages of 4 KiB, all of them present, never a huge one.
    pub fn of_small_pages(len: usize) -> Outcome<Region> {
        let region = Region::anonymous(len)?;
        // A kernel without huge pages refuses this, harmlessly.
        let _ = region.advise(0, region.len, libc::MADV_NOHUGEPAGE);
        region.touch();
        Ok(region)
    }

    /// Maps pages of 4 KiB of which no two neighbours are contiguous, as after long use.
    pub fn of_scattered_pages(len: usize) -> Outcome<Region> {
        let region = Region::anonymous(len)?;
        let _ = region.advise(0, region.len, libc::MADV_NOHUGEPAGE);
        // The kernel allocates contiguous pages in the order in which they are touched. An odd step
        // visits all of a power of two.
        let pages = region.len / PAGE;
        let round = pages.next_power_of_two();
        for page in (0..round).map(|i| i * 389 % round).filter(|&page| page < pages) {
            region.set(page * PAGE, 1);
        }
        Ok(region)
    }

    /// Maps memory of a kind; skipped where the kernel has none.
    pub fn of_kind(kind: PageKind, len: usize) -> Outcome<Region> {
        match kind {
            PageKind::Anonymous => Region::anonymous(len),
            PageKind::SharedAnonymous => Region::shared(len),
            PageKind::PrivateFile => Region::of_file(&memory_file(len)?, libc::MAP_PRIVATE),
            PageKind::SharedFile => Region::of_file(&memory_file(len)?, libc::MAP_SHARED),
            PageKind::LayeredFile => Region::of_file(&layered_file(len)?, libc::MAP_SHARED),
            PageKind::Huge => {
                kernel::reserve_huge_pages(len.div_ceil(HUGE))?;
                let flags = libc::MAP_PRIVATE | libc::MAP_HUGETLB;
                match Region::without_file(len, HUGE, flags) {
                    Ok(region) => Ok(region),
                    Err(error) => skip!("no reserved huge page: {error}"),
                }
            }
            PageKind::Transparent => {
                let region = Region::without_file(len, HUGE, libc::MAP_PRIVATE)?;
                if let Err(error) = region.advise(0, region.len, libc::MADV_HUGEPAGE) {
                    skip!("no transparent huge pages: {error}");
                }
                Ok(region)
            }
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn address(&self, at: usize) -> u64 {
        (self.base + at) as u64
    }

    // ---- bytes ----------------------------------------------------------------------

    pub fn get(&self, at: usize) -> u8 {
        assert!(at < self.len);
        // SAFETY: inside the region; memory law.
        unsafe { ((self.base + at) as *const u8).read_volatile() }
    }

    pub fn set(&self, at: usize, byte: u8) {
        assert!(at < self.len);
        // SAFETY: inside the region; memory law.
        unsafe { ((self.base + at) as *mut u8).write_volatile(byte) }
    }

    pub fn word(&self, at: usize) -> u64 {
        // SAFETY: every word is a number.
        unsafe { self.load(at) }
    }

    pub fn set_word(&self, at: usize, word: u64) {
        self.store(at, word);
    }

    /// Stores a value at an offset.
    pub fn store<T: Copy>(&self, at: usize, value: T) {
        assert!(at.is_multiple_of(8) && align_of::<T>() <= 8 && at + size_of::<T>() <= self.len);
        // SAFETY: inside the region and aligned; memory law.
        unsafe { ((self.base + at) as *mut T).write_volatile(value) }
    }

    /// Returns the value that `store` has left at an offset.
    ///
    /// # Safety
    /// Nothing else has been written there since.
    pub unsafe fn load<T: Copy>(&self, at: usize) -> T {
        assert!(at.is_multiple_of(8) && align_of::<T>() <= 8 && at + size_of::<T>() <= self.len);
        // SAFETY: inside the region and aligned, and a value of that type by the caller's word.
        unsafe { ((self.base + at) as *const T).read_volatile() }
    }

    /// Fills it with words that encode their place and the seed.
    pub fn fill(&self, seed: u64) {
        self.fill_part(0, self.len, seed);
    }

    pub fn fill_part(&self, from: usize, len: usize, seed: u64) {
        for at in (from..from + len).step_by(8) {
            self.set_word(at, seeded(seed, at));
        }
    }

    /// Returns the first word that differs from what `fill` has left.
    pub fn expect(&self, seed: u64) -> Result<(), String> {
        self.expect_part(0, self.len, seed)
    }

    pub fn expect_part(&self, from: usize, len: usize, seed: u64) -> Result<(), String> {
        for at in (from..from + len).step_by(8) {
            let (found, wanted) = (self.word(at), seeded(seed, at));
            if found != wanted {
                return Err(format!("at byte {at} is {found:#018x}, want {wanted:#018x}"));
            }
        }
        Ok(())
    }

    /// Compares a part with that of another region, word by word.
    pub fn expect_same(&self, at: usize, other: &Region, from: usize, len: usize) -> Outcome {
        for byte in (0..len).step_by(8) {
            let (found, wanted) = (self.word(at + byte), other.word(from + byte));
            ensure_eq!(found, wanted, "at byte {byte} of {len}");
        }
        Ok(())
    }

    pub fn expect_zero(&self, from: usize, len: usize) -> Result<(), String> {
        match (from..from + len).step_by(8).find(|&at| self.word(at) != 0) {
            Some(at) => Err(format!("at byte {at} is {:#x}, want 0", self.word(at))),
            None => Ok(()),
        }
    }

    /// Populates every page.
    pub fn touch(&self) {
        for at in (0..self.len).step_by(PAGE) {
            self.set(at, 1);
        }
    }

    /// Copies byte by byte, like libc, where the engine did not.
    pub fn copy_by_cpu(&self, at: usize, from: &Region, from_at: usize, len: usize) {
        for i in 0..len {
            self.set(at + i, from.get(from_at + i));
        }
    }

    // ---- what can happen to memory --------------------------------------------------

    pub fn advise(&self, from: usize, len: usize, advice: i32) -> io::Result<()> {
        assert!(from + len <= self.len);
        // SAFETY: inside the region; memory law.
        checked(unsafe { libc::madvise((self.base + from) as *mut _, len, advice) })
    }

    pub fn protect(&self, from: usize, len: usize, rights: i32) -> io::Result<()> {
        assert!(from + len <= self.len);
        // SAFETY: inside the region; an access that is not allowed kills the process,
        // which is a failed test.
        checked(unsafe { libc::mprotect((self.base + from) as *mut _, len, rights) })
    }

    /// Unmaps a part.
    pub fn unmap_part(&self, from: usize, len: usize) -> io::Result<()> {
        assert!(from + len <= self.len);
        self.holes.lock().push((self.base + from, len));
        // SAFETY: inside the region; memory law.
        checked(unsafe { libc::munmap((self.base + from) as *mut _, len) })
    }

    /// Replaces the memory with fresh memory.
    pub fn replace(&self) -> io::Result<()> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        mmap(self.base, self.len, READ_WRITE, flags, -1, 0).map(|_| ())
    }

    /// Maps a shared file in place of a region that was unmapped entirely; no other thread may map
    /// anything meanwhile.
    pub fn map_again(&self, fd: RawFd) -> io::Result<()> {
        let flags = libc::MAP_SHARED | libc::MAP_FIXED_NOREPLACE;
        mmap(self.base, self.len, READ_WRITE, flags, fd, 0)?;
        self.holes.lock().clear();
        Ok(())
    }

    /// Moves the pages to other addresses, which leaves these empty.
    pub fn move_away(&self) -> Outcome<Region> {
        let new = Region::anonymous(self.len)?;
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        let (from, to) = (self.base as *mut _, new.base as *mut libc::c_void);
        // SAFETY: both ends are whole regions; memory law.
        let found = unsafe { libc::mremap(from, self.len, self.len, flags, to) };
        ensure!(found == to, "mremap: {}", io::Error::last_os_error());
        self.holes.lock().push((self.base, self.len));
        Ok(new)
    }

    /// Leaves faults of missing pages unanswered as long as the descriptor lives. Skipped where the
    /// kernel has no userfaultfd.
    pub fn leave_faults_unanswered(&self) -> Outcome<OwnedFd> {
        const API: u64 = 0xc018_aa3f;
        const REGISTER: u64 = 0xc020_aa00;
        // SAFETY: a new descriptor, or none.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC) };
        if fd < 0 {
            skip!("no userfaultfd here");
        }
        // SAFETY: a new descriptor with no other owner.
        let faults = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let mut api = [0xaau64, 0, 0];
        let mut range = [self.address(0), self.len as u64, 1, 0];
        let done = call(faults.as_raw_fd(), API, &mut api)
            .and_then(|()| call(faults.as_raw_fd(), REGISTER, &mut range));
        ensure_eq!(done, Ok(()), "userfaultfd");
        Ok(faults)
    }

    /// Binds pages to one NUMA node, from their first touch on.
    pub fn bind_to_node(&self, node: u32) -> io::Result<()> {
        const BIND: usize = 2;
        let nodes = 1u64 << node;
        // SAFETY: the whole region, and a mask of ours with room for 64 nodes.
        let done = unsafe {
            libc::syscall(libc::SYS_mbind, self.base, self.len, BIND, &raw const nodes, 64, 0)
        };
        checked(done as i32)
    }

    pub fn lock(&self) -> io::Result<()> {
        // SAFETY: locking changes no byte.
        checked(unsafe { libc::mlock(self.base as *const _, self.len) })
    }

    /// Returns whether each page is resident, or `None` where nothing is mapped.
    pub fn residence(&self) -> Option<Vec<bool>> {
        let mut pages = vec![0u8; self.len / PAGE];
        // SAFETY: the vector has a byte for each page.
        let found = unsafe { libc::mincore(self.base as *mut _, self.len, pages.as_mut_ptr()) };
        (found == 0).then(|| pages.iter().map(|page| page & 1 != 0).collect())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let (mut start, room) = self.whole;
        let end = start + room;
        let mut holes = std::mem::take(self.holes.get_mut());
        holes.sort();
        for (hole, len) in holes.into_iter().chain([(end, 0)]) {
            if start < hole {
                // SAFETY: of a reservation of ours, and no hole: no other mapping is there.
                unsafe { libc::munmap(start as *mut _, hole - start) };
            }
            start = hole + len;
        }
    }
}

fn seeded(seed: u64, at: usize) -> u64 {
    (seed ^ at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Makes a memfd.
pub fn memory_file(len: usize) -> Outcome<File> {
    const NAME: &CStr = c"adma-guest";
    // SAFETY: a constant string; the descriptor is new and has no other owner.
    let file = unsafe {
        let fd = libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC);
        ensure!(fd >= 0, "memfd_create: {}", io::Error::last_os_error());
        File::from_raw_fd(fd)
    };
    file.set_len(len as u64)?;
    Ok(file)
}

fn layered_file(len: usize) -> Outcome<File> {
    let path = format!("/tmp/adma-guest-{}", std::process::id());
    let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
    let file = file.context(&path)?;
    std::fs::remove_file(&path)?;
    file.set_len(len as u64)?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_is_recognised_and_every_changed_word_is_seen() {
        let region = Region::anonymous(3 * PAGE).unwrap();
        region.expect_zero(0, region.len()).unwrap();
        region.fill(7);
        region.expect(7).unwrap();
        assert!(region.expect(8).is_err());
        for at in [0, 4095, 4096, 3 * PAGE - 1] {
            region.set(at, !region.get(at));
            assert!(region.expect(7).is_err(), "{at}");
            region.set(at, !region.get(at));
        }
        region.expect(7).unwrap();
    }
}
