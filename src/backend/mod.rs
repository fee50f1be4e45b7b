//! The ways to carry a copy. A backend receives values, never the configuration, and returns
//! "carried" or the reason of a refusal. After a refusal nothing is in flight and the whole copy is
//! left to do.

pub mod alone;
pub mod asynchronous;
pub mod card;
pub mod copy_loop;
pub mod engine;
pub mod kernel_calls;
pub mod libc;
pub mod mode;
pub mod piece_end;
pub mod signals;
pub mod threads;

macro_rules! engines {
    ($($folder:ident::$engine:ident),* $(,)?) => {
        $(pub mod $folder;)*

        /// The engines that copy by themselves, in the order in which they are tried.
        pub static ENGINES: &[&dyn engine::CopyEngine] = &[$(&$folder::$engine),*];
    };
}

engines! { ioat::IOAT, gpu::GPU }

use crate::os::{process, sys::NoNewFilter};

/// Reasons why a backend did not carry a copy, which then goes to libc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// More copies are in flight than there is help for.
    Busy,
    /// The system refused what the backend needs; it is asked again after a while, if at all.
    System,
    /// This is a child that shares the memory of its parent, whose engine this is.
    NotOurs,
    /// Every channel has failed and is in quarantine.
    NoChannels,
}

/// Returns whether an engine may be started, or workers made: this is not a vfork child, and the
/// program has not installed a seccomp filter since it started.
pub fn may_start() -> Result<NoNewFilter, Refused> {
    if !process::is_ours() {
        return Err(Refused::NotOurs);
    }
    NoNewFilter::look().ok_or(Refused::System)
}
