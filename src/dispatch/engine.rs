//! Life cycle of the engine: started by the first large call that pays for it, and silently
//! switched off for good where it cannot be had.
//!
//! Starting costs about 100 µs, and so does ending a process that has workers. A process that makes
//! few copies below 2 MiB and ends, as the child of a server that forks for each request does,
//! would lose by it. So such copies stay with libc until they have taken `START_TICKS` together.

use super::{Dispatcher, look};
use crate::backend::engine::{CopyOptions, Handle};
use crate::backend::threads::{self, workers};
use crate::backend::{Refused, may_start};
use crate::config::Config;
use crate::os::signal_mask::SignalsHeld;
use crate::os::{cpus, process, real_time, sys};
use crate::stats::Fallback;
use core::sync::atomic::{AtomicU64, Ordering};

/// Size of a call that pays for starting an engine: libc takes 200 µs and more for it.
const START_BYTES: usize = 2 << 20;

/// Ticks, about 3 ms, that smaller calls take together before an engine is started for them: a
/// process that ends right then has lost a few percent of its time.
const START_TICKS: u64 = 1 << 23;
/// Like `START_TICKS`, in the child of a fork: it writes to memory that it shares with its parent, and
/// each page that workers write to is unshared with an interrupt of all their CPUs.
const START_TICKS_FORKED: u64 = 1 << 25;

/// Ticks of large calls that did not pay for an engine. Not in `Dispatcher`: such calls of the child
/// of a fork write it, and the child pays for every page that it writes.
#[unsafe(link_section = ".data")] // a page that start-up and every child write anyhow
static UNAIDED_TICKS: AtomicU64 = AtomicU64::new(0);

/// States of the engine.
pub mod life {
    pub const COLD: u32 = 0;
    pub const STARTING: u32 = 1;
    pub const THREADS: u32 = 2;
    /// The engine of `Dispatcher::carrier`.
    pub const ENGINE: u32 = 3;
    pub const OFF: u32 = 4;
}

/// The engine that is up. Chosen once, when it is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineKind {
    /// This many workers beside the caller.
    Threads(usize),
    /// An engine that copies by itself.
    Other(Handle),
    /// An engine beside one of the other two kinds, for the copies that this engine takes.
    Beside(Handle),
}

impl EngineKind {
    pub fn is_beside(self) -> bool {
        matches!(self, EngineKind::Beside(_))
    }
}

impl Dispatcher {
    /// Returns the engine other than workers, and its options, started if need be; `None`: there is
    /// none, or it is not wanted.
    pub fn other_engine(&self) -> Option<(Handle, CopyOptions)> {
        let config = self.config()?;
        let ready = self.ready(config, usize::MAX).ok()?;
        let EngineKind::Other(engine) = ready else { return None };
        let is_open = !self.closed.load(Ordering::Relaxed);
        is_open.then(|| (engine, self.copy_options(config)))
    }

    /// Returns the number of workers for messages, started if need be; 0: none, or no CPU for them.
    pub fn helpers(&self) -> usize {
        match self.config().map(|config| self.ready(config, usize::MAX)) {
            Some(Ok(engine @ EngineKind::Threads(workers)))
                if !self.closed.load(Ordering::Relaxed) && !self.is_overloaded(engine) =>
            {
                workers
            }
            _ => 0,
        }
    }

    /// Returns whether there is no CPU for workers beside the threads that copy.
    pub(super) fn is_overloaded(&self, engine: EngineKind) -> bool {
        let too_many = |workers| self.callers.are_too_many_for(workers);
        matches!(engine, EngineKind::Threads(workers) if too_many(workers))
            || self.overload.is_recent()
    }

    /// Notes that workers were called and had no CPU to run on.
    pub fn note_overload(&self) {
        self.overload.note();
    }

    /// Returns how many CPUs the two processes of a message have, or would need for as many workers
    /// as the user asks for; `None`: no engine is wanted. Starts nothing.
    pub fn cpus_for_messages(&self) -> Option<usize> {
        let config = self.config().filter(|config| self.offloads(config))?;
        Some(self.channels(config).map_or_else(|| cpus::Limits::now().cpus(), |each| 2 * each + 2))
    }

    /// Returns the workers beside the caller; 0 while that engine is not up.
    pub fn workers(&self) -> usize {
        self.workers.load(Ordering::Relaxed)
    }

    /// Returns the name of the engine that is or was up, and its number of channels; libc has none.
    pub fn backend(&self) -> (&'static str, usize) {
        let is_beside = |engine: &Handle| engine.is_beside();
        let all = self.engines().filter(is_beside).chain(self.engines().filter(|e| !is_beside(e)));
        let mut up = all.map(|engine| (engine.name(), engine.counts().channels));
        match (up.find(|&(_, channels)| channels > 0), self.workers()) {
            (Some(up), _) => up,
            (None, 0) if threads::CALLER_BYTES.load(Ordering::Relaxed) == 0 => ("libc", 0),
            (None, workers) => ("threads", workers),
        }
    }

    /// Returns why no engine is up; `None`: one is.
    pub fn why_not(&self) -> Option<&'static str> {
        match self.engine.load(Ordering::Relaxed) {
            _ if self.beside_is_up() => None,
            life::THREADS if self.workers() == 0 => Some(Fallback::OneCpu.name()),
            life::THREADS | life::ENGINE => None,
            life::OFF => Some(self.why_off().name()),
            _ if self.config().is_some_and(|config| !self.offloads(config)) => {
                Some(Fallback::Off.name())
            }
            _ => Some("no large copy was made"),
        }
    }

    fn beside_is_up(&self) -> bool {
        self.engines().any(|engine| engine.is_beside() && engine.is_up())
    }

    /// Leaves calls to libc from the next one on, until `resume`; pauses nest.
    pub fn pause(&self) {
        self.pauses.fetch_add(1, Ordering::Relaxed);
    }

    /// Undoes one `pause`; false: there is none.
    pub fn resume(&self) -> bool {
        let one_less = |pauses: u32| pauses.checked_sub(1);
        self.pauses.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    /// Returns the engine, if it is up, or if a call of `len` bytes pays for starting it.
    #[inline]
    pub(super) fn ready(&self, config: &Config, len: usize) -> Result<EngineKind, Fallback> {
        if !self.offloads(config) {
            return Err(Fallback::Off);
        }
        match self.engine.load(Ordering::Acquire) {
            life::THREADS if workers::are_made() || self.pays(config, len) => self.threads(),
            life::ENGINE => self.carrier().map(EngineKind::Other).ok_or(Fallback::Starting),
            life::COLD if self.pays(config, len) => self.start(config),
            life::THREADS | life::COLD | life::STARTING => Err(Fallback::Starting),
            _ => Err(self.why_off()),
        }
    }

    /// Returns whether a call of `len` bytes, with those that libc has done, pays for making
    /// workers. With a fixed threshold, any call does.
    fn pays(&self, config: &Config, len: usize) -> bool {
        let is_forked = process::FORKED.load(Ordering::Relaxed);
        let least = if is_forked { START_TICKS_FORKED } else { START_TICKS };
        len >= START_BYTES || UNAIDED_TICKS.load(Ordering::Relaxed) >= least || !self.learns(config)
    }

    /// Returns whether a call of `len` bytes is libc's because no engine is up and it does not pay
    /// for one. Touches one page only: the child of a fork, or a short program, pays for each.
    pub(super) fn is_unaided(&self, config: &Config, len: usize) -> bool {
        self.engine.load(Ordering::Relaxed) == life::COLD
            && !self.beside.load(Ordering::Relaxed)
            && !self.pays(config, len)
    }

    /// Counts the ticks of a call that did not pay for an engine.
    pub(super) fn note_unaided(ticks: u64) {
        let before = UNAIDED_TICKS.load(Ordering::Relaxed);
        UNAIDED_TICKS.store(before.saturating_add(ticks), Ordering::Relaxed);
    }

    /// Resets the ticks at a fork, after which there are no workers: making others has to pay again.
    pub fn forget_unaided() {
        // A page that is written is copied for the child.
        if UNAIDED_TICKS.load(Ordering::Relaxed) != 0 {
            UNAIDED_TICKS.store(0, Ordering::Relaxed);
        }
    }

    #[cold]
    fn start(&self, config: &Config) -> Result<EngineKind, Fallback> {
        if real_time::is_real_time() {
            return Err(Fallback::RealTime); // it takes files to read
        }
        // A handler that jumped out of this would leave the engine starting for ever.
        let Some(_held) = SignalsHeld::all() else {
            return Err(self.switch_off(Fallback::Refused));
        };
        // Asked before anything is taken, because a child of vfork may be killed at any moment.
        let allowed = match may_start() {
            Ok(allowed) => allowed,
            Err(Refused::NotOurs) => return Err(Fallback::Starting),
            Err(_) => return Err(self.switch_off(Fallback::Refused)),
        };
        let (cold, starting) = (life::COLD, life::STARTING);
        let (got, other) = (Ordering::Acquire, Ordering::Relaxed);
        if self.engine.compare_exchange(cold, starting, got, other).is_err() {
            return Err(Fallback::Starting);
        }
        if self.learns(config) {
            look::measure_speed();
        }
        let settings = config.engine_settings();
        let is_recent = self.no_helper.is_recent();
        for engine in self.engines().filter(|engine| !engine.is_beside()) {
            if !engine.is_wanted(&settings) {
                continue;
            }
            if !is_recent && engine.start(&settings, allowed) {
                self.carrier.store(engine.address(), Ordering::Release);
                self.engine.store(life::ENGINE, Ordering::Release);
                return Ok(EngineKind::Other(engine));
            }
            self.no_helper.note();
        }
        if !self.start_workers(config) {
            self.engine.store(life::COLD, Ordering::Release);
            return Err(Fallback::Starting);
        }
        self.engine.store(life::THREADS, Ordering::Release);
        self.threads()
    }

    /// Prepares for as many workers as are wanted, or as there are CPUs for. False: another thread
    /// is reading the CPUs, and the next call will start them.
    pub(super) fn start_workers(&self, config: &Config) -> bool {
        let limits = || sys::NoNewFilter::look().and_then(cpus::Limits::try_now);
        match self.channels(config) {
            Some(channels) => workers::start(channels),
            // The CPUs are known from the parent process.
            None if workers::knows_cpus() => workers::prepare(),
            None => match limits() {
                Some(limits) => workers::start_on(&limits),
                None => return false,
            },
        }
        true
    }

    /// Returns the workers that there can be now.
    fn threads(&self) -> Result<EngineKind, Fallback> {
        let workers = workers::workers();
        if workers == 0 {
            return Err(Fallback::OneCpu);
        }
        if workers > self.workers() {
            self.workers.store(workers, Ordering::Relaxed);
        }
        Ok(EngineKind::Threads(workers))
    }

    pub(super) fn refused(&self, refused: Refused) -> Fallback {
        match refused {
            Refused::Busy => Fallback::Busy,
            Refused::NotOurs => Fallback::Starting,
            // Workers are tried again after a while, see `workers::REFUSED`.
            Refused::System if self.engine.load(Ordering::Relaxed) == life::THREADS => {
                workers::REFUSED.note();
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

    /// Switches the engine off for good, silently. Where nothing is counted, later copies go to
    /// libc without a call of ours.
    pub(super) fn switch_off(&self, why: Fallback) -> Fallback {
        self.why_off.store(why as u32, Ordering::Relaxed);
        self.engine.store(life::OFF, Ordering::Release);
        if self.config().is_some_and(|config| !config.counts() && !config.profile) {
            self.close();
        }
        why
    }
}
