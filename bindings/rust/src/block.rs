//! Memory that copies and messages own while they are under way.

use crate::sys::library;
use std::io;
use std::ops::{Deref, DerefMut};

/// A buffer. `Block::zeroed` is memory of `adma_alloc`, between which large messages are fastest;
/// any `Vec<u8>` can be one, too, for all of its length.
///
/// A proven process that a large message is exchanged with can see and write all of a block of
/// `adma_alloc`, as it could by ptrace(2): such memory is for buffers, not for secrets.
pub struct Block(Memory);

enum Memory {
    Vec(Vec<u8>),
    Shared { start: *mut u8, len: usize },
}

// SAFETY: `Shared` owns its memory, as `Vec` does.
unsafe impl Send for Block {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Block {}

impl Block {
    /// Returns `len` zeros of `adma_alloc`.
    pub fn zeroed(len: usize) -> io::Result<Self> {
        // SAFETY: takes a number.
        let start: *mut u8 = unsafe { (library()?.adma_alloc)(len.max(1)) }.cast();
        if start.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        Ok(Self(Memory::Shared { start, len }))
    }

    /// Returns the bytes; those of `adma_alloc` are copied.
    pub fn into_vec(mut self) -> Vec<u8> {
        match &mut self.0 {
            Memory::Vec(bytes) => std::mem::take(bytes),
            Memory::Shared { .. } => self.to_vec(),
        }
    }
}

impl From<Vec<u8>> for Block {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Memory::Vec(bytes))
    }
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Memory::Vec(bytes) => bytes,
            // SAFETY: ours until it is dropped, and nothing is under way in it.
            Memory::Shared { start, len } => unsafe { std::slice::from_raw_parts(*start, *len) },
        }
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        match &mut self.0 {
            Memory::Vec(bytes) => bytes,
            // SAFETY: `len` bytes of `adma_alloc`, which are this block's until it is dropped; borrowed mutably.
            Memory::Shared { start, len } => unsafe {
                std::slice::from_raw_parts_mut(*start, *len)
            },
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let (Memory::Shared { start, .. }, Ok(library)) = (&self.0, library()) {
            // SAFETY: of `adma_alloc`, and nothing is under way in it.
            unsafe { (library.adma_free)(start.cast()) };
        }
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Block of {} bytes", self.len())
    }
}
