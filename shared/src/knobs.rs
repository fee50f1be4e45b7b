//! Every knob in one table: name, default, the form of its values, what it does.
//!
//! The library reads the environment by it; the command `adma` checks options and knobs by it and
//! prints it as help.
#![forbid(unsafe_code)]

use core::fmt::{Display, Formatter, Result as Written};

/// glibc tuned by hand, which people can have instead: names of benchmarks, and values of GLIBC_TUNABLES. It
/// streams from 1 MiB up, takes huge pages for malloc, or both.
pub const TUNED_GLIBC: [(&str, &str); 3] = [
    ("threshold", "glibc.cpu.x86_non_temporal_threshold=0x100000"),
    ("hugetlb", "glibc.malloc.hugetlb=1"),
    ("tuned", "glibc.cpu.x86_non_temporal_threshold=0x100000:glibc.malloc.hugetlb=1"),
];

#[derive(Debug, PartialEq)]
pub struct Knob {
    pub name: &'static str,
    /// Default as a user would write it, which is what leaving the knob out means.
    pub default: &'static str,
    pub form: Form,
    /// Lines of at most 53 columns; empty: not for users.
    pub about: &'static [&'static str],
}

/// Syntax of a value.
#[derive(Debug, PartialEq)]
pub enum Form {
    Word(&'static [&'static str]),
    /// One word alone, or a comma list of the others.
    List(&'static str, &'static [&'static str]),
    /// `auto`, or bytes; 0 only where it says so.
    Size {
        zero: bool,
    },
    /// `auto`, or a number between these.
    AutoOr(usize, usize),
    Number(usize, usize),
    /// `auto`, or a part of 1.
    Share,
    Path,
    /// `auto`, `off` or an absolute path.
    Folder,
    /// Names of programs, without folders.
    Programs,
}

/// Parsed value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    Auto,
    Word(&'a str),
    /// One bit for each word of a list.
    Words(u64),
    Number(usize),
    Share(f32),
    Text(&'a str),
}

const SWITCH: Form = Form::Word(&["0", "1"]);
pub use crate::functions::OPS;
pub use crate::live::MOST_CHANNELS;
const LONGEST_PATH: usize = 2048;

/// Rows of the table: name without `ADMA_`, default, form, and lines of help.
macro_rules! knobs {
    ($($name:ident $default:literal $form:expr => $($about:literal)*;)*) => {
        pub const KNOBS: [Knob; [$($default),*].len()] = [$(Knob {
            name: concat!("ADMA_", stringify!($name)),
            default: $default,
            form: $form,
            about: &[$($about),*],
        }),*];
    };
}

knobs! {
    BACKEND "auto" Form::Word(&["auto", "dma", "ioat", "gpu", "threads", "libc"]) =>
        "I/OAT, DSA, else threads; or dma, gpu, threads, libc";
    GOAL "time" Form::Word(&["time", "cpu"]) => "or cpu: rather by engines that leave CPUs free";
    MIN_BYTES "auto" Form::Size { zero: false } => "auto, or a size: 65536, 64K, 1M";
    CHANNELS "auto" Form::AutoOr(1, MOST_CHANNELS) =>
        "how many channels one copy may use, 1 to 64; with 1"
        "on I/OAT copies take turns on the channels";
    CPU_SHARE "auto" Form::Share =>
        "part of a copy the caller does itself, 0 to 1; then"
        "it waits awake, unless ADMA_GOAL=cpu";
    STORES "auto" Form::Word(&["auto", "ordinary", "stream"]) =>
        "how pieces are written: ordinary, or stream, which"
        "leaves the cache alone";
    HUGE_PAGES "1" SWITCH => "0: ask for none where fresh memory is written whole";
    KEEP "auto" Form::Size { zero: true } => "what stays pinned for I/OAT or a GPU, as 64M";
    OPS "all" Form::List("all", &OPS) => "intercepted functions, e.g. memcpy,memmove";
    STATS "off" Form::List("off", &FORMATS) => "text, json (a comma list)";
    STATS_FILE "stderr" Form::Path => "path; %p process number, %e program";
    LIVE "auto" Form::Folder =>
        "where live statistics are kept: auto, off, or"
        "a folder, which turns them on";
    ONLY "*" Form::Programs => "only for programs of these names: python3*,redis*";
    NOT "none" Form::Programs => "not for programs of these names";
    PROFILE "0" SWITCH => "1: count every copy and suggest a threshold";
    VERIFY "0" Form::Number(0, u32::MAX as usize) => "n: compare every n-th carried copy";
    LOG "warn" Form::Word(&["error", "warn", "info", "debug"]) =>
        "error, warn, info, debug; to standard error";
    IPC_ENGINE "auto" Form::Word(&["auto", "helper", "shm"]) =>
        "messages between processes: helper or shm, where"
        "no process reaches the memory of another";
    IPC_EAGER "32" Form::Number(32, 128) =>
        "KiB up to which a message need not be read before"
        "its write returns";
    IPC_PTRACER "0" SWITCH => "1: let the other process in where Yama keeps it out";
    IPC_TIMEOUT "10" Form::Number(1, 86400) =>
        "seconds for greetings, and for last pieces at close";
    CHECK "0" SWITCH =>;
}

pub const FORMATS: [&str; 2] = ["text", "json"];

/// Returns the knob of this name.
pub fn knob(name: &[u8]) -> Option<&'static Knob> {
    KNOBS.iter().find(|knob| knob.name.as_bytes() == name)
}

impl Form {
    /// Parses a value. `None`: it is not valid.
    pub fn parse<'a>(&self, text: &'a str) -> Option<Value<'a>> {
        let number = |number: Option<usize>| number.map(Value::Number);
        match self {
            Form::Size { .. } | Form::AutoOr(..) | Form::Share if text == "auto" => {
                Some(Value::Auto)
            }
            Form::Word(words) => words.contains(&text).then_some(Value::Word(text)),
            Form::List(alone, _) if text == *alone => Some(Value::Word(text)),
            Form::List(_, words) => text
                .split(',')
                .try_fold(0, |bits, word| {
                    Some(bits | 1 << words.iter().position(|known| *known == word)?)
                })
                .map(Value::Words),
            Form::Size { zero: true } if text == "0" => number(Some(0)),
            Form::Size { .. } => number(size(text)),
            Form::AutoOr(least, most) | Form::Number(least, most) => {
                number(whole(text).filter(|number| (least..=most).contains(&number)))
            }
            Form::Share => share(text).map(Value::Share),
            Form::Path => {
                (!text.is_empty() && text.len() <= LONGEST_PATH).then_some(Value::Text(text))
            }
            Form::Folder if matches!(text, "auto" | "off") => Some(Value::Word(text)),
            Form::Folder => {
                (text.starts_with('/') && text.len() < LONGEST_PATH).then_some(Value::Text(text))
            }
            Form::Programs => is_list_of_programs(text).then_some(Value::Text(text)),
        }
    }
}

/// Describes the accepted values, for a message.
impl Display for Form {
    fn fmt(&self, out: &mut Formatter<'_>) -> Written {
        let list = |out: &mut Formatter<'_>, words: &[&str], last: &str| {
            for (at, word) in words.iter().enumerate() {
                let before = if at == 0 {
                    ""
                } else if at + 1 < words.len() {
                    ", "
                } else {
                    last
                };
                write!(out, "{before}{word}")?;
            }
            Ok(())
        };
        match self {
            Form::Word(words) => list(out, words, " or "),
            Form::List(alone, words) => {
                write!(out, "{alone}, or a comma list of ")?;
                list(out, words, ", ")
            }
            Form::Size { zero } => {
                let zero = if *zero { " 0," } else { "" };
                write!(out, "auto,{zero} or bytes with an optional K, M or G suffix")
            }
            Form::AutoOr(least, most) => write!(out, "auto, or a number from {least} to {most}"),
            Form::Number(least, most) => write!(out, "a number from {least} to {most}"),
            Form::Share => write!(out, "auto, or a number from 0 to 1"),
            Form::Path => write!(out, "stderr, or a path (%p: process number, %e: program)"),
            Form::Folder => write!(out, "auto, off, or the absolute path of a folder"),
            Form::Programs => {
                write!(out, "a comma list of program names, in which * and ? stand for others")
            }
        }
    }
}

/// Parses digits, then nothing or one of K, M, G in either case: no sign, no blank.
pub fn size(text: &str) -> Option<usize> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let bytes = whole(digits)?.checked_mul(1 << shift)?;
    (bytes > 0).then_some(bytes)
}

/// Parses digits only: `str::parse` would accept a plus sign.
fn whole(digits: &str) -> Option<usize> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn share(text: &str) -> Option<f32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f32 = plain.then(|| text.parse().ok())??;
    (0.0..=1.0).contains(&number).then_some(number)
}

/// Returns whether a value is a list of program names without folders.
pub fn is_list_of_programs(value: &str) -> bool {
    value.split(',').all(|pattern| !pattern.is_empty() && !pattern.contains('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_accepts_suffixes_and_nothing_else() {
        let good = [
            ("1", 1),
            ("65536", 65536),
            ("64K", 65536),
            ("64k", 65536),
            ("1M", 1 << 20),
            ("2G", 2 << 30),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "0", "K", "64KB", "-1", "+1", " 1", "1 ", "1.5M", "0x10", "١", "64Kk"] {
            assert_eq!(size(text), None, "{text}");
        }
        assert_eq!(size("99999999999999999999"), None);
        assert_eq!(size("18446744073709551615G"), None);
    }
}
