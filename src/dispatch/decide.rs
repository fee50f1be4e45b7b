//! Decides the way of a large call: answers about it, each based on those before. Moves nothing.

use super::engine::EngineKind;
use super::operation::{Kind, Operation};
use super::{Dispatcher, FRESH_FROM};
use crate::backend::copy_loop::CopyLoop;
use crate::backend::engine::Handle;
use crate::backend::threads::Pieces;
use crate::config::Config;
use crate::learn::{Cell, Copier, Learner, STREAM_ALONE_FROM, STREAM_FROM, Verdict};
use crate::os::{real_time, sys};
use crate::plan::PAGE;
use crate::stats::Fallback;
use core::sync::atomic::Ordering;

/// Decision about a call before a byte of it moves, in the order in which it is made.
pub(super) struct Decision<'a> {
    pub config: &'a Config,
    pub begun: u64,
    /// Bytes that were done before the decision.
    pub done: usize,
    pub learner: &'a Learner,
    /// Set if the call follows another large one, so that workers are awake.
    pub back_to_back: bool,
    /// The engine, or why libc does it.
    pub by: Result<EngineKind, Fallback>,
    /// Learner's cell for calls of this size and pace.
    pub cell: &'a Cell,
    /// Set if the caller has real-time scheduling; `None`: not asked yet.
    real_time: Option<bool>,
    /// Address of the destination, if it is fresh.
    pub fresh: Option<usize>,
    /// Verdict of the learner; `None`: it was not asked, and does not learn from the call.
    pub verdict: Option<Verdict>,
    /// Bytes that the caller does alone first, by libc; 0: none.
    pub first: usize,
    /// The last of them, whose time stands for libc's in reports.
    pub timed: usize,
    /// Copier by which the stores are chosen; `None`: the copy may not be streamed.
    pub copier: Option<Copier>,
    pub pieces: Pieces,
    /// CPU use of the thread before the call; `None`: no sample is taken.
    pub cpu: Option<CpuUse>,
}

impl Dispatcher {
    pub(super) fn decide<'a, O: Operation>(
        &'a self,
        config: &'a Config,
        operation: &O,
        done: usize,
    ) -> Decision<'a> {
        let begun = sys::ticks();
        let learner = self.learner(match operation.kind() {
            Kind::Compares if self.differed.load(Ordering::Relaxed) => Kind::Differing,
            kind => kind,
        });
        learner.note_begin(begun);
        let back_to_back = learner.is_back_to_back(begun);
        let by = self.engine_for(config, operation);
        let mut decision = Decision {
            config,
            begun,
            done,
            learner,
            back_to_back,
            by,
            cell: learner.cell(operation.len(), back_to_back),
            real_time: (by == Err(Fallback::RealTime)).then_some(true),
            fresh: None,
            verdict: None,
            first: 0,
            timed: 0,
            copier: None,
            pieces: Pieces::All(CopyLoop::Ordinary),
            cpu: None,
        };
        decision.look_for_fresh_memory(operation);
        if self.learns(config) {
            decision.ask_learner(operation);
        }
        if decision.by.is_ok() && decision.is_real_time() {
            (decision.by, decision.verdict) = (Err(Fallback::RealTime), None);
        }
        decision.choose_first(operation);
        decision.choose_stores(operation, self.callers.are_several());
        decision.look_at_cpu();
        decision
    }

    /// Returns the engine for a call, or why there is none.
    fn engine_for(
        &self,
        config: &Config,
        operation: &impl Operation,
    ) -> Result<EngineKind, Fallback> {
        let (copy, len) = (operation.as_copy(), operation.len());
        if !operation.is_in_any_order() {
            return Err(Fallback::Overlap);
        }
        if len < self.min(config) {
            return Err(Fallback::BelowMin);
        }
        if self.beside.load(Ordering::Relaxed)
            && self.offloads(config)
            && let Some((dst, src)) = copy
            && let Some(engine) = self.engine_beside(dst, src, len)
        {
            return Ok(EngineKind::Beside(engine));
        }
        match (self.ready(config, len)?, copy) {
            (EngineKind::Other(_), None) => Err(Fallback::Unsupported),
            (EngineKind::Other(engine), Some((dst, src))) if !engine.takes(dst, src, len) => {
                Err(Fallback::Unaligned)
            }
            (engine, _) if self.learns(config) && self.is_overloaded(engine) => Err(Fallback::Busy),
            // All ranks of a job transfer, or read, at the same time, and poll while they wait. A rank that
            // took another's CPU would end sooner and make the job slower: each uses its part.
            (EngineKind::Threads(workers), _) if operation.kind().is_by_kernel() => {
                match (workers + 1) / if config.channels.is_none() { config.ranks } else { 1 } {
                    0 | 1 => Err(Fallback::Ranks),
                    cpus => Ok(EngineKind::Threads(cpus - 1)),
                }
            }
            (engine, _) => Ok(engine),
        }
    }
}

impl Dispatcher {
    /// Returns the engine beside the others that takes a copy.
    #[cold]
    fn engine_beside(&self, dst: usize, src: usize, len: usize) -> Option<Handle> {
        self.engines().find(|engine| engine.is_beside() && engine.takes(dst, src, len))
    }
}

impl Decision<'_> {
    /// Returns whether the caller has real-time scheduling: asked at most once, before the first step
    /// that can wait for another thread.
    fn is_real_time(&mut self) -> bool {
        *self.real_time.get_or_insert_with(real_time::is_real_time)
    }

    /// Detects fresh memory. Such a call is always shared, for the sake of its page faults, and not
    /// learned from: often its first bytes are resident and the rest is not.
    fn look_for_fresh_memory(&mut self, operation: &impl Operation) {
        let (len, by_libc) = (operation.len(), self.by.is_err() || !self.cell.is_shared());
        match self.by {
            Ok(EngineKind::Other(_) | EngineKind::Beside(_))
            | Err(Fallback::Overlap | Fallback::Off) => {}
            _ if by_libc && self.cell.libc_is_fault_free() => {}
            Err(Fallback::Busy) if self.learner.is_unasked() => {}
            _ => {
                let may_be_fresh = |_: &usize| len >= FRESH_FROM && !self.is_real_time();
                let dst = operation.written().filter(may_be_fresh);
                self.fresh = dst.filter(|&dst| is_fresh(dst, len));
                if self.fresh.is_none() {
                    self.learner.leave_unasked();
                }
            }
        }
        if self.fresh.is_some() {
            self.cell = &self.learner.fresh;
        }
    }

    /// Asks the learner whether sharing pays, and how many bytes are timed first. The cell does not
    /// learn from calls that go to libc for another reason.
    fn ask_learner(&mut self, operation: &impl Operation) {
        if !self.by.is_ok_and(|by| !by.is_beside()) {
            return;
        }
        let (cell, len) = (self.cell, operation.len());
        let verdict = match self.fresh {
            // Timed for a report only. An allocator has written to the first page.
            Some(dst) if self.config.counts() && is_absent(dst + PAGE) => {
                cell.decide_fresh(dst, len)
            }
            Some(_) => Ok(0),
            None => cell.decide(len, self.back_to_back),
        };
        let may_stay = verdict.is_ok() && self.fresh.is_none() && operation.as_copy().is_some();
        let rest = may_stay.then(|| self.learner.rest_speaks_against(len, cell)).flatten();
        self.verdict = rest.is_none().then_some(verdict);
        match rest.map_or(verdict, Err) {
            Ok(first) => self.first = first,
            Err(why) => self.by = Err(why),
        }
    }

    fn choose_first<O: Operation>(&mut self, operation: &O) {
        let len = operation.len();
        if self.config.counts() && self.fresh.is_none() && !operation.kind().is_by_kernel() {
            self.first = self.cell.sample(self.first, len);
        }
        let asked = self.first;
        self.first = match self.by {
            Ok(_) => self.first.max(O::FIRST).min(len / 2),
            Err(_) => 0,
        };
        self.timed = match self.fresh {
            Some(dst) if asked > 0 => self.first.saturating_sub(Cell::untimed(dst)),
            Some(_) => 0, // too few bytes to tell what its pages cost
            None => self.first,
        };
    }

    fn choose_stores(&mut self, operation: &impl Operation, several_callers: bool) {
        let len = operation.len();
        self.copier = match (self.by, operation.kind()) {
            // Pages that were just made are in the cache, where ordinary stores find them.
            _ if self.fresh.is_some() => None,
            (Ok(EngineKind::Threads(_)), Kind::Copies | Kind::Fills) if len >= STREAM_FROM => {
                Some(Copier::Together)
            }
            (
                Err(Fallback::Overlap | Fallback::Off | Fallback::BelowMin | Fallback::RealTime),
                _,
            ) => None,
            // The later cost of a copy is not known where copies of other threads come in between.
            (Err(_), Kind::Copies) if len < STREAM_FROM && several_callers => None,
            (Err(_), Kind::Copies) if len >= STREAM_ALONE_FROM => Some(Copier::Alone),
            _ => None,
        };
        self.pieces = match (self.config.copy_loop, self.copier) {
            (None, Some(by)) => self.learner.stores(len, by).choose(len),
            (copy_loop, _) => Pieces::All(copy_loop.unwrap_or(CopyLoop::Ordinary)),
        };
    }

    fn look_at_cpu(&mut self) {
        let by_libc = match self.by {
            Err(Fallback::Compared | Fallback::Starting) => true,
            Err(Fallback::Learned) => self.cell.is_time_to_sample(),
            _ => false,
        };
        let is_sample = by_libc && self.fresh.is_none() || self.by.is_ok() && self.timed > 0;
        if self.config.counts() && is_sample {
            self.cpu = CpuUse::now();
        }
    }
}

/// CPU use of the calling thread.
#[derive(Clone, Copy)]
pub(super) struct CpuUse {
    pub preemptions: u64,
    /// Nanoseconds: the time, and how much of it the thread did not run.
    pub at: u64,
    pub idle: u64,
}

impl CpuUse {
    /// Reads the clocks and the count; `None`: a seccomp filter may forbid that.
    pub fn now() -> Option<Self> {
        let preemptions = preemptions()?;
        let (at, ran) = (sys::nanoseconds(), sys::nanoseconds_of(libc::CLOCK_THREAD_CPUTIME_ID));
        Some(Self { preemptions, at, idle: at.saturating_sub(ran) })
    }
}

/// Returns how often the thread was preempted; `None`: a seccomp filter may forbid the call.
pub(super) fn preemptions() -> Option<u64> {
    sys::NoFilter::look().and_then(sys::preemptions)
}

/// Returns whether memory is fresh: none of a few of its pages is resident. Pages are made when a
/// program first writes to them, not when it asks for memory.
fn is_fresh(dst: usize, len: usize) -> bool {
    [2, 1, 3].iter().all(|&quarter| is_absent(dst + len / 4 * quarter))
}

/// Returns whether the page of an address is known not to be in memory.
fn is_absent(address: usize) -> bool {
    sys::is_resident(address & !(PAGE - 1)) == Some(false)
}
