//! One-copy messages between two processes of one user: `adma_read`, `adma_write` and their like.
//!
//! The way of one message, top to bottom; imports go down this list and never up:
//!
//! ```text
//! calls       the adma_* functions: handles and cookies checked
//! wait        posting and waiting, in stages; steps: taking the caller's own message a step further;
//!             serve: what the service thread does; workers: large messages that workers copy too
//! handles     the table of connections; the process that they belong to after a fork
//! link        one connection: posting, copying, waking; ends: the peer's, and ours
//! messages    one direction: posts and their matching; slots; eager; progress: pieces, chunks; cancel;
//!             layout: how messages are cut
//! setup       listening and connecting; accept: clients that greet; handshake: the greetings, step by
//!             step; talk: one of them, said or heard
//! copy        between two address spaces, for proven peers; across: by the kernel helper; proof: the
//!             secret that only a process reads that may trace us
//! memory      region: what both processes share, and its law; blocks: `adma_alloc`
//! wake        doorbell: between processes; events: for event loops; service: the thread that serves
//!             connections
//! os          system calls; memory and sockets; blocking: threads for calls that may block
//! claims      pieces of one message; tally: counts for reports; settings
//! ```
//!
//! The k-th write of one side meets the k-th read of the other. Eager messages go through the region,
//! and their writer does not wait. Large ones are copied once, by a side that waits, by both when both
//! wait, or by the channels of the kernel helper; between sides that are not proven they are streamed
//! through the region in chunks, which is two copies.
//!
//! # Trust
//!
//! | the other process | what it gets |
//! | --- | --- |
//! | another user | nothing: its socket is closed when it is accepted, by SO_PEERCRED, before a byte of it is read (`accept`); `adma_connect` says -EACCES |
//! | same user | eager and streamed messages through the region: no address, no block, no count is believed |
//! | same user, and each side has read the other's secret (`proof`) | copies by process_vm_readv and process_vm_writev, blocks, the kernel helper |
//! | proven, but ended or executing another program | nothing: every copy begins with a word of the page that was proven |
//! | proven, but one side is not dumpable any more, or has changed its user | the connection ends: -ECONNRESET for both |
//! | proven, but may not trace any more | no further copy and no further block: the kernel checks every call, and every block that is opened |
//!
//! A proven peer may trace this process and could do anything to it: that it may lie about counts or
//! have us read memory of its choice gives it nothing. Any other peer can do no more than send bytes
//! and close; the region's law (`region`) holds for it.
//!
//! # Blocking
//!
//! Before a proof nothing of a peer's is touched by a call that can block: the host of a handshake
//! takes no descriptor and reads no memory, and the guest does both so that only a helper thread can
//! be held up (`handshake`). After it a page of the peer's that never comes (userfaultfd, FUSE) holds
//! up calls without a time limit, and a helper thread otherwise (`os::blocking`).
//!
//! # Progress
//!
//! One thread is responsible for all connections (`wake::service`): it greets, moves messages that no
//! thread waits for, notices peers that end or lose their rights, and rings event descriptors. Threads
//! that wait copy their own messages.

pub mod calls;
pub mod claims;
mod copy;
mod handles;
mod link;
mod memory;
mod messages;
mod os;
mod settings;
mod setup;
pub mod tally;
#[cfg(test)]
mod tests;
mod wait;
mod wake;

#[cfg(not(any(test, loom)))]
pub use calls::{cancel, check, copied, is_message, wait_for};

#[cfg(not(test))]
pub use handles::forget_after_fork;
pub use settings::Engines;
#[cfg(not(test))]
pub use settings::{HelperEngine, Settings, Workers, configure};
#[cfg(not(any(test, loom)))]
pub use wake::service::{step_aside, step_back};

/// Size from which both sides copy.
const OFFLOAD: usize = 32 << 10;
