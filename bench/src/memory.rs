//! Memory that is copied: mapped, and touched before any clock runs unless page faults are
//! measured.
//!
//! The law of this module: an `Area` hands out raw pointers and no Rust reference ever covers its
//! memory, so copies may race on it without undefined behaviour; a copy stays inside the area and
//! its lifetime.

use libc::c_void;
use std::ptr;

/// Any function that copies as memcpy does.
pub type CopyFn = unsafe extern "C" fn(*mut c_void, *const c_void, usize) -> *mut c_void;

pub struct Area {
    base: *mut u8,
    len: usize,
}

// SAFETY: the law of the module: only raw pointers, no reference, no thread affinity.
unsafe impl Send for Area {}
// SAFETY: shared references only give out raw pointers, whose use the law of the module orders.
unsafe impl Sync for Area {}

/// Source and destination of one copy.
#[derive(Clone, Copy)]
pub struct Spot {
    pub dst: *mut u8,
    pub src: *const u8,
}

// SAFETY: addresses; the law of the module covers what is done with them.
unsafe impl Send for Spot {}

impl Area {
    /// Maps an area and writes every page, so that none is the shared page of zeros.
    pub fn new(len: usize) -> Self {
        let area = Self::mapped(len, libc::MAP_PRIVATE | libc::MAP_POPULATE);
        for offset in (0..len).step_by(512) {
            // SAFETY: inside the mapping, which is not shared yet.
            unsafe { area.base.add(offset).cast::<u64>().write_volatile(offset as u64 | 1) };
        }
        area
    }

    /// Maps an area without pages.
    pub fn untouched(len: usize) -> Self {
        Self::mapped(len, libc::MAP_PRIVATE)
    }

    /// Maps zeros that forked processes share.
    pub fn shared(len: usize) -> Self {
        Self::mapped(len, libc::MAP_SHARED)
    }

    fn mapped(len: usize, kind: libc::c_int) -> Self {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = kind | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base = unsafe { libc::mmap(ptr::null_mut(), len, protection, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            eprintln!("adma-bench: no memory for {} MiB; try --buffers", len >> 20);
            std::process::exit(1);
        }
        Area { base: base.cast(), len }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len);
        // SAFETY: just checked.
        unsafe { self.base.add(offset) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length; the law: no copy is under way.
        unsafe { libc::munmap(self.base.cast(), self.len) };
    }
}

/// A source and a destination, and the part of both that one copier uses.
pub struct Pair {
    pub src: Area,
    pub dst: Area,
}

impl Pair {
    pub fn new(len: usize) -> Self {
        Pair { src: Area::new(len), dst: Area::new(len) }
    }

    pub fn len(&self) -> usize {
        self.src.len()
    }

    pub fn spot(&self, offset: usize) -> Spot {
        Spot { dst: self.dst.at(offset), src: self.src.at(offset) }
    }
}

/// Cold copies, as in the papers: the pointers advance by the message size.
///
/// All arms of a benchmark draw from one walk, in random order: no place is used again before the
/// whole of both buffers has been, and no arm owns the better half of the memory.
pub struct Walk {
    from: usize,
    len: usize,
    at: usize,
}

impl Walk {
    pub fn new(from: usize, len: usize) -> Self {
        Walk { from, len, at: 0 }
    }

    pub fn step(&mut self, size: usize, pair: &Pair) -> Spot {
        assert!(size <= self.len);
        if self.at + size > self.len {
            self.at = 0;
        }
        let spot = pair.spot(self.from + self.at);
        self.at += size.next_multiple_of(64);
        spot
    }
}
