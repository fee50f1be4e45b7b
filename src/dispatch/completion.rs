//! Bookkeeping of a call that is over: for the learner, the report, and `ADMA_VERIFY`.

use super::Dispatcher;
use super::decide::{CpuUse, Decision};
use super::engine::EngineKind;
use super::look::Look;
use super::operation::{Kind, Operation};
use crate::backend::libc as original;
use crate::backend::threads::{Cost, Seen, workers};
use crate::functions::Op;
use crate::learn::{FRESH_PAIRS_FROM, LARGE, SETTLING_TICKS, class};
use crate::os::{cpus, sys};
use crate::stats::file::Call;
use crate::stats::samples::{FRESH, FRESH_SHORT};
use crate::stats::{Fallback, Path, Recorder};
use core::sync::atomic::Ordering;

/// Size from which copies, back to back, show how many workers add speed: long enough for all of
/// them to arrive.
const GAIN_FROM: usize = 16 << 20;

/// Least bytes whose time shows libc's speed.
const LEAST_TIMED: usize = 32 << 10;

/// Returns the row of the statistics that a call belongs to.
fn size_of_sample(decision: &Decision, len: usize) -> usize {
    match decision.fresh {
        Some(_) if len < FRESH_PAIRS_FROM => FRESH_SHORT,
        Some(_) => FRESH,
        None => class(len),
    }
}

/// One call that is over.
pub(super) struct Completion {
    pub path: Path,
    /// Why no engine did the call; `None`: one did.
    pub fallback: Option<Fallback>,
    pub answer: isize,
    /// Ticks at which the first bytes were begun, and done.
    pub first: [u64; 2],
    /// Ticks that libc took for the first bytes, without the time to wake workers; `None`: not timed, or
    /// the thread was preempted.
    pub sample: Option<u64>,
    /// Whether fresh memory got huge pages; `None`: it is not fresh, or its pages are the program's choice.
    pub huge: Option<bool>,
    pub seen: Seen,
}

impl Dispatcher {
    /// Reports a call that is over to the learner, the count of callers and the statistics.
    pub(super) fn learn_from(
        &self,
        decision: &Decision,
        completion: &Completion,
        operation: &impl Operation,
        site: usize,
    ) {
        let Decision { config, begun, done, learner, cell, .. } = *decision;
        let (now, len) = (sys::ticks(), operation.len());
        let whole = Cost { bytes: len - done, ticks: now.wrapping_sub(begun) };
        let was_shared = completion.fallback.is_none();
        if was_shared {
            learner.note_workers_awake(now);
        }
        let overlapped = self.callers.note(begun, now);
        // A system call cannot be taken back from a worker that does not run, so its caller has
        // waited. Where as many ranks as CPUs poll, no rank gains by another's CPU.
        let waited = operation.kind().is_by_kernel() && completion.seen.late;
        // A busy card says nothing about the CPUs.
        let asked_cpus = decision.by.is_ok_and(|by| !by.is_beside());
        if waited || completion.fallback == Some(Fallback::Busy) && asked_cpus {
            self.overload.note();
        }
        let is_whole = operation.is_whole(completion.answer);
        if let Some(huge) = completion.huge.filter(|_| is_whole) {
            learner.marks(len).record(huge, whole);
        }
        let mut tells = is_whole;
        if operation.kind() == Kind::Compares {
            // libc does not report where a difference is, so calls that find one are measured only
            // against each other, whole call against whole call.
            tells = self.differed.swap(!is_whole, Ordering::Relaxed) != is_whole;
        }
        let as_decided = was_shared == decision.by.is_ok();
        if let Some(way) = decision.way.filter(|_| tells && as_decided) {
            let [from, to] = completion.first;
            let first = Cost { bytes: decision.first, ticks: to.wrapping_sub(from) };
            if decision.look.is_none() && first.bytes >= LEAST_TIMED && is_whole {
                cell.note_look(first);
            }
            let look = decision.look.map_or(first, Look::cost);
            if decision.back_to_back && len >= GAIN_FROM && was_shared && look.bytes > 0 {
                workers::note_gain(whole.times_as_fast_as(look));
            }
            match operation.kind().counts_afterwards() {
                true => learner.open(cell, decision.site, way, whole, now),
                false => cell.record(way, whole),
            }
        }
        let is_left = matches!(
            decision.by,
            Err(Fallback::Learned | Fallback::OneCpu | Fallback::Ranks | Fallback::Busy)
        );
        let is_short = whole.bytes < operation.kind().passes_below();
        // A copy that was looked at may find its bytes in a cache now and not the next time.
        if is_left && is_short && decision.look.is_none() && !config.counts() {
            self.callers.expect(cell.let_pass(whole.ticks));
        }
        if completion.fallback == Some(Fallback::Starting) {
            Self::note_unaided(whole.ticks);
        }
        if config.counts() {
            let call = Call {
                path: completion.path,
                kind: operation.kind() as usize,
                size: size_of_sample(decision, len),
                apart: operation.kind().apart(),
                bytes: operation.bytes(completion.answer),
                begun,
                ended: now,
                overlapped,
                site,
            };
            let recorder = self.recorder.record_call(&call);
            if let Some(before) = decision.cpu.filter(|_| is_whole && as_decided) {
                self.keep_sample(recorder, decision, completion, operation, before, whole);
            }
            if was_shared {
                self.libc_ticks.store(0, Ordering::Relaxed);
            } else {
                self.libc_ticks.fetch_add(whole.ticks, Ordering::Relaxed);
            }
        }
    }

    /// Keeps libc's time for the first bytes of a shared call, or for a whole one, unless preemption has
    /// taken part of it since `before`.
    fn keep_sample(
        &self,
        recorder: &Recorder,
        decision: &Decision,
        completion: &Completion,
        operation: &impl Operation,
        before: CpuUse,
        whole: Cost,
    ) {
        let (samples, len) = (&recorder.samples, operation.len());
        let Some(after) = CpuUse::now() else { return };
        // A caller that only waits for workers or a DMA engine is not preempted.
        let is_preempted = after.preemptions != before.preemptions;
        let lost = if is_preempted { after.idle.saturating_sub(before.idle) } else { 0 };
        let passed = after.at.saturating_sub(before.at);
        samples.timed.fetch_add(passed, Ordering::Relaxed);
        samples.preempted.fetch_add(lost, Ordering::Relaxed);
        let is_cached = self.is_cached(operation);
        // After shared calls, caches hold other lines than they would without us; none holds fresh memory.
        let is_settled = decision.fresh.is_some()
            || self.libc_ticks.load(Ordering::Relaxed) >= SETTLING_TICKS
            || !is_cached && (!decision.back_to_back || len >= LARGE);
        let row = samples.row(operation.kind() as usize, size_of_sample(decision, len));
        match (completion.path, decision.by) {
            (Path::Engine, Ok(EngineKind::Threads(_))) if decision.fresh.is_none() && is_cached => {
            }
            (Path::Engine, Ok(_)) => {
                completion
                    .sample
                    .inspect(|&ticks| row.note_libc(decision.timed as u64, ticks, false));
            }
            (Path::Engine, Err(_)) => {} // streamed by the caller, not libc's
            (Path::Libc(_), _) if lost > passed / 16 || !is_settled => {}
            (Path::Libc(_), _) => row.note_libc(whole.bytes as u64, whole.ticks, true),
        }
    }

    /// Returns whether a call touches the memory of the sample before it, and caches could hold that.
    /// Then a shared call in between misleads: its workers leave lines in their own caches, and streaming
    /// stores leave none, where libc alone would find all; or the caller's part stays in its cache, where
    /// a whole copy would have evicted it.
    fn is_cached(&self, operation: &impl Operation) -> bool {
        // Comparisons write nothing and count as repeated: estimates from their samples did not hold.
        let (dst, src) =
            operation.as_copy().or(operation.written().map(|dst| (dst, 0))).unwrap_or((0, 0));
        let places = dst.rotate_left(32) ^ src;
        let again = self.sampled.swap(places, Ordering::Relaxed) == places;
        again && 2 * operation.len() <= cpus::last_level_cache()
    }

    /// Compares one in `ADMA_VERIFY` carried copies; a difference is repaired, counted, and ends the
    /// engine.
    ///
    /// # Safety
    /// As memcpy of these arguments.
    pub unsafe fn verify_some(&self, dst: usize, src: usize, len: usize) {
        let every = self.config().map_or(0, |config| u64::from(config.verify));
        let number = self.carried.fetch_add(1, Ordering::Relaxed) + 1;
        if every == 0 || !number.is_multiple_of(every) {
            return;
        }
        let counters = self.recorder.counters();
        counters.verified.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the program's copy has just read `src` and written `dst`, each of `len` bytes.
        if unsafe { original::compare(Op::memcmp, dst, src, len) } != 0 {
            // SAFETY: the program's copy has just read `src` and written `dst`, each of `len` bytes.
            unsafe { original::copy(dst, src, len) };
            counters.mismatched.fetch_add(1, Ordering::Relaxed);
            self.switch_off(Fallback::Off);
        }
    }
}
