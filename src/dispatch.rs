//! Which way a large call takes: the engine, or libc and why.
//!
//! Copies, fills, comparisons, transfers between processes and reads of files (`operation`) take the same three
//! steps: `decide` chooses a way, `perform` goes it, and `learn_from` notes what came of it.

mod background;
mod callers;
mod engine;
pub mod operation;
mod reads;

use crate::backend::asynchronous;
use crate::backend::copy_loop::CopyLoop;
use crate::backend::threads::refusal::Refusal;
use crate::backend::threads::remote::{self, TransferCall};
use crate::backend::threads::task::{Task, Work};
use crate::backend::threads::{self, Cost, Pieces, Seen, workers};
use crate::backend::{Refused, alone, gpu, ioat, libc as original};
use crate::config::{Backend, Config, Goal};
use crate::functions::{KERNEL_CALLS_FROM, NEVER, Op};
use crate::learn::{Cell, Copier, FLOOR, Learner, STREAM_ALONE_FROM, STREAM_FROM, Verdict, class};
use crate::os::{cpus, huge_pages, process, real_time, sys};
use crate::plan::PAGE;
use crate::stats::file::Call;
use crate::stats::samples::FRESH;
use crate::stats::{Fallback, Path, Recorder, Statistics};
use callers::Callers;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use engine::{EngineKind, life};
use operation::{Kind, Operation};

/// From this size up we ask whether the destination was ever written. Below it, asking would cost
/// as much as there is to gain.
const FRESH_FROM: usize = 1 << 20;

/// Copies from this size up, in a row, tell how many workers add speed: they are long enough for all
/// of them to come.
const GAIN_FROM: usize = 16 << 20;

/// So many bytes at most are compared before anything else is thought of, even of the clock: a
/// difference in them costs nothing.
const FIRST_LOOK: usize = 32 << 10;

/// What is decided about a call before a byte of it moves.
struct Decision<'a> {
    config: &'a Config,
    begun: u64,
    /// So many bytes were done before.
    done: usize,
    by: Result<EngineKind, Fallback>,
    learner: &'a Learner,
    cell: &'a Cell,
    /// What measuring says; `None`: it is not asked.
    verdict: Option<Verdict>,
    /// How many bytes the caller does alone first, by libc and timed; 0: none.
    first: usize,
    pieces: Pieces,
    /// Who makes the copy, if it may be streamed; `None`: it may not.
    copier: Option<Copier>,
    /// The destination was never written: its pages are made on the way.
    fresh: bool,
    in_a_row: bool,
    /// How often the thread was preempted before; `None`: no sample is taken.
    preemptions: Option<u64>,
}

/// What came of a call.
struct Completion {
    path: Path,
    /// Why no engine did it.
    refused: Option<Fallback>,
    answer: isize,
    /// When the first bytes were begun, and when they were done.
    first: [u64; 2],
    /// Ticks that libc took for them, without what was done to call workers.
    sample: u64,
    seen: Seen,
}

/// All zeros until it is configured, so that it takes no room in the file.
#[repr(C)] // what start-up and exit touch comes first, on one page
pub struct Dispatcher {
    /// Null until start-up.
    config: AtomicPtr<Config>,
    engine: AtomicU32,
    /// The process is ending: no engine gets anything new.
    closed: AtomicBool,
    /// Why the engine is off.
    why_off: AtomicU32,
    /// Ticks that large calls have taken which did not pay for an engine: see `engine`.
    unaided_ticks: AtomicU64,
    /// The helper could not be opened; known to the children of a fork, too.
    no_helper: Refusal,
    workers: AtomicUsize,
    carried: AtomicU64,
    /// What the user wants instead of what is configured; false, 0: nothing.
    off: AtomicBool,
    /// Calls of `adma_off` that `adma_on` has not undone yet.
    pauses: AtomicU32,
    wanted_min: AtomicUsize,
    wanted_channels: AtomicUsize,
    /// More threads copy than there are CPUs to help them: sharing only moves time from one to
    /// the other.
    callers: Callers,
    /// The same found out the hard way. Everybody keeps to libc for about 2 to 60 ms.
    crowd: Refusal<{ 1 << 22 }, { 1 << 27 }>,
    /// The last comparison that was not over at once has found a difference.
    differed: AtomicBool,
    /// Destination and source of the last shared copy whose first bytes were timed for statistics.
    sampled: AtomicUsize,
    pub ioat: ioat::Engine,
    /// One for each `Kind`.
    learners: [Learner; Kind::ALL.len()],
    pub recorder: Statistics,
}

impl Dispatcher {
    pub const fn new() -> Self {
        Self {
            config: AtomicPtr::new(core::ptr::null_mut()),
            engine: AtomicU32::new(life::COLD),
            closed: AtomicBool::new(false),
            why_off: AtomicU32::new(Fallback::Off as u32),
            unaided_ticks: AtomicU64::new(0),
            no_helper: Refusal::new(),
            workers: AtomicUsize::new(0),
            carried: AtomicU64::new(0),
            off: AtomicBool::new(false),
            pauses: AtomicU32::new(0),
            wanted_min: AtomicUsize::new(0),
            wanted_channels: AtomicUsize::new(0),
            callers: Callers::new(),
            crowd: Refusal::new(),
            differed: AtomicBool::new(false),
            sampled: AtomicUsize::new(0),
            ioat: ioat::Engine::new(),
            learners: [const { Learner::new() }; Kind::ALL.len()],
            recorder: Statistics::new(),
        }
    }

    /// No copy comes here before `open`.
    pub fn configure(&self, config: &'static Config) {
        self.config.store(core::ptr::from_ref(config).cast_mut(), Ordering::Release);
    }

    #[inline]
    fn config(&self) -> Option<&'static Config> {
        // SAFETY: null, or what `configure` was given.
        unsafe { self.config.load(Ordering::Acquire).as_ref() }
    }

    /// The user wants something else of this process than is configured. From the next copy on;
    /// what was started goes on. Called by whoever has counted a copy, so it keeps the hook's law.
    pub fn change(&self, off: bool, min: Option<usize>, channels: Option<usize>) {
        let Some(config) = self.config() else { return };
        self.off.store(off, Ordering::Relaxed);
        self.wanted_min.store(min.unwrap_or(0), Ordering::Relaxed);
        self.wanted_channels.store(channels.unwrap_or(0), Ordering::Relaxed);
        if !config.profile && !self.closed.load(Ordering::Relaxed) {
            self.set_min(config);
        }
        if self.engine.load(Ordering::Relaxed) == life::THREADS {
            self.start_workers(config); // or as many as before
        }
    }

    /// Whether the user has switched the process off.
    pub fn is_switched_off(&self) -> bool {
        self.config()
            .is_some_and(|config| config.backend != Backend::Libc && !self.offloads(config))
    }

    fn offloads(&self, config: &Config) -> bool {
        config.backend != Backend::Libc
            && !self.off.load(Ordering::Relaxed)
            && self.pauses.load(Ordering::Relaxed) == 0
    }

    /// `None`: sizes are learned.
    fn fixed_min(&self, config: &Config) -> Option<usize> {
        let wanted = self.wanted_min.load(Ordering::Relaxed);
        if wanted > 0 { Some(wanted) } else { config.min_bytes }
    }

    fn min(&self, config: &Config) -> usize {
        self.fixed_min(config).unwrap_or(FLOOR)
    }

    /// The smallest call that is considered, where sizes are learned from `learned` bytes on. Never
    /// above the configured threshold, whatever the user wants now: only calls that are considered
    /// notice the next change.
    fn entry_min(&self, config: &Config, learned: usize) -> usize {
        self.fixed_min(config).unwrap_or(learned).min(config.min_bytes.unwrap_or(learned))
    }

    fn learns(&self, config: &Config) -> bool {
        self.fixed_min(config).is_none()
    }

    fn channels(&self, config: &Config) -> Option<usize> {
        let wanted = self.wanted_channels.load(Ordering::Relaxed);
        if wanted > 0 { Some(wanted) } else { config.channels }
    }

    fn how_ioat(&self, config: &Config) -> ioat::Options {
        ioat::Options {
            channels: self.channels(config),
            share: config.cpu_share,
            spins: config.spins(),
        }
    }

    /// Lets copies in. The last step of start-up.
    pub fn open(&self) {
        let Some(config) = self.config() else { return };
        self.set_min(config);
    }

    /// Sets the bytes from which on calls come here, of those functions that are chosen.
    fn set_min(&self, config: &Config) {
        for op in Op::ALL.into_iter().filter(|&op| config.ops >> op as u32 & 1 == 1) {
            let learned = if op.is_kernel_call() { KERNEL_CALLS_FROM } else { FLOOR };
            let min = match config.backend {
                _ if config.profile => 0,
                Backend::Libc if !config.counts() => NEVER,
                _ => self.entry_min(config, learned),
            };
            original::set_min(op, min);
        }
    }

    /// From now on every entry jumps to libc. Copies that have arrived are carried to their end.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        Op::ALL.into_iter().for_each(|op| original::set_min(op, NEVER));
    }

    /// In the child of a fork, which has neither the workers nor the helper's open file. What was
    /// never used is not touched: each page that is costs the child a microsecond.
    pub fn forget_after_fork(&self) {
        process::claim_memory();
        let state = self.engine.load(Ordering::Relaxed);
        if state != life::COLD {
            threads::forget_after_fork();
            self.ioat.forget_after_fork();
        }
        if !matches!(state, life::COLD | life::OFF) {
            self.engine.store(life::COLD, Ordering::Relaxed);
        }
        asynchronous::forget_after_fork();
        cpus::forget_after_fork();
        huge_pages::forget_after_fork();
        self.forget_unaided();
        let Some(config) = self.config() else { return };
        if config.gpu().is_some() {
            gpu::GPU.forget_after_fork();
        }
        if config.counts() || config.profile {
            self.recorder.forget_after_fork();
        }
    }

    /// Calls below this are not considered, nor counted.
    pub fn floor(&self) -> usize {
        self.config().map_or(FLOOR, |config| self.entry_min(config, FLOOR))
    }

    /// The size from which copies are carried; `None`: it is learned.
    pub fn fixed_threshold(&self) -> Option<usize> {
        self.config().and_then(|config| self.fixed_min(config))
    }

    /// The smallest size that is carried, or would be; `None`: not known yet.
    pub fn threshold(&self) -> Option<usize> {
        self.fixed_threshold().or_else(|| self.learner(Kind::Copies).threshold())
    }

    pub fn learner(&self, kind: Kind) -> &Learner {
        &self.learners[kind as usize]
    }

    /// Copies, fills or compares, one way or the other, for a program that has called `op`, or us
    /// by name, and is to go on at `site` (0: not known); the answer is libc's.
    ///
    /// # Safety
    /// As memmove, memset or memcmp.
    pub unsafe fn call(&self, op: Option<Op>, site: usize, task: &Task) -> isize {
        let Some(config) = self.config() else {
            // SAFETY: the caller's promise.
            return unsafe { task.before_start() };
        };
        if let Some(op) = op.filter(|_| config.profile) {
            self.recorder.profile(op, task.len);
        }
        if task.len < self.entry_min(config, FLOOR) || self.closed.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            return unsafe { task.alone() };
        }
        if task.len < FRESH_FROM && !config.counts() && self.is_unaided(config, task.len) {
            let begun = sys::ticks();
            // SAFETY: the caller's promise.
            let answer = unsafe { task.alone() };
            self.note_unaided(sys::ticks().wrapping_sub(begun));
            return answer;
        }
        let mut looked = 0;
        if let Work::Compare(_) = task.work {
            looked = (task.len / 16).min(FIRST_LOOK) & !63;
            let begun = if config.counts() { sys::ticks() } else { 0 };
            // SAFETY: the beginning of the caller's ranges.
            let answer = unsafe { task.part(0, looked).alone() };
            if answer != 0 {
                if config.counts() {
                    let ticks = sys::ticks().wrapping_sub(begun);
                    self.recorder.record(Path::Libc(Fallback::Early), task.len, ticks);
                }
                return answer;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.dispatch(config, task, looked, site).1 }
    }

    /// process_vm_readv or process_vm_writev, by workers or by libc; the answer and errno are
    /// libc's.
    ///
    /// # Safety
    /// The program's own call.
    pub unsafe fn transfer(&self, call: &TransferCall) -> isize {
        remote::understand(call, |transfer| {
            let known = self.config().zip(transfer);
            let large = known.filter(|(config, transfer)| {
                let total = transfer.total();
                if config.profile {
                    self.recorder.profile(call.op, total);
                }
                let least = self.entry_min(config, KERNEL_CALLS_FROM);
                total >= least.max(2) && !self.closed.load(Ordering::Relaxed)
            });
            // SAFETY: the caller's promise.
            unsafe {
                match large {
                    Some((config, transfer)) => {
                        self.dispatch(config, &(call, transfer), 0, call.site).1
                    }
                    None => remote::pass_on(call),
                }
            }
        })
    }

    /// Does a large call of which `done` bytes are done: which way, and the answer.
    unsafe fn dispatch(
        &self,
        config: &Config,
        operation: &impl Operation,
        done: usize,
        site: usize,
    ) -> (Path, isize) {
        let decision = self.decide(config, operation, done);
        // SAFETY: the caller's promise; order does not matter where there is an engine.
        let completion = unsafe { self.perform(&decision, operation) };
        self.learn_from(&decision, &completion, operation, site);
        if completion.path == Path::Engine
            && config.verify > 0
            && let Some((dst, src)) = operation.as_copy()
        {
            // SAFETY: just copied.
            unsafe { self.verify_some(dst, src, operation.len()) };
        }
        (completion.path, completion.answer)
    }

    /// The engine for a call, or why there is none.
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
        let carded = self.offloads(config) && config.gpu().is_some();
        if carded && copy.is_some_and(|(dst, src)| gpu::GPU.takes(dst, src, len)) {
            return Ok(EngineKind::Gpu);
        }
        match (self.ready(config, len)?, copy) {
            (EngineKind::Ioat, None) => Err(Fallback::Unsupported),
            (EngineKind::Ioat, Some((dst, src))) if !self.ioat.suits(dst, src) => {
                Err(Fallback::Unaligned)
            }
            (engine, _) if self.learns(config) && self.is_crowded(engine) => Err(Fallback::Busy),
            // All ranks of a job transfer, or read, at the same time, and poll while they wait. A rank that
            // took another's CPU would end sooner and make the job slower: each uses its part.
            (EngineKind::Threads(workers), _) if operation.kind().is_by_kernel() => {
                match (workers + 1) / if config.channels.is_none() { config.ranks } else { 1 } {
                    0 | 1 => Err(Fallback::OneCpu),
                    cpus => Ok(EngineKind::Threads(cpus - 1)),
                }
            }
            (engine, _) => Ok(engine),
        }
    }

    /// Which way the call is to go. Nothing is moved here.
    fn decide<'a, O: Operation>(
        &'a self,
        config: &'a Config,
        operation: &O,
        done: usize,
    ) -> Decision<'a> {
        let (now, len, learns) = (sys::ticks(), operation.len(), self.learns(config));
        let learner = self.learner(match operation.kind() {
            Kind::Compares if self.differed.load(Ordering::Relaxed) => Kind::Differing,
            kind => kind,
        });
        learner.note_begin(now);
        let in_a_row = learner.is_in_a_row(now);
        let by = self.engine_for(config, operation);
        let cell = learner.cell(len, in_a_row);
        // A call that writes fresh memory is always shared, for the sake of its page faults. It
        // would teach nothing about others: often its first bytes are resident and the rest is not.
        let by_libc = by.is_err() || !cell.is_shared();
        // Asked before the first thing that can wait for another thread, at most once.
        let mut asked = (by == Err(Fallback::RealTime)).then_some(true);
        let mut is_real_time = || *asked.get_or_insert_with(real_time::is_real_time);
        let fresh = match by {
            Ok(EngineKind::Ioat | EngineKind::Gpu) | Err(Fallback::Overlap | Fallback::Off) => None,
            _ if by_libc && cell.libc_is_too_quick_for_page_faults() => None,
            _ => operation
                .written()
                .filter(|&dst| len >= FRESH_FROM && !is_real_time() && is_fresh(dst, len)),
        };
        let cell = if fresh.is_some() { &learner.fresh } else { cell };
        let verdict = (learns && by.is_ok_and(|by| by != EngineKind::Gpu)).then(|| match fresh {
            // Timed for a report only. An allocator has written to the first page.
            Some(dst) if config.counts() && is_absent(dst + PAGE) => cell.decide_fresh(dst, len),
            Some(_) => Ok(0),
            None => cell.decide(len, in_a_row),
        });
        // The cell is not told of calls that go by libc for another reason than its own.
        let rest = verdict
            .filter(|verdict| verdict.is_ok() && fresh.is_none() && operation.as_copy().is_some())
            .and_then(|_| learner.rest_speaks_against(len, cell));
        let verdict = verdict.filter(|_| rest.is_none());
        let timed = verdict.unwrap_or(rest.map_or(Ok(0), Err));
        let by = match by.and_then(|engine| timed.map(|_| engine)) {
            Ok(_) if is_real_time() => Err(Fallback::RealTime),
            by => by,
        };
        let verdict = verdict.filter(|_| by != Err(Fallback::RealTime)); // it was not asked
        let timed = match timed {
            Ok(first) if config.counts() && fresh.is_none() && !operation.kind().is_by_kernel() => {
                Ok(cell.sample(first, len))
            }
            timed => timed,
        };
        let first = by.and(timed).map_or(0, |first| first.max(O::FIRST).min(len / 2));
        let by_libc =
            matches!(by, Err(Fallback::Compared | Fallback::Starting | Fallback::Learned));
        let is_sample = by_libc && fresh.is_none() || by.is_ok() && first > 0;
        let preemptions = (config.counts() && is_sample)
            .then(|| sys::NoFilter::look().and_then(sys::preemptions))
            .flatten();
        let copier = match (by, operation.kind()) {
            // Pages that were just made are in the cache, where ordinary stores find them.
            _ if fresh.is_some() => None,
            (Ok(EngineKind::Threads(_)), Kind::Copies | Kind::Fills) if len >= STREAM_FROM => {
                Some(Copier::Together)
            }
            (
                Err(Fallback::Overlap | Fallback::Off | Fallback::BelowMin | Fallback::RealTime),
                _,
            ) => None,
            (Err(_), Kind::Copies) if len >= STREAM_ALONE_FROM => Some(Copier::Alone),
            _ => None,
        };
        let pieces = match (config.copy_loop, copier) {
            (None, Some(by)) => learner.stores(len, by).choose(len),
            (copy_loop, _) => Pieces::All(copy_loop.unwrap_or(CopyLoop::Ordinary)),
        };
        let (begun, fresh) = (now, fresh.is_some());
        Decision {
            config,
            begun,
            done,
            by,
            learner,
            cell,
            verdict,
            first,
            pieces,
            copier,
            fresh,
            in_a_row,
            preemptions,
        }
    }

    /// Does what is left of the call, the way that was decided.
    unsafe fn perform(&self, decision: &Decision, operation: &impl Operation) -> Completion {
        let Decision { config, done, mut by, pieces, fresh, .. } = *decision;
        let (mut from, mut first, mut sample) = (done, [0; 2], 0);
        if decision.first > 0 {
            first[0] = sys::ticks();
            if matches!(by, Ok(EngineKind::Threads(_))) && !decision.in_a_row {
                threads::wake_early();
            }
            let begun = sys::ticks();
            // SAFETY: part of the caller's ranges.
            match unsafe { operation.begin(from, decision.first) } {
                Ok(()) => from += decision.first,
                Err(why) => by = Err(why),
            }
            first[1] = sys::ticks();
            sample = first[1].wrapping_sub(begun);
        }
        if let Some(dst) = operation.written().filter(|_| fresh && config.huge_pages)
            && let Some(allowed) = sys::NoFilter::look()
        {
            huge_pages::request(dst + from, operation.len() - from, allowed);
        }
        let rest = operation.as_copy().map(|(dst, src)| (dst + from, src + from));
        let (share, len) = (config.cpu_share, operation.len() - from);
        // SAFETY: the rest of the caller's ranges.
        let carried = by.and_then(|engine| unsafe {
            match (engine, rest) {
                (EngineKind::Threads(workers), _) => {
                    operation.share(from, &threads::Options { workers, pieces, share, fresh })
                }
                (EngineKind::Ioat, Some((dst, src))) => {
                    let copied = self.ioat.copy(dst, src, len, &self.how_ioat(config));
                    copied.map(|()| (0, Seen::default()))
                }
                (EngineKind::Gpu, Some((dst, src))) => {
                    let spare_cpus = config.goal == Goal::Cpu;
                    let how = gpu::Options { share, spins: config.spins(), spare_cpus };
                    gpu::GPU.copy(dst, src, len, &how).map(|()| (0, Seen::default()))
                }
                (_, None) => Err(Refused::Busy), // was decided otherwise
            }
            .map_err(|refused| self.refused(refused))
        });
        match carried {
            Ok((answer, seen)) => {
                Completion { path: Path::Engine, refused: None, answer, first, sample, seen }
            }
            Err(why) => {
                // SAFETY: the caller's promise; after a refusal nothing is under way.
                let (streamed, answer, seen) = unsafe { self.by_caller(decision, operation, from) };
                let path = if streamed { Path::Engine } else { Path::Libc(why) };
                Completion { path, refused: Some(why), answer, first, sample, seen }
            }
        }
    }

    /// Does the rest without help: whether it was streamed, the answer, and what was measured.
    unsafe fn by_caller(
        &self,
        decision: &Decision,
        operation: &impl Operation,
        from: usize,
    ) -> (bool, isize, Seen) {
        let ordinary = Pieces::All(CopyLoop::Ordinary);
        let streams = decision.copier == Some(Copier::Alone) && decision.pieces != ordinary;
        match operation.as_copy().filter(|_| streams) {
            Some((dst, src)) => {
                let len = operation.len() - from;
                // SAFETY: the rest of the caller's ranges, which do not overlap.
                let seen = unsafe { alone::copy(dst + from, src + from, len, decision.pieces) };
                threads::note_caller_bytes(len);
                (true, 0, seen)
            }
            // SAFETY: the rest of the caller's ranges.
            None => (false, unsafe { operation.alone(from, decision.fresh) }, Seen::default()),
        }
    }

    /// Notes what has come of it.
    fn learn_from(
        &self,
        decision: &Decision,
        completion: &Completion,
        operation: &impl Operation,
        site: usize,
    ) {
        let Decision { config, begun, done, learner, cell, .. } = *decision;
        let (now, len) = (sys::ticks(), operation.len());
        let whole = Cost { bytes: len - done, ticks: now.wrapping_sub(begun) };
        learner.note_end(now);
        let was_shared = completion.refused.is_none();
        if operation.written().is_some() && !decision.fresh {
            let by = if was_shared { Copier::Together } else { Copier::Alone };
            let is_chosen = decision.copier == Some(by) && config.copy_loop.is_none();
            let chosen = is_chosen.then_some(decision.pieces);
            learner.note_copy(by, chosen, whole, &completion.seen, now);
        }
        let overlapped = self.callers.note(begun, now);
        // A system call cannot be taken back from a worker that does not run, so its caller has
        // waited. Where as many ranks as CPUs poll, none gains by help from another's CPU.
        let waited = operation.kind().is_by_kernel() && completion.seen.late;
        // A busy card says nothing about the CPUs.
        let asked_cpus = decision.by.is_ok_and(|by| by != EngineKind::Gpu);
        if waited || completion.refused == Some(Fallback::Busy) && asked_cpus {
            self.crowd.note();
        }
        let is_whole = operation.is_whole(completion.answer);
        let mut tells = is_whole;
        if operation.kind() == Kind::Compares {
            // Nobody knows where libc has found a difference, so comparisons that do are compared
            // with each other only, whole call with whole call.
            tells = self.differed.swap(!is_whole, Ordering::Relaxed) != is_whole;
        }
        let as_decided = was_shared == decision.by.is_ok();
        if let Some(verdict) = decision.verdict.filter(|_| tells && as_decided) {
            if verdict.is_ok_and(|first| first > 0) && is_whole {
                let [from, to] = completion.first;
                let first = Cost { bytes: decision.first, ticks: to.wrapping_sub(from) };
                let bytes = whole.bytes - decision.first;
                let rest = Cost { bytes, ticks: now.wrapping_sub(to) };
                cell.record_pair(first, rest);
                if decision.in_a_row && len >= GAIN_FROM {
                    workers::note_gain(rest.times_as_fast_as(first));
                }
            }
            cell.record(verdict, whole, completion.seen.waited, decision.in_a_row);
        }
        if !was_shared {
            cell.note_libc(whole);
        }
        if completion.refused == Some(Fallback::Starting) {
            self.note_unaided(whole.ticks);
        }
        if config.counts() {
            let size = if decision.fresh { FRESH } else { class(len) };
            let call = Call {
                path: completion.path,
                kind: operation.kind() as usize,
                size,
                is_read: operation.kind() == Kind::Reads,
                bytes: operation.bytes(completion.answer),
                begun,
                ended: now,
                overlapped,
                site,
            };
            let recorder = self.recorder.record_call(&call);
            if let Some(before) = decision.preemptions.filter(|_| is_whole && as_decided) {
                self.keep_sample(recorder, decision, completion, operation, before, whole);
            }
        }
    }

    /// Keeps libc's time for the first bytes of a shared call, or for a whole one, unless the thread
    /// was preempted meanwhile, which happened `before` times until the call.
    fn keep_sample(
        &self,
        recorder: &Recorder,
        decision: &Decision,
        completion: &Completion,
        operation: &impl Operation,
        before: u64,
        whole: Cost,
    ) {
        let (samples, len) = (&recorder.samples, operation.len());
        let Some(after) = sys::NoFilter::look().and_then(sys::preemptions) else { return };
        samples.timed.fetch_add(whole.ticks, Ordering::Relaxed);
        if after != before {
            samples.preempted.fetch_add(whole.ticks, Ordering::Relaxed);
            return;
        }
        let row =
            samples.row(operation.kind() as usize, if decision.fresh { FRESH } else { class(len) });
        match (completion.path, decision.by) {
            (Path::Engine, Ok(EngineKind::Threads(workers)))
                if !decision.fresh && self.is_hot(operation, workers) => {}
            (Path::Engine, Ok(_)) => row.note_libc(decision.first as u64, completion.sample, false),
            (Path::Engine, Err(_)) => {} // streamed by the caller, not libc's
            (Path::Libc(_), _) => row.note_libc(whole.bytes as u64, whole.ticks, true),
        }
    }

    /// Whether the first bytes may lie in the caller's own cache only because the rest of the copy
    /// before was made by others: then libc alone would be slower. So it is for copies between the
    /// same places, if each thread's part of them fits in the cache.
    fn is_hot(&self, operation: &impl Operation, workers: usize) -> bool {
        const OWN_CACHE: usize = 2 << 20;
        let Some((dst, src)) = operation.as_copy() else { return false };
        let places = dst.rotate_left(32) ^ src;
        let again = self.sampled.swap(places, Ordering::Relaxed) == places;
        again && operation.len() <= (workers + 1) * OWN_CACHE
    }

    /// Compares every so many carried copies; a difference is repaired, counted, and ends the
    /// engine.
    ///
    /// # Safety
    /// As memcpy of the same arguments.
    pub unsafe fn verify_some(&self, dst: usize, src: usize, len: usize) {
        let every = self.config().map_or(0, |config| u64::from(config.verify));
        let number = self.carried.fetch_add(1, Ordering::Relaxed) + 1;
        if every == 0 || !number.is_multiple_of(every) {
            return;
        }
        let counters = self.recorder.counters();
        counters.verified.fetch_add(1, Ordering::Relaxed);
        // SAFETY: both ranges have just been copied from and to.
        if unsafe { original::compare(Op::Memcmp, dst, src, len) } != 0 {
            // SAFETY: as above.
            unsafe { original::copy(dst, src, len) };
            counters.mismatched.fetch_add(1, Ordering::Relaxed);
            self.switch_off(Fallback::Off);
        }
    }
}

/// Whether memory was never written: none of a few of its pages is resident. Pages are made when a
/// program first writes to them, not when it asks for memory.
fn is_fresh(dst: usize, len: usize) -> bool {
    [2, 1, 3].iter().all(|&quarter| is_absent(dst + len / 4 * quarter))
}

/// Whether the page of an address is not in memory; false where that cannot be asked.
fn is_absent(address: usize) -> bool {
    sys::NoFilter::look().is_some_and(|allowed| !sys::is_resident(address & !(PAGE - 1), allowed))
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
