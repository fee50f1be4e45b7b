//! One-copy messages between two processes: `adma_read`, `adma_write` and their like.
//!
//! The way of one message, top to bottom; imports go down this list and never up:
//!
//! ```text
//! exports     the adma_* symbols; no logic
//! calls       handles and cookies checked, then the connection's work
//! wait        posting and waiting, in stages; watch: long sleeps, for all connections
//! table       handles; whose connections these are after a fork
//! link        one connection: posting, steps, helping, ending; kicks: who sleeps long;
//!             lend: buffers that the kernel helper knows, from post to end
//! half        one direction as one process sees it: posts and matching; in it carry: who
//!             copies what, short: small messages that are not remembered
//! wire        the beginning: sockets, greetings, what each side may do to the other
//! engine      bytes between two address spaces; across: by the kernel helper; views: where
//!             the other's memory is mapped here
//! region      what both processes see, and its law
//! bell        who sleeps and who wakes; ticket: who copies which piece
//! blocks      memory of ours that the other may map
//! tally       what a report tells of messages
//! lock, os    a lock that leaves errno alone; system calls
//! ```
//!
//! The k-th write of one side meets the k-th read of the other. Three kinds of messages:
//! eager ones go through the region and their writer does not wait (a cookie does, to learn
//! the count); large ones are copied once, by whoever waits, and by both ends when both wait,
//! or by the channels of the kernel helper for them; where neither process may touch the
//! other's memory they are streamed through the region in chunks.
//!
//! There is no helper thread. Waiting and checking make things go on, for every message of
//! the process; somebody who waits spins a little, sleeps on a futex for milliseconds, and
//! then polls sockets that also tell of the other's end.

#[cfg(not(loom))]
mod across;
#[cfg(not(loom))]
mod blocks;
#[cfg(not(loom))]
mod calls;
#[cfg(not(loom))]
mod engine;
#[cfg(not(any(test, loom)))]
mod exports;
#[cfg(not(loom))]
mod half;
#[cfg(not(loom))]
mod kicks;
#[cfg(not(loom))]
mod lend;
#[cfg(not(loom))]
mod link;
#[cfg(not(loom))]
mod lock;
#[cfg(not(loom))]
mod os;
#[cfg(not(loom))]
mod region;
#[cfg(not(loom))]
mod table;
#[cfg(not(loom))]
pub mod tally;
#[cfg(all(test, not(loom)))]
mod tests;
#[cfg(not(loom))]
mod views;
#[cfg(not(loom))]
mod wait;
#[cfg(not(loom))]
mod watch;
#[cfg(not(loom))]
mod wire;

pub mod bell;
pub mod ticket;

#[cfg(not(loom))]
pub use settings::Engines;
#[cfg(not(any(test, loom)))]
pub use settings::{Carrier, Helper, Settings, configure};
#[cfg(not(any(test, loom)))]
pub use table::forget_after_fork;

/// The largest `Settings::eager`: some such messages find room at a time.
#[cfg(not(loom))]
pub const MOST_EAGER: usize = region::EAGER_ROOM / 4;

/// What the configuration means for connections.
#[cfg(not(loom))]
mod settings {
    use crate::backend::ioat;
    use std::sync::OnceLock;

    /// The engine of the kernel helper, and how it is to copy.
    #[derive(Clone, Copy)]
    pub struct Helper {
        pub engine: &'static ioat::Engine,
        pub how: ioat::How,
    }

    /// Copies to, from, so many bytes; as memmove.
    pub type Carrier = unsafe fn(usize, usize, usize);

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Engines {
        Auto,
        Helper,
        ProcessVm,
        SharedMemory,
    }

    #[derive(Clone, Copy, Debug)]
    pub struct Settings {
        /// Longest message that goes through the region; 0: none does.
        pub eager: usize,
        /// From this size on both ends copy.
        pub offload: usize,
        pub engines: Engines,
        /// How long the other side may take for its greetings, and for letting go of buffers
        /// when a connection is closed; in nanoseconds.
        pub patience: u64,
        /// Brings the helper up, where there is one; not called where none is wanted.
        pub helper: fn() -> Option<Helper>,
        /// Finds out who carries large copies within our address space; `None`: nobody but the
        /// caller, whose other CPU is the other process's.
        pub carrier: fn() -> Option<Carrier>,
        /// Whether the other side may be let in where Yama keeps it out.
        pub ptracer: bool,
        /// Whether to say which engine a connection uses, and why.
        pub tell: bool,
    }

    impl Settings {
        pub const DEFAULT: Self = Self {
            eager: 4096,
            offload: 32 << 10,
            engines: Engines::Auto,
            patience: 10_000_000_000,
            helper: || None,
            carrier: || None,
            ptracer: false,
            tell: false,
        };
    }

    static SETTINGS: OnceLock<Settings> = OnceLock::new();

    pub fn configure(settings: Settings) {
        let _ = SETTINGS.set(settings); // an error only means: was already configured
    }

    pub fn settings() -> Settings {
        *SETTINGS.get_or_init(|| Settings::DEFAULT)
    }
}
