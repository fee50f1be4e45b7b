//! The environment, read once, at start-up. A bad value costs one line on standard error; the
//! program always runs.

use super::{Config, Level};
use crate::os::text::say;
use adma_shared::knobs;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::ffi::{CStr, c_char};

/// Reads the environment. In a program with raised privileges (AT_SECURE) the environment is
/// another user's: everything stays at its default.
pub fn from_environment() -> Config {
    let mut config = Config::default();
    // SAFETY: reads a value the kernel has given the process.
    if unsafe { libc::getauxval(libc::AT_SECURE) } != 0 {
        return config;
    }
    let mut complaints = Vec::new();
    for variable in environment() {
        complaints.extend(apply(&mut config, variable));
        if let Some(path) = variable.strip_prefix(RUNTIME_DIR) {
            config.runtime_dir = path.starts_with(b"/").then(|| path.to_vec());
        }
    }
    if config.log >= Level::Warn {
        complaints.iter().for_each(|complaint| say(format_args!("{complaint}")));
    }
    config
}

/// Variables that hold the number of ranks on this machine: Open MPI's, and MPICH's and Intel's.
const RANKS: [&[u8]; 2] = [b"OMPI_COMM_WORLD_LOCAL_SIZE", b"MPI_LOCALNRANKS"];

/// Applies one `NAME=value` of the environment; returns what is wrong with it.
fn apply(config: &mut Config, variable: &[u8]) -> Option<String> {
    let at = variable.iter().position(|&byte| byte == b'=').unwrap_or(variable.len());
    let (name, value) = (variable.get(..at)?, variable.get(at + 1..).unwrap_or(b""));
    if RANKS.contains(&name) {
        let ranks = core::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
        config.ranks = ranks.unwrap_or(1).max(1);
    }
    if !name.starts_with(b"ADMA_") {
        return None;
    }
    let show = |bytes| String::from_utf8_lossy(bytes).escape_debug().to_string();
    let Some(knob) = knobs::knob(name) else {
        return Some(format!("{}: no such knob, ignored; adma --knobs lists them", show(name)));
    };
    let parsed = core::str::from_utf8(value).ok().and_then(|value| knob.form.parse(value));
    let Some(parsed) = parsed else {
        let (name, given) = (knob.name, show(value));
        return Some(format!("{name}={given}: want {}; using {}", knob.form, knob.default));
    };
    config.set(knob.name, parsed);
    None
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// Prefixes of the variables that we read.
const BEGINNINGS: [&[u8]; 5] = [b"ADMA_", RUNTIME_DIR, RANKS[0], RANKS[1], b"LD_PRELOAD="];
const RUNTIME_DIR: &[u8] = b"XDG_RUNTIME_DIR=";

/// Iterates over the variables that may be for us: every program pays for this at its start. Only
/// for start-up.
pub fn environment() -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: at start-up no other thread changes the environment; it is a null-terminated
    // list of terminated strings, or null after clearenv.
    let mut at = unsafe { environ };
    // SAFETY: `at` is `environ`, or an entry of it that `next_variable` has reached.
    core::iter::from_fn(move || unsafe { next_variable(&mut at) })
}

/// # Safety
/// In a list as `environ` is, not behind its end; or null.
#[unsafe(link_section = ".text.start")] // see `intercept::entry`
unsafe fn next_variable(at: &mut *const *const c_char) -> Option<&'static [u8]> {
    // SAFETY: `at` is null or an entry of a list that ends with null; its strings are terminated.
    unsafe {
        loop {
            let variable = *at.as_ref().filter(|variable| !variable.is_null())?;
            *at = at.add(1);
            if BEGINNINGS.iter().any(|beginning| begins(variable, beginning)) {
                return Some(CStr::from_ptr(variable).to_bytes());
            }
        }
    }
}

/// Returns whether a string has this beginning.
///
/// # Safety
/// A terminated string; a beginning without zeros.
unsafe fn begins(string: *const c_char, beginning: &[u8]) -> bool {
    // SAFETY: nothing behind the first difference is read, and the end of the string is one.
    beginning.iter().enumerate().all(|(i, &byte)| unsafe { string.add(i).read() } as u8 == byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_come_from_the_launcher() {
        for (variable, ranks) in [
            (&b"OMPI_COMM_WORLD_LOCAL_SIZE=16"[..], 16),
            (b"MPI_LOCALNRANKS=4", 4),
            (b"MPI_LOCALNRANKS=0", 1),
            (b"MPI_LOCALNRANKS=many", 1),
            (b"MPI_LOCALNRANKS", 1),
            (b"MPI_LOCALNRANKSX=4", 1),
        ] {
            let mut config = Config::default();
            assert!(apply(&mut config, variable).is_none());
            assert_eq!(config.ranks, ranks, "{variable:?}");
        }
    }
}
