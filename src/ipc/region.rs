//! What both processes see.
//!
//! The region's law: the other process may change every byte of it at any moment, and may be
//! hostile. So everything here is atomic or raw bytes, never covered by a Rust reference that
//! expects it to hold still; a field is read once, the value checked, and only that value
//! used. What we have posted ourselves we remember in our own memory and do not read here.

use super::blocks::BlockAddress;
use super::claims::Role;
use super::doorbell::Doorbell;
use super::os::{self, Fd};
use crate::os::sys;
use crate::plan::PAGE;
use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Messages under way in one direction.
pub const WINDOW: usize = 256;

/// Bytes of eager messages that are not read yet, in one direction. Small enough to stay in a
/// second-level cache. (Measured, one way, two CPUs: 4 to 32 KiB take 0.74 to 0.88 of the time of
/// 128 KiB, and no less with 512 KiB.)
pub const EAGER_ROOM: usize = 256 << 10;

/// Eager messages up to this size do not lie in the room but beside their post.
pub const SHORT: usize = LINE;

/// What is streamed goes by in chunks; so many may lie there. Small enough that both sides are
/// busy with one message. (Measured, half round trips of written and read messages: 64 KiB takes
/// 0.87 of the time of chunks of 64 KiB, 128 KiB 0.95, 256 KiB as long; chunks of 8 KiB take 0.95,
/// 1.07 and 1.3.)
pub const CHUNK: usize = 32 << 10;
pub const CHUNKS: usize = 8;

/// How a message travels; its writer decides.
pub mod kind {
    /// In the region already.
    pub const EAGER: u32 = 1;
    /// From buffer to buffer.
    pub const DIRECT: u32 = 2;
    /// Through the chunks.
    pub const STREAMED: u32 = 3;
}

pub const LINE: usize = 64;

/// A line of the cache of its own; neighbours come in pairs.
#[repr(C, align(128))]
pub struct CachePadded<T>(pub T);

/// One message. A post is there when its number is one more than the message's.
#[repr(C)]
pub struct MessageCell {
    /// Of the writer, and of the reader.
    descs: [CachePadded<Descriptor>; 2],
    claims: CachePadded<AtomicU64>,
}

#[repr(C)]
pub struct Descriptor {
    pub number: AtomicU32,
    pub kind: AtomicU32,
    pub len: AtomicU64,
    /// The address in its process; of eager messages the place in the room.
    pub at: AtomicU64,
    /// What the kernel helper knows the buffer by; 0: it does not.
    pub pin: AtomicU64,
    pub finished: AtomicU32,
    reserved: u32,
    /// The block that the buffer lies in; 0: in none, or none that the other side has got. And
    /// where in it.
    pub block: AtomicU64,
    pub block_offset: AtomicU64,
    reserved_too: u64,
    /// Those of a write if they are few: the line beside the rest.
    bytes: UnsafeCell<[u8; SHORT]>,
}

impl Descriptor {
    pub fn set_block(&self, place: Option<BlockAddress>) {
        self.block_offset.store(place.map_or(0, |place| place.offset as u64), Relaxed);
        self.block.store(place.map_or(0, |place| place.serial), Relaxed);
    }

    pub fn block(&self) -> Option<BlockAddress> {
        let serial = self.block.load(Relaxed);
        let offset = self.block_offset.load(Relaxed) as usize;
        (serial != 0).then_some(BlockAddress { serial, offset })
    }
}

/// One direction.
#[repr(C)]
pub struct Lane {
    /// All messages below are over for the writer, and for the reader.
    pub done: [CachePadded<AtomicU32>; 2],
    pub produced: CachePadded<AtomicU32>,
    pub consumed: CachePadded<AtomicU32>,
    /// Which message each chunk belongs to; its other end knows the rest.
    pub chunks: [CachePadded<AtomicU32>; CHUNKS],
    cells: [MessageCell; WINDOW],
    eager: UnsafeCell<[u8; EAGER_ROOM]>,
    data: UnsafeCell<[[u8; CHUNK]; CHUNKS]>,
}

/// What a message takes of the room: whole lines.
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

    /// What that side has posted.
    pub fn desc(&self, role: Role, number: u32) -> &Descriptor {
        &self.cell(number).descs[role as usize].0
    }

    /// Where the bytes of an eager message are; `at` is their place in the room, and means
    /// nothing for short ones. `None`: there is no such place.
    #[inline]
    pub fn eager(&self, number: u32, at: usize, len: usize) -> Option<usize> {
        if len <= SHORT {
            return Some(self.desc(Role::Writer, number).bytes.get() as usize);
        }
        let inside = len <= EAGER_ROOM && at <= EAGER_ROOM - len;
        inside.then(|| self.eager.get() as usize + at)
    }

    fn chunk_pages(&self) -> Range<usize> {
        let start = self.data.get() as usize;
        start.next_multiple_of(PAGE)..(start + CHUNK * CHUNKS).next_multiple_of(PAGE)
    }

    /// Before the first chunk goes by. An error: there is no memory for them.
    pub fn find_chunks(&self) -> os::Result<()> {
        let pages = self.chunk_pages();
        // SAFETY: inside the region, which is whole pages.
        unsafe { os::find_pages(pages.start, pages.len()) }
    }

    pub fn chunk_bytes(&self, index: u32) -> usize {
        self.data.get() as usize + index as usize % CHUNKS * CHUNK
    }
}

/// How far a side is that closes; 0 for others.
pub mod closed {
    /// What it has begun it may still finish.
    pub const BEGUN: u32 = 1;
    /// It touches nothing any more.
    pub const DONE: u32 = 2;
    /// It does not close, but takes the other side for its equal no longer.
    pub const UNEQUAL: u32 = 4;
}

/// One process.
#[repr(C)]
pub struct Side {
    pub doorbell: CachePadded<Doorbell>,
    /// It closes the connection, orderly; one of `closed`.
    pub closed: CachePadded<AtomicU32>,
    /// The CPU it was last seen to wait on, and one; 0: not known.
    pub cpu: CachePadded<AtomicU32>,
    /// What it could do at first and the system does not let it do any more.
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
pub struct MappedRegion(*mut Region);

// SAFETY: an address; what lies there is `Sync`.
unsafe impl Send for MappedRegion {}
// SAFETY: as above.
unsafe impl Sync for MappedRegion {}

impl MappedRegion {
    /// Whether memory can be one.
    pub fn check(memory: &Fd) -> os::Result<()> {
        let found = os::sealed_memory_of_others(memory).filter(|found| found.size == SIZE);
        found.map(drop).ok_or(libc::EPROTO)
    }

    pub fn new(memory: &Fd) -> os::Result<Self> {
        Self::check(memory)?;
        os::map_shared(memory, SIZE, true).map(|at| Self(at.cast()))
    }

    /// Finds the pages that every message needs; otherwise touching one might be the end of us.
    pub fn find_pages(&self) -> os::Result<()> {
        let mut start = self.0 as usize;
        for lane in &self.lanes {
            let chunks = lane.chunk_pages();
            // SAFETY: from page to page, inside the mapping.
            unsafe { os::find_pages(start, chunks.start - start) }?;
            start = chunks.end - PAGE;
        }
        Ok(())
    }
}

impl core::ops::Deref for MappedRegion {
    type Target = Region;

    fn deref(&self) -> &Region {
        // SAFETY: mapped for as long as we live, of the right size, which is sealed, and
        // page-aligned; and every bit pattern is a valid `Region`, also that of a new page.
        unsafe { &*self.0 }
    }
}

impl Drop for MappedRegion {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and our borrowers are gone.
        unsafe { sys::unmap(self.0.cast(), SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who has sent a region, or got one, cannot make us die of it.
    #[test]
    fn pages_of_a_region_cannot_be_taken_away() {
        let memory = os::sealed_memory(c"test", SIZE, os::SIZE_SEALS).unwrap();
        let region = MappedRegion::new(&memory).unwrap();
        let punch = || {
            let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
            // SAFETY: no memory but that of the test.
            unsafe { libc::fallocate(memory.raw(), mode, 0, SIZE as i64) }
        };
        assert_eq!(punch(), 0);
        os::seal_for_good(&memory).unwrap();
        region.find_pages().unwrap();
        assert_eq!(punch(), -1);
        assert!(MappedRegion::new(&memory).is_err(), "mapped anew");
        // What is not there is only what chunks lie in.
        let pages = || {
            let mut there = vec![0u8; SIZE / PAGE];
            // SAFETY: the kernel writes a byte for each page of the mapping.
            unsafe { libc::mincore(region.0.cast(), SIZE, there.as_mut_ptr()) };
            there.iter().filter(|&&page| page & 1 != 0).count()
        };
        let chunks: usize = region.lanes.iter().map(|lane| lane.chunk_pages().len() / PAGE).sum();
        assert!(pages() >= SIZE / PAGE - chunks);
        region.lanes.iter().for_each(|lane| lane.find_chunks().unwrap());
        assert_eq!(pages(), SIZE / PAGE);
        assert_eq!(os::seal_for_good(&memory), Ok(()), "the other side was faster");
    }

    #[test]
    fn eager_bytes_lie_beside_their_post_or_in_the_room_or_nowhere() {
        let region =
            MappedRegion::new(&os::sealed_memory(c"test", SIZE, os::SIZE_SEALS).unwrap()).unwrap();
        let lane = &region.lanes[1];
        let beside = &raw const *lane.cell(3) as usize + LINE;
        for (at, len) in [(0, 0), (0, 1), (0, SHORT), (EAGER_ROOM, SHORT), (usize::MAX, SHORT)] {
            assert_eq!(lane.eager(3, at, len), Some(beside), "{at} {len}");
            assert_eq!(lane.eager(3 + WINDOW as u32, at, len), Some(beside), "{at} {len}");
        }
        let room = lane.eager.get() as usize;
        for (at, len) in [(0, SHORT + 1), (0, EAGER_ROOM), (EAGER_ROOM - 100, 100)] {
            assert_eq!(lane.eager(3, at, len), Some(room + at), "{at} {len}");
        }
        let bad = [(1, EAGER_ROOM), (EAGER_ROOM - 99, 100), (usize::MAX, 100), (0, usize::MAX)];
        for (at, len) in bad {
            assert_eq!(lane.eager(3, at, len), None, "{at} {len}");
        }
    }
}
