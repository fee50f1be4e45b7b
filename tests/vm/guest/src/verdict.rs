//! Results of a test that does not pass, and short ways to return them.

use crate::device::Errno;
use std::fmt;
use std::io;

#[derive(Clone, Debug)]
pub enum End {
    Failed(String),
    /// The machine cannot run it, and why.
    Skipped(String),
}

pub type Outcome<T = ()> = Result<T, End>;

impl fmt::Display for End {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::Failed(reason) => write!(out, "{reason}"),
            End::Skipped(reason) => write!(out, "cannot be shown here: {reason}"),
        }
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> End {
        End::Failed(error.to_string())
    }
}

impl From<String> for End {
    fn from(reason: String) -> End {
        End::Failed(reason)
    }
}

impl From<Errno> for End {
    fn from(errno: Errno) -> End {
        End::Failed(format!("{errno:?}"))
    }
}

/// Prefixes the reason of a failure with its place.
pub trait Context<T> {
    fn context(self, place: impl fmt::Display) -> Outcome<T>;
}

impl<T, E: Into<End>> Context<T> for Result<T, E> {
    fn context(self, place: impl fmt::Display) -> Outcome<T> {
        self.map_err(|end| match end.into() {
            End::Failed(reason) => End::Failed(format!("{place}: {reason}")),
            skipped => skipped,
        })
    }
}

/// Prints the reason to standard error and returns the exit status.
pub fn tell(outcome: Outcome) -> i32 {
    match outcome {
        Ok(()) => 0,
        Err(end) => {
            eprintln!("{end}");
            end.into()
        }
    }
}

macro_rules! fail {
    ($($words:tt)+) => { return Err($crate::verdict::End::Failed(format!($($words)+))) };
}

macro_rules! skip {
    ($($words:tt)+) => { return Err($crate::verdict::End::Skipped(format!($($words)+))) };
}

macro_rules! ensure {
    ($condition:expr, $($words:tt)+) => {
        if !$condition {
            fail!($($words)+);
        }
    };
}

/// Checks equality; the found value comes first.
macro_rules! ensure_eq {
    ($found:expr, $wanted:expr, $($words:tt)+) => {{
        let (found, wanted) = (&$found, &$wanted);
        if found != wanted {
            fail!("{}: found {found:?}, want {wanted:?}", format_args!($($words)+));
        }
    }};
}
