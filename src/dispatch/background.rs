//! Asynchronous copies. They are not measured: what the learner has found for calls of their size
//! is applied to them.

use super::Dispatcher;
use super::engine::EngineKind;
use super::operation::Kind;
use crate::backend::asynchronous;
use crate::backend::copy_loop::CopyLoop;
use crate::learn::{FLOOR, STREAM_FROM};
use crate::os::sys;
use crate::stats::{Fallback, Path};
use core::sync::atomic::Ordering;

impl Dispatcher {
    /// Starts asynchronous copies, or makes them at once where no engine is up. `None`: there is no
    /// room for another cookie.
    ///
    /// # Safety
    /// As `asynchronous::begin`.
    pub unsafe fn begin(
        &'static self,
        copies: &[asynchronous::Copy],
        wanted: asynchronous::Wanted,
    ) -> Option<asynchronous::Cookie> {
        asynchronous::prefetch();
        let started = sys::ticks();
        let largest = copies.iter().map(|copy| copy.len).max().unwrap_or(0);
        let large = largest >= asynchronous::FLOOR;
        let by = if large { self.carriers(largest) } else { Err(Fallback::Learned) };
        // SAFETY: the caller keeps ranges and word until the end is reported, as `asynchronous::begin` demands.
        let begun = unsafe { asynchronous::begin(copies, by.ok(), wanted) }?;
        let fallback = begun.refused.map(|refused| self.refused(refused));
        let config = self.config().filter(|config| config.counts());
        if large && config.is_some() {
            self.recorder.live_or_made(); // the worker that ends the copy may not make the file
        }
        let bytes = copies.iter().map(|copy| copy.len).fold(0, usize::saturating_add);
        let own = bytes.saturating_sub(begun.carried);
        if config.is_some_and(|config| own >= self.entry_min(config, FLOOR)) {
            let why = fallback.or(by.err()).unwrap_or(Fallback::Overlap);
            self.recorder.record(Path::Libc(why), own, sys::ticks().wrapping_sub(started));
        }
        Some(begun.cookie)
    }

    /// Returns the engine for copies of which the largest has `largest` bytes.
    fn carriers(&'static self, largest: usize) -> Result<asynchronous::By, Fallback> {
        let Some(config) = self.config() else { return Err(Fallback::Starting) };
        if self.closed.load(Ordering::Relaxed) {
            return Err(Fallback::Off);
        }
        let pays = self.learner(Kind::Copies).streaming_pays(largest);
        let streams = config.copy_loop.is_none() && pays;
        let stream_from = if streams { STREAM_FROM } else { usize::MAX };
        let copy_loop = config.copy_loop.unwrap_or(CopyLoop::Ordinary);
        let how = self.copy_options(config);
        Ok(match self.ready(config, usize::MAX)? {
            EngineKind::Threads(workers) => {
                let is_wanted = self.beside.load(Ordering::Relaxed);
                let beside = if is_wanted { self.list() } else { &[] };
                asynchronous::By::Workers { workers, copy_loop, stream_from, beside, how }
            }
            EngineKind::Other(engine) => asynchronous::By::Engine(engine, how, copy_loop),
            EngineKind::Beside(_) => return Err(Fallback::Unsupported), // never the only one
        })
    }

    /// Records an asynchronous copy that an engine has carried.
    pub fn note_end(&self, bytes: usize, begun: u64) {
        if self.config().is_some_and(|config| config.counts()) {
            self.recorder.record_end(Path::Engine, bytes, sys::ticks().wrapping_sub(begun));
        }
    }
}
