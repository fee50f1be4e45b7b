//! Large messages between any memory, shared with the worker threads of this process.
//!
//! The pieces of such a message keep to page tables (`endpoint::layout`), and all who copy
//! claim them one by one: the two threads that wait, one in each process, and the workers of
//! both. So nobody waits for more than the last piece that somebody has begun.
//!
//! Who reaches whose memory is the table in `ipc`, for workers too: they copy by the same calls,
//! each of which shows that the other is the program that has agreed. But a worker may have
//! rights that the thread has not which waits, so that one makes such a call first. What a worker
//! could not copy is left to that thread as well: why that was, and what follows, is not for one
//! that may not allocate.

use super::blocking;
use super::endpoint::{Role, SHARED_FROM, SPREAD_BELOW};
use super::engine::{MessagePiece, Outcome};
use super::link::Link;
use super::lock::Lock;
use super::settings::Workers;
use super::table;
use super::tally::Means;
use crate::backend::threads::parallel;
use core::sync::atomic::{AtomicUsize, Ordering};

/// So many workers of one process take part in a message at most.
const MOST_HELPERS: usize = 15;

/// So many pieces are copied before the caller's signals come in again: some 10 ms.
const AT_ONCE: usize = 64;

/// Who is waited for longer than this, in ticks, and longer than twice what the caller has
/// copied for, has no CPU to run on.
const PATIENCE: u64 = 1_000_000;

impl Workers {
    /// Both processes have some, and leave a CPU to each of the two threads that wait. A reader
    /// gets the one that is left over.
    fn helpers(&self, role: Role) -> usize {
        let left = self.cpus - 2 + usize::from(role == Role::Reader);
        (left / 2).min(MOST_HELPERS)
    }
}

impl Link {
    /// Copies a piece that was claimed, with no lock held. Who is `limited` does nothing that may
    /// take longer than copying.
    pub fn copy_or_defer(&self, role: Role, number: u32, piece: MessagePiece, limited: bool) {
        if !limited || !self.engine.may_hang(role, piece.theirs) {
            return self.copy_with_workers(role, number, piece);
        }
        let handle = self.handle.load(Ordering::Acquire) as i32;
        let taken = table::find_any(handle).is_ok_and(|link| {
            let job = blocking::job(move || {
                link.copy(role, number, piece);
                link.ring_own();
            });
            job.is_some_and(|job| blocking::COPIERS.take(blocking::OURS, job))
        });
        if !taken {
            self.finish(role, number, Outcome::Refused); // this time
        }
    }

    /// Copies a piece that was claimed, with no lock held; and of a large message as many more
    /// as there are, with workers.
    pub fn copy_with_workers(&self, role: Role, number: u32, piece: MessagePiece) {
        let by_calls = self.engine.may_hang(role, piece.theirs) && piece.theirs.pin == 0;
        let (message, shares) = (piece.theirs.message, self.engine.terms.shares);
        let is_shared = by_calls && shares && message >= SHARED_FROM;
        let workers = self.engine.workers.filter(|_| is_shared);
        let Some(workers) = workers else { return self.copy(role, number, piece) };
        // One for each MiB that the caller does not copy itself, and not too many for the tables.
        let all = (workers.count)();
        let wanted = match message < SPREAD_BELOW {
            true => ((message >> 20) - 1).min(5),
            false => message >> 22,
        };
        let helpers = workers.helpers(role).min(wanted).min(all);
        if helpers == 0 || !self.believe() || !self.engine.shows_sign(role) {
            return self.copy(role, number, piece);
        }
        let (first, left) = (Lock::new(Some(piece)), AtomicUsize::new(AT_ONCE));
        let failed = [const { Lock::new(None) }; MOST_HELPERS + 1];
        let work = |who: usize| {
            let means = if who == 0 { Means::ProcessVm } else { Means::Workers };
            let mut next = first.lock().take();
            while let Some(piece) = next.or_else(|| self.claim(role, number, &left)) {
                next = None;
                // SAFETY: `endpoint` has handed out a part of both posts.
                let copied = unsafe { self.engine.copy_by_calls(role, piece, means) };
                if copied != Outcome::Whole {
                    left.store(0, Ordering::Relaxed);
                    *failed[who].lock() = Some(piece);
                    return;
                }
                self.finish(role, number, copied);
            }
        };
        match parallel::run(all, helpers, &work) {
            Ok(took) if took.waited > PATIENCE.max(2 * took.own) => (workers.crowded)(),
            Ok(_) => {}
            Err(_) => work(0),
        }
        for piece in failed.iter().filter_map(|piece| piece.lock().take()) {
            self.copy(role, number, piece);
        }
    }

    /// The next piece of a message, as long as some are `left`.
    fn claim(&self, role: Role, number: u32, left: &AtomicUsize) -> Option<MessagePiece> {
        let (taken, now) = (Ordering::Relaxed, Ordering::Relaxed);
        left.fetch_update(taken, now, |left| left.checked_sub(1)).ok()?;
        let (endpoint, lane) = self.endpoint(role);
        endpoint.lock().claim_next(lane, number)
    }
}
