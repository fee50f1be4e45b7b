//! Large calls: the way that each takes, and what is learned from it.
//!
//! Copies, fills, comparisons, transfers between processes, reads of files (`operation`), and copies
//! to a card and from it (`card`) take three steps in `Dispatcher::dispatch`: `decide` chooses a way,
//! `perform` takes it, and `learn_from` (`completion`) records the result.

mod background;
mod callers;
mod card;
mod completion;
mod decide;
mod engine;
pub mod look;
pub mod operation;
mod perform;
mod reads;

use crate::backend::engine::{CopyEngine, CopyOptions, Handle};
use crate::backend::kernel_calls::remote::{self, TransferCall};
use crate::backend::threads::refusal::Refusal;
use crate::backend::threads::task::{Task, Work};
use crate::backend::{ENGINES, libc as original, threads};
use crate::config::{Backend, Config};
use crate::functions::{KERNEL_CALLS_FROM, NEVER, Op};
use crate::learn::{FLOOR, Learner, Place};
use crate::os::mapped::zeroed;
use crate::os::{process, sys};
use crate::stats::{Fallback, Path, Statistics};
use callers::Callers;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use engine::life;
use operation::{Kind, Operation};
use zerocopy::FromZeros;

/// Size from which the kernel is asked whether the destination is fresh. Below it, asking costs as
/// much as it can gain.
const FRESH_FROM: usize = 1 << 20;

/// Bytes of a comparison that are compared first, before even the clock is read: a difference in
/// them ends the call.
const FIRST_LOOK: usize = 32 << 10;

/// Bytes from which comparisons are shared, if the user wants them so short. Below, some versions of the C
/// library return 1 or the difference of words, where a shared one returns that of two bytes.
const LEAST_COMPARED: usize = 17;

/// Decides, performs and learns from every large call of the process. All zeros until `configure`, so
/// that it takes no room in the library's file.
#[repr(C)] // what start-up and exit touch comes first, on one page
#[derive(FromZeros)]
pub struct Dispatcher {
    /// Null until start-up.
    config: AtomicPtr<Config>,
    engine: AtomicU32,
    /// Set when the process ends: no engine gets another call.
    closed: AtomicBool,
    /// `Fallback` for which the engine was switched off.
    why_off: AtomicU32,
    /// Set when the helper could not be opened; the child of a fork inherits it.
    no_helper: Refusal,
    workers: AtomicUsize,
    carried: AtomicU64,
    /// Set while the user has switched the process off (`adma top`).
    off: AtomicBool,
    /// Calls of `adma_off` that `adma_on` has not undone yet.
    pauses: AtomicU32,
    /// Threshold and channels that the user wants instead of the configured ones; 0: none.
    wanted_min: AtomicUsize,
    wanted_channels: AtomicUsize,
    /// Estimates how many threads copy at once: with more than half of the CPUs taken, sharing only
    /// moves time between them.
    callers: Callers,
    /// Set when a shared call found no idle CPU: sharing is suspended for 2 to 60 ms.
    overload: Refusal<{ 1 << 22 }, { 1 << 27 }>,
    /// Set when the last comparison that went beyond `FIRST_LOOK` has found a difference.
    differed: AtomicBool,
    /// Destination and source of the last call that was timed for statistics.
    sampled: AtomicUsize,
    /// Ticks of the calls that libc has made since the last shared one.
    libc_ticks: AtomicU64,
    /// Address of the engine that is or was up, by its `Handle`; 0: none, or workers.
    carrier: AtomicUsize,
    /// Set if an engine beside it is wanted.
    beside: AtomicBool,
    #[cfg(test)]
    pub fakes: crate::os::once::Once<&'static [&'static dyn CopyEngine]>,
    /// One for each `Kind`.
    learners: [Learner; Kind::ALL.len()],
    pub recorder: Statistics,
}

impl Dispatcher {
    pub const fn new() -> Self {
        zeroed()
    }

    /// Sets the configuration. No copy arrives before `open`.
    pub fn configure(&self, config: &'static Config) {
        let settings = config.engine_settings();
        let is_wanted = |engine: Handle| engine.is_beside() && engine.is_wanted(&settings);
        self.beside.store(self.engines().any(is_wanted), Ordering::Relaxed);
        self.config.store(core::ptr::from_ref(config).cast_mut(), Ordering::Release);
    }

    /// Returns the engines of this process.
    fn list(&self) -> &'static [&'static dyn CopyEngine] {
        #[cfg(test)]
        if let Some(fakes) = self.fakes.get() {
            return fakes;
        }
        ENGINES
    }

    pub fn engines(&self) -> impl Iterator<Item = Handle> {
        Handle::all(self.list())
    }

    /// Returns the engine, other than workers, that is or was up.
    pub fn carrier(&self) -> Option<Handle> {
        // SAFETY: 0, or what `start` has put there.
        unsafe { Handle::from_address(self.carrier.load(Ordering::Acquire)) }
    }

    #[inline]
    fn config(&self) -> Option<&'static Config> {
        // SAFETY: null, or what `configure` was given.
        unsafe { self.config.load(Ordering::Acquire).as_ref() }
    }

    /// Changes settings at the user's request, from the next copy on; what was started goes on.
    /// Called by a thread that has counted a copy, so it keeps the hook's law.
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

    /// Returns whether the user has switched the process off.
    pub fn is_switched_off(&self) -> bool {
        self.config()
            .is_some_and(|config| config.backend != Backend::Libc && !self.offloads(config))
    }

    fn offloads(&self, config: &Config) -> bool {
        config.backend != Backend::Libc
            && !self.off.load(Ordering::Relaxed)
            && self.pauses.load(Ordering::Relaxed) == 0
    }

    /// Returns the fixed threshold; `None`: sizes are learned.
    fn fixed_min(&self, config: &Config) -> Option<usize> {
        let wanted = self.wanted_min.load(Ordering::Relaxed);
        if wanted > 0 { Some(wanted) } else { config.min_bytes }
    }

    fn min(&self, config: &Config) -> usize {
        self.fixed_min(config).unwrap_or(FLOOR)
    }

    /// Returns the smallest call that is considered, where sizes are learned from `learned` bytes
    /// on. Never above the configured threshold, whatever the user wants now: only such calls
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

    fn copy_options(&self, config: &Config) -> CopyOptions {
        config.copy_options(self.channels(config))
    }

    /// Opens the entries to copies. The last step of start-up.
    pub fn open(&self) {
        self.config().inspect(|config| self.set_min(config));
    }

    /// Sets the size from which calls come here, for the functions that are chosen.
    #[unsafe(link_section = ".text.start")] // see `intercept::entry`
    fn set_min(&self, config: &Config) {
        for op in Op::all().filter(|&op| config.ops >> op as u32 & 1 == 1) {
            let learned = if op.is_kernel_call() { KERNEL_CALLS_FROM } else { FLOOR };
            let min = match config.backend {
                _ if config.profile => 0,
                Backend::Libc if !config.counts() => NEVER,
                _ => self.entry_min(config, learned),
            };
            original::set_min(op, min);
        }
    }

    /// Returns whether an engine is up or being started.
    pub fn has_engine(&self) -> bool {
        !matches!(self.engine.load(Ordering::Relaxed), life::COLD | life::OFF)
    }

    /// Makes every entry jump to libc. Copies that have arrived are carried to their end.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        Op::all().for_each(|op| original::set_min(op, NEVER));
    }

    /// Resets the child of a fork, which has neither the workers nor the helper's open file. Pages
    /// that were never used are not touched: each would cost the child a microsecond.
    pub fn forget_after_fork(&self) {
        process::claim_memory();
        process::FORKED.store(true, Ordering::Relaxed);
        let state = self.engine.load(Ordering::Relaxed);
        if state != life::COLD {
            threads::forget_after_fork();
            self.engines().filter(|engine| !engine.is_beside()).for_each(|engine| engine.forget());
        }
        if self.has_engine() {
            self.engine.store(life::COLD, Ordering::Relaxed);
        }
        Self::forget_unaided();
        let Some(config) = self.config() else { return };
        if self.beside.load(Ordering::Relaxed) {
            self.engines().filter(|engine| engine.is_beside()).for_each(|engine| engine.forget());
        }
        if config.counts() || config.profile {
            self.recorder.forget_after_fork();
        }
    }

    /// Returns the size below which calls are neither considered nor counted.
    pub fn floor(&self) -> usize {
        self.config().map_or(FLOOR, |config| self.entry_min(config, FLOOR))
    }

    /// Returns the size from which copies are carried; `None`: it is learned.
    pub fn fixed_threshold(&self) -> Option<usize> {
        self.config().and_then(|config| self.fixed_min(config))
    }

    /// Returns the smallest size that is carried, or would be; `None`: not known yet.
    pub fn threshold(&self) -> Option<usize> {
        self.fixed_threshold().or_else(|| self.learner(Kind::Copies).threshold())
    }

    pub fn learner(&self, kind: Kind) -> &Learner {
        &self.learners[kind as usize]
    }

    /// Copies, fills or compares for a program that has called `op`, or us by name, with the return
    /// address `site` (0: not known); the answer is libc's.
    ///
    /// # Safety
    /// As memmove, memset or memcmp.
    #[unsafe(link_section = ".text.fork")] // see `intercept::entry`
    pub unsafe fn call(&self, op: Option<Op>, site: usize, task: &Task) -> isize {
        let Some(config) = self.config() else {
            // SAFETY: the ranges of `task` are valid for it, as `call` demands.
            return unsafe { task.before_start() };
        };
        if !config.counts() && !config.profile {
            if self.is_unaided(config, task.len) && task.len >= self.entry_min(config, FLOOR) {
                let begun = sys::ticks();
                // SAFETY: the ranges of `task` are valid for it, as `call` demands.
                let answer = unsafe { task.call_libc() };
                Self::note_unaided(sys::ticks().wrapping_sub(begun));
                return answer;
            }
            // SAFETY: the ranges of `task` are valid for it, as `call` demands.
            if let Some(answer) = unsafe { self.leave_early(config, site, task) } {
                return answer;
            }
        }
        if let Some(op) = op.filter(|_| config.profile) {
            self.recorder.profile(op, task.len);
        }
        if task.len < self.entry_min(config, FLOOR) || self.closed.load(Ordering::Relaxed) {
            // SAFETY: the ranges of `task` are valid for it, as `call` demands.
            return unsafe { task.call_libc() };
        }
        let mut looked = 0;
        if let Work::Compare(_) = task.work {
            if task.len < LEAST_COMPARED {
                // SAFETY: the ranges of `task` are valid for it, as `call` demands.
                return unsafe { task.call_libc() };
            }
            looked = (task.len / 16).min(FIRST_LOOK) & !63;
            let begun = if config.counts() { sys::ticks() } else { 0 };
            // SAFETY: the beginning of the caller's ranges.
            let answer = unsafe { task.part(0, looked).call_libc() };
            if answer != 0 {
                if config.counts() {
                    let ticks = sys::ticks().wrapping_sub(begun);
                    self.recorder.record(Path::Libc(Fallback::Early), task.len, ticks);
                }
                return answer;
            }
        }
        // SAFETY: the ranges of `task` are valid for it, as `call` demands.
        unsafe { self.dispatch(config, task, looked, site).1 }
    }

    /// Leaves a call to libc if calls like it mostly were, or if its bytes are near. `None`: it has to be
    /// decided about.
    ///
    /// # Safety
    /// As `call`.
    #[inline]
    unsafe fn leave_early(&self, config: &Config, site: usize, task: &Task) -> Option<isize> {
        let learner = self.learner(task.kind());
        let is_ours = task.len >= self.min(config) && self.learns(config) && self.offloads(config);
        if !is_ours || self.closed.load(Ordering::Relaxed) {
            return None;
        }
        let begun = sys::ticks();
        match task.work {
            Work::Copy | Work::Fill if learner.passes(site, task.len) => {
                // SAFETY: the ranges of `task` are valid for it, as `call` demands.
                return Some(unsafe { task.call_libc() });
            }
            Work::Copy if learner.was_near(site, task.len) => {}
            _ => return None,
        }
        // SAFETY: the ranges of `task` are valid for it, as `call` demands.
        unsafe {
            let look = look::look(task, begun)?;
            if learner.place(site, task.len, look.distance()) != Place::Near {
                return None;
            }
            learner.note_begin();
            look::finish(task, look);
        }
        if let Some(calls) = learner.note_near(task.len) {
            self.callers.expect(calls * sys::ticks().wrapping_sub(begun));
        }
        Some(0)
    }

    /// Performs a transfer between processes, by workers or by libc; answer and errno are libc's.
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
            // SAFETY: the program's own call: the kernel or libc checks its lists.
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

    /// Performs a large call of which `done` bytes are done; returns its path, and the answer.
    unsafe fn dispatch(
        &self,
        config: &Config,
        operation: &impl Operation,
        done: usize,
        site: usize,
    ) -> (Path, isize) {
        let thread = self.recorder.enter(site);
        let decision = self.decide(config, operation, done, site);
        // SAFETY: memory of `operation` is the program's, which has promised it to its own call; order does not matter
        // where there is an engine.
        let completion = unsafe { self.perform(&decision, operation) };
        self.recorder.leave(thread);
        self.learn_from(&decision, &completion, operation, site);
        if completion.path == Path::Engine
            && config.verify > 0
            && let Some((dst, src)) = operation.as_copy()
        {
            // SAFETY: both ranges have just been copied, and the program's call has not returned.
            unsafe { self.verify_some(dst, src, operation.len()) };
        }
        (completion.path, completion.answer)
    }
}

#[cfg(test)]
#[path = "dispatch_tests.rs"]
mod tests;
