//! Work on a range of memory: it is copied, filled or compared, either whole by libc's functions or
//! in pieces by loops of our own.
//!
//! The answer of a comparison is its first difference. So its pieces are claimed in order, and a
//! difference leaves everything behind it unclaimed. When no thread works on it any more, the
//! caller goes through the pieces that were not found equal, in order. A bad page that a worker has
//! met behind the first difference is never touched again.

use crate::backend::copy_loop::{CopyLoop, TakeBack, compare_until_taken_back};
use crate::backend::libc as original;
use crate::backend::mode::Mode;
use crate::backend::piece_end::PieceEnd;
use crate::functions::Op;
use crate::os::huge_pages::Region;
use crate::os::sys;
use crate::plan::{Cut, PAGE};

/// Bytes of fresh memory whose pages are made at a time, so that they are still in the cache when
/// they are written.
pub const STEP: usize = 64 * PAGE;
/// Bytes after which a comparison checks whether another thread has found an earlier difference.
pub const LOOK: usize = 8 * PAGE;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    Copy,
    /// `src` is the byte, repeated eight times.
    Fill,
    /// Compares; the result is that of this function, which the program has called.
    Compare(Op),
}

impl Work {
    /// Returns the bits for the mode of a piece.
    pub fn mode(self) -> Mode {
        match self {
            Work::Copy => Mode::empty(),
            Work::Fill => Mode::FILL,
            Work::Compare(_) => Mode::COMPARE | Mode::IN_ORDER,
        }
    }

    /// Returns the work for the mode of a piece. Pieces of every comparison are compared alike, so
    /// the mode does not hold the function called.
    pub fn of(mode: Mode) -> Self {
        match mode & (Mode::FILL | Mode::COMPARE) {
            Mode::FILL => Work::Fill,
            Mode::COMPARE => Work::Compare(Op::memcmp),
            _ => Work::Copy,
        }
    }
}

/// Makes the pages that lie entirely in a range that is about to be written.
pub fn make_whole_pages(start: usize, len: usize) {
    let (from, to) = (start.next_multiple_of(PAGE), (start + len) / PAGE * PAGE);
    if from < to
        && let Some(allowed) = sys::NoFilter::look()
    {
        sys::make_pages(from, to - from, allowed);
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Task {
    pub work: Work,
    pub dst: usize,
    pub src: usize,
    pub len: usize,
}

/// Unsafe functions here demand what memcpy, memset or memcmp demand of the program; the answer is
/// memcmp's or 0.
impl Task {
    pub fn fill(dst: usize, value: u8, len: usize) -> Self {
        Self { work: Work::Fill, dst, src: usize::from(value) * (usize::MAX / 0xff), len }
    }

    pub fn part(&self, from: usize, len: usize) -> Self {
        let src = if self.work == Work::Fill { self.src } else { self.src + from };
        Self { dst: self.dst + from, src, len, ..*self }
    }

    /// Does the task by libc's function.
    ///
    /// # Safety
    /// The program has called the task's function on these ranges.
    #[unsafe(link_section = ".text.fork")] // see `intercept::entry`
    pub unsafe fn call_libc(&self) -> isize {
        let Task { work, dst, src, len } = *self;
        // SAFETY: memory of this task is valid for its function, as the program has promised.
        unsafe {
            match work {
                Work::Copy => original::copy(dst, src, len),
                Work::Fill => original::fill(dst, src, len),
                Work::Compare(op) => return original::compare(op, dst, src, len),
            }
        }
        0
    }

    /// Does the task before start-up, without libc's functions.
    ///
    /// # Safety
    /// The program has called the task's function on these ranges.
    pub unsafe fn before_start(&self) -> isize {
        let Task { work, dst, src, len } = *self;
        // SAFETY: memory of this task is valid for its function, as the program has promised.
        unsafe {
            match work {
                Work::Copy => original::copy_before_start(dst, src, len),
                Work::Fill => original::fill_before_start(dst, src, len),
                Work::Compare(op) => return original::compare_before_start(op, dst, src, len),
            }
        }
        0
    }

    /// Does the task by libc's function, into fresh memory: its pages are made step by step, unless
    /// the program has asked for huge pages. A huge page is one fault, which locks one mapping;
    /// making pages locks the list of all mappings, and a thread that loses its CPU meanwhile holds
    /// up others.
    ///
    /// # Safety
    /// The program has called the task's function on these ranges.
    pub unsafe fn alone_into_fresh(&self, huge: Option<Region>) {
        if let Some(region) = huge {
            // SAFETY: memory of this task is valid for its function, as the program has promised.
            return unsafe { self.alone_into_huge(&region) };
        }
        const HUGE: usize = Cut::TABLE;
        let (mut at, mut is_known) = (0, false);
        while at < self.len {
            // Steps end at pages, so that none is made twice.
            let step = (STEP - (self.dst + at) % PAGE).min(self.len - at);
            let part = self.part(at, step);
            part.make_pages();
            // SAFETY: the program has called the task's function on ranges that include this part.
            unsafe { part.call_libc() };
            at += step;
            let huge = (self.dst + at - 1) / HUGE * HUGE;
            if !is_known && huge >= part.dst && huge + HUGE <= self.dst + self.len {
                is_known = true;
                if sys::is_resident(huge + HUGE - PAGE) == Some(true) {
                    // SAFETY: the program has called the task's function on ranges that include this part.
                    unsafe { self.part(at, self.len - at).call_libc() };
                    return;
                }
            }
        }
    }

    /// Does the task by libc's function, into huge pages that are made one by one: the cache still holds
    /// a part of each when it is written.
    unsafe fn alone_into_huge(&self, region: &Region) {
        let mut at = 0;
        while at < self.len {
            let step = (Cut::TABLE - (self.dst + at) % Cut::TABLE).min(self.len - at);
            let part = self.part(at, step);
            region.make_pages(part.dst, part.len);
            // SAFETY: the program has called the task's function on ranges that include this part.
            unsafe { part.call_libc() };
            at += step;
        }
    }

    /// Makes the pages that lie entirely in the destination. If that fails, the later write faults
    /// and shows why.
    pub fn make_pages(&self) {
        make_whole_pages(self.dst, self.len);
    }

    /// Does the task by a loop of our own, which ends at a bad page if our handler is installed in
    /// front of the program's.
    ///
    /// # Safety
    /// The program has called the task's function on these ranges, and stays in it until the task
    /// is done or taken back.
    pub unsafe fn run(&self, copy_loop: CopyLoop, take_back: Option<&TakeBack>) -> PieceEnd {
        let Task { work, dst, src, len } = *self;
        // SAFETY: memory of this task is valid until it is taken back, as the program and the poster have ensured.
        unsafe {
            match work {
                Work::Copy => copy_loop.copy_until_taken_back(dst, src, len, take_back),
                Work::Fill => copy_loop.fill_until_taken_back(dst, src, len, take_back),
                Work::Compare(_) => compare_until_taken_back(dst, src, len, take_back).0,
            }
        }
    }

    /// Redoes a part that a loop has not finished. A bad page now faults in the program.
    ///
    /// # Safety
    /// The program has called the task's function on these ranges; no other thread works on them.
    pub unsafe fn retry(&self, from: usize, len: usize) -> isize {
        let part = self.part(from, len);
        let Work::Compare(op) = self.work else {
            // SAFETY: the program has called the task's function on ranges that include this part.
            return unsafe { part.call_libc() };
        };
        // SAFETY: the program has called the task's function on ranges that include this part. If
        // the loop stops before the end of the part, a difference or a bad page is near: the rest
        // is compared byte by byte, so nothing behind it is read.
        let at = unsafe {
            let (_, same) = compare_until_taken_back(part.dst, part.src, len, None);
            let rest = part.part(same, len - same);
            from + same + original::count_same(rest.dst, rest.src, rest.len)
        };
        if at == from + len {
            return 0;
        }
        // SAFETY: a character that was just read.
        unsafe { self.part(at - at % op.unit(), op.unit()).call_libc() }
    }
}
