//! Messages and bytes, for reports. Nothing is counted unless somebody wants one. Where the counts
//! are, in a live file or in private memory, is the business of `stats`.

pub use super::counts::{Means, MessageCounts, Regime};

use crate::os::once::Once;

/// Where this process counts now. True: a message is over, and the first one may make a live file.
type Counts = fn(bool) -> &'static MessageCounts;

static COUNTS: Once<Counts> = Once::new();

/// From now on everything is counted.
pub fn begin(counts: Counts) {
    COUNTS.set(counts);
}

pub fn is_on() -> bool {
    COUNTS.get().is_some()
}

/// A message is over, with so many bytes.
#[inline]
pub fn note_message(received: bool, regime: Regime, bytes: usize) {
    if let Some(counts) = COUNTS.get() {
        counts(true).note_message(received, regime, bytes);
    }
}

/// This process has copied so many bytes.
#[inline]
pub fn note_copied(means: Means, bytes: usize) {
    if let Some(counts) = COUNTS.get() {
        counts(false).note_copied(means, bytes);
    }
}
