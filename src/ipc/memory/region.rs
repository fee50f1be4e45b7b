//! The memory that both processes of a connection share.
//!
//! The region's law: the peer may change every byte at any moment, and may be hostile. So
//! everything here is atomic or raw bytes, never covered by a Rust reference to plain data; a field
//! is read once, the value checked, and only that value used. Our own posts are remembered in our
//! own memory and not read here.

use crate::ipc::claims::Role;
use crate::ipc::memory::blocks::BlockAddress;
use crate::ipc::os::{self, Fd, Mapping};
use crate::ipc::wake::doorbell::Doorbell;
use crate::plan::PAGE;
use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Messages in flight in one direction.
pub const WINDOW: usize = 256;

/// Bytes of eager messages that are not read yet, in one direction. Small enough to stay in a
/// second-level cache. (Measured, one way, two CPUs: 4 to 32 KiB take 0.74 to 0.88 of the time of
/// 128 KiB, and no less with 512 KiB.)
pub const EAGER_ROOM: usize = 256 << 10;

/// Largest eager message that is stored with its post instead of in the room.
pub const SHORT: usize = LINE;

/// Size and number of the chunks that streamed messages pass through. Small enough that both sides
/// are busy with one message. (Measured, half round trips of written and read messages: 64 KiB takes
/// 0.87 of the time of chunks of 64 KiB, 128 KiB 0.95, 256 KiB as long; chunks of 8 KiB take 0.95,
/// 1.07 and 1.3.)
pub const CHUNK: usize = 32 << 10;
pub const CHUNKS: usize = 8;

/// Ways of a message, as its writer decided.
pub mod kind {
    /// Copied into the region already.
    pub const EAGER: u32 = 1;
    /// Copied from buffer to buffer; between proven peers only.
    pub const DIRECT: u32 = 2;
    /// Sent through the chunks.
    pub const STREAMED: u32 = 3;
}

pub const LINE: usize = 64;

/// A value in cache lines of its own; lines are prefetched in pairs.
#[repr(C, align(128))]
pub struct CachePadded<T>(pub T);

/// Posts of one message. One is complete when its `number` is that of the message plus one.
#[repr(C)]
pub struct MessageCell {
    /// Posts of the writer and of the reader.
    descs: [CachePadded<Descriptor>; 2],
    claims: CachePadded<AtomicU64>,
}

#[repr(C)]
pub struct Descriptor {
    pub number: AtomicU32,
    pub kind: AtomicU32,
    pub len: AtomicU64,
    /// Address in its process, 0 unless the peers are proven; of eager messages the place in the room.
    pub at: AtomicU64,
    /// Number of the buffer's export by the kernel helper; 0: none.
    pub pin: AtomicU64,
    pub finished: AtomicU32,
    reserved: u32,
    /// File of the block that the buffer lies in, and the offset; 0: none.
    pub block: AtomicU64,
    pub block_offset: AtomicU64,
    reserved_too: u64,
    /// Bytes of a short write, in the line beside the rest.
    bytes: UnsafeCell<[u8; SHORT]>,
}

impl Descriptor {
    pub fn set_block(&self, place: Option<BlockAddress>) {
        self.block_offset.store(place.map_or(0, |place| place.offset as u64), Relaxed);
        self.block.store(place.map_or(0, |place| place.file), Relaxed);
    }

    pub fn block(&self) -> Option<BlockAddress> {
        let file = self.block.load(Relaxed);
        let offset = self.block_offset.load(Relaxed) as usize;
        (file != 0).then_some(BlockAddress { file, offset })
    }
}

/// One direction of a connection: posts, eager messages and chunks.
#[repr(C)]
pub struct Lane {
    /// First number that is not over for the writer, and for the reader.
    pub done: [CachePadded<AtomicU32>; 2],
    pub produced: CachePadded<AtomicU32>,
    pub consumed: CachePadded<AtomicU32>,
    /// Number of the message that each chunk belongs to.
    pub chunks: [CachePadded<AtomicU32>; CHUNKS],
    cells: [MessageCell; WINDOW],
    eager: UnsafeCell<[u8; EAGER_ROOM]>,
    data: UnsafeCell<[[u8; CHUNK]; CHUNKS]>,
}

/// Allocates the pages of a range of a mapped region; returns the end of the last one. Touching a page
/// that was not allocated could kill the process where there is no memory for it.
fn find_pages_of(range: Range<usize>) -> os::Result<usize> {
    let (start, end) = (range.start & !(PAGE - 1), range.end.next_multiple_of(PAGE));
    // SAFETY: the callers name parts of a region that is mapped, and a region is whole pages.
    unsafe { os::find_pages(start, end - start) }.map(|()| end)
}

/// Returns the bytes that a message takes of the room: whole lines.
pub fn room_of(len: usize) -> usize {
    len.next_multiple_of(LINE)
}

impl Lane {
    fn cell(&self, number: u32) -> &MessageCell {
        &self.cells[number as usize % WINDOW]
    }

    pub fn claims(&self, number: u32) -> &AtomicU64 {
        &self.cell(number).claims.0
    }

    /// Returns the post of that side.
    pub fn desc(&self, role: Role, number: u32) -> &Descriptor {
        &self.cell(number).descs[role as usize].0
    }

    /// Returns the address of an eager message's bytes; `at` is their place in the room, unused for
    /// short ones. `None`: outside of the room.
    #[inline]
    pub fn eager(&self, number: u32, at: usize, len: usize) -> Option<usize> {
        if len <= SHORT {
            return Some(self.desc(Role::Writer, number).bytes.get() as usize);
        }
        let inside = len <= EAGER_ROOM && at <= EAGER_ROOM - len;
        inside.then(|| self.eager.get() as usize + at)
    }

    /// Allocates pages of cells, at least those of the first `count`; returns how many cells have
    /// all their pages then. An error: there is no memory.
    pub fn find_cells(&self, count: usize) -> os::Result<usize> {
        let cells = self.cells.as_ptr() as usize;
        let last = cells + (count - 1) * size_of::<MessageCell>();
        let end = find_pages_of(last..last + size_of::<MessageCell>())?;
        Ok(((end - cells) / size_of::<MessageCell>()).min(WINDOW))
    }

    /// Allocates the pages of a part of the eager room; returns the end of its last page as a place
    /// in the room.
    pub fn find_eager(&self, part: Range<usize>) -> os::Result<usize> {
        let room = self.eager.get() as usize;
        find_pages_of(room + part.start..room + part.end).map(|end| end - room)
    }

    /// Allocates the chunks' pages, before the first one is used.
    pub fn find_chunks(&self) -> os::Result<()> {
        let start = self.data.get() as usize;
        find_pages_of(start..start + CHUNK * CHUNKS).map(drop)
    }

    pub fn chunk_bytes(&self, index: u32) -> usize {
        self.data.get() as usize + index as usize % CHUNKS * CHUNK
    }
}

/// States of a side that closes; 0: it does not.
pub mod closed {
    /// Pieces that this side has begun may still be copied.
    pub const BEGUN: u32 = 1;
    /// This side touches no buffer any more.
    pub const DONE: u32 = 2;
    /// Not closing, but its own rights have changed: the proofs do not hold any more.
    pub const CHANGED: u32 = 4;
}

/// Fields that one of the two processes writes and the other reads.
#[repr(C)]
pub struct Side {
    pub doorbell: CachePadded<Doorbell>,
    /// Closing state, bits of `closed`.
    pub closed: CachePadded<AtomicU32>,
    /// CPU it last waited on, plus one; 0: not known.
    pub cpu: CachePadded<AtomicU32>,
    /// 1: the system has refused it to copy by calls since the connection was made.
    pub lost: AtomicU32,
}

#[repr(C)]
pub struct Region {
    pub sides: [Side; 2],
    /// Lane `i` is written by side `i`.
    pub lanes: [Lane; 2],
}

// SAFETY: atomics, and bytes that are only reached as raw memory (the region's law).
unsafe impl Sync for Region {}

pub const SIZE: usize = size_of::<Region>().next_multiple_of(4096);

const _: () = {
    assert!(WINDOW.is_power_of_two() && CHUNKS.is_power_of_two());
    assert!(size_of::<MessageCell>() == 3 * 128 && size_of::<Descriptor>() == 2 * LINE);
};

/// A region in our address space.
pub struct MappedRegion(Mapping);

impl MappedRegion {
    /// Maps a region, and allocates the pages that a connection without messages needs: two. Messages
    /// allocate those of their cells, room and chunks when these are first used, so that an idle
    /// connection costs little. Returns an error for memory that cannot be a region.
    pub fn new(memory: &Fd) -> os::Result<Self> {
        os::sealed_size(memory).filter(|(size, _)| *size == SIZE).ok_or(libc::EPROTO)?;
        let region = Self(Mapping::new(memory, SIZE)?);
        let start = region.0.start() as usize;
        find_pages_of(start..region.lanes[0].cells.as_ptr() as usize)?;
        for lane in &region.lanes {
            find_pages_of(core::ptr::from_ref(lane) as usize..lane.cells.as_ptr() as usize)?;
            lane.find_cells(1)?;
        }
        Ok(region)
    }
}

impl core::ops::Deref for MappedRegion {
    type Target = Region;

    fn deref(&self) -> &Region {
        // SAFETY: mapped for as long as we live, of the right size, which is sealed, and
        // page-aligned; and every bit pattern is a valid `Region`, also that of a new page.
        unsafe { &*self.0.start().cast() }
    }
}
