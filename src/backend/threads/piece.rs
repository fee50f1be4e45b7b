//! One claimed piece of a shared copy: its bytes, and then the note in the queue that it is done.

use super::queue::{ClaimedPiece, Shared};
use super::task::{LOOK, STEP, Task, Work};
use crate::backend::copy_loop::{self, Sequence, TakeBack};
use crate::backend::mode::Mode;
use crate::backend::piece_end::PieceEnd;

/// Function that does a claimed piece, and returns false if not all of it could be done. Workers
/// call it too, so it keeps to the law of `worker`.
pub type PieceFn<'a> = &'a (dyn Fn(&ClaimedPiece) -> bool + Sync);

/// Returns how many bytes the piece has; 0 for work of `parallel`, which counts its bytes itself.
pub fn bytes_of(claim: &ClaimedPiece) -> usize {
    if claim.copy.mode.contains(Mode::PARALLEL) { 0 } else { claim.copy.cut.piece(claim.index).len }
}

/// Does a claimed piece, and notes in the queue that it is done. `sequence` is the worker's, if the
/// piece can be taken back from it.
pub fn run(shared: &Shared, claim: &ClaimedPiece, sequence: Option<&Sequence>) {
    let posted = &claim.copy;
    if posted.mode.contains(Mode::BY_FUNCTION) {
        // SAFETY: the piece is claimed, so the poster waits for this thread and keeps the function alive.
        let function = unsafe { *(posted.src as *const PieceFn<'_>) };
        let end = if function(claim) { PieceEnd::Done } else { PieceEnd::Failed };
        return shared.finish(claim, end);
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
    let (mut at, mut end) = (0, PieceEnd::Done);
    while at < piece.len && end == PieceEnd::Done {
        if in_order && shared.is_cancelled(claim.index) {
            end = PieceEnd::Differs; // in an earlier piece
            break;
        }
        let part = task.part(at, step.min(piece.len - at));
        if fresh {
            // A worker that is too late makes pages, but writes nothing into them.
            part.make_pages();
        }
        // SAFETY: the piece is claimed, so the poster either stays inside the program's call, which
        // keeps the ranges valid, or takes the piece back.
        end = unsafe { part.run(posted.mode.copy_loop(), take_back.as_ref()) };
        at += part.len;
    }
    match end {
        PieceEnd::Differs => shared.cancel(claim.index + 1, claim.generation),
        PieceEnd::TakenBack => return, // its caller's now
        _ => {}
    }
    match take_back {
        Some(take_back) => copy_loop::commit(shared.piece(claim.index), end, &take_back),
        None => shared.finish(claim, end),
    }
}
