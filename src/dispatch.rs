//! Which way a large copy takes: the engine, or libc and why.
//!
//! A copy goes down three steps: `decide` answers with a value, `perform` moves the bytes by it,
//! `learn_from` notes what came of it.

mod fill;
mod remote;

use crate::backend::asynchronous;
use crate::backend::copy_loop::CopyLoop;
use crate::backend::threads::piece;
use crate::backend::threads::workers;
use crate::backend::threads::{self, Cost, How, Pieces, Seen};
use crate::backend::{Refused, ioat, libc as original};
use crate::config::{Backend, Config};
use crate::learn::{Cell, FLOOR, Learner, STREAM_FROM, Verdict};
use crate::os::cpus;
use crate::os::sys::{self, NEVER, Op};
use crate::plan::{self, PAGE};
use crate::stats::{Fallback, Path, Recorder};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use once_cell::race::OnceRef;

/// What the configuration means for copies; fixed at start-up.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    offload: bool,
    /// The kernel helper is asked first.
    try_ioat: bool,
    /// Sizes below this only come here to be counted (ADMA_PROFILE).
    min: usize,
    learn: bool,
    channels: Option<usize>,
    /// Bytes that the kernel helper may keep pinned.
    keep: Option<usize>,
    how: How,
    how_ioat: ioat::How,
    /// `None`: streaming stores are compared with ordinary ones.
    copy_loop: Option<CopyLoop>,
    verify: u32,
    ops: u32,
    record: bool,
    profile: bool,
}

impl Policy {
    pub fn new(config: &Config) -> Self {
        Self {
            offload: config.backend != Backend::Libc,
            try_ioat: matches!(config.backend, Backend::Auto | Backend::Ioat),
            min: config.min_bytes.unwrap_or(FLOOR),
            learn: config.min_bytes.is_none(),
            channels: config.channels,
            keep: config.keep,
            how: How {
                workers: 0,
                pieces: Pieces::All(config.copy_loop.unwrap_or(CopyLoop::Ordinary)),
                wait: config.wait,
                share: config.cpu_share,
                fresh: false,
                fill: false,
            },
            copy_loop: config.copy_loop,
            how_ioat: ioat::How {
                channels: config.channels,
                wait: config.wait,
                share: config.cpu_share,
            },
            verify: config.verify,
            ops: config.ops,
            record: config.stats.any(),
            profile: config.profile,
        }
    }
}

/// From this size on it is asked whether the destination was ever written. Below, asking would
/// cost what there is to gain.
const FRESH_FROM: usize = 1 << 20;

/// How long copies keep to libc after one found no help free: about 2 to 60 ms.
const SHORTEST_PAUSE: u64 = 4_000_000;
const LONGEST_PAUSE: u64 = 128_000_000;

/// The engine's life. It is started by the first large copy.
mod engine {
    pub const COLD: u32 = 0;
    pub const STARTING: u32 = 1;
    pub const THREADS: u32 = 2;
    pub const IOAT: u32 = 3;
    pub const OFF: u32 = 4;
}

/// The engine that is up. Chosen once, when it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Engine {
    /// So many workers beside the caller.
    Threads(usize),
    Ioat,
}

/// What is decided about a copy before a byte of it moves.
struct Decision<'a> {
    by: Result<Engine, Fallback>,
    /// What measuring has to do with it; `None`: nothing.
    learned: Option<(&'a Cell, Verdict)>,
    /// So many bytes the caller copies alone by libc, and they are timed; 0: none.
    first: usize,
    pieces: Pieces,
    /// The destination was never written: its pages are made on the way.
    fresh: bool,
    in_a_row: bool,
}

/// What came of it.
struct Outcome {
    path: Path,
    first: Cost,
    /// When the first bytes were copied.
    parted: u64,
    seen: Seen,
}

/// All zeros until it is configured, so that it takes no room in the file.
#[repr(C)] // what start-up and exit touch comes first, on one page
pub struct Dispatcher {
    policy: OnceRef<'static, Policy>,
    engine: AtomicU32,
    /// The process is ending: nothing new is handed on.
    closed: AtomicBool,
    /// Why the engine is off.
    why_off: AtomicU32,
    workers: AtomicUsize,
    carried: AtomicU64,
    /// In ticks; see `note_crowd`.
    crowded_until: AtomicU64,
    pause: AtomicU64,
    pub ioat: ioat::Engine,
    pub learner: Learner,
    /// Of transfers between processes; see `remote`.
    pub remote_learner: Learner,
    /// Of fills; see `fill`.
    pub fill_learner: Learner,
    pub recorder: Recorder,
}

impl Dispatcher {
    pub const fn new() -> Self {
        Self {
            policy: OnceRef::new(),
            engine: AtomicU32::new(engine::COLD),
            closed: AtomicBool::new(false),
            why_off: AtomicU32::new(Fallback::Off as u32),
            workers: AtomicUsize::new(0),
            carried: AtomicU64::new(0),
            crowded_until: AtomicU64::new(0),
            pause: AtomicU64::new(0),
            ioat: ioat::Engine::new(),
            learner: Learner::new(),
            remote_learner: Learner::new(),
            fill_learner: Learner::new(),
            recorder: Recorder::new(),
        }
    }

    /// Takes the policy; no copy comes here before `open`.
    pub fn configure(&self, policy: &'static Policy) {
        let _ = self.policy.set(policy); // an error only means: was already configured
    }

    /// Lets copies in. The last step of start-up.
    pub fn open(&self) {
        let Some(policy) = self.policy.get() else { return };
        let min = match policy {
            Policy { profile: true, .. } => 0,
            Policy { offload: false, record: false, .. } => NEVER,
            _ => policy.min,
        };
        for op in Op::ALL {
            let chosen = policy.ops >> op as u32 & 1 == 1;
            original::set_min(op, if chosen { min } else { NEVER });
        }
    }

    /// From now on every entry jumps to libc. Copies that are inside go on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        for op in Op::ALL {
            original::set_min(op, NEVER);
        }
    }

    /// In the child of a fork: no worker has come along, and no open helper.
    pub fn forget_after_fork(&self) {
        threads::forget_after_fork();
        asynchronous::forget_after_fork();
        self.ioat.forget_after_fork();
        cpus::forget_after_fork();
        if self.engine.load(Ordering::Relaxed) != engine::OFF {
            self.engine.store(engine::COLD, Ordering::Relaxed);
        }
        if self.policy.get().is_some_and(|policy| policy.record || policy.profile) {
            self.recorder.clear();
        }
    }

    /// The kernel helper and how it is to copy, brought up if need be; `None`: it is not to be
    /// had, or not wanted.
    pub fn helper(&self) -> Option<(&ioat::Engine, ioat::How)> {
        let policy = self.policy.get()?;
        let up = self.ready(policy).ok()? == Engine::Ioat && !self.closed.load(Ordering::Relaxed);
        up.then_some((&self.ioat, policy.how_ioat))
    }

    /// Workers beside the caller; 0 while that engine is not up.
    pub fn workers(&self) -> usize {
        self.workers.load(Ordering::Relaxed)
    }

    /// The name of the engine that is or was up, and its channels; libc has none.
    pub fn backend(&self) -> (&'static str, usize) {
        match (self.ioat.channels(), self.workers()) {
            (0, 0) => ("libc", 0),
            (0, workers) => ("threads", workers),
            (channels, _) => ("ioat", channels),
        }
    }

    /// Why no engine is up; `None`: one is.
    pub fn why_not(&self) -> Option<&'static str> {
        match self.engine.load(Ordering::Relaxed) {
            engine::THREADS if self.workers() == 0 => Some(Fallback::OneCpu.name()),
            engine::THREADS | engine::IOAT => None,
            engine::OFF => Some(self.why_off().name()),
            _ => Some("no large copy was made"),
        }
    }

    /// Copies below this are never considered.
    pub fn floor(&self) -> usize {
        self.policy.get().map_or(FLOOR, |policy| policy.min)
    }

    /// The smallest size that is, or would be, carried; `None`: nothing yet.
    pub fn threshold(&self) -> Option<usize> {
        let policy = self.policy.get()?;
        if policy.learn { self.learner.threshold() } else { Some(policy.min) }
    }

    /// Copies, one way or the other, for a program that has called `op`.
    ///
    /// # Safety
    /// As memmove.
    pub unsafe fn copy(&self, op: Op, dst: usize, src: usize, len: usize) {
        if self.policy.get().is_some_and(|policy| policy.profile) {
            self.recorder.profile(op, len);
        }
        // SAFETY: the caller's promise.
        unsafe { self.copy_by_name(dst, src, len) }
    }

    /// The same for a program that calls us by name.
    ///
    /// # Safety
    /// As memmove.
    pub unsafe fn copy_by_name(&self, dst: usize, src: usize, len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.policy.get() {
                None => original::copy_before_start(dst, src, len),
                Some(policy) if len < policy.min || self.closed.load(Ordering::Relaxed) => {
                    original::copy(dst, src, len);
                }
                Some(policy) => drop(self.carry(policy, dst, src, len)),
            }
        }
    }

    /// Starts copies that go on while the caller does something else, or does them at once
    /// where no engine is up. `None`: there is no room for another cookie.
    ///
    /// # Safety
    /// As `asynchronous::begin`.
    pub unsafe fn begin(
        &'static self,
        copies: &[asynchronous::Copy],
        wanted: asynchronous::Wanted,
    ) -> Option<asynchronous::Cookie> {
        asynchronous::expect();
        let started = sys::ticks();
        let largest = copies.iter().map(|copy| copy.len).max().unwrap_or(0);
        let large = largest >= asynchronous::FLOOR;
        let by = if large { self.carriers(largest) } else { Err(Fallback::Learned) };
        // SAFETY: the caller's promise.
        let begun = unsafe { asynchronous::begin(copies, by.ok(), wanted) }?;
        let refused = begun.refused.map(|refused| self.refused(refused));
        let policy = self.policy.get().filter(|policy| policy.record);
        let bytes = copies.iter().map(|copy| copy.len).fold(0, usize::saturating_add);
        let own = bytes.saturating_sub(begun.carried);
        if policy.is_some_and(|policy| own >= policy.min) {
            let why = refused.or(by.err()).unwrap_or(Fallback::Overlap);
            self.recorder.record(Path::Libc(why), own, sys::ticks().wrapping_sub(started));
        }
        Some(begun.cookie)
    }

    /// Who carries copies that nobody waits for; the largest has so many bytes. They learn
    /// nothing themselves: what others of that size have learned is good for them.
    fn carriers(&'static self, largest: usize) -> Result<asynchronous::By, Fallback> {
        let Some(policy) = self.policy.get() else { return Err(Fallback::Starting) };
        if self.closed.load(Ordering::Relaxed) {
            return Err(Fallback::Off);
        }
        let streams = policy.copy_loop.is_none() && self.learner.streaming(largest).pays();
        let stream_from = if streams { STREAM_FROM } else { usize::MAX };
        let copy_loop = policy.copy_loop.unwrap_or(CopyLoop::Ordinary);
        Ok(match self.ready(policy)? {
            Engine::Threads(workers) => {
                asynchronous::By::Workers { workers, copy_loop, stream_from }
            }
            Engine::Ioat => asynchronous::By::Helper(&self.ioat, policy.how_ioat, copy_loop),
        })
    }

    /// Notes a copy that others have carried while its caller did something else.
    pub fn note_end(&self, bytes: usize, begun: u64) {
        if self.policy.get().is_some_and(|policy| policy.record) {
            self.recorder.record(Path::Engine, bytes, sys::ticks().wrapping_sub(begun));
        }
    }

    /// How callers wait.
    pub fn wait(&self) -> threads::Wait {
        self.policy.get().map_or(threads::Wait::Auto, |policy| policy.how.wait)
    }

    unsafe fn carry(&self, policy: &Policy, dst: usize, src: usize, len: usize) -> Path {
        let begun = sys::ticks();
        let decision = self.decide(policy, dst, src, len, begun);
        // SAFETY: the caller's promise; the ranges do not overlap where there is an engine.
        let outcome = unsafe { self.perform(policy, &decision, dst, src, len) };
        self.learn_from(policy, &decision, &outcome, len, begun);
        if outcome.path == Path::Engine && policy.verify > 0 {
            // SAFETY: just copied.
            unsafe { self.verify_some(dst, src, len) };
        }
        outcome.path
    }

    /// Which way the copy is to go. Moves nothing.
    fn decide(
        &self,
        policy: &Policy,
        dst: usize,
        src: usize,
        len: usize,
        now: u64,
    ) -> Decision<'_> {
        let mut decision = Decision {
            by: Err(Fallback::Overlap),
            learned: None,
            first: 0,
            pieces: policy.how.pieces,
            fresh: false,
            in_a_row: self.learner.is_in_a_row(now),
        };
        if plan::overlaps(dst, src, len) {
            return decision;
        }
        decision.by = match self.ready(policy) {
            Ok(Engine::Ioat) if !self.ioat.suits(dst, src) => Err(Fallback::Unaligned),
            Ok(_) if policy.learn && self.is_crowded(now) => Err(Fallback::Busy),
            by => by,
        };
        let cell = self.learner.cell(len, decision.in_a_row);
        decision.fresh = policy.offload
            && !matches!(decision.by, Ok(Engine::Ioat))
            && !(policy.learn && cell.libc_is_too_quick_for_page_faults())
            && is_fresh(dst, len);
        // Copies into fresh memory always share their page faults. They would teach nothing
        // about the others: their first bytes often are in memory and the rest is not.
        if policy.learn && decision.by.is_ok() && !decision.fresh {
            let verdict = cell.decide(len, now);
            decision.learned = Some((cell, verdict));
            match verdict.first_bytes(len) {
                Ok(first) => decision.first = first,
                Err(why) => decision.by = Err(why),
            }
        }
        // Pages that were just made are in the cache: no streaming into those.
        let threads = matches!(decision.by, Ok(Engine::Threads(_)));
        if threads && !decision.fresh && policy.copy_loop.is_none() && len >= STREAM_FROM {
            decision.pieces = self.learner.streaming(len).choose();
        }
        decision
    }

    /// Copies as was decided.
    unsafe fn perform(
        &self,
        policy: &Policy,
        decision: &Decision,
        dst: usize,
        src: usize,
        len: usize,
    ) -> Outcome {
        let (first, mut begun, mut parted) = (decision.first, 0, 0);
        if first > 0 {
            begun = sys::ticks();
            if matches!(decision.by, Ok(Engine::Threads(_))) && !decision.in_a_row {
                threads::expect();
            }
            // SAFETY: the beginning of the caller's ranges.
            unsafe { original::copy(dst, src, first) };
            parted = sys::ticks();
        }
        let (dst, src, len) = (dst + first, src + first, len - first);
        // SAFETY: the rest of the caller's ranges.
        let carried = unsafe {
            match decision.by {
                Ok(Engine::Threads(workers)) => {
                    let Decision { pieces, fresh, .. } = *decision;
                    threads::copy(dst, src, len, &How { workers, pieces, fresh, ..policy.how })
                        .map_err(|refused| self.refused(refused))
                }
                Ok(Engine::Ioat) => match self.ioat.copy(dst, src, len, &policy.how_ioat) {
                    Ok(()) => Ok(Seen::default()),
                    Err(refused) => Err(self.refused(refused)),
                },
                Err(why) => Err(why),
            }
        };
        if carried.is_err() {
            // SAFETY: the caller's promise; after a refusal nothing is under way.
            unsafe {
                if decision.fresh {
                    piece::copy_fresh(dst, src, len, original::copy);
                } else {
                    original::copy(dst, src, len);
                }
            }
        }
        Outcome {
            path: carried.map_or_else(Path::Libc, |_| Path::Engine),
            first: Cost { bytes: first, ticks: parted.wrapping_sub(begun) },
            parted,
            seen: carried.unwrap_or_default(),
        }
    }

    /// Notes what has come of a copy that began at `begun`.
    fn learn_from(
        &self,
        policy: &Policy,
        decision: &Decision,
        outcome: &Outcome,
        len: usize,
        begun: u64,
    ) {
        let now = sys::ticks();
        let whole = Cost { bytes: len, ticks: now.wrapping_sub(begun) };
        if policy.record {
            self.recorder.record(outcome.path, len, whole.ticks);
        }
        self.learner.note_end(now);
        self.learner.streaming(len).record(&outcome.seen);
        if outcome.path == Path::Libc(Fallback::Busy) && decision.by.is_ok() {
            self.note_crowd(begun);
        }
        let (
            Some((cell, verdict)),
            Path::Engine | Path::Libc(Fallback::Learned | Fallback::Compared),
        ) = (decision.learned, outcome.path)
        else {
            return;
        };
        if decision.first > 0 {
            let ticks = now.wrapping_sub(outcome.parted);
            cell.record_pair(outcome.first, Cost { bytes: len - decision.first, ticks });
        }
        cell.record(verdict, whole, now, decision.in_a_row);
    }

    /// Compares every so many carried copies.
    ///
    /// # Safety
    /// As memcpy of the same arguments.
    pub unsafe fn verify_some(&self, dst: usize, src: usize, len: usize) {
        let every = self.policy.get().map_or(0, |policy| u64::from(policy.verify));
        let number = self.carried.fetch_add(1, Ordering::Relaxed) + 1;
        if every > 0 && number.is_multiple_of(every) {
            // SAFETY: the caller's promise.
            unsafe { self.verify(dst, src, len) };
        }
    }

    /// Somebody was refused for want of free CPUs a short while ago.
    fn is_crowded(&self, now: u64) -> bool {
        // Both are ticks; `crowded_until` lies at most `LONGEST_PAUSE` ahead.
        self.crowded_until.load(Ordering::Relaxed).wrapping_sub(now) <= LONGEST_PAUSE
    }

    /// More threads copy than there are CPUs to help them: sharing only moves time from one
    /// to the other. Everybody keeps to libc for a while, and for longer when it is crowded
    /// again soon after.
    fn note_crowd(&self, now: u64) {
        let before = self.pause.load(Ordering::Relaxed);
        let since = now.wrapping_sub(self.crowded_until.load(Ordering::Relaxed));
        let pause = if since < 4 * before { 2 * before } else { before / 2 };
        let pause = pause.clamp(SHORTEST_PAUSE, LONGEST_PAUSE);
        self.pause.store(pause, Ordering::Relaxed);
        self.crowded_until.store(now.wrapping_add(pause), Ordering::Relaxed);
    }

    /// The engine, once it is up.
    #[inline]
    fn ready(&self, policy: &Policy) -> Result<Engine, Fallback> {
        match self.engine.load(Ordering::Acquire) {
            engine::THREADS => self.threads(),
            engine::IOAT => Ok(Engine::Ioat),
            engine::COLD => self.start(policy),
            engine::STARTING => Err(Fallback::Starting),
            _ => Err(self.why_off()),
        }
    }

    #[cold]
    fn start(&self, policy: &Policy) -> Result<Engine, Fallback> {
        // A handler that jumped out of this would leave the engine starting for ever.
        let Some(_held) = sys::SignalsHeld::all() else {
            return Err(self.switch_off(Fallback::Refused));
        };
        if !policy.offload {
            return Err(self.switch_off(Fallback::Off));
        }
        // Before anything is taken: a child of vfork may be killed at any moment.
        match workers::may_start() {
            Ok(()) => {}
            Err(Refused::NotOurs) => return Err(Fallback::Starting),
            Err(_) => return Err(self.switch_off(Fallback::Refused)),
        }
        let (cold, starting) = (engine::COLD, engine::STARTING);
        if self
            .engine
            .compare_exchange(cold, starting, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            return Err(Fallback::Starting);
        }
        if policy.try_ioat && self.ioat.start() {
            policy.keep.inspect(|&bytes| self.ioat.keep(bytes));
            workers::start(1); // for those who wait for a word instead of asking
            self.engine.store(engine::IOAT, Ordering::Release);
            return Ok(Engine::Ioat);
        }
        if let Some(channels) = policy.channels {
            workers::start(channels);
        } else if let Some(limits) = cpus::Limits::try_now() {
            workers::start_on(&limits);
        } else {
            // Somebody else is just asking: the next copy will be told.
            self.engine.store(engine::COLD, Ordering::Release);
            return Err(Fallback::Starting);
        }
        self.engine.store(engine::THREADS, Ordering::Release);
        self.threads()
    }

    /// The workers there can be now.
    fn threads(&self) -> Result<Engine, Fallback> {
        let workers = workers::workers();
        if workers == 0 {
            return Err(Fallback::OneCpu);
        }
        if workers > self.workers() {
            self.workers.store(workers, Ordering::Relaxed);
        }
        Ok(Engine::Threads(workers))
    }

    fn refused(&self, refused: Refused) -> Fallback {
        match refused {
            Refused::Busy => Fallback::Busy,
            Refused::NotOurs => Fallback::Starting,
            // Workers are tried again after a while, see `workers::is_refused`.
            Refused::System if self.engine.load(Ordering::Relaxed) == engine::THREADS => {
                workers::note_refusal();
                Fallback::Refused
            }
            Refused::System => self.switch_off(Fallback::Refused),
            Refused::NoChannels => self.switch_off(Fallback::NoChannels),
        }
    }

    fn why_off(&self) -> Fallback {
        let why = self.why_off.load(Ordering::Relaxed) as usize;
        Fallback::ALL.get(why).copied().unwrap_or(Fallback::Off)
    }

    /// For good, and quietly. Where nobody counts, copies do not even come here any more.
    fn switch_off(&self, why: Fallback) -> Fallback {
        self.why_off.store(why as u32, Ordering::Relaxed);
        self.engine.store(engine::OFF, Ordering::Release);
        if self.policy.get().is_some_and(|policy| !policy.record && !policy.profile) {
            self.close();
        }
        why
    }

    /// Compares a carried copy; a difference is repaired, counted, and ends the engine.
    ///
    /// # Safety
    /// As memcpy of the same arguments.
    unsafe fn verify(&self, dst: usize, src: usize, len: usize) {
        self.recorder.verified.fetch_add(1, Ordering::Relaxed);
        // SAFETY: both ranges have just been copied from and to.
        let same = unsafe { libc::memcmp(dst as *const _, src as *const _, len) } == 0;
        if !same {
            // SAFETY: as above.
            unsafe { original::copy(dst, src, len) };
            self.recorder.mismatched.fetch_add(1, Ordering::Relaxed);
            self.switch_off(Fallback::Off);
        }
    }
}

/// Whether memory was never written: none of a few of its pages is there. What it was made of
/// is in memory already where a program has written to it, and not where it has only asked for
/// it.
fn is_fresh(dst: usize, len: usize) -> bool {
    len >= FRESH_FROM
        && !workers::is_filtered()
        && [2, 1, 3]
            .iter()
            .all(|&quarter| !sys::is_resident((dst + len / 4 * quarter) & !(PAGE - 1)))
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
