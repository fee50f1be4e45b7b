//! Messages and bytes, for the report at exit. Nothing is counted unless somebody wants one.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

static ON: AtomicBool = AtomicBool::new(false);

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

/// Messages, and bytes.
type Count = [AtomicU64; 2];

static BY_DIRECTION: [Count; DIRECTIONS.len()] = [const { [const { AtomicU64::new(0) }; 2] }; 2];
static BY_REGIME: [Count; REGIMES.len()] = [const { [const { AtomicU64::new(0) }; 2] }; 4];
static BY_MEANS: [AtomicU64; MEANS.len()] = [const { AtomicU64::new(0) }; 5];

/// From now on everything is counted.
pub fn begin() {
    ON.store(true, Relaxed);
}

pub fn is_on() -> bool {
    ON.load(Relaxed)
}

/// A message is over, with so many bytes.
#[inline]
pub fn note_message(direction: Direction, regime: Regime, bytes: usize) {
    if is_on() {
        for count in [&BY_DIRECTION[direction as usize], &BY_REGIME[regime as usize]] {
            count[0].fetch_add(1, Relaxed);
            count[1].fetch_add(bytes as u64, Relaxed);
        }
    }
}

/// This process has copied so many bytes.
#[inline]
pub fn note_copied(means: Means, bytes: usize) {
    if is_on() {
        BY_MEANS[means as usize].fetch_add(bytes as u64, Relaxed);
    }
}

/// What has become of all messages: names with messages and bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Messages {
    pub directions: [(&'static str, u64, u64); DIRECTIONS.len()],
    pub regimes: [(&'static str, u64, u64); REGIMES.len()],
    /// Bytes only.
    pub copied: [(&'static str, u64); MEANS.len()],
}

/// `None`: there were none.
pub fn messages() -> Option<Messages> {
    fn told<const N: usize>(
        names: [&'static str; N],
        counts: &[Count; N],
    ) -> [(&'static str, u64, u64); N] {
        core::array::from_fn(|index| {
            let [messages, bytes] = &counts[index];
            (names[index], messages.load(Relaxed), bytes.load(Relaxed))
        })
    }
    let all = Messages {
        directions: told(DIRECTIONS, &BY_DIRECTION),
        regimes: told(REGIMES, &BY_REGIME),
        copied: core::array::from_fn(|index| (MEANS[index], BY_MEANS[index].load(Relaxed))),
    };
    all.directions.iter().any(|(_, messages, _)| *messages > 0).then_some(all)
}

/// For the child of a fork: its report tells its own messages only.
pub fn clear() {
    if messages().is_none() {
        return; // touches no page that was never used
    }
    let counts = BY_DIRECTION.iter().chain(&BY_REGIME).flatten().chain(&BY_MEANS);
    counts.for_each(|count| count.store(0, Relaxed));
}
