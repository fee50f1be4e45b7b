//! Large calls that are under way, so that the command can look up which line of a script makes one.
//!
//! A thread stores its call before it and clears it behind it. While the entry stays as it is the thread
//! is inside the call, and what it has on its stacks stays, too.

use crate::Counters;
use core::sync::atomic::{AtomicU64, Ordering::*};
use zerocopy::{FromBytes, IntoBytes};

const CALLS: usize = 16;

#[repr(C)] // lies in live files
#[derive(FromBytes, IntoBytes)]
pub struct UnderWay {
    calls: [Call; CALLS],
}

#[repr(C)]
#[derive(FromBytes, IntoBytes)]
struct Call {
    thread: AtomicU64,
    begun: AtomicU64,
    /// Return address; 0: there is no call.
    site: AtomicU64,
}

/// A call of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its thread pointer, which is its pthread_t.
    pub thread: u64,
    /// Its beginning, in ticks.
    pub begun: u64,
    /// Return address.
    pub site: u64,
}

// SAFETY: every field is atomic, as the trait demands.
unsafe impl Counters for UnderWay {}

impl UnderWay {
    /// Two threads may have one entry; then the later call is seen.
    fn of(&self, thread: u64) -> &Call {
        &self.calls[(thread.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize % CALLS]
    }

    /// Notes that a thread begins a call.
    pub fn enter(&self, entry: Entry) {
        let call = self.of(entry.thread);
        call.site.store(0, Relaxed);
        call.thread.store(entry.thread, Release);
        call.begun.store(entry.begun, Relaxed);
        call.site.store(entry.site, Release);
    }

    /// Notes that a thread has ended its call.
    pub fn leave(&self, thread: u64) {
        self.of(thread).site.store(0, Release);
    }

    /// Returns the calls that are under way.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        let entry = |call: &Call| Entry {
            site: call.site.load(Acquire),
            thread: call.thread.load(Relaxed),
            begun: call.begun.load(Relaxed),
        };
        self.calls.iter().map(entry).filter(|entry| entry.site != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_seen_until_their_thread_leaves() {
        let all = UnderWay::ZERO;
        let entry = Entry { thread: 0x7f00_1234_5700, begun: 7, site: 0x4711 };
        all.enter(entry);
        assert!(all.entries().eq([entry]));
        all.leave(entry.thread);
        assert_eq!(all.entries().count(), 0);
    }
}
