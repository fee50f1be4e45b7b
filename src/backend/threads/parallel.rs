//! Work of any kind that the caller and workers do together.
//!
//! Every thread that takes part calls one function, which returns when nothing is left to begin.
//! That function divides the work among them. This file ensures that workers come, that none begins
//! after the caller has found nothing left, and that none is still in the function when `run`
//! returns.

use super::piece::PieceFn;
use super::queue::{ClaimedPiece, End, Posted};
use super::share::{WaitMode, take_slot, wait};
use super::worker::summon_all;
use super::workers::{self, QUEUE, SPIN_TICKS};
use crate::backend::Refused;
use crate::backend::copy_loop::CopyLoop;
use crate::backend::mode::Mode;
use crate::backend::piece_end::PieceEnd;
use crate::os::signal_mask::SignalsHeld;
use crate::os::{real_time, sys};
use crate::plan::Cut;

/// Function that every thread calls, with a number of its own; the caller's is 0. In a worker it
/// keeps to the law of `worker`.
pub type ParallelFn<'a> = &'a (dyn Fn(usize) + Sync);

/// Times in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Took {
    /// Time of the caller's own part.
    pub own: u64,
    /// Time that it then waited for the others.
    pub waited: u64,
}

/// Does the work with up to `helpers` out of `workers`. After a refusal nothing was done.
pub fn run(workers: usize, helpers: usize, work: ParallelFn<'_>) -> Result<Took, Refused> {
    workers::may_post()?;
    if real_time::is_real_time() {
        return Err(Refused::Busy);
    }
    // A handler that jumped out would leave workers with our stack.
    let _held = SignalsHeld::handled().ok_or(Refused::System)?;
    let shared = take_slot(workers)?;
    // One piece of the queue for each helper.
    let cut = Cut::from_parts(helpers, 0, 1);
    let flags = Mode::BY_FUNCTION | Mode::PARALLEL | Mode::ALL_CALLED;
    let mode = Mode::of_caller(CopyLoop::Ordinary) | flags;
    let part: PieceFn<'_> = &|claim: &ClaimedPiece| {
        work(claim.index + 1);
        true
    };
    QUEUE.post(shared, &Posted { dst: 0, src: &raw const part as usize, cut, mode });
    summon_all(helpers as u32);
    let begun = sys::ticks();
    work(0);
    let done = sys::ticks();
    while let Some(claim) = shared.claim(End::Front) {
        shared.finish(&claim, PieceEnd::Done); // a worker that has not begun need not come
    }
    let own = done.wrapping_sub(begun);
    wait(shared, own.max(SPIN_TICKS), &WaitMode::UntilDone);
    QUEUE.release(shared);
    Ok(Took { own, waited: sys::ticks().wrapping_sub(done) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    #[test]
    fn each_thread_is_called_once_and_none_is_left_when_it_returns() {
        crate::backend::libc::resolve();
        workers::init();
        workers::start(3);
        let mut helped = 0;
        for round in 0..200 {
            let (left, inside) = (AtomicUsize::new(100), AtomicUsize::new(0));
            let seen = [const { AtomicBool::new(false) }; 4];
            let work = |number: usize| {
                assert!(!seen[number].swap(true, Ordering::Relaxed));
                inside.fetch_add(1, Ordering::AcqRel);
                while left
                    .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1))
                    .is_ok()
                {
                    sys::yield_now();
                }
                inside.fetch_sub(1, Ordering::AcqRel);
            };
            match run(3, 3, &work) {
                Ok(_) => assert_eq!(left.load(Ordering::Relaxed), 0, "{round}"),
                Err(refused) => assert_eq!(refused, Refused::Busy),
            }
            assert_eq!(inside.load(Ordering::Acquire), 0, "{round}");
            helped += seen[1..].iter().filter(|seen| seen.load(Ordering::Relaxed)).count();
        }
        assert!(helped > 0, "no worker ever came");
    }
}
