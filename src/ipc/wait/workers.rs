//! Large messages between any memory, shared with the worker threads of this process.
//!
//! The pieces of such a message keep to page tables (`messages::layout`). The two threads that wait,
//! one in each process, and the workers of both claim them one by one, so none waits for more than
//! the last piece that another has begun.
//!
//! Workers copy by the same calls as the thread that waits. A worker may have rights that this thread
//! has not, so the thread makes such a call first. A piece that a worker could not copy is left to
//! the thread, because finding out why may allocate.

use crate::backend::threads::parallel;
use crate::ipc::copy::proof::Failed;
use crate::ipc::copy::{MessagePiece, Proven};
use crate::ipc::handles;
use crate::ipc::link::Link;
use crate::ipc::messages::{Role, SHARED_FROM, SPREAD_BELOW};
use crate::ipc::os::blocking;
use crate::ipc::settings::Workers;
use crate::ipc::tally::Means;
use crate::os::lock::Lock;
use core::sync::atomic::{AtomicUsize, Ordering};

/// Most workers of one process that take part in a message.
const MOST_HELPERS: usize = 15;

/// Pieces copied before the caller's signals are let in again: some 10 ms.
const AT_ONCE: usize = 64;

/// Ticks of waiting, beyond twice the caller's own copying, after which a worker is taken to have
/// no CPU.
const PATIENCE: u64 = 1_000_000;

impl Workers {
    /// Returns the workers for one side: both processes have some, and leave a CPU to each of the two
    /// threads that wait. A reader gets the odd one.
    fn helpers(&self, role: Role) -> usize {
        let left = self.cpus - 2 + usize::from(role == Role::Reader);
        (left / 2).min(MOST_HELPERS)
    }
}

impl Link {
    /// Copies a claimed piece, with no lock held. A `limited` caller leaves a call that may block to a
    /// helper thread, which goes on with the other pieces of the message.
    pub fn copy_or_defer(
        &self,
        proven: &Proven,
        role: Role,
        number: u32,
        piece: MessagePiece,
        limited: bool,
    ) {
        if !limited || !proven.may_hang(piece) {
            return self.copy_with_workers(proven, role, number, piece);
        }
        let handle = self.handle.load(Ordering::Acquire) as i32;
        let taken = handles::find_any(handle).is_ok_and(|link| {
            blocking::run(move || {
                let Some(proven) = link.proven() else { return };
                let mut next = Some(piece);
                while let Some(piece) = next {
                    link.copy(proven, role, number, piece);
                    next = link.claim(role, number, &AtomicUsize::new(1));
                }
                link.ring_own();
                link.serve(); // as the service thread would, which has not to be woken
            })
        });
        if !taken {
            self.finish(role, number, Err(Failed::System(libc::EAGAIN))); // this time
        }
    }

    /// Copies a claimed piece, with no lock held; of a large message all that are left, with
    /// workers.
    pub fn copy_with_workers(&self, proven: &Proven, role: Role, number: u32, piece: MessagePiece) {
        let by_calls = proven.may_hang(piece) && piece.pin == 0;
        let (message, shares) = (piece.message, proven.terms.shares);
        let is_shared = by_calls && shares && message >= SHARED_FROM;
        let workers = proven.workers.filter(|_| is_shared);
        let Some(workers) = workers else { return self.copy(proven, role, number, piece) };
        // One for each MiB that the caller does not copy itself, and not too many for the tables.
        let all = (workers.count)();
        let wanted = match message < SPREAD_BELOW {
            true => ((message >> 20) - 1).min(5),
            false => message >> 22,
        };
        let helpers = workers.helpers(role).min(wanted).min(all);
        if helpers == 0 || !self.believe() || !proven.shows_sign(role) {
            return self.copy(proven, role, number, piece);
        }
        let (first, left) = (Lock::new(Some(piece)), AtomicUsize::new(AT_ONCE));
        let failed = [const { Lock::new(None) }; MOST_HELPERS + 1];
        let work = |helper: usize| {
            let means = if helper == 0 { Means::ProcessVm } else { Means::Workers };
            let mut next = first.lock().take();
            while let Some(piece) = next.or_else(|| self.claim(role, number, &left)) {
                next = None;
                // SAFETY: `messages` has handed out a part of both posts.
                let copied = unsafe { proven.copy_by_calls(role, piece, means) };
                if copied.is_err() {
                    left.store(0, Ordering::Relaxed);
                    *failed[helper].lock() = Some(piece);
                    return;
                }
                self.finish(role, number, copied);
            }
        };
        match parallel::run(all, helpers, &work) {
            Ok(took) if took.waited > PATIENCE.max(2 * took.own) => (workers.note_overload)(),
            Ok(_) => {}
            Err(_) => work(0),
        }
        for piece in failed.iter().filter_map(|piece| piece.lock().take()) {
            self.copy(proven, role, number, piece);
        }
    }

    /// Claims the next piece of a message, as long as some are `left`.
    fn claim(&self, role: Role, number: u32, left: &AtomicUsize) -> Option<MessagePiece> {
        let (taken, now) = (Ordering::Relaxed, Ordering::Relaxed);
        left.fetch_update(taken, now, |left| left.checked_sub(1)).ok()?;
        let (endpoint, lane) = self.endpoint(role);
        endpoint.lock().claim_next(lane, number)
    }
}
