//! Memory of ours that a peer may map: `adma_alloc`.
//!
//! A block is a sealed memfd. Its descriptor goes to a proven peer before the first large message
//! that lies in it; a message between two blocks is then copied by ordinary instructions (`mappings`).
//! All pages are allocated when a block is made, so copying between blocks does not fault.

use super::engine::Proven;
use super::lock::Lock;
use super::os::{self, Fd};
use crate::os::sys;
use crate::plan::PAGE;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Block and offset of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAddress {
    /// Number of the block, never 0 and never used again.
    pub serial: u64,
    pub offset: usize,
}

impl BlockAddress {
    /// Adds to the offset, which a peer may have made up.
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
}

impl Block {
    fn holds(&self, addr: usize, len: usize) -> bool {
        addr >= self.at && addr - self.at <= self.size && len <= self.size - (addr - self.at)
    }
}

static BLOCKS: Lock<Vec<Arc<Block>>> = Lock::new(Vec::new());

/// Set by the first block: programs without blocks do not take the lock.
static ANY: AtomicBool = AtomicBool::new(false);

static SERIAL: AtomicU64 = AtomicU64::new(1);

/// Makes a block of zeros, for the process that `owner` stands for (`table`).
pub fn allocate(len: usize, owner: u64) -> os::Result<*mut c_void> {
    let size = len.max(1).checked_next_multiple_of(PAGE).ok_or(libc::ENOMEM)?;
    // Allocating more pages than there are would have the kernel kill a process.
    if size > available_bytes().unwrap_or(isize::MAX as usize) {
        return Err(libc::ENOMEM);
    }
    let memory = os::sealed_memory(c"adma-block", size)?;
    os::fill_with_pages(&memory, size)?;
    let at = os::map_inherited(&memory, size)?;
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    BLOCKS.lock().push(Arc::new(Block { at: at as usize, size, memory, serial, owner }));
    ANY.store(true, Ordering::Release);
    Ok(at)
}

/// Returns MemAvailable; `None`: the system does not say.
fn available_bytes() -> Option<usize> {
    let mut room = [0; 256];
    let text = sys::read_file(c"/proc/meminfo", &mut room, sys::NoFilter::assumed().into())?;
    let text = core::str::from_utf8(text).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

/// Frees a block; a peer that has it mapped sees zeros from then on.
///
/// # Safety
/// No message is under way in it, and the program does not use it any more.
pub unsafe fn free(addr: usize, owner: u64) -> os::Result<()> {
    let block = {
        let mut blocks = BLOCKS.lock();
        let mine = |block: &Arc<Block>| block.at == addr && block.owner == owner;
        let index = blocks.iter().position(mine).ok_or(libc::EINVAL)?;
        blocks.swap_remove(index)
    };
    let at = addr as *mut c_void;
    // SAFETY: the caller's promise.
    unsafe {
        os::take_pages_away(at, block.size);
        sys::unmap(at, block.size);
    }
    Ok(())
}

/// Returns the block that holds all of a buffer.
#[inline]
pub fn find(addr: usize, len: usize) -> Option<BlockAddress> {
    if !ANY.load(Ordering::Acquire) {
        return None;
    }
    let blocks = BLOCKS.lock();
    let block = blocks.iter().find(|block| block.holds(addr, len))?;
    Some(BlockAddress { serial: block.serial, offset: addr - block.at })
}

/// Sends a block's descriptor to a proven peer, with `record` before it. An error: the block is
/// freed, its descriptor closed, or the socket full.
pub fn send(serial: u64, _: &Proven, socket: i32, record: &[u8]) -> os::Result<()> {
    let found = BLOCKS.lock().iter().find(|block| block.serial == serial).cloned();
    let block = found.filter(|block| block.memory.is_there()).ok_or(libc::EINVAL)?;
    os::send(socket, record, &[block.memory.raw()]).map(drop)
}

/// Forgets the parent's blocks in the child of a fork, which can use the memory but not free it.
pub fn forget_after_fork() {
    BLOCKS.renew();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_larger_than_the_machine_is_refused_and_no_process_killed() {
        assert!(available_bytes().is_some_and(|bytes| bytes > 1 << 20));
        for len in [1 << 46, isize::MAX as usize, usize::MAX] {
            assert_eq!(allocate(len, 3), Err(libc::ENOMEM), "{len}");
        }
    }
}
