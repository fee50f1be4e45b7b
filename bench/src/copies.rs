//! Single copies, timed one by one, between old buffers or into fresh memory, like a new array.

use crate::measure::now;
use crate::memory::{Area, CopyFn};
use crate::turns;

#[derive(Clone, Copy, PartialEq)]
pub enum Target {
    /// A buffer that was written before.
    Old,
    /// Memory fresh from the kernel, given back after the copy.
    Fresh,
    /// The same, by malloc and free: what glibc's tunables are about.
    Allocated,
}

impl Target {
    pub const BOTH: [Target; 2] = [Target::Old, Target::Fresh];

    pub fn name(self) -> &'static str {
        match self {
            Target::Old => "old",
            Target::Fresh => "fresh",
            Target::Allocated => "allocated",
        }
    }
}

/// Copies that walk through a long source, so that none finds lines that another has cached.
pub struct Copies {
    src: Area,
    target: Target,
    /// Destination; `None` when all targets are fresh.
    dst: Option<Area>,
    size: usize,
    at: usize,
}

impl Copies {
    /// Prepares copies of `size` from a source of `len`.
    pub fn new(target: Target, size: usize, len: usize) -> Self {
        let len = len.max(size);
        let dst = (target == Target::Old).then(|| Area::new(len));
        if target == Target::Allocated {
            // Otherwise free lets later blocks be parts of a heap, which were written before.
            // SAFETY: a number for a setting that takes one.
            unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 1 << 20) };
        }
        Copies { src: Area::new(len), target, dst, size, at: 0 }
    }

    /// Returns the nanoseconds of the next copy.
    pub fn next(&mut self, copy: CopyFn) -> f64 {
        if self.at + self.size > self.src.len() {
            self.at = 0;
        }
        let (fresh, block);
        let dst = match (&self.dst, self.target) {
            (Some(old), _) => old.at(self.at),
            (None, Target::Allocated) => {
                block = Block::new(self.size);
                block.0
            }
            (None, _) => {
                fresh = Area::untouched(self.size);
                fresh.at(0)
            }
        };
        let src = self.src.at(self.at);
        self.at += self.size;
        let start = now();
        // SAFETY: both areas hold `size` bytes from there, and live on.
        unsafe { copy(dst.cast(), src.cast(), self.size) };
        (now() - start).max(1) as f64
    }

    /// Returns the nanoseconds of reading every cache line of the last copy, between old buffers.
    pub fn read_last(&self) -> f64 {
        let start = now();
        if let Some(dst) = &self.dst {
            turns::read(dst.at(self.at - self.size), self.size);
        }
        (now() - start) as f64
    }

    /// Returns the nanoseconds of several copies back to back.
    pub fn row(&mut self, copy: CopyFn, count: usize) -> f64 {
        (0..count).map(|_| self.next(copy)).sum()
    }
}

/// Memory of malloc.
struct Block(*mut u8);

impl Block {
    fn new(size: usize) -> Self {
        // SAFETY: a size that is not 0.
        let block = unsafe { libc::malloc(size) };
        assert!(!block.is_null(), "no memory for {size} bytes");
        Block(block.cast())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: from malloc, and freed once.
        unsafe { libc::free(self.0.cast()) };
    }
}
