//! The ways to carry a copy. A backend receives values, never the configuration, and
//! answers with a value: carried, or why not. After a refusal nothing is under way and all
//! of the copy is left to do.

#[cfg(not(loom))]
pub mod abi;
pub mod board;
#[cfg(not(loom))]
pub mod crew;
#[cfg(all(test, not(loom)))]
pub mod fake;
#[cfg(not(loom))]
pub mod helper;
#[cfg(not(loom))]
pub mod ioat;
#[cfg(not(loom))]
pub mod kernel;
#[cfg(not(loom))]
pub mod later;
#[cfg(not(loom))]
pub mod libc;
#[cfg(not(loom))]
pub mod manner;
pub mod pending;
#[cfg(not(loom))]
pub mod piece;
#[cfg(not(loom))]
mod refusal;
#[cfg(not(loom))]
pub mod remote;
#[cfg(not(loom))]
pub mod signals;
#[cfg(not(loom))]
pub mod threads;
#[cfg(not(loom))]
mod tuning;

/// Why a backend did not carry a copy. The copy is libc's then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// More copies are under way than help could be had for.
    Busy,
    /// The system refused what the backend needs; it is asked again after a while, if at all.
    System,
    /// We run in a child that shares the memory of its parent, whose engine this is.
    NotOurs,
    /// Every channel has failed and was put aside.
    NoChannels,
}
