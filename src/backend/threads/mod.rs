//! Worker threads as copy channels, where there is no hardware for it, and beside that hardware.

pub mod cookies;
pub mod parallel;
pub mod piece;
pub mod queue;
pub mod refusal;
mod share;
pub mod task;
pub mod watch;
pub mod worker;
pub mod workers;

pub use share::*;

/// Resets the engine in the child of a fork: there are no workers, and nothing has been copied yet.
pub fn forget_after_fork() {
    workers::forget_after_fork();
    share::forget_counts();
}
