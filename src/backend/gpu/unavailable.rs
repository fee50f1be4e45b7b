//! Why there is no engine, in words.

use super::Engine;
use crate::os::text;
use core::fmt::{Display, Formatter, Result};
use core::sync::atomic::Ordering::Relaxed;

/// Why there is no engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unavailable {
    Nothing,
    /// No libcuda.so.1, or too old a one.
    NoDriver,
    /// The driver's number of what went wrong.
    Driver(i32),
    /// userfaultfd is not available: an errno.
    Watch(i32),
    /// The thread could not be made: an errno.
    Thread(i32),
}

impl Display for Unavailable {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        let (what, errno) = match *self {
            Unavailable::Nothing => return out.write_str("nobody knows"),
            Unavailable::NoDriver => return out.write_str("no libcuda.so.1 that could be opened"),
            Unavailable::Driver(code) => return write!(out, "the driver says CUDA error {code}"),
            Unavailable::Watch(errno) => ("userfaultfd is not available", errno),
            Unavailable::Thread(errno) => ("no thread", errno),
        };
        write!(out, "{what}: {} (errno {errno})", text::meaning(errno))
    }
}

impl Engine {
    pub fn why_not(&self) -> Unavailable {
        let why = self.why.load(Relaxed);
        let number = why as i32;
        match why >> 32 {
            0 => Unavailable::Nothing,
            1 => Unavailable::NoDriver,
            2 => Unavailable::Driver(number),
            3 => Unavailable::Watch(number),
            _ => Unavailable::Thread(number),
        }
    }

    pub(super) fn note_why(&self, why: Unavailable) {
        let (kind, number) = match why {
            Unavailable::Nothing => (0, 0),
            Unavailable::NoDriver => (1, 0),
            Unavailable::Driver(code) => (2, code),
            Unavailable::Watch(errno) => (3, errno),
            Unavailable::Thread(errno) => (4, errno),
        };
        self.why.store(kind << 32 | u64::from(number as u32), Relaxed);
    }
}
