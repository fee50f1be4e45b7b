//! One claimed piece of a shared copy: its bytes, and then the note in the queue that it is done.

use super::queue::{ClaimedPiece, Shared, piece_is};
use super::task::{LOOK, STEP, Task, Work};
use crate::backend::copy_loop::{self, Copied, Sequence, TakeBack};
use crate::backend::mode::Mode;

/// Does a claimed piece in a way of its own; false: not all of it could be done. Workers call it
/// too, so it keeps to the law of `worker`.
pub type PieceFn<'a> = &'a (dyn Fn(&ClaimedPiece) -> bool + Sync);

/// Returns how many bytes the piece has; work of any kind counts its bytes itself.
pub fn bytes_of(claim: &ClaimedPiece) -> usize {
    if claim.copy.mode.contains(Mode::PARALLEL) { 0 } else { claim.copy.cut.piece(claim.index).len }
}

/// Does a claimed piece, and notes in the queue that it is done. A worker from which the piece can
/// be taken back gives its `sequence`.
pub fn run(shared: &Shared, claim: &ClaimedPiece, sequence: Option<&Sequence>) {
    let posted = &claim.copy;
    if posted.mode.contains(Mode::BY_FUNCTION) {
        // SAFETY: claimed, so the poster waits for us, and with it the function.
        let function = unsafe { *(posted.src as *const PieceFn<'_>) };
        let what = if function(claim) { piece_is::DONE } else { piece_is::FAILED };
        return shared.finish(claim, what);
    }
    let piece = posted.cut.piece(claim.index);
    let whole = Task { work: Work::of(posted.mode), dst: posted.dst, src: posted.src, len: 0 };
    let task = whole.part(piece.offset, piece.len);
    let take_back =
        sequence.map(|sequence| TakeBack::new(sequence, shared.generation(), claim.generation));
    let [fresh, in_order] = [Mode::FRESH, Mode::IN_ORDER].map(|flag| posted.mode.contains(flag));
    let step = match (fresh, in_order) {
        (true, _) => STEP,
        (_, true) => LOOK,
        _ => piece.len,
    };
    let (mut at, mut copied) = (0, Copied::Whole);
    while at < piece.len && copied == Copied::Whole {
        if in_order && shared.is_cancelled(claim.index) {
            copied = Copied::Differs; // in an earlier piece
            break;
        }
        let part = task.part(at, step.min(piece.len - at));
        if fresh {
            // A worker that is too late makes pages, but writes nothing into them.
            part.make_pages();
        }
        // SAFETY: claimed, so the poster waits for us inside its memcpy, whose ranges these are,
        // or takes the piece back.
        copied = unsafe { part.run(posted.mode.copy_loop(), take_back.as_ref()) };
        at += part.len;
    }
    let what = match copied {
        Copied::Whole => piece_is::DONE,
        Copied::BadPage => piece_is::FAILED,
        Copied::Differs => {
            shared.cancel(claim.index + 1, claim.generation);
            piece_is::DIFFERS
        }
        Copied::TakenBack => return,
    };
    match take_back {
        Some(take_back) => copy_loop::commit(shared.piece(claim.index), what, &take_back),
        None => shared.finish(claim, what),
    }
}
