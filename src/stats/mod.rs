//! One record per copy, lock-free and without allocation; reports are made at exit.

pub mod histogram;
mod hlog;
mod json;
pub mod report;
pub mod snapshot;
mod text;

use crate::os::sys::Op;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use histogram::Histogram;

/// Which way a large copy went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    Engine,
    Libc(Fallback),
}

/// Why a large copy stayed with libc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Fallback {
    /// ADMA_BACKEND=libc, or a copy failed verification.
    Off,
    /// Source and destination overlap.
    Overlap,
    /// Measuring has shown that libc is at least as fast here.
    Learned,
    /// libc was to do it, to know how it compares.
    Compared,
    /// As many copies are under way as there is help for.
    Busy,
    /// The system refused threads or futexes, or what the helper needs.
    Refused,
    /// There is only one CPU for us.
    OneCpu,
    /// The engine is not up: it is just being started, or this is a child that shares memory.
    Starting,
    /// Every I/OAT channel has failed and was put aside.
    NoChannels,
    /// The I/OAT engine cannot copy between such addresses.
    Unaligned,
    /// The engine that is up does only copy within one process.
    Unsupported,
    /// Two ranges differ in their first bytes, which the caller compares before it calls anybody.
    Early,
}

impl Fallback {
    pub const ALL: [Fallback; 12] = [
        Fallback::Off,
        Fallback::Overlap,
        Fallback::Learned,
        Fallback::Compared,
        Fallback::Busy,
        Fallback::Refused,
        Fallback::OneCpu,
        Fallback::Starting,
        Fallback::NoChannels,
        Fallback::Unaligned,
        Fallback::Unsupported,
        Fallback::Early,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Fallback::Overlap => "overlap",
            Fallback::Learned => "learned",
            Fallback::Compared => "compared",
            Fallback::Busy => "busy",
            Fallback::Refused => "refused",
            Fallback::OneCpu => "one_cpu",
            Fallback::Starting => "starting",
            Fallback::NoChannels => "no_channels",
            Fallback::Unaligned => "unaligned",
            Fallback::Unsupported => "unsupported",
            Fallback::Early => "early",
            Fallback::Off => "off",
        }
    }
}

/// Sizes and times of the copies that went one way.
pub struct Flow {
    pub bytes: AtomicU64,
    pub sizes: Histogram,
    /// In ticks; reports turn them into nanoseconds.
    pub ticks: Histogram,
}

impl Flow {
    const fn new() -> Self {
        Self { bytes: AtomicU64::new(0), sizes: Histogram::new(), ticks: Histogram::new() }
    }

    fn clear(&self) {
        self.bytes.store(0, Relaxed);
        self.sizes.clear();
        self.ticks.clear();
    }
}

/// Calls of one function, for ADMA_PROFILE.
pub struct Calls {
    pub calls: AtomicU64,
    pub bytes: AtomicU64,
}

impl Calls {
    const fn new() -> Self {
        Self { calls: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }
}

pub struct Recorder {
    pub engine: Flow,
    pub libc: Flow,
    fallbacks: [AtomicU64; Fallback::ALL.len()],
    pub verified: AtomicU64,
    pub mismatched: AtomicU64,
    /// Every copy, also the small ones; only with ADMA_PROFILE.
    pub every_size: Histogram,
    pub by_function: [Calls; Op::ALL.len()],
}

impl Recorder {
    pub const fn new() -> Self {
        Self {
            engine: Flow::new(),
            libc: Flow::new(),
            fallbacks: [const { AtomicU64::new(0) }; Fallback::ALL.len()],
            verified: AtomicU64::new(0),
            mismatched: AtomicU64::new(0),
            every_size: Histogram::new(),
            by_function: [const { Calls::new() }; Op::ALL.len()],
        }
    }

    pub fn record(&self, path: Path, len: usize, ticks: u64) {
        let flow = match path {
            Path::Engine => &self.engine,
            Path::Libc(fallback) => {
                self.fallbacks[fallback as usize].fetch_add(1, Relaxed);
                &self.libc
            }
        };
        flow.bytes.fetch_add(len as u64, Relaxed);
        flow.sizes.record(len as u64);
        flow.ticks.record(ticks);
    }

    /// One call of the profile, of any size.
    pub fn profile(&self, op: Op, len: usize) {
        self.every_size.record(len as u64);
        let calls = &self.by_function[op as usize];
        calls.calls.fetch_add(1, Relaxed);
        calls.bytes.fetch_add(len as u64, Relaxed);
    }

    pub fn fallbacks(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Fallback::ALL.iter().map(|&why| (why.name(), self.fallbacks[why as usize].load(Relaxed)))
    }

    pub fn is_empty(&self) -> bool {
        [&self.engine.sizes, &self.libc.sizes, &self.every_size].iter().all(|h| h.count() == 0)
    }

    /// For the child of a fork: its report tells its own copies only.
    pub fn clear(&self) {
        if self.is_empty() {
            return; // touches no page that was never used
        }
        self.engine.clear();
        self.libc.clear();
        self.every_size.clear();
        for counter in self.fallbacks.iter().chain([&self.verified, &self.mismatched]) {
            counter.store(0, Relaxed);
        }
        for calls in &self.by_function {
            calls.calls.store(0, Relaxed);
            calls.bytes.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorder_counts_paths_and_reasons_and_forgets_on_demand() {
        let recorder = Recorder::new();
        recorder.record(Path::Engine, 1 << 20, 500);
        recorder.record(Path::Libc(Fallback::Overlap), 70_000, 10);
        recorder.record(Path::Libc(Fallback::Overlap), 70_000, 10);
        recorder.profile(Op::Bcopy, 3);
        assert_eq!(recorder.engine.sizes.count(), 1);
        assert_eq!(recorder.libc.bytes.load(Relaxed), 140_000);
        assert!(recorder.fallbacks().any(|reason| reason == ("overlap", 2)));
        recorder.clear();
        assert!(recorder.is_empty());
        assert!(recorder.fallbacks().all(|(_, count)| count == 0));
    }
}
