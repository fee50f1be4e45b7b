//! Decides how a large call is performed, in steps that each use the results of the steps before.
//! Moves no bytes but those of a look.

use super::engine::EngineKind;
use super::look::{Look, look};
use super::operation::{Kind, Operation};
use super::{Dispatcher, FRESH_FROM};
use crate::backend::copy_loop::CopyLoop;
use crate::backend::engine::Handle;
use crate::config::Config;
use crate::learn::{self, Cell, Learner, Place, TRY_STREAM_FROM, Way, Ways};
use crate::os::{real_time, sys};
use crate::plan::PAGE;
use crate::stats::Fallback;
use core::sync::atomic::Ordering;

/// Decision about a call before most of it moves, in the order in which it is made.
pub(super) struct Decision<'a> {
    pub config: &'a Config,
    pub begun: u64,
    /// Bytes that were done before the decision.
    pub done: usize,
    /// Return address of the call; 0: not known.
    pub site: usize,
    pub learner: &'a Learner,
    /// Set if the call follows another large one, so that workers are awake.
    pub back_to_back: bool,
    /// The engine, or why libc does it.
    pub by: Result<EngineKind, Fallback>,
    /// Learner's cell for calls of this size from this site, with bytes in this place.
    pub cell: &'a Cell,
    /// Calls of the cell before this one.
    calls: u32,
    /// Set if the caller has real-time scheduling; `None`: not asked yet.
    real_time: Option<bool>,
    /// Address of the destination, if it is fresh.
    pub fresh: Option<usize>,
    /// A part that libc has done; `None`: there was no look.
    pub look: Option<Look>,
    /// Way that the learner has chosen; `None`: it was not asked, and does not learn from the call.
    pub way: Option<Way>,
    /// Bytes that the caller does alone first, by libc; 0: none.
    pub first: usize,
    /// How many of the `first` bytes, the last ones, are timed: their time stands for libc's in reports.
    pub timed: usize,
    pub copy_loop: CopyLoop,
    /// CPU use of the thread before the call; `None`: no sample is taken.
    pub cpu: Option<CpuUse>,
}

impl Dispatcher {
    pub(super) fn decide<'a, O: Operation>(
        &'a self,
        config: &'a Config,
        operation: &O,
        done: usize,
        site: usize,
    ) -> Decision<'a> {
        let begun = sys::ticks();
        let learner = self.learner(match operation.kind() {
            Kind::Compares if self.differed.load(Ordering::Relaxed) => Kind::Differing,
            kind => kind,
        });
        learner.note_begin();
        let by = self.engine_for(config, operation);
        let mut decision = Decision {
            config,
            begun,
            done,
            site,
            learner,
            back_to_back: learner.is_back_to_back(begun),
            by,
            cell: learner.base(site, operation.len()),
            calls: 0,
            real_time: (by == Err(Fallback::RealTime)).then_some(true),
            fresh: None,
            look: None,
            way: None,
            first: 0,
            timed: 0,
            copy_loop: config.copy_loop.unwrap_or(CopyLoop::Ordinary),
            cpu: None,
        };
        if !decision.cell.was_near() {
            decision.look_for_fresh_memory(operation);
        }
        let learns = self.learns(config);
        let ways = decision.ways(operation, learns, self.callers.are_several());
        decision.choose_way(operation, ways);
        decision.calls = decision.cell.count();
        if decision.by.is_ok() && decision.is_real_time() {
            (decision.by, decision.way) = (Err(Fallback::RealTime), None);
        }
        decision.leave_sample_to_libc(operation, learns);
        decision.choose_first(operation, learns);
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
            // All ranks of a job transfer, or read, at the same time, and poll while they wait. A
            // rank that took another's CPU would end sooner and make the job slower: each rank uses
            // its part of the CPUs.
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
    /// Returns the engine, of those beside the others, that takes this copy.
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

    /// Detects fresh memory. Such a call is shared, for the sake of its page faults (`leave_sample_to_libc`
    /// has the exception), and not learned from: often its first bytes are resident and the rest is not.
    fn look_for_fresh_memory(&mut self, operation: &impl Operation) {
        let len = operation.len();
        match self.by {
            Ok(EngineKind::Other(_) | EngineKind::Beside(_))
            | Err(Fallback::Overlap | Fallback::Off) => {}
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

    /// Returns the ways that the call could take; empty: the learner does not choose.
    fn ways(&self, operation: &impl Operation, learns: bool, several_callers: bool) -> Ways {
        let (len, kind, stores) = (operation.len(), operation.kind(), self.config.copy_loop);
        let may_stream = stores != Some(CopyLoop::Ordinary)
            && matches!(kind, Kind::Copies | Kind::Fills | Kind::FromCard)
            && (stores.is_some() || len >= TRY_STREAM_FROM);
        let mut ways = match self.by {
            Ok(EngineKind::Beside(_)) => return Ways::empty(),
            Ok(EngineKind::Other(_)) => Ways::SHARED,
            Ok(EngineKind::Threads(_)) if !may_stream => Ways::SHARED,
            Ok(EngineKind::Threads(_)) if stores.is_some() => Ways::STREAMED,
            Ok(EngineKind::Threads(_)) => Ways::SHARED | Ways::STREAMED,
            Err(
                Fallback::Overlap
                | Fallback::Off
                | Fallback::BelowMin
                | Fallback::RealTime
                | Fallback::Starting,
            ) => return Ways::empty(),
            Err(_) => Ways::LIBC,
        };
        ways.set(Ways::LIBC, learns || self.by.is_err());
        // The later cost of a copy is not known where copies of other threads come in between.
        let is_alone = ways.contains(Ways::LIBC) && !matches!(self.by, Ok(EngineKind::Other(_)));
        let may_be_small = self.by.is_ok() || len >= 4 * TRY_STREAM_FROM || !several_callers;
        let streams_alone = is_alone && kind == Kind::Copies && may_stream && may_be_small;
        ways.set(Ways::ALONE, streams_alone);
        ways
    }

    /// Looks at the bytes, and asks the learner for the way.
    fn choose_way(&mut self, operation: &impl Operation, ways: Ways) {
        if self.fresh.is_some() || ways.is_empty() {
            return;
        }
        if ways.contains(Ways::LIBC)
            && ways != Ways::LIBC
            && let Some(task) = operation.as_task()
        {
            // SAFETY: the program has called a copy of these ranges, and the caller of `decide` performs
            // it: memmove may copy a part of them now.
            self.look = unsafe { look(task, self.begun) };
        }
        if let Some(look) = self.look {
            let was_near = self.cell.was_near();
            let place = self.learner.place(self.site, operation.len(), look.distance());
            if place == Place::Near {
                self.by = Err(self.by.err().unwrap_or(Fallback::Learned));
                return;
            }
            if was_near {
                self.look_for_fresh_memory(operation);
                if self.fresh.is_some() {
                    return;
                }
            }
            let (len, begun) = (operation.len(), self.begun);
            self.cell = self.learner.cell_at(self.site, len, place, look.ticks_for(len), begun);
            self.cell.note_look(look.cost());
        }
        let len = operation.len();
        self.learner.close(self.site, len, self.cell, self.begun);
        let way = match self.by {
            // CPUs may be idle again for the next call.
            Err(why) if !matches!(why, Fallback::OneCpu | Fallback::Ranks) => {
                self.cell.best_of(len, ways)
            }
            _ => self.cell.choose(len, ways),
        };
        self.way = Some(way);
        if self.by.is_ok() && !way.is_shared() {
            let is_best = self.cell.best() == Some(way);
            self.by = Err(if is_best { Fallback::Learned } else { Fallback::Compared });
        }
        if matches!(way, Way::Alone | Way::Streamed) {
            self.copy_loop = CopyLoop::Stream;
        }
    }

    /// Leaves some short calls into fresh memory to libc, whole, for reports: huge pages would make parts of them
    /// differ. Reads are not left: libc's could come from the disk.
    fn leave_sample_to_libc(&mut self, operation: &impl Operation, learns: bool) {
        let is_wanted = learns
            && self.config.counts()
            && matches!(self.by, Ok(EngineKind::Threads(_)))
            && self.fresh.is_some()
            && self.look.is_none()
            && operation.as_task().is_some();
        if is_wanted && learn::is_time_for_libc(self.calls, operation.len()) {
            self.by = Err(Fallback::Compared);
        }
    }

    /// Returns whether the call makes pages of fresh memory the quickest way. Where libc is timed, its own way.
    pub(super) fn makes_pages(&self) -> bool {
        self.fresh.is_some() && self.by != Err(Fallback::Compared)
    }

    /// Chooses how many bytes the caller does first: those that the operation wants, and those whose time
    /// stands for libc's, for reports and where there was no look.
    fn choose_first<O: Operation>(&mut self, operation: &O, learns: bool) {
        let (len, counts, calls) = (operation.len(), self.config.counts(), self.calls);
        if self.by.is_err() {
            return;
        }
        let asked = match self.fresh {
            _ if !learns || !operation.kind().is_timed_by_parts() => 0,
            // An allocator has written to the first page.
            Some(dst) if counts && is_absent(dst + PAGE) => learn::sample_fresh(calls, dst, len),
            Some(_) => 0,
            None if counts && !operation.kind().is_by_kernel() => learn::sample(calls, len),
            None if self.look.is_none() && self.way.is_some() => learn::first_bytes(calls, len),
            None => 0,
        };
        self.first = asked.max(O::FIRST).min(len / 2);
        self.timed = match self.fresh {
            Some(dst) if asked > 0 => self.first.saturating_sub(learn::untimed(dst)),
            Some(_) => 0, // too few bytes to show the cost of its pages
            None => self.first,
        };
    }

    fn look_at_cpu(&mut self) {
        let by_libc = match self.by {
            Err(Fallback::Compared | Fallback::Starting) => true,
            Err(Fallback::Learned) => learn::is_time_to_sample(self.calls),
            _ => false,
        };
        let is_sample = by_libc && !self.makes_pages() || self.by.is_ok() && self.timed > 0;
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
