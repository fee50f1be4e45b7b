//! The command line: options end at the first word that is none, or at `--`.

use crate::say::{self, FAILED, fail};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// In 24 lines of 80 columns; `{}` is our name.
const HELP: &str = include_str!("help.txt");
pub const KNOBS: &str = include_str!("knobs.txt");

#[derive(Debug)]
pub struct Options {
    pub task: Task,
    pub quiet: bool,
    /// A report for each process.
    pub each: bool,
    /// What the library reads, each with the value that was given last.
    knobs: Vec<(&'static str, OsString)>,
    /// The program and its arguments.
    pub words: Vec<OsString>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    Run,
    Check,
    LibraryPath,
    Help,
    Knobs,
    Version,
}

#[derive(Clone, Copy)]
enum Effect {
    /// Sets a knob to the value that follows.
    Knob(&'static str),
    Quiet,
    Each,
    Profile,
    Task(Task),
}

const OPTIONS: [(&str, &str, Effect); 13] = [
    ("-q", "--quiet", Effect::Quiet),
    ("", "--each", Effect::Each),
    ("-m", "--min-bytes", Effect::Knob("ADMA_MIN_BYTES")),
    ("-c", "--channels", Effect::Knob("ADMA_CHANNELS")),
    ("-b", "--backend", Effect::Knob("ADMA_BACKEND")),
    ("", "--stats", Effect::Knob("ADMA_STATS")),
    ("", "--stats-file", Effect::Knob("ADMA_STATS_FILE")),
    ("-p", "--profile", Effect::Profile),
    ("", "--check", Effect::Task(Task::Check)),
    ("", "--libpath", Effect::Task(Task::LibraryPath)),
    ("-h", "--help", Effect::Task(Task::Help)),
    ("", "--knobs", Effect::Task(Task::Knobs)),
    ("", "--version", Effect::Task(Task::Version)),
];

pub fn help() -> String {
    HELP.replace("{}", &say::name())
}

pub fn parse(arguments: Vec<OsString>) -> Options {
    let mut options = Options {
        task: Task::Run,
        quiet: false,
        each: false,
        knobs: Vec::new(),
        words: Vec::new(),
    };
    let mut words = arguments.into_iter();
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        if !word.as_bytes().starts_with(b"-") {
            options.words.push(word);
            break;
        }
        let (name, value) = halves(&word);
        let known = |(short, long, effect): &(&str, &str, Effect)| {
            let whole = word == *long || (!short.is_empty() && word == *short);
            // --name=value is --name value, for those that take one.
            whole || (value.is_some() && name == *long && matches!(effect, Effect::Knob(_)))
        };
        let Some((_, _, effect)) = OPTIONS.into_iter().find(known) else {
            fail(FAILED, format_args!("unknown option {}; see --help", word.display()))
        };
        match effect {
            Effect::Knob(knob) => {
                let Some(value) = value.map(OsStr::to_owned).or_else(|| words.next()) else {
                    fail(FAILED, format_args!("{} wants a value; see --help", word.display()))
                };
                options.quiet &= knob != "ADMA_STATS";
                options.knob(knob, value);
            }
            Effect::Quiet => {
                options.quiet = true;
                options.knob("ADMA_STATS", "off".into());
            }
            Effect::Each => options.each = true,
            Effect::Profile => options.knob("ADMA_PROFILE", "1".into()),
            Effect::Task(task) => {
                options.task = task;
                if matches!(task, Task::Help | Task::Knobs | Task::Version) {
                    return options; // whatever else was asked
                }
            }
        }
    }
    options.words.extend(words);
    if options.task == Task::Run && options.words.is_empty() {
        let _ = std::io::stderr().write_all(help().as_bytes()); // nobody else to tell
        std::process::exit(FAILED);
    }
    options
}

/// `--name=value`; other words have no second half.
fn halves(word: &OsStr) -> (&OsStr, Option<&OsStr>) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|&byte| byte == b'=') {
        Some(at) => (OsStr::from_bytes(&bytes[..at]), Some(OsStr::from_bytes(&bytes[at + 1..]))),
        None => (word, None),
    }
}

/// The help of a subcommand, instead of doing it.
pub fn tell_usage(usage: &str) -> ! {
    say::out(format_args!("{}", usage.replace("{}", &say::name())));
    std::process::exit(0)
}

/// For a subcommand that takes nothing.
pub fn none(subcommand: &str, usage: &str, arguments: &[OsString]) {
    if let Some(word) = arguments.first() {
        if word == "-h" || word == "--help" {
            tell_usage(usage);
        }
        let name = say::name();
        fail(
            FAILED,
            format_args!(
                "{subcommand} takes no {}; a program of that name: {name} -- {subcommand}",
                word.display()
            ),
        );
    }
}

impl Options {
    fn knob(&mut self, name: &'static str, value: OsString) {
        self.knobs.retain(|(other, _)| *other != name);
        self.knobs.push((name, value));
    }

    /// Options win over the environment.
    pub fn set(&self) {
        for (name, value) in &self.knobs {
            set(name, value);
        }
    }
}

/// Changes the environment that the program will have.
pub fn set(name: &str, value: &OsStr) {
    // The system can hold no such string; arguments cannot bring one.
    debug_assert!(!value.as_bytes().contains(&0));
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var(name, value) }
}

/// `first` and `second` with `between`.
pub fn joined(first: &OsStr, between: &str, second: &OsStr) -> OsString {
    OsString::from_vec([first.as_bytes(), between.as_bytes(), second.as_bytes()].concat())
}
