//! Counts of messages between processes, as they lie in live files.

use crate::{Counters, absorb_all};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zerocopy::{FromBytes, IntoBytes};

/// Ways of a message.
#[derive(Clone, Copy)]
pub enum Regime {
    Eager,
    /// Copied by one of the two processes.
    OneCopy,
    /// Copied by both.
    TwoEnded,
    /// Streamed through the region, in chunks.
    Chunks,
}

/// Means by which this process has copied.
#[derive(Clone, Copy)]
pub enum Means {
    Helper,
    /// Ordinary instructions, between blocks.
    Mapped,
    ProcessVm,
    /// process_vm calls by worker threads.
    Workers,
    SharedMemory,
}

const DIRECTIONS: [&str; 2] = ["sent", "received"];
const REGIMES: [&str; 4] = ["eager", "one_copy", "two_ended", "chunks"];
const MEANS: [&str; 5] = ["helper", "mapped", "process_vm", "process_vm_workers", "shared_memory"];

const NUMBERS: usize = 2 * (DIRECTIONS.len() + REGIMES.len()) + MEANS.len();

/// Messages and bytes of each direction and of each regime, and bytes of each means.
#[repr(C)]
#[derive(FromBytes, IntoBytes)]
pub struct MessageCounts([AtomicU64; NUMBERS]);

/// Sums of all messages: names with messages and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    pub directions: [(&'static str, u64, u64); DIRECTIONS.len()],
    pub regimes: [(&'static str, u64, u64); REGIMES.len()],
    /// Bytes only.
    pub copied: [(&'static str, u64); MEANS.len()],
}

impl Messages {
    /// Returns the messages of both directions, and their bytes.
    pub fn total(&self) -> (u64, u64) {
        self.directions.iter().fold((0, 0), |(messages, bytes), sums| {
            (sums.1.saturating_add(messages), sums.2.saturating_add(bytes))
        })
    }
}

// SAFETY: atomic numbers of 64 bits.
unsafe impl Counters for MessageCounts {}

impl MessageCounts {
    /// Counts a message that is over.
    #[inline]
    pub fn note_message(&self, received: bool, regime: Regime, bytes: usize) {
        for kind in [usize::from(received), DIRECTIONS.len() + regime as usize] {
            self.0[2 * kind].fetch_add(1, Relaxed);
            self.0[2 * kind + 1].fetch_add(bytes as u64, Relaxed);
        }
    }

    /// Adds messages and bytes of the direction of this name.
    pub fn add(&self, direction: &str, messages: u64, bytes: u64) {
        if let Some(at) = DIRECTIONS.iter().position(|name| *name == direction) {
            self.0[2 * at].fetch_add(messages, Relaxed);
            self.0[2 * at + 1].fetch_add(bytes, Relaxed);
        }
    }

    /// Counts bytes that this process has copied.
    #[inline]
    pub fn note_copied(&self, means: Means, bytes: usize) {
        self.0[NUMBERS - MEANS.len() + means as usize].fetch_add(bytes as u64, Relaxed);
    }

    /// Returns the sums. `None`: there were no messages.
    pub fn sums(&self) -> Option<Messages> {
        let mut numbers = self.0.iter().map(|number| number.load(Relaxed));
        let mut next = || numbers.next().unwrap_or(0);
        let all = Messages {
            directions: DIRECTIONS.map(|name| (name, next(), next())),
            regimes: REGIMES.map(|name| (name, next(), next())),
            copied: MEANS.map(|name| (name, next())),
        };
        all.directions.iter().any(|(_, messages, _)| *messages > 0).then_some(all)
    }

    /// Moves the counts of another one here, and leaves zeros there. Nothing is lost or counted
    /// twice, even if threads go on counting there meanwhile.
    pub fn absorb(&self, from: &Self) {
        absorb_all(&self.0, &from.0);
    }
}
