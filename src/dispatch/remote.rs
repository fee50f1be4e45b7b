//! Which way a large transfer between processes takes: shared, or the kernel alone and why.
//!
//! As for copies, with a learner of its own: what a byte costs here is another price.

use super::{Dispatcher, Engine, Policy};
use crate::backend::threads::remote::{self, Call, Lists, Transfer};
use crate::backend::threads::{self, Cost};
use crate::learn::Verdict;
use crate::os::sys;
use crate::plan::PAGE;
use crate::stats::{Fallback, Path};
use core::sync::atomic::Ordering;

/// Nothing smaller is shared where sizes are learned: a call costs a microsecond and more
/// before the first byte moves.
const FLOOR: usize = 1 << 20;

impl Dispatcher {
    /// process_vm_readv or process_vm_writev, one way or the other; the answer is libc's, and
    /// so is errno.
    ///
    /// # Safety
    /// The program's own call.
    pub unsafe fn transfer(&self, call: &Call) -> isize {
        let mut lists = Lists::new();
        let known = self.policy.get().zip(Transfer::new(call, &mut lists));
        let Some((policy, transfer)) = known else {
            // SAFETY: the caller's promise.
            return unsafe { remote::pass_on(call) };
        };
        let total = transfer.total();
        if policy.profile {
            self.recorder.profile(call.op, total);
        }
        let floor = if policy.learn { FLOOR } else { policy.min };
        if total < floor.max(2) || self.closed.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            return unsafe { remote::pass_on(call) };
        }
        let begun = sys::ticks();
        let (path, answer) = match self.share_transfer(policy, &transfer) {
            Ok(done) => (Path::Engine, done as isize),
            // SAFETY: the caller's promise; nothing is under way.
            Err((why, learned)) => unsafe {
                let answer = remote::pass_on(call);
                if let Some((verdict, in_a_row)) = learned {
                    let now = sys::ticks();
                    let whole = Cost { bytes: total, ticks: now.wrapping_sub(begun) };
                    self.remote_learner.note_end(now);
                    if answer == total as isize {
                        let cell = self.remote_learner.cell(total, in_a_row);
                        cell.record(verdict, whole, now, in_a_row);
                    }
                }
                (Path::Libc(why), answer)
            },
        };
        if policy.record {
            let ticks = sys::ticks().wrapping_sub(begun);
            self.recorder.record(path, usize::try_from(answer).unwrap_or(0), ticks);
        }
        answer
    }

    /// Shares it: how many bytes are done. Or why not, and what is to be learned of it then.
    fn share_transfer(
        &self,
        policy: &Policy,
        transfer: &Transfer<'_>,
    ) -> Result<usize, (Fallback, Option<(Verdict, bool)>)> {
        let refuse = |why| (why, None);
        let (total, begun) = (transfer.total(), sys::ticks());
        if !transfer.is_in_any_order() {
            return Err(refuse(Fallback::Overlap));
        }
        let workers = match self.ready(policy).map_err(refuse)? {
            Engine::Threads(workers) => workers,
            Engine::Ioat => return Err(refuse(Fallback::Unsupported)),
        };
        let (mut first, mut learned) = (PAGE, None);
        let in_a_row = self.remote_learner.is_in_a_row(begun);
        if policy.learn {
            if self.is_crowded(begun) {
                return Err(refuse(Fallback::Busy));
            }
            let cell = self.remote_learner.cell(total, in_a_row);
            let verdict = cell.decide(total, begun);
            let alone = verdict.first_bytes(total);
            first = alone.map_err(|why| (why, Some((verdict, in_a_row))))?.max(PAGE);
            learned = Some((cell, verdict));
        }
        let first = first.min(total / 2);
        if !in_a_row {
            threads::expect();
        }
        // Always by the caller, whatever is measured: a worker may have rights that this thread
        // has not. What it may not do, or not whole, is the kernel's to answer.
        if transfer.carry(0, first) < first {
            return Err(refuse(Fallback::Refused));
        }
        let parted = sys::ticks();
        let done = transfer.share(first, workers, policy.how.wait).map_err(|refused| {
            let why = self.refused(refused);
            if why == Fallback::Busy {
                self.note_crowd(begun);
            }
            refuse(why)
        })?;
        let now = sys::ticks();
        self.remote_learner.note_end(now);
        if let Some((cell, verdict)) = learned.filter(|_| done == total) {
            if verdict == (Verdict::Share { paired: true }) {
                let alone = Cost { bytes: first, ticks: parted.wrapping_sub(begun) };
                let rest = Cost { bytes: total - first, ticks: now.wrapping_sub(parted) };
                cell.record_pair(alone, rest);
            }
            let whole = Cost { bytes: total, ticks: now.wrapping_sub(begun) };
            cell.record(verdict, whole, now, in_a_row);
        }
        Ok(done)
    }
}
