//! Memory of ours that the other process can map: `adma_alloc`.
//!
//! A block is sealed memory behind a descriptor, which is sent over a connection before the first
//! message that lies in it. A message between two blocks is then copied by ordinary instructions
//! (`mappings`), and no right of ptrace is needed for that: to send it was the consent.
//!
//! All pages are there when a block is made, and only its owner takes them away: whoever copies
//! from block to block meets no fault. An owner that is not trusted cannot even do that: what is
//! sent to who is not our equal is sealed against it, and can be mapped to read only; or it is
//! lent, and sealed when the other side has mapped it to write. Such pages have to be there for
//! good, that is written, or looked at: see `os::first_hole`.

use super::blocking::User;
use super::lock::Lock;
use super::os::{self, Fd, Share};
use crate::os::sys;
use crate::plan::PAGE;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Where a buffer is, for the other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAddress {
    /// Which block, never 0; none is ever called the same again.
    pub serial: u64,
    pub offset: usize,
}

impl BlockAddress {
    /// So many bytes further on. The number may be the other process's, and nonsense.
    pub fn plus(self, bytes: usize) -> Self {
        Self { offset: self.offset.wrapping_add(bytes), ..self }
    }
}

struct Block {
    at: usize,
    size: usize,
    memory: Fd,
    serial: u64,
    owner: u64,
    /// It is sealed when the other side has mapped it, and until then nobody else gets it. Held
    /// while it is sent: what it is sealed for is what it is sent for.
    lent: Lock<bool>,
}

impl Block {
    fn holds(&self, addr: usize, len: usize) -> bool {
        addr >= self.at && addr - self.at <= self.size && len <= self.size - (addr - self.at)
    }
}

/// Held to look for a block, and not for what is done with it: finding its pages may take seconds.
static BLOCKS: Lock<Vec<Arc<Block>>> = Lock::new(Vec::new());

/// There has been one: programs without pay nothing.
static ANY: AtomicBool = AtomicBool::new(false);

static SERIAL: AtomicU64 = AtomicU64::new(1);

/// A new block of zeros, for the process that `owner` stands for.
pub fn allocate(len: usize, owner: u64) -> os::Result<*mut c_void> {
    let size = len.max(1).checked_next_multiple_of(PAGE).ok_or(libc::ENOMEM)?;
    // The kernel would kill somebody rather than say so while the pages are found.
    if size > available_bytes().unwrap_or(isize::MAX as usize) {
        return Err(libc::ENOMEM);
    }
    let memory = os::sealed_memory(c"adma-block", size, os::SIZE_SEALS)?;
    os::fill_with_pages(&memory, size)?;
    let at = os::map_inherited(&memory, size, true)?;
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let block = Block { at: at as usize, size, memory, serial, owner, lent: Lock::new(false) };
    BLOCKS.lock().push(Arc::new(block));
    ANY.store(true, Ordering::Release);
    Ok(at)
}

/// What the machine can still give; `None`: it does not say.
fn available_bytes() -> Option<usize> {
    let mut room = [0; 256];
    let text = sys::read_file(c"/proc/meminfo", &mut room, sys::NoFilter::assumed().into())?;
    let text = core::str::from_utf8(text).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Gives a block back, also if another process has it mapped.
///
/// # Safety
/// No message is under way in it, and nobody uses it any more.
pub unsafe fn free(addr: usize, owner: u64) -> os::Result<()> {
    let block = {
        let mut blocks = BLOCKS.lock();
        let mine = |block: &Arc<Block>| block.at == addr && block.owner == owner;
        let index = blocks.iter().position(mine).ok_or(libc::EINVAL)?;
        blocks.swap_remove(index)
    };
    let at = addr as *mut c_void;
    // A stranger who has got it keeps the pages, and might hold up who wants to take them away.
    let keeps = os::is_sealed_for_good(&block.memory) || *block.lent.lock();
    // SAFETY: the caller's promise.
    unsafe {
        if !keeps {
            os::take_pages_away(at, block.size);
        }
        sys::unmap(at, block.size);
    }
    Ok(())
}

/// The block that a buffer lies in, if it lies in one as a whole.
#[inline]
pub fn find(addr: usize, len: usize) -> Option<BlockAddress> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    let blocks = BLOCKS.lock();
    let block = blocks.iter().find(|block| block.holds(addr, len))?;
    Some(BlockAddress { serial: block.serial, offset: addr - block.at })
}

/// The block that begins here.
pub fn serial_of(addr: usize, owner: u64) -> os::Result<u64> {
    let blocks = BLOCKS.lock();
    let mine = |block: &&Arc<Block>| block.at == addr && block.owner == owner;
    blocks.iter().find(mine).map(|block| block.serial).ok_or(libc::EINVAL)
}

/// A block that has its descriptor.
fn get(serial: u64) -> os::Result<Arc<Block>> {
    let found = BLOCKS.lock().iter().find(|block| block.serial == serial).cloned();
    found.filter(|block| block.memory.is_there()).ok_or(libc::EINVAL)
}

/// Sends a block's descriptor, with `record` before it. An error: it cannot be sent, or not to
/// such a process.
pub fn send(serial: u64, socket: i32, record: &[u8], share: Share) -> os::Result<()> {
    let block = get(serial)?;
    let mut lent = block.lent.lock();
    if *lent && (share == Share::Lent || !os::is_sealed_for_good(&block.memory)) {
        return Err(libc::EBUSY);
    }
    if share != Share::Everything {
        // SAFETY: mapped for as long as the program does not free it, which it does not now.
        unsafe { os::find_pages(block.at, block.size) }?;
    }
    os::seal_block(&block.memory, share)?;
    os::send(socket, record, &[block.memory.raw()])?;
    *lent |= share == Share::Lent;
    Ok(())
}

/// Whether a block that was lent has been sealed by who has got it.
pub fn is_sealed(serial: u64) -> bool {
    get(serial).is_ok_and(|block| os::is_sealed_for_good(&block.memory))
}

/// From now on a block that was lent keeps its pages, also those that are gone already: whoever
/// has got it could take them away until now.
pub fn settle(serial: u64, user: User) -> os::Result<()> {
    let block = get(serial)?;
    os::seal_with_stranger(&block.memory, user).map_err(|_| libc::EPROTO)?;
    // SAFETY: mapped for as long as the program does not free it, which it does not now.
    unsafe { os::find_pages(block.at, block.size) }
}

/// In the child of a fork: the memory is the parent's, which the child can see and use, but
/// not free.
pub fn forget_after_fork() {
    BLOCKS.renew();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_larger_than_the_machine_is_refused_and_nobody_killed() {
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
        for len in [1 << 46, isize::MAX as usize, usize::MAX] {
            assert_eq!(allocate(len, 3), Err(libc::ENOMEM), "{len}");
        }
    }
    /// Pages of a large block take their time.
    #[test]
    fn other_blocks_are_found_while_one_gets_its_pages() {
        const SIZE: usize = 64 << 20;
        let found_meanwhile = || {
            let (block, other) = (allocate(SIZE, 7).unwrap(), allocate(1, 7).unwrap());
            let serial = serial_of(block as usize, 7).unwrap();
            let memory = get(serial).unwrap().memory.raw();
            let pages = || sys::stat(memory, |stat| stat.st_blocks as usize * 512).unwrap();
            // SAFETY: memory of the test.
            unsafe { os::take_pages_away(block, SIZE) };
            let found = std::thread::scope(|scope| {
                scope.spawn(|| settle(serial, 0).unwrap());
                while pages() == 0 {
                    std::thread::yield_now();
                }
                find(other as usize, 1).is_some() && pages() < SIZE
            });
            assert_eq!(pages(), SIZE);
            // SAFETY: nobody uses them any more.
            unsafe {
                [block, other].into_iter().for_each(|block| free(block as usize, 7).unwrap())
            };
            found
        };
        assert!((0..20).any(|_| found_meanwhile()));
    }
}
