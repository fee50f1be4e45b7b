//! Memory that a proven peer may map: `adma_alloc`. Messages between two blocks are copied by ordinary
//! instructions.
//!
//! A block is a sealed memfd. A post names the owner's descriptor; the peer opens it in the owner's
//! folder of /proc when a message first needs it, and keeps it mapped. The kernel allows that only to
//! a process that may trace the owner (PTRACE_MODE_READ), and asks again for every block.
//!
//! All pages are allocated when a block is made, so copying between blocks does not fault. A block
//! that cannot be mapped is not an error: the message is copied another way.

use crate::ipc::os::{self, Fd, Mapping, ProcFolder};
use crate::os::brief_file;
use crate::os::lock::Lock;
use crate::os::sys;
use crate::plan::PAGE;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::c_void;
use core::sync::atomic::{AtomicBool, Ordering};

/// Block and offset of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockAddress {
    /// The owner's descriptor and its file (`os::Fd::mark`); never 0.
    pub file: u64,
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
    owner: u64,
}

impl Block {
    fn holds(&self, addr: usize, len: usize) -> bool {
        addr >= self.at && addr - self.at <= self.size && len <= self.size - (addr - self.at)
    }
}

static BLOCKS: Lock<Vec<Block>> = Lock::new(Vec::new());

/// Set by the first block: programs without blocks do not take the lock.
static ANY: AtomicBool = AtomicBool::new(false);

/// Makes a block of zeros, for the process that `owner` stands for (`handles`).
pub fn allocate(len: usize, owner: u64) -> os::Result<*mut c_void> {
    let size = len.max(1).checked_next_multiple_of(PAGE).ok_or(libc::ENOMEM)?;
    // Allocating more pages than there are would have the kernel kill a process.
    if size > available_bytes().unwrap_or(isize::MAX as usize) {
        return Err(libc::ENOMEM);
    }
    let memory = os::sealed_memory(c"adma-block", size)?;
    os::fill_with_pages(&memory, size)?;
    let at = os::map_inherited(&memory, size)?;
    BLOCKS.lock().push(Block { at: at as usize, size, memory, owner });
    ANY.store(true, Ordering::Release);
    Ok(at)
}

/// Returns MemAvailable; `None`: the system does not say.
fn available_bytes() -> Option<usize> {
    let mut room = [0; 256];
    let text = brief_file::read(c"/proc/meminfo", &mut room, sys::NoFilter::assumed().into())?;
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
        let mine = |block: &Block| block.at == addr && block.owner == owner;
        let index = blocks.iter().position(mine).ok_or(libc::EINVAL)?;
        blocks.swap_remove(index)
    };
    let at = addr as *mut c_void;
    // SAFETY: the block is off the list, so it is freed once; the caller ensures that it is not in use.
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
    Some(BlockAddress { file: block.memory.mark(), offset: addr - block.at })
}

/// Forgets the parent's blocks in the child of a fork, which can use the memory but not free it.
pub fn forget_after_fork() {
    BLOCKS.renew();
}

/// The blocks that a peer has named last; `None`: one that cannot be mapped. One stays mapped while a
/// copy uses it.
#[derive(Default)]
pub struct PeerBlocks(Lock<VecDeque<(u64, Option<Arc<Mapping>>)>>);

impl PeerBlocks {
    /// Blocks that are kept. One that its owner has freed costs address space only.
    const MOST: usize = 64;

    /// Returns the mapping of a block, which is made by the first call. `folder`: the peer's in /proc.
    pub fn find(&self, file: u64, folder: &ProcFolder) -> Option<Arc<Mapping>> {
        let mut known = self.0.lock();
        if let Some((_, mapping)) = known.iter().find(|(known, _)| *known == file) {
            return mapping.clone();
        }
        let mapping = folder.open(file).ok().and_then(|memory| {
            // Without pages it could be as large as our address space.
            let (size, _) = os::sealed_size(&memory).filter(|(_, whole)| *whole)?;
            Mapping::new(&memory, size).ok().map(Arc::new)
        });
        if known.len() == Self::MOST {
            known.pop_front();
        }
        known.push_back((file, mapping.clone()));
        mapping
    }
}
