//! Which way a large call takes: the engine, or libc and why.
//!
//! Copies, fills, comparisons and transfers between processes (`operation`) go down the same three
//! steps: `decide` answers with a value, `perform` does it by that, `learn_from` notes what came
//! of it.

mod engine;
pub mod operation;

use crate::backend::asynchronous;
use crate::backend::copy_loop::CopyLoop;
use crate::backend::threads::refusal::Refusal;
use crate::backend::threads::remote::{self, TransferCall};
use crate::backend::threads::task::{Task, Work};
use crate::backend::threads::workers;
use crate::backend::threads::{self, Cost, Pieces, Seen};
use crate::backend::{Refused, gpu, ioat, libc as original};
use crate::config::{Backend, Config};
use crate::learn::{Cell, FLOOR, Learner, STREAM_FROM, Verdict};
use crate::os::cpus;
use crate::os::sys::{self, NEVER, Op};
use crate::plan::PAGE;
use crate::stats::{Fallback, Path, Statistics};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use engine::{EngineKind, life};
use operation::{Kind, Operation};

/// What the configuration means for copies; fixed at start-up.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    offload: bool,
    /// The kernel helper is asked first.
    try_ioat: bool,
    /// A card carries what it can, whatever else is up; `None`: it is not to be asked.
    gpu: Option<gpu::Options>,
    /// Sizes below this only come here to be counted (ADMA_PROFILE).
    min: usize,
    learn: bool,
    channels: Option<usize>,
    ranks: usize,
    /// Bytes that the kernel helper may keep pinned.
    keep: Option<usize>,
    how: threads::Options,
    how_ioat: ioat::Options,
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
            gpu: config.gpu().map(|settings| gpu::Options {
                wait: config.wait,
                share: config.cpu_share,
                spare_cpus: settings.spare_cpus,
            }),
            min: config.min_bytes.unwrap_or(FLOOR),
            learn: config.min_bytes.is_none(),
            channels: config.channels,
            ranks: if config.channels.is_none() { config.ranks } else { 1 },
            keep: config.keep,
            how: threads::Options {
                workers: 0,
                pieces: Pieces::All(config.copy_loop.unwrap_or(CopyLoop::Ordinary)),
                wait: config.wait,
                share: config.cpu_share,
                fresh: false,
            },
            copy_loop: config.copy_loop,
            how_ioat: ioat::Options {
                channels: config.channels,
                wait: config.wait,
                share: config.cpu_share,
            },
            verify: config.verify,
            ops: config.ops,
            record: config.counts(),
            profile: config.profile,
        }
    }
}

/// What the user wants of a running process; `None`: as configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Overrides {
    pub off: bool,
    pub min: Option<usize>,
    pub channels: Option<usize>,
}

impl Policy {
    fn overridden(&self, overrides: Overrides) -> Self {
        let channels = overrides.channels.or(self.channels);
        Self {
            offload: self.offload && !overrides.off,
            min: overrides.min.unwrap_or(self.min),
            learn: self.learn && overrides.min.is_none(),
            channels,
            how_ioat: ioat::Options { channels, ..self.how_ioat },
            ..*self
        }
    }
}

/// The policy in force. Copies that are under way keep the one they began with.
struct Current(AtomicPtr<Policy>);

impl Current {
    const fn new() -> Self {
        Self(AtomicPtr::new(core::ptr::null_mut()))
    }

    #[inline]
    fn get(&self) -> Option<&'static Policy> {
        // SAFETY: null, or a policy that stays for good.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    fn set(&self, policy: &'static Policy) {
        self.0.store(core::ptr::from_ref(policy).cast_mut(), Ordering::Release);
    }
}

/// More changes than anybody makes by hand; then there are no more.
const MOST_CHANGES: u32 = 1000;

/// Keeps a policy that came later, in a mapping that stays: somebody may be using it. `None`:
/// there is no memory, or there were too many.
fn keep(policy: Policy) -> Option<&'static Policy> {
    static KEPT: AtomicU32 = AtomicU32::new(0);
    if KEPT.fetch_add(1, Ordering::Relaxed) >= MOST_CHANGES {
        KEPT.store(MOST_CHANGES, Ordering::Relaxed);
        return None;
    }
    let place: *mut Policy = sys::map(size_of::<Policy>())?.cast();
    // SAFETY: a fresh mapping, large enough and page aligned, which is never taken away.
    unsafe {
        place.write(policy);
        Some(&*place)
    }
}

/// From this size on it is asked whether the destination was ever written. Below, asking would
/// cost what there is to gain.
const FRESH_FROM: usize = 1 << 20;

/// No transfer below this is shared where sizes are learned: a call costs a microsecond and more
/// before the first byte moves.
const TRANSFERS_FROM: usize = 1 << 20;

/// So many bytes at most are compared before anything else is thought of: a difference in them
/// costs nothing.
const FIRST_LOOK: usize = 32 << 10;

/// Eight times a byte.
const EIGHT: usize = 0x0101_0101_0101_0101;

/// What is decided about a call before a byte of it moves.
struct Decision<'a> {
    by: Result<EngineKind, Fallback>,
    /// What measuring has to do with it; `None`: nothing.
    learned: Option<(&'a Cell, Verdict)>,
    /// So many bytes the caller does alone by libc, and they are timed; 0: none.
    first: usize,
    pieces: Pieces,
    /// The destination was never written: its pages are made on the way.
    fresh: bool,
    in_a_row: bool,
}

/// What came of it.
struct Completion {
    path: Path,
    answer: isize,
    /// When the first bytes were begun, and when they were done.
    first: [u64; 2],
    seen: Seen,
}

/// All zeros until it is configured, so that it takes no room in the file.
#[repr(C)] // what start-up and exit touch comes first, on one page
pub struct Dispatcher {
    policy: Current,
    engine: AtomicU32,
    /// The process is ending: nothing new is handed on.
    closed: AtomicBool,
    /// Why the engine is off.
    why_off: AtomicU32,
    workers: AtomicUsize,
    carried: AtomicU64,
    /// More threads copy than there are CPUs to help them: sharing only moves time from one to
    /// the other. Everybody keeps to libc for about 2 to 60 ms.
    crowd: Refusal<{ 1 << 22 }, { 1 << 27 }>,
    pub ioat: ioat::Engine,
    /// One for each `Kind`.
    learners: [Learner; Kind::ALL.len()],
    pub recorder: Statistics,
}

impl Dispatcher {
    pub const fn new() -> Self {
        Self {
            policy: Current::new(),
            engine: AtomicU32::new(life::COLD),
            closed: AtomicBool::new(false),
            why_off: AtomicU32::new(Fallback::Off as u32),
            workers: AtomicUsize::new(0),
            carried: AtomicU64::new(0),
            crowd: Refusal::new(),
            ioat: ioat::Engine::new(),
            learners: [const { Learner::new() }; Kind::ALL.len()],
            recorder: Statistics::new(),
        }
    }

    /// Takes the policy; no copy comes here before `open`.
    pub fn configure(&self, policy: &'static Policy) {
        self.policy.set(policy);
    }

    /// The user wants something else of this process. From the next copy on; what was started
    /// goes on. Called by whoever has counted a copy, so it keeps the hook's law.
    pub fn change(&self, configured: &Policy, overrides: Overrides) {
        let Some(policy) = keep(configured.overridden(overrides)) else { return };
        self.policy.set(policy);
        if !policy.profile && !self.closed.load(Ordering::Relaxed) {
            // Never higher than it was, or no copy would come here any more to see a change.
            let min = policy.min.min(configured.min);
            for op in Op::ALL.into_iter().filter(|&op| policy.ops >> op as u32 & 1 == 1) {
                original::set_min(op, min);
            }
        }
        if self.engine.load(Ordering::Relaxed) == life::THREADS {
            match (policy.channels, cpus::Limits::try_now()) {
                (Some(channels), _) => workers::start(channels),
                (None, Some(limits)) => workers::start_on(&limits),
                (None, None) => {} // as many as before
            }
        }
    }

    /// Whether the user has switched the process off.
    pub fn is_switched_off(&self, configured: &Policy) -> bool {
        self.policy.get().is_some_and(|policy| configured.offload && !policy.offload)
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
        gpu::GPU.forget_after_fork();
        cpus::forget_after_fork();
        if self.engine.load(Ordering::Relaxed) != life::OFF {
            self.engine.store(life::COLD, Ordering::Relaxed);
        }
        if self.policy.get().is_some_and(|policy| policy.record || policy.profile) {
            self.recorder.forget_after_fork();
        }
    }

    /// Copies below this are never considered.
    pub fn floor(&self) -> usize {
        self.policy.get().map_or(FLOOR, |policy| policy.min)
    }

    /// The size from which copies are carried; `None`: it is learned.
    pub fn fixed_threshold(&self) -> Option<usize> {
        self.policy.get().filter(|policy| !policy.learn).map(|policy| policy.min)
    }

    /// The smallest size that is, or would be, carried; `None`: nothing yet.
    pub fn threshold(&self) -> Option<usize> {
        let policy = self.policy.get()?;
        if policy.learn { self.learner(Kind::Copies).threshold() } else { Some(policy.min) }
    }

    pub fn learner(&self, kind: Kind) -> &Learner {
        &self.learners[kind as usize]
    }

    /// Copies, one way or the other, for a program that has called `op`, or us by name.
    ///
    /// # Safety
    /// As memmove.
    pub unsafe fn copy(&self, op: Option<Op>, dst: usize, src: usize, len: usize) {
        // SAFETY: the caller's promise.
        unsafe { self.enter(op, &Task { work: Work::Copy, dst, src, len }) };
    }

    /// Fills, one way or the other.
    ///
    /// # Safety
    /// As memset.
    pub unsafe fn fill(&self, op: Op, dst: usize, value: u8, len: usize) {
        let src = usize::from(value) * EIGHT;
        // SAFETY: the caller's promise.
        unsafe { self.enter(Some(op), &Task { work: Work::Fill, dst, src, len }) };
    }

    /// Compares, one way or the other; the answer is libc's.
    ///
    /// # Safety
    /// As memcmp; the length is in bytes.
    pub unsafe fn compare(&self, op: Op, a: usize, b: usize, len: usize) -> isize {
        // SAFETY: the caller's promise.
        unsafe { self.enter(Some(op), &Task { work: Work::Compare(op), dst: a, src: b, len }) }
    }

    unsafe fn enter(&self, op: Option<Op>, task: &Task) -> isize {
        let Some(policy) = self.policy.get() else {
            // SAFETY: the caller's promise.
            return unsafe { task.before_start() };
        };
        if let Some(op) = op.filter(|_| policy.profile) {
            self.recorder.profile(op, task.len);
        }
        if task.len < policy.min || self.closed.load(Ordering::Relaxed) {
            // SAFETY: the caller's promise.
            return unsafe { task.alone() };
        }
        let begun = sys::ticks();
        let mut looked = 0;
        if let Work::Compare(_) = task.work {
            looked = (task.len / 16).min(FIRST_LOOK) & !63;
            // SAFETY: the beginning of the caller's ranges.
            let answer = unsafe { task.part(0, looked).alone() };
            if answer != 0 {
                self.record(policy, Path::Libc(Fallback::Early), task.len, begun);
                return answer;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.dispatch(policy, task, looked, begun).1 }
    }

    /// process_vm_readv or process_vm_writev, one way or the other; the answer is libc's, and
    /// so is errno.
    ///
    /// # Safety
    /// The program's own call.
    pub unsafe fn transfer(&self, call: &TransferCall) -> isize {
        remote::understand(call, |transfer| {
            let known = self.policy.get().zip(transfer);
            let large = known.filter(|(policy, transfer)| {
                let total = transfer.total();
                if policy.profile {
                    self.recorder.profile(call.op, total);
                }
                let floor = if policy.learn { TRANSFERS_FROM } else { policy.min };
                total >= floor.max(2) && !self.closed.load(Ordering::Relaxed)
            });
            // SAFETY: the caller's promise.
            unsafe {
                match large {
                    Some((policy, transfer)) => {
                        self.dispatch(policy, &(call, transfer), 0, sys::ticks()).1
                    }
                    None => remote::pass_on(call),
                }
            }
        })
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
        if large && policy.is_some() {
            self.recorder.live_or_made(); // a worker that ends a copy makes none
        }
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
        let streams =
            policy.copy_loop.is_none() && self.learner(Kind::Copies).streaming(largest).pays();
        let stream_from = if streams { STREAM_FROM } else { usize::MAX };
        let copy_loop = policy.copy_loop.unwrap_or(CopyLoop::Ordinary);
        Ok(match self.ready(policy)? {
            EngineKind::Threads(workers) => {
                asynchronous::By::Workers { workers, copy_loop, stream_from }
            }
            EngineKind::Ioat => asynchronous::By::Helper(&self.ioat, policy.how_ioat, copy_loop),
            EngineKind::Gpu => return Err(Fallback::Unsupported), // never the only one
        })
    }

    /// Notes a copy that others have carried while its caller did something else.
    pub fn note_end(&self, bytes: usize, begun: u64) {
        if self.policy.get().is_some_and(|policy| policy.record) {
            self.recorder.record_end(Path::Engine, bytes, sys::ticks().wrapping_sub(begun));
        }
    }

    /// How callers wait.
    pub fn wait(&self) -> threads::Wait {
        self.policy.get().map_or(threads::Wait::Auto, |policy| policy.how.wait)
    }

    /// Does a large call that began at `begun` and of which `done` bytes are done: which way, and
    /// the answer.
    unsafe fn dispatch<O: Operation>(
        &self,
        policy: &Policy,
        operation: &O,
        done: usize,
        begun: u64,
    ) -> (Path, isize) {
        let decision = self.decide(policy, operation, begun);
        // SAFETY: the caller's promise; order does not matter where there is an engine.
        let completion = unsafe { self.perform(policy, &decision, operation, done) };
        self.learn_from(policy, &decision, &completion, operation, begun);
        if completion.path == Path::Engine
            && policy.verify > 0
            && let Some((dst, src)) = operation.as_copy()
        {
            // SAFETY: just copied.
            unsafe { self.verify_some(dst, src, operation.len()) };
        }
        (completion.path, completion.answer)
    }

    /// Which way the call is to go. Moves nothing.
    fn decide<O: Operation>(&self, policy: &Policy, operation: &O, now: u64) -> Decision<'_> {
        let (len, learner) = (operation.len(), self.learner(operation.kind()));
        let mut decision = Decision {
            by: Err(Fallback::Overlap),
            learned: None,
            first: 0,
            pieces: policy.how.pieces,
            fresh: false,
            in_a_row: learner.is_in_a_row(now),
        };
        if !operation.is_in_any_order() {
            return decision;
        }
        if policy.gpu.is_some()
            && let Some((dst, src)) = operation.as_copy()
            && gpu::GPU.takes(dst, src, len)
        {
            decision.by = Ok(EngineKind::Gpu);
            return decision;
        }
        decision.by = match (self.ready(policy), operation.as_copy()) {
            (Ok(EngineKind::Ioat), None) => Err(Fallback::Unsupported),
            (Ok(EngineKind::Ioat), Some((dst, src))) if !self.ioat.suits(dst, src) => {
                Err(Fallback::Unaligned)
            }
            (Ok(_), _) if policy.learn && self.crowd.is_recent() => Err(Fallback::Busy),
            // All ranks of a job have the same to transfer, and poll meanwhile: who took a CPU of
            // theirs would be faster, and the job slower. Each has its part of the CPUs.
            (Ok(EngineKind::Threads(workers)), _) if operation.kind() == Kind::Transfers => {
                match (workers + 1) / policy.ranks {
                    0 | 1 => Err(Fallback::OneCpu),
                    cpus => Ok(EngineKind::Threads(cpus - 1)),
                }
            }
            (by, _) => by,
        };
        let cell = learner.cell(len, decision.in_a_row);
        decision.fresh = policy.offload
            && !matches!(decision.by, Ok(EngineKind::Ioat))
            && !(policy.learn && cell.libc_is_too_quick_for_page_faults())
            && operation.written().is_some_and(|dst| is_fresh(dst, len));
        // What writes fresh memory always shares its page faults. It would teach nothing about
        // others: its first bytes often are in memory and the rest is not.
        if policy.learn && decision.by.is_ok() && !decision.fresh {
            let verdict = cell.decide(len, now);
            decision.learned = Some((cell, verdict));
            match verdict.first_bytes(len) {
                Ok(first) => decision.first = first,
                Err(why) => decision.by = Err(why),
            }
        }
        // For a report only: what libc would have taken. An allocator has written to the first page.
        let second_page = |dst: usize| (dst + PAGE) & !(PAGE - 1);
        if policy.learn
            && policy.record
            && decision.fresh
            && decision.by.is_ok()
            && let Some(dst) =
                operation.written().filter(|&dst| !sys::is_resident(second_page(dst)))
        {
            decision.first = learner.fresh.first_bytes(dst, len);
        }
        if decision.by.is_ok() {
            decision.first = decision.first.max(O::FIRST).min(len / 2);
        }
        // Pages that were just made are in the cache: no streaming into those.
        let threads = matches!(decision.by, Ok(EngineKind::Threads(_)));
        let streams = policy.copy_loop.is_none() && operation.written().is_some();
        if threads && !decision.fresh && streams && len >= STREAM_FROM {
            decision.pieces = learner.streaming(len).choose();
        }
        decision
    }

    /// Does what is left as was decided.
    unsafe fn perform<O: Operation>(
        &self,
        policy: &Policy,
        decision: &Decision,
        operation: &O,
        done: usize,
    ) -> Completion {
        let Decision { mut by, first: first_bytes, pieces, fresh, in_a_row, .. } = *decision;
        let (mut from, mut first) = (done, [0; 2]);
        if first_bytes > 0 {
            first[0] = sys::ticks();
            if matches!(by, Ok(EngineKind::Threads(_))) && !in_a_row {
                threads::expect();
            }
            // SAFETY: part of the caller's ranges.
            match unsafe { operation.begin(from, first_bytes) } {
                Ok(()) => from += first_bytes,
                Err(why) => by = Err(why),
            }
            first[1] = sys::ticks();
        }
        // SAFETY: the rest of the caller's ranges.
        let carried = by.and_then(|engine| unsafe {
            match (engine, operation.as_copy()) {
                (EngineKind::Threads(workers), _) => operation
                    .share(from, &threads::Options { workers, pieces, fresh, ..policy.how }),
                (EngineKind::Ioat, Some((dst, src))) => {
                    let len = operation.len() - from;
                    let copied = self.ioat.copy(dst + from, src + from, len, &policy.how_ioat);
                    copied.map(|()| (0, Seen::default()))
                }
                (EngineKind::Gpu, Some((dst, src))) => {
                    let len = operation.len() - from;
                    let copy = |how| gpu::GPU.copy(dst + from, src + from, len, how);
                    let copied = policy.gpu.as_ref().map_or(Err(Refused::Busy), copy);
                    copied.map(|()| (0, Seen::default()))
                }
                (EngineKind::Ioat | EngineKind::Gpu, None) => Err(Refused::Busy), // was decided otherwise
            }
            .map_err(|refused| self.refused(refused))
        });
        match carried {
            Ok((answer, seen)) => Completion { path: Path::Engine, answer, first, seen },
            Err(why) => {
                // SAFETY: the caller's promise; after a refusal nothing is under way.
                let answer = unsafe { operation.alone(from, fresh) };
                Completion { path: Path::Libc(why), answer, first, seen: Seen::default() }
            }
        }
    }

    /// Notes what has come of a call that began at `begun`.
    fn learn_from(
        &self,
        policy: &Policy,
        decision: &Decision,
        completion: &Completion,
        operation: &impl Operation,
        begun: u64,
    ) {
        let (now, len) = (sys::ticks(), operation.len());
        let whole = Cost { bytes: len, ticks: now.wrapping_sub(begun) };
        let learner = self.learner(operation.kind());
        learner.note_end(now);
        learner.streaming(len).record(&completion.seen);
        // A transfer cannot be taken back from a worker that does not run: its caller has waited.
        // As many ranks as CPUs, which all poll, gain nothing by each other's.
        let waited = operation.kind() == Kind::Transfers && completion.seen.late;
        // A busy card says nothing about the CPUs.
        let asked_cpus = decision.by.is_ok_and(|by| by != EngineKind::Gpu);
        if waited || completion.path == Path::Libc(Fallback::Busy) && asked_cpus {
            self.crowd.note();
        }
        if let (
            Some((cell, verdict)),
            Path::Engine | Path::Libc(Fallback::Learned | Fallback::Compared),
            true,
        ) = (decision.learned, completion.path, operation.is_whole(completion.answer))
        {
            if verdict == (Verdict::Share { paired: true }) {
                let [from, to] = completion.first;
                let first = Cost { bytes: decision.first, ticks: to.wrapping_sub(from) };
                let bytes = len - decision.first;
                cell.record_pair(first, Cost { bytes, ticks: now.wrapping_sub(to) });
            }
            cell.record(verdict, whole, now, decision.in_a_row);
        }
        if policy.record {
            let saved = match decision.learned {
                Some((cell, _)) => cell.saved(whole),
                None if decision.fresh => {
                    if decision.first > 0 {
                        let [from, to] = completion.first;
                        let ticks = to.wrapping_sub(from);
                        learner.fresh.record(Cost { bytes: decision.first, ticks });
                    }
                    learner.fresh.saved(whole)
                }
                None => None,
            };
            let bytes = operation.bytes(completion.answer);
            self.recorder.record_judged(completion.path, bytes, whole.ticks, saved);
        }
    }

    fn record(&self, policy: &Policy, path: Path, bytes: usize, begun: u64) {
        if policy.record {
            self.recorder.record(path, bytes, sys::ticks().wrapping_sub(begun));
        }
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

    /// Compares a carried copy; a difference is repaired, counted, and ends the engine.
    ///
    /// # Safety
    /// As memcpy of the same arguments.
    unsafe fn verify(&self, dst: usize, src: usize, len: usize) {
        self.recorder.counters().verified.fetch_add(1, Ordering::Relaxed);
        // SAFETY: both ranges have just been copied from and to.
        if unsafe { original::compare(Op::Memcmp, dst, src, len) } != 0 {
            // SAFETY: as above.
            unsafe { original::copy(dst, src, len) };
            self.recorder.counters().mismatched.fetch_add(1, Ordering::Relaxed);
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
