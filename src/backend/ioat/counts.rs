//! Counters of the engine, for the report.
#![forbid(unsafe_code)]

use super::abi;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zerocopy::FromZeros;

/// Counts of calls, copies, bytes and ticks.
#[derive(FromZeros)]
pub struct Counts {
    pub submits: AtomicU64,
    /// Status calls for a request whose completion words were missing.
    pub waits: AtomicU64,
    /// System calls of other kinds: to hold signals, to sleep.
    pub others: AtomicU64,
    pub caller_bytes: AtomicU64,
    /// Pieces the caller has copied because they were refused or had failed.
    pub redone: AtomicU64,
    /// Copies in which a bad page was left to the caller.
    pub faults: AtomicU64,
    pub channel_bytes: [AtomicU64; abi::MAX_CHANNELS],
    pub requests: AtomicU64,
    pub pinned_pages: AtomicU64,
    /// Time of the requests: before and in the system call, from its end to the last word, and from
    /// there to the return, redone pieces included.
    pub ticks: [AtomicU64; 3],
}

impl Counts {
    /// Counts a request, by the moments between its phases.
    pub fn note(&self, request: &abi::Submit, moments: [u64; 4]) {
        self.requests.fetch_add(1, Relaxed);
        self.pinned_pages.fetch_add(request.pinned.into(), Relaxed);
        for (sum, part) in self.ticks.iter().zip(moments.windows(2)) {
            sum.fetch_add(part[1].wrapping_sub(part[0]), Relaxed);
        }
    }

    pub fn clear(&self) {
        let Self { submits, waits, others, caller_bytes, redone, faults, .. } = self;
        [submits, waits, others, caller_bytes, redone, faults, &self.requests, &self.pinned_pages]
            .into_iter()
            .chain(&self.channel_bytes)
            .chain(&self.ticks)
            .for_each(|count| count.store(0, Relaxed));
    }
}
