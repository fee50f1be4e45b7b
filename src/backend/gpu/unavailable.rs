//! Why there is no engine, in words.

use super::Engine;
use crate::os::text;
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

impl core::fmt::Display for Unavailable {
    fn fmt(&self, out: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match *self {
            Unavailable::Nothing => out.write_str("nobody knows"),
            Unavailable::NoDriver => out.write_str("no libcuda.so.1 that could be opened"),
            Unavailable::Driver(answer) => write!(out, "the driver says CUDA error {answer}"),
            Unavailable::Watch(errno) => {
                write!(
                    out,
                    "userfaultfd is not available: {} (errno {errno})",
                    text::meaning(errno)
                )
            }
            Unavailable::Thread(errno) => {
                write!(out, "no thread: {} (errno {errno})", text::meaning(errno))
            }
        }
    }
}

impl Unavailable {
    fn pack(self) -> (u32, i32) {
        match self {
            Unavailable::Nothing => (0, 0),
            Unavailable::NoDriver => (1, 0),
            Unavailable::Driver(answer) => (2, answer),
            Unavailable::Watch(errno) => (3, errno),
            Unavailable::Thread(errno) => (4, errno),
        }
    }
}

impl Engine {
    pub fn why_not(&self) -> Unavailable {
        let number = self.why_number.load(Relaxed);
        match self.why.load(Relaxed) {
            0 => Unavailable::Nothing,
            1 => Unavailable::NoDriver,
            2 => Unavailable::Driver(number),
            3 => Unavailable::Watch(number),
            _ => Unavailable::Thread(number),
        }
    }

    pub(super) fn note_why(&self, why: Unavailable) {
        let (kind, number) = why.pack();
        self.why_number.store(number, Relaxed);
        self.why.store(kind, Relaxed);
    }
}
