//! Work that the kernel does for us, shared between caller and workers: each piece is a system
//! call of its own.
//!
//! - Nothing here faults: the kernel answers with fewer bytes, or EFAULT.
//! - A system call cannot be taken back from a worker, so pieces that were begun are waited for.
//! - What a piece needs lies on the caller's stack. Workers reach it through a claimed piece only,
//!   and the caller does not return while one is under way.

use crate::backend::Refused;
use crate::backend::copy_loop::CopyLoop;
use crate::backend::mode::Mode;
use crate::backend::threads::piece::PieceFn;
use crate::backend::threads::queue::{ClaimedPiece, Posted, UndoneBits};
use crate::backend::threads::worker::{summon, summon_all};
use crate::backend::threads::workers::{self, QUEUE};
use crate::backend::threads::{Seen, WaitMode, note_caller_bytes, take_slot, work};
use crate::os::huge_pages::Region;
use crate::os::signal_mask::SignalsHeld;
use crate::plan::{Cut, Piece};
use core::mem::MaybeUninit;

/// Order of claims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claims {
    /// The caller claims from the front, workers from the back, each in another page table than
    /// before (`Cut::spread`).
    Spread,
    /// All claim from the front. Behind a piece that falls short none is begun.
    InOrder,
}

/// Shares the pieces of a cut with up to `helpers` of the `workers` there are. `part` does one piece,
/// and returns whether it did all of it; workers call it too, so it keeps to the law of `worker`.
/// `before` is called once no refusal is possible any more, before the first piece. `huge`: range to
/// mark for huge pages meanwhile. Returns the beginning of the first piece that was not done, and what
/// was measured. After a refusal nothing was done.
pub fn share(
    cut: Cut,
    workers: usize,
    helpers: usize,
    claims: Claims,
    before: impl FnOnce(),
    huge: Option<(Region, usize, usize)>,
    part: &(dyn Fn(Piece) -> bool + Sync),
) -> Result<(Option<usize>, Seen), Refused> {
    workers::may_post()?;
    // A handler that jumped out would leave workers with our stack.
    let held = SignalsHeld::handled().ok_or(Refused::System)?;
    let mode = Mode::for_new_pages(CopyLoop::Ordinary)?;
    let shared = take_slot(workers)?;
    before();
    let marked = huge.and_then(|(region, start, len)| region.mark(start, len, &held));
    let in_order = claims == Claims::InOrder;
    let order = if in_order { Mode::IN_ORDER } else { Mode::empty() };
    let piece = |index: usize| if in_order { cut.piece(index) } else { cut.spread(index) };
    let mut mode = mode | Mode::BY_FUNCTION | order;
    mode.set(Mode::ALL_CALLED, helpers < workers);
    let function: PieceFn<'_> = &|claim: &ClaimedPiece| {
        let done = part(piece(claim.index));
        if !done && in_order {
            shared.cancel(claim.index + 1, claim.generation);
        }
        done
    };
    QUEUE.post(shared, &Posted { dst: 0, src: &raw const function as usize, cut, mode });
    match cut.count().clamp(1, helpers) as u32 {
        count if mode.contains(Mode::ALL_CALLED) => summon_all(count),
        count => summon(count),
    }
    let mut seen = Seen::default();
    let (own, _) = work(shared, &mut seen, &WaitMode::UntilDone, true);
    let mut room: UndoneBits = [const { MaybeUninit::uninit() }; _];
    let short = shared.undone(&mut room).map(|index| piece(index).offset).min();
    QUEUE.release(shared);
    drop(marked);
    note_caller_bytes(own);
    Ok((short, seen))
}
