//! Worker threads as copy channels, where there is no hardware for it, and beside that hardware.

pub mod cookies;
#[cfg(not(loom))]
pub mod parallel;
#[cfg(not(loom))]
pub mod piece;
pub mod queue;
#[cfg(not(loom))]
pub mod refusal;
#[cfg(not(loom))]
pub mod remote;
#[cfg(not(loom))]
mod share;
#[cfg(not(loom))]
pub mod task;
#[cfg(not(loom))]
pub mod worker;
#[cfg(not(loom))]
pub mod workers;

#[cfg(not(loom))]
pub use share::*;
