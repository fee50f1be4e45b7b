//! Counters of the engine, for the report.

use super::CHANNELS;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zerocopy::FromZeros;

/// Counters for the report.
#[derive(FromZeros)]
pub struct Counts {
    pub channel_bytes: [AtomicU64; CHANNELS],
    pub caller_bytes: AtomicU64,
    /// Words that were not written although their streams were done.
    pub lost: AtomicU64,
    pub taken_back: AtomicU64,
    /// Copies whose memory was registered, and others that were large enough.
    pub hits: AtomicU64,
    pub misses: AtomicU64,
    pub registrations: AtomicU64,
    /// Most bytes that were registered at one time.
    pub most_bytes: AtomicU64,
    /// Registrations whose memory went away.
    pub invalidations: AtomicU64,
    pub evictions: AtomicU64,
    /// Memory that the driver refused, or that is of the wrong kind, or too much.
    pub refused: AtomicU64,
}

impl Counts {
    pub fn clear(&self) {
        let single = [&self.caller_bytes, &self.lost, &self.taken_back];
        let about_memory = self.about_memory().map(|(_, count)| count);
        let all = single.into_iter().chain(about_memory).chain(&self.channel_bytes);
        all.for_each(|count| count.store(0, Relaxed));
    }

    fn about_memory(&self) -> [(&'static str, &AtomicU64); 7] {
        [
            ("hits", &self.hits),
            ("misses", &self.misses),
            ("made", &self.registrations),
            ("most_bytes", &self.most_bytes),
            ("evictions", &self.evictions),
            ("invalidations", &self.invalidations),
            ("refused", &self.refused),
        ]
    }

    /// Returns the counts of registrations, by name.
    pub fn of_registrations(&self) -> [(&'static str, u64); 7] {
        self.about_memory().map(|(name, count)| (name, count.load(Relaxed)))
    }
}
