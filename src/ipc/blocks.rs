//! Memory of ours that the other process can map: `adma_alloc`.
//!
//! A block is sealed memory behind a descriptor, which is sent over a connection before the first
//! message that lies in it. A message between two blocks is then copied by ordinary instructions
//! (`mappings`), and no right of ptrace is needed for that: to send it was the consent.
//!
//! All pages are there when a block is made, and only its owner takes them away: whoever copies
//! from block to block meets no fault. An owner that is not trusted cannot even do that: what is
//! sent to who is not our equal is sealed against it, and can be mapped to read only; or it is
//! lent, and sealed when the other side has mapped it to write.

use super::lock::Lock;
use super::os::{self, Fd, Share};
use crate::os::sys;
use crate::plan::PAGE;
use alloc::vec::Vec;
use core::cell::Cell;
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
    /// To recognise the descriptor: the program may have closed it, and opened another.
    identity: (u64, u64),
    serial: u64,
    owner: u64,
    /// It is sealed when the other side has mapped it, and until then nobody else may borrow it.
    lent: Cell<bool>,
}

impl Block {
    fn holds(&self, addr: usize, len: usize) -> bool {
        addr >= self.at && addr - self.at <= self.size && len <= self.size - (addr - self.at)
    }

    fn has_its_descriptor(&self) -> bool {
        sys::file_of(self.memory.raw()) == Some(self.identity)
    }
}

static BLOCKS: Lock<Vec<Block>> = Lock::new(Vec::new());

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
    let identity = sys::file_of(memory.raw()).ok_or(libc::EIO)?;
    let at = os::map_inherited(&memory, size, true)?;
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let (at_number, lent) = (at as usize, Cell::new(false));
    BLOCKS.lock().push(Block { at: at_number, size, memory, identity, serial, owner, lent });
    ANY.store(true, Ordering::Release);
    Ok(at)
}

/// What the machine can still give; `None`: it does not say.
fn available_bytes() -> Option<usize> {
    let mut room = [0; 256];
    let text = core::str::from_utf8(sys::read_file(c"/proc/meminfo", &mut room)?).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Gives a block back, also if another process has it mapped.
///
/// # Safety
/// No message is under way in it, and nobody uses it any more.
pub unsafe fn free(addr: usize, owner: u64) -> os::Result<()> {
    let mut blocks = BLOCKS.lock();
    let mine = |block: &Block| block.at == addr && block.owner == owner;
    let index = blocks.iter().position(mine).ok_or(libc::EINVAL)?;
    let block = blocks.swap_remove(index);
    drop(blocks);
    let at = addr as *mut c_void;
    // SAFETY: the caller's promise.
    unsafe {
        os::take_pages_away(at, block.size);
        sys::unmap(at, block.size);
    }
    if !block.has_its_descriptor() {
        let _ = block.memory.into_raw();
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
    let mine = |block: &&Block| block.at == addr && block.owner == owner;
    blocks.iter().find(mine).map(|block| block.serial).ok_or(libc::EINVAL)
}

/// Does something with a block that has its descriptor: the program may have closed that, and
/// opened another file.
fn with<T>(serial: u64, work: impl FnOnce(&Block) -> os::Result<T>) -> os::Result<T> {
    let blocks = BLOCKS.lock();
    let block = blocks.iter().find(|block| block.serial == serial);
    work(block.filter(|block| block.has_its_descriptor()).ok_or(libc::EINVAL)?)
}

/// Sends a block's descriptor, with `record` before it. An error: it cannot be sent, or not to
/// such a process.
pub fn send(serial: u64, socket: i32, record: &[u8], share: Share) -> os::Result<()> {
    with(serial, |block| {
        if share == Share::Lent && block.lent.get() {
            return Err(libc::EBUSY);
        }
        os::seal_block(&block.memory, share)?;
        if os::send(socket, record, &[block.memory.raw()])? != record.len() {
            return Err(libc::EAGAIN);
        }
        block.lent.set(block.lent.get() || share == Share::Lent);
        Ok(())
    })
}

/// Whether a block that was lent has been sealed by who has got it.
pub fn is_sealed(serial: u64) -> bool {
    with(serial, |block| Ok(os::is_sealed_for_good(&block.memory))) == Ok(true)
}

/// From now on a block that was lent keeps its pages, also those that are gone already: whoever
/// has got it could take them away until now.
pub fn settle(serial: u64) -> os::Result<()> {
    with(serial, |block| {
        os::seal_for_good(&block.memory).map_err(|_| libc::EPROTO)?;
        os::fill_with_pages(&block.memory, block.size)
    })
}

/// In the child of a fork: the memory is the parent's, which the child can see and use, but
/// not free.
pub fn forget_after_fork() {
    if !ANY.load(Ordering::Acquire) {
        return;
    }
    if let Some(blocks) = BLOCKS.try_lock() {
        for block in blocks.iter().filter(|block| block.has_its_descriptor()) {
            sys::close(block.memory.raw());
        }
    }
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
}
