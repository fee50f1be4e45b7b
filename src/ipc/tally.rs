//! Counts of messages and bytes for reports, where one is wanted. `stats` decides where the counts
//! lie: in a live file or in private memory.

pub use adma_shared::messages::{Means, MessageCounts, Regime};

use crate::os::once::Once;

/// Returns the counters in use. True: a message is over, and the first one may make a live file.
type Counts = fn(bool) -> &'static MessageCounts;

static COUNTS: Once<Counts> = Once::new();

/// Begins to count.
pub fn begin(counts: Counts) {
    COUNTS.set(counts);
}

pub fn is_on() -> bool {
    COUNTS.get().is_some()
}

/// Counts a message that is over.
#[inline]
pub fn note_message(received: bool, regime: Regime, bytes: usize) {
    if let Some(counts) = COUNTS.get() {
        counts(true).note_message(received, regime, bytes);
    }
}

/// Counts bytes that this process has copied.
#[inline]
pub fn note_copied(means: Means, bytes: usize) {
    if let Some(counts) = COUNTS.get() {
        counts(false).note_copied(means, bytes);
    }
}
