//! State of an asynchronous request of an engine.

use crate::os::sync::{AtomicU32, AtomicU64, AtomicUsize};
#[cfg(not(loom))]
use zerocopy::FromZeros;

/// One request. The meaning of its words differs by engine.
#[cfg_attr(loom, derive(Default))]
#[cfg_attr(not(loom), derive(FromZeros))]
pub struct Request {
    /// Address of the engine's `Handle`.
    pub engine: AtomicUsize,
    pub id: AtomicU64,
    /// Slot << 32 | channels of the words. All ones: there are no words.
    pub words: AtomicU64,
    /// Failed pieces; valid once `over` is the number of the request.
    pub failed: AtomicU64,
    pub over: AtomicU64,
    /// Held by the thread that asks the kernel, which reports failures only once; released by that
    /// thread only, even if the entry has got another request meanwhile. Holds the process id, so
    /// that the child of a fork ignores what a thread of the parent holds.
    pub asking: AtomicU32,
    /// Cut of the request, bytes taken, and time of submission.
    pub head: AtomicUsize,
    pub piece: AtomicUsize,
    pub taken: AtomicUsize,
    pub since: AtomicU64,
}
