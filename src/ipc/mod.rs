//! One-copy messages between two processes of one user: `adma_read`, `adma_write` and their like.
//!
//! The way of one message, top to bottom; imports go down this list and never up:
//!
//! ```text
//! calls       the adma_* functions: handles and cookies checked
//! wait        posting and waiting, in stages; watch: long sleeps; steps: taking messages a step
//!             further, the caller's own and those in the background
//! shared      large messages that workers copy too, and calls that are left to a helper thread
//! table       handles; the process that connections belong to after a fork
//! link        one connection: posting, copying, waking; ends: the peer's, and ours
//! endpoint    one direction: posts and their matching; progress: pieces and chunks; cancel; layout
//! accept      clients that greet; connect: listening and connecting
//! handshake   the greetings, which lead to proof or to streaming
//! events      what event loops poll; background: sockets that may need any thread of the process
//! engine      copies between two address spaces, for proven peers; across: by the kernel helper;
//!             mappings: the peer's blocks, mapped here; blocks: ours
//! proof       the secret that only a process reads that may trace us
//! region      the memory that both processes share, and its law
//! doorbell    sleeping and waking; claims: pieces of one message
//! kicks       waking threads of this process from long sleeps
//! tally       counts for reports; counts: how they lie in live files
//! blocking    helper threads for calls that may block without limit
//! os          system calls; memory and sockets
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
//! | proven, but cannot prove it again (`engine::Proven::is_fresh`) | no further block |
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
//! up calls without a time limit, and a helper thread otherwise (`blocking`).
//!
//! # Progress
//!
//! No thread serves connections: waiting, checking and arming make all of them go on (`steps`).

mod accept;
mod across;
mod background;
mod blocking;
mod blocks;
pub mod calls;
pub mod claims;
mod connect;
pub mod counts;
pub mod doorbell;
mod endpoint;
mod engine;
mod events;
mod handshake;
mod kicks;
mod link;
mod os;
mod proof;
mod region;
mod shared;
mod steps;
mod table;
pub mod tally;
#[cfg(test)]
mod tests;
mod wait;
mod watch;

#[cfg(not(any(test, loom)))]
pub use calls::{cancel, check, copied, is_message, wait_for};

use crate::os::lock;
pub use settings::Engines;
#[cfg(not(test))]
pub use settings::{HelperEngine, Settings, Workers, configure};
#[cfg(not(test))]
pub use table::forget_after_fork;

/// Largest eager message: several find room at a time.
const MOST_EAGER: usize = region::EAGER_ROOM / 8;

/// Size from which both sides copy.
const OFFLOAD: usize = 32 << 10;

/// Configuration of connections.
mod settings {
    use crate::backend::ioat;
    use crate::os::once::Once;

    /// The engine of the kernel helper, and how it is to copy.
    #[derive(Clone, Copy)]
    pub struct HelperEngine {
        pub engine: &'static ioat::Engine,
        pub how: ioat::Options,
    }

    /// The worker threads of this process.
    #[derive(Clone, Copy, Debug)]
    pub struct Workers {
        /// CPUs for both processes of a message; more than one.
        pub cpus: usize,
        /// Copies (to, from, length) within our address space, with their help.
        pub copy: unsafe fn(usize, usize, usize),
        /// Returns how many can be had now.
        pub count: fn() -> usize,
        /// Notes that there was no CPU for them.
        pub crowded: fn(),
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Engines {
        Auto,
        Helper,
        SharedMemory,
    }

    #[derive(Clone, Copy, Debug)]
    pub struct Settings {
        pub engines: Engines,
        /// Limit for the peer's greetings, and for its last pieces when a connection is closed; in
        /// nanoseconds.
        pub patience: u64,
        /// Brings the helper up, where there is one; not called where none is wanted.
        pub helper: fn() -> Option<HelperEngine>,
        /// Returns the workers for large messages; `None`: there is one CPU. Starts nothing.
        pub workers: fn() -> Option<Workers>,
        /// Let a peer trace us where Yama keeps it out.
        pub ptracer: bool,
        /// Say which engine a connection uses, and why.
        pub tell: bool,
    }

    impl Settings {
        pub const DEFAULT: Self = Self {
            engines: Engines::Auto,
            patience: 10_000_000_000,
            helper: || None,
            workers: || None,
            ptracer: false,
            tell: false,
        };
    }

    #[unsafe(link_section = ".data")] // a page that start-up touches anyhow
    static SETTINGS: Once<Settings> = Once::new();

    pub fn configure(settings: Settings) {
        SETTINGS.set(settings);
    }

    pub fn settings() -> Settings {
        SETTINGS.get().copied().unwrap_or(Settings::DEFAULT)
    }
}
