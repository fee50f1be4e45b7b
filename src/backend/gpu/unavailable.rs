//! Reasons why there is no engine, as text.

use crate::os::text;
use core::fmt::{Display, Formatter, Result};

/// Reason why there is no engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    Nothing,
    /// No libcuda.so.1, or too old a one.
    NoDriver,
    /// Error code of the driver.
    Driver(i32),
    /// userfaultfd is not available: an errno.
    Watch(i32),
    /// The thread could not be made: an errno.
    Thread(i32),
}

impl Display for Unavailable {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        let (what, errno) = match *self {
            Unavailable::Nothing => return out.write_str("reason not known"),
            Unavailable::NoDriver => return out.write_str("no libcuda.so.1 that could be opened"),
            Unavailable::Driver(code) => return write!(out, "the driver says CUDA error {code}"),
            Unavailable::Watch(errno) => ("userfaultfd is not available", errno),
            Unavailable::Thread(errno) => ("no thread", errno),
        };
        write!(out, "{what}: {} (errno {errno})", text::meaning(errno))
    }
}
