//! Worker threads as copy channels, where there is no hardware for it, and beside that hardware.

pub mod cookies;
#[cfg(not(loom))]
mod kernel_work;
#[cfg(not(loom))]
pub mod parallel;
#[cfg(not(loom))]
pub mod piece;
pub mod queue;
#[cfg(not(loom))]
pub mod reads;
#[cfg(not(loom))]
pub mod refusal;
#[cfg(not(loom))]
pub mod remote;
#[cfg(not(loom))]
pub mod segments;
#[cfg(not(loom))]
mod share;
#[cfg(not(loom))]
pub mod streams;
#[cfg(not(loom))]
mod table_threads;
#[cfg(not(loom))]
pub mod task;
#[cfg(not(loom))]
pub mod watch;
#[cfg(not(loom))]
pub mod worker;
#[cfg(not(loom))]
pub mod workers;

#[cfg(not(loom))]
pub use share::*;

/// For the child of a fork: there are no workers, and nothing has been copied yet.
#[cfg(not(loom))]
pub fn forget_after_fork() {
    workers::forget_after_fork();
    remote::forget_after_fork();
    share::forget_counts();
}
