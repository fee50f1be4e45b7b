//! Which way a large memset takes: shared, or libc and why.
//!
//! As for copies, with a learner of its own: a fill moves half the bytes that a copy moves.

use super::{Dispatcher, Engine, Policy, is_fresh};
use crate::backend::libc as original;
use crate::backend::threads::{self, Cost, How, Pieces, Seen};
use crate::learn::STREAM_FROM;
use crate::os::sys::{self, Op};
use crate::stats::{Fallback, Path};
use core::sync::atomic::Ordering;

/// Eight times a byte.
const EIGHT: usize = 0x0101_0101_0101_0101;

impl Dispatcher {
    /// Fills, one way or the other.
    ///
    /// # Safety
    /// As memset.
    pub unsafe fn fill(&self, op: Op, dst: usize, value: u8, len: usize) {
        let value = usize::from(value) * EIGHT;
        let Some(policy) = self.policy.get() else {
            // SAFETY: the caller's promise.
            return unsafe { original::fill_before_start(dst, value, len) };
        };
        if policy.profile {
            self.recorder.profile(op, len);
        }
        if len < policy.min || self.closed.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            return unsafe { original::fill(dst, value, len) };
        }
        let begun = sys::ticks();
        // SAFETY: the caller's promise.
        let path = match unsafe { self.share_fill(policy, dst, value, len, begun) } {
            Ok(()) => Path::Engine,
            Err(why) => Path::Libc(why),
        };
        if policy.record {
            self.recorder.record(path, len, sys::ticks().wrapping_sub(begun));
        }
    }

    /// Fills, shared if that is to be; all of it in any case.
    unsafe fn share_fill(
        &self,
        policy: &Policy,
        dst: usize,
        value: usize,
        len: usize,
        begun: u64,
    ) -> Result<(), Fallback> {
        let learner = &self.fill_learner;
        let in_a_row = learner.is_in_a_row(begun);
        let mut by = match self.ready(policy) {
            Ok(Engine::Threads(workers)) => Ok(workers),
            Ok(Engine::Ioat) => Err(Fallback::Unsupported),
            Err(why) => Err(why),
        };
        if policy.learn && by.is_ok() && self.is_crowded(begun) {
            by = Err(Fallback::Busy);
        }
        let (mut learned, mut first) = (None, 0);
        if policy.learn && by.is_ok() {
            let cell = learner.cell(len, in_a_row);
            let verdict = cell.decide(len, begun);
            learned = Some((cell, verdict));
            match verdict.first_bytes(len) {
                Ok(bytes) => first = bytes,
                Err(why) => by = Err(why),
            }
        }
        let fresh = by.is_ok() && is_fresh(dst, len);
        let mut pieces = policy.how.pieces;
        if by.is_ok() && !fresh && policy.copy_loop.is_none() && len >= STREAM_FROM {
            pieces = learner.streaming(len).choose();
        }
        if first > 0 {
            if !in_a_row {
                threads::expect();
            }
            // SAFETY: the beginning of the caller's range.
            unsafe { original::fill(dst, value, first) };
        }
        let parted = sys::ticks();
        let (rest, rest_len) = (dst + first, len - first);
        // SAFETY: the rest of the caller's range; with `fill` the second is the value.
        let carried: Result<Seen, Fallback> = by.and_then(|workers| unsafe {
            let how = How { workers, pieces, fresh, fill: true, ..policy.how };
            threads::copy(rest, value, rest_len, &how).map_err(|refused| self.refused(refused))
        });
        if carried.is_err() {
            // SAFETY: as above; after a refusal nothing is under way.
            unsafe { original::fill(rest, value, rest_len) };
        }
        let now = sys::ticks();
        learner.note_end(now);
        if let Ok(seen) = &carried
            && pieces == Pieces::Alternate
        {
            learner.streaming(len).record(seen);
        }
        if by.is_ok() && matches!(carried, Err(Fallback::Busy)) {
            self.note_crowd(begun);
        }
        let told = carried.is_ok() || by.is_err();
        if let Some((cell, verdict)) = learned.filter(|_| told) {
            if first > 0 {
                let alone = Cost { bytes: first, ticks: parted.wrapping_sub(begun) };
                let shared = Cost { bytes: rest_len, ticks: now.wrapping_sub(parted) };
                cell.record_pair(alone, shared);
            }
            let whole = Cost { bytes: len, ticks: now.wrapping_sub(begun) };
            cell.record(verdict, whole, now, in_a_row);
        }
        carried.map(drop)
    }
}
