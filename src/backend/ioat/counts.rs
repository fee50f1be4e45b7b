//! What the engine counts, for the report.
#![forbid(unsafe_code)]

use super::abi;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// For the report. In calls, copies and bytes.
pub struct Counts {
    pub submits: AtomicU64,
    /// Calls to learn of the end of a request, where its words did not tell.
    pub waits: AtomicU64,
    /// System calls of other kinds: to hold signals, to sleep.
    pub others: AtomicU64,
    pub caller_bytes: AtomicU64,
    /// Pieces the caller has copied because they were refused or had failed.
    pub redone: AtomicU64,
    /// Copies in which a bad page was left to the caller.
    pub faults: AtomicU64,
    pub channel_bytes: [AtomicU64; abi::MAX_CHANNELS],
    pub costs: Costs,
}

/// Where the time of the requests went, all of them together, in ticks.
pub struct Costs {
    pub requests: AtomicU64,
    pub pinned_pages: AtomicU64,
    /// From before the system call to after it.
    pub call_ticks: AtomicU64,
    /// From the end of the system call to the last word.
    pub engine_ticks: AtomicU64,
    /// From there to the return, with whatever had to be done again.
    pub completion_ticks: AtomicU64,
}

impl Costs {
    /// A request went through these moments.
    pub fn note(&self, request: &abi::Submit, [begun, submitted, over, end]: [u64; 4]) {
        let parts = [
            (&self.requests, 1),
            (&self.pinned_pages, request.pinned.into()),
            (&self.call_ticks, submitted.wrapping_sub(begun)),
            (&self.engine_ticks, over.wrapping_sub(submitted)),
            (&self.completion_ticks, end.wrapping_sub(over)),
        ];
        parts.into_iter().for_each(|(sum, part)| {
            sum.fetch_add(part, Relaxed);
        });
    }

    pub fn clear(&self) {
        let Self { requests, pinned_pages, call_ticks, engine_ticks, completion_ticks } = self;
        [requests, pinned_pages, call_ticks, engine_ticks, completion_ticks]
            .into_iter()
            .for_each(|sum| sum.store(0, Relaxed));
    }
}

impl Counts {
    pub fn clear(&self) {
        let Self { submits, waits, others, caller_bytes, redone, faults, .. } = self;
        let single = [submits, waits, others, caller_bytes, redone, faults];
        single.into_iter().chain(&self.channel_bytes).for_each(|count| count.store(0, Relaxed));
        self.costs.clear();
    }
}
