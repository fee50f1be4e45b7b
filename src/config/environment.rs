//! The environment, read once, at start-up. A bad value costs one line on standard error; the
//! program always runs.

use super::{Config, Level};
use crate::os::text::say;
use adma_record::knobs::{self, Knob};
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
        complaints.iter().for_each(Complaint::say);
    }
    config
}

/// How launchers tell a rank how many it has beside itself: Open MPI's, and MPICH's and Intel's.
const RANKS: [&[u8]; 2] = [b"OMPI_COMM_WORLD_LOCAL_SIZE", b"MPI_LOCALNRANKS"];

/// Takes one `NAME=value` of the environment into account.
fn apply<'a>(config: &mut Config, variable: &'a [u8]) -> Option<Complaint<'a>> {
    let at = variable.iter().position(|&byte| byte == b'=').unwrap_or(variable.len());
    let (name, value) = (&variable[..at], variable.get(at + 1..).unwrap_or(b""));
    if RANKS.contains(&name) {
        let ranks = core::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
        config.ranks = ranks.unwrap_or(1).max(1);
    }
    if !name.starts_with(b"ADMA_") {
        return None;
    }
    let Some(knob) = knobs::knob(name) else { return Some(Complaint::Unknown(name)) };
    match core::str::from_utf8(value).ok().and_then(|value| knob.form.parse(value)) {
        Some(value) => config.set(knob.name, value),
        None => return Some(Complaint::BadValue(knob, value)),
    }
    None
}

/// What is wrong with one ADMA_ variable.
#[derive(Debug, PartialEq)]
enum Complaint<'a> {
    BadValue(&'a Knob, &'a [u8]),
    Unknown(&'a [u8]),
}

impl Complaint<'_> {
    fn say(&self) {
        let show = |bytes| String::from_utf8_lossy(bytes).escape_debug().to_string();
        match self {
            Complaint::BadValue(knob, given) => say(format_args!(
                "{}={}: want {}; using {}",
                knob.name,
                show(given),
                knob.form,
                knob.default
            )),
            Complaint::Unknown(name) => {
                say(format_args!("{}: no such knob, ignored; adma --knobs lists them", show(name)))
            }
        }
    }
}

unsafe extern "C" {
    static environ: *const *const c_char;
}

/// How variables begin that are for us.
const BEGINNINGS: [&[u8]; 4] = [b"ADMA_", RUNTIME_DIR, RANKS[0], RANKS[1]];
const RUNTIME_DIR: &[u8] = b"XDG_RUNTIME_DIR=";

/// Iterates over the variables that may be for us: every program pays for what is done with each of
/// its own. Only for start-up.
pub fn environment() -> impl Iterator<Item = &'static [u8]> {
    // SAFETY: at start-up no other thread changes the environment; it is a null-terminated
    // list of terminated strings, or null after clearenv.
    let mut at = unsafe { environ };
    // SAFETY: as above.
    core::iter::from_fn(move || unsafe { next_variable(&mut at) })
}

/// # Safety
/// In a list as `environ` is, not behind its end; or null.
#[unsafe(link_section = ".text.start")] // see `intercept::entry`
unsafe fn next_variable(at: &mut *const *const c_char) -> Option<&'static [u8]> {
    // SAFETY: the caller's promise.
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

/// Whether a string has this beginning.
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
    use adma_record::knobs::KNOBS;

    #[test]
    fn ranks_are_told_by_the_launcher() {
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

    #[test]
    fn bad_value_names_the_knob_and_changes_nothing() {
        let untouched = format!("{:?}", Config::default());
        // For these any text is a name.
        let names = ["ADMA_STATS_FILE", "ADMA_ONLY", "ADMA_NOT"];
        for knob in KNOBS.iter().filter(|knob| !names.contains(&knob.name)) {
            for value in ["", "nonsense", "64KB", "-1", ",", "text,,json", "\u{7f}"] {
                let variable = format!("{}={value}", knob.name);
                let mut config = Config::default();
                let complaint = apply(&mut config, variable.as_bytes());
                assert_eq!(complaint, Some(Complaint::BadValue(knob, value.as_bytes())));
                assert_eq!(format!("{config:?}"), untouched, "{variable}");
            }
        }
    }

    #[test]
    fn unknown_names_are_reported_and_others_passed_over() {
        let complaint = |text: &'static [u8]| apply(&mut Config::default(), text);
        assert_eq!(complaint(b"ADMA_MINBYTES=1"), Some(Complaint::Unknown(b"ADMA_MINBYTES")));
        assert_eq!(complaint(b"ADMA_"), Some(Complaint::Unknown(b"ADMA_")));
        assert_eq!((complaint(b"PATH=/bin"), complaint(b"")), (None, None));
        assert!(complaint(b"ADMA_LOG=\xff").is_some());
    }

    #[test]
    fn any_bytes_are_taken_without_panic() {
        // A small fuzz: every knob with random bytes. Seeded, so a failure repeats.
        let mut state = 1u64;
        for round in 0..20_000 {
            let knob = &KNOBS[round % KNOBS.len()];
            let mut variable = format!("{}=", knob.name).into_bytes();
            for _ in 0..round % 9 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                variable.push((state >> 56) as u8);
            }
            apply(&mut Config::default(), &variable);
        }
    }
}
