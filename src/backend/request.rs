//! What an engine has noted about a request that goes on while its caller does something else.

use crate::os::sync::{AtomicU32, AtomicU64, AtomicUsize};

/// One request. What the words mean is each engine's own business.
#[cfg_attr(loom, derive(Default))]
pub struct Request {
    /// The address of the backend.
    pub engine: AtomicUsize,
    pub id: AtomicU64,
    /// Of the words: slot << 32 | channels. All ones: the words tell nothing.
    pub words: AtomicU64,
    /// Which pieces have failed; known once `over` is the number of the request.
    pub failed: AtomicU64,
    pub over: AtomicU64,
    /// Taken by whoever asks the kernel, which tells of failures only once. Given back by nobody
    /// else, also when the entry has got another request meanwhile. The number of the process: what
    /// a thread of the parent has taken does not count in the child of a fork.
    pub asking: AtomicU32,
    /// How it was cut, how many bytes were taken, and when.
    pub head: AtomicUsize,
    pub piece: AtomicUsize,
    pub taken: AtomicUsize,
    pub since: AtomicU64,
}
