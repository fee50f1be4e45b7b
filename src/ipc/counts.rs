//! MessageCounts of messages between processes, as they lie in live files.
//!
//! Pure; the command `adma` compiles this file too.
#![forbid(unsafe_code)]
#![allow(dead_code)] // library and command each use a part of it

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

#[derive(Clone, Copy)]
pub enum Direction {
    Sent,
    Received,
}

/// How a message has travelled.
#[derive(Clone, Copy)]
pub enum Regime {
    Eager,
    /// By one of the two processes.
    OneCopy,
    /// By both.
    TwoEnded,
    /// Through the region, in chunks.
    Chunks,
}

/// With what this process has copied.
#[derive(Clone, Copy)]
pub enum Means {
    Helper,
    /// Ordinary instructions, between blocks.
    Mapped,
    ProcessVm,
    /// The same by worker threads.
    Workers,
    SharedMemory,
}

const DIRECTIONS: [&str; 2] = ["sent", "received"];
const REGIMES: [&str; 4] = ["eager", "one_copy", "two_ended", "chunks"];
const MEANS: [&str; 5] = ["helper", "mapped", "process_vm", "process_vm_workers", "shared_memory"];

#[repr(C)]
struct Count {
    messages: AtomicU64,
    bytes: AtomicU64,
}

#[repr(C)]
pub struct MessageCounts {
    by_direction: [Count; DIRECTIONS.len()],
    by_regime: [Count; REGIMES.len()],
    by_means: [AtomicU64; MEANS.len()],
}

/// What has become of all messages: names with messages and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    pub directions: [(&'static str, u64, u64); DIRECTIONS.len()],
    pub regimes: [(&'static str, u64, u64); REGIMES.len()],
    /// Bytes only.
    pub copied: [(&'static str, u64); MEANS.len()],
}

impl Messages {
    /// Messages of both directions, and their bytes.
    pub fn total(&self) -> (u64, u64) {
        self.directions.iter().fold((0, 0), |(messages, bytes), told| {
            (told.1.saturating_add(messages), told.2.saturating_add(bytes))
        })
    }
}

impl Count {
    const fn new() -> Self {
        Self { messages: AtomicU64::new(0), bytes: AtomicU64::new(0) }
    }

    fn note(&self, bytes: usize) {
        self.messages.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes as u64, Relaxed);
    }
}

impl MessageCounts {
    pub const fn new() -> Self {
        Self {
            by_direction: [const { Count::new() }; DIRECTIONS.len()],
            by_regime: [const { Count::new() }; REGIMES.len()],
            by_means: [const { AtomicU64::new(0) }; MEANS.len()],
        }
    }

    /// A message is over, with so many bytes.
    #[inline]
    pub fn note_message(&self, direction: Direction, regime: Regime, bytes: usize) {
        self.by_direction[direction as usize].note(bytes);
        self.by_regime[regime as usize].note(bytes);
    }

    /// This process has copied so many bytes.
    #[inline]
    pub fn note_copied(&self, means: Means, bytes: usize) {
        self.by_means[means as usize].fetch_add(bytes as u64, Relaxed);
    }

    /// `None`: there were no messages.
    pub fn told(&self) -> Option<Messages> {
        fn named<const N: usize>(
            names: [&'static str; N],
            counts: &[Count; N],
        ) -> [(&'static str, u64, u64); N] {
            core::array::from_fn(|index| {
                let Count { messages, bytes } = &counts[index];
                (names[index], messages.load(Relaxed), bytes.load(Relaxed))
            })
        }
        let all = Messages {
            directions: named(DIRECTIONS, &self.by_direction),
            regimes: named(REGIMES, &self.by_regime),
            copied: core::array::from_fn(|at| (MEANS[at], self.by_means[at].load(Relaxed))),
        };
        all.directions.iter().any(|(_, messages, _)| *messages > 0).then_some(all)
    }

    /// Takes over what was counted elsewhere, and leaves zeros there. Nothing is lost or counted
    /// twice, whoever goes on counting there meanwhile.
    pub fn absorb(&self, from: &Self) {
        for (to, from) in self.all().zip(from.all()) {
            if from.load(Relaxed) != 0 {
                to.fetch_add(from.swap(0, Relaxed), Relaxed);
            }
        }
    }

    /// Touches no page that was never used.
    pub fn clear(&self) {
        for count in self.all().filter(|count| count.load(Relaxed) != 0) {
            count.store(0, Relaxed);
        }
    }

    fn all(&self) -> impl Iterator<Item = &AtomicU64> {
        let pairs = self.by_direction.iter().chain(&self.by_regime);
        pairs.flat_map(|Count { messages, bytes }| [messages, bytes]).chain(&self.by_means)
    }
}
