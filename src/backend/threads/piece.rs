//! One claimed piece of a shared copy, from its first byte to its end in the queue.

use super::queue::{Claim, Shared, piece_is};
use super::remote;
use crate::backend::copy_loop::{self, Copied, CopyLoop, Sequence, TakeBack};
use crate::backend::mode::Mode;
use crate::os::sys;
use crate::plan::PAGE;

/// Beside a packed mode: pieces with odd numbers are streamed, the others not. Whoever times
/// them one by one knows after one copy which is better.
pub const ALTERNATE: usize = 1 << 26;
/// Beside a packed mode: the destination was never written. Its pages are made before they
/// are copied into, many with one call instead of a fault for each.
pub const FRESH: usize = 1 << 27;

/// Beside a packed mode: pieces of a transfer between processes, see `remote`.
pub const REMOTE: usize = 1 << 28;

/// Beside a packed mode: the destination is filled, and what stands for the source is the value.
pub const FILL: usize = 1 << 29;

/// So much is made at once: it is still in the cache when the bytes come.
const STEP: usize = 64 * PAGE;

/// Which loop copies the piece.
pub fn loop_of(claim: &Claim) -> CopyLoop {
    let mode = claim.copy.mode;
    match mode & ALTERNATE != 0 && claim.index % 2 == 1 {
        true => CopyLoop::Stream,
        false => Mode::unpack(mode).copy_loop,
    }
}

/// Copies a claimed piece and says so in the queue. A worker gives its `sequence` where the
/// piece can be taken back from it.
pub fn carry_out(shared: &Shared, claim: &Claim, sequence: Option<&Sequence>) {
    if claim.copy.mode & REMOTE != 0 {
        return remote::carry_out(shared, claim);
    }
    let piece = claim.copy.cut.piece(claim.index);
    let (dst, src) = (claim.copy.dst + piece.offset, claim.copy.src);
    let fills = claim.copy.mode & FILL != 0;
    let copy_loop = loop_of(claim);
    let take_back =
        sequence.map(|sequence| TakeBack::new(sequence, shared.generation(), claim.generation));
    let step = if claim.copy.mode & FRESH != 0 { STEP } else { piece.len };
    let (mut at, mut copied) = (0, Copied::Whole);
    while at < piece.len && copied == Copied::Whole {
        let len = step.min(piece.len - at);
        if step != piece.len {
            // A worker that comes too late makes pages, and writes nothing into them.
            make_pages(dst + at, len);
        }
        // SAFETY: claimed, so the poster waits for us inside its memcpy, whose ranges these are,
        // or takes the piece back.
        copied = unsafe {
            if fills {
                copy_loop.fill_until_taken_back(dst + at, src, len, take_back.as_ref())
            } else {
                let src = src + piece.offset + at;
                copy_loop.copy_until_taken_back(dst + at, src, len, take_back.as_ref())
            }
        };
        at += len;
    }
    let what = match copied {
        Copied::Whole => piece_is::DONE,
        Copied::BadPage => piece_is::FAILED,
        Copied::TakenBack => return,
    };
    match take_back {
        Some(take_back) => copy_loop::commit(shared.piece(claim.index), what, &take_back),
        None => shared.finish(claim, what),
    }
}

/// Copies into memory that was never written, alone: its pages are made step by step.
///
/// # Safety
/// As memcpy.
pub unsafe fn copy_fresh(dst: usize, src: usize, len: usize, copy: unsafe fn(usize, usize, usize)) {
    let mut at = 0;
    while at < len {
        // Steps end at pages, so that none is made twice.
        let step = (STEP - (dst + at) % PAGE).min(len - at);
        make_pages(dst + at, step);
        // SAFETY: part of the caller's ranges.
        unsafe { copy(dst + at, src + at, step) };
        at += step;
    }
}

/// Makes the pages that lie whole in the range. If it cannot be done, copying will tell why.
fn make_pages(dst: usize, len: usize) {
    let (from, to) = (dst.next_multiple_of(PAGE), (dst + len) / PAGE * PAGE);
    if from < to {
        sys::make_pages(from, to - from);
    }
}
