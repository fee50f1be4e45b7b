//! The command line: options end at the first word that is none, or at `--`.
//!
//! Options and knobs are checked here, once, before anything runs.

use crate::say::{self, FAILED, fail, printable};
use adma_shared::knobs::{self, Form, KNOBS};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, ArgAction, Args, CommandFactory, Parser, ValueHint};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

const TEMPLATE: &str = "usage: {usage}\n\n{about-with-newline}\n{options}{after-help}\n";

#[derive(Parser, Debug)]
#[command(
    name = "adma",
    disable_version_flag = true,
    override_usage = "\
adma [options] [--] program [arguments]
       adma bench | check | report | top ...    each has a --help
       adma help [bench | check | report | top]",
    about = "\
Runs the program with its large memcpy, memset and the like carried by copy
channels, and prints what was copied when it exits.",
    after_help = "\
Exit status: the program's; 125 adma cannot be set up, 126 the program cannot be
executed, 127 it cannot be found. Manual: adma(1)."
)]
pub struct Options {
    /// no report, no warning
    #[arg(short, long, overrides_with = "stats")]
    pub quiet: bool,
    /// a report for each process, instead of one for all
    #[arg(long)]
    pub each: bool,
    #[command(flatten)]
    pub knobs: KnobOptions,
    /// report as text, json (a comma list)
    #[arg(long, value_name = "FORMATS", value_parser = of_knob("ADMA_STATS"))]
    stats: Option<String>,
    /// also make a page for a browser, of all processes
    #[arg(long, value_name = "PAGE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["quiet", "each", "stats", "stats_file"])]
    pub html: Option<PathBuf>,
    /// also write the report for programs, of all processes
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath,
          conflicts_with_all = ["quiet", "each", "stats", "stats_file"])]
    pub json: Option<PathBuf>,
    /// write the report there; %p process number, %e program
    #[arg(long, value_name = "PATH", value_parser = of_knob("ADMA_STATS_FILE"),
          value_hint = ValueHint::FilePath)]
    stats_file: Option<String>,
    /// count every copy, small ones too; suggest a threshold
    #[arg(short, long)]
    profile: bool,
    /// what this machine offers
    #[arg(long, hide = true)]
    pub check: bool,
    /// print the library's path
    #[arg(long)]
    pub libpath: bool,
    /// list the environment variables that the library reads
    #[arg(long = "knobs")]
    pub list_knobs: bool,
    /// show the version
    #[arg(long)]
    pub version: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, hide = true, value_hint = ValueHint::CommandWithArguments)]
    pub words: Vec<OsString>,
}

/// Options that stand for knobs, of `adma program` and of `adma bench`.
#[derive(Args, Debug)]
pub struct KnobOptions {
    /// carry copies from SIZE up (64K, 1M); default: learned
    #[arg(short, long, value_name = "SIZE", value_parser = of_knob("ADMA_MIN_BYTES"))]
    min_bytes: Option<String>,
    /// channels one copy may use; default: all there are
    #[arg(short, long, value_name = "N", value_parser = of_knob("ADMA_CHANNELS"))]
    channels: Option<String>,
    /// auto, dma, gpu, threads, libc
    #[arg(short, long, value_name = "NAME", value_parser = of_knob("ADMA_BACKEND"))]
    backend: Option<String>,
}

impl KnobOptions {
    pub fn set(&self) {
        set_all(&[
            ("ADMA_MIN_BYTES", &self.min_bytes),
            ("ADMA_CHANNELS", &self.channels),
            ("ADMA_BACKEND", &self.backend),
        ]);
    }
}

impl Options {
    /// Sets knobs from options, which override the environment.
    pub fn set(&self) {
        self.knobs.set();
        if let Some(path) = self.stats_file.as_ref().filter(|path| !path.contains('%')) {
            // Processes append to it. What another run has left there is removed.
            let is_file = std::fs::metadata(path).is_ok_and(|about| about.is_file());
            let _ = is_file.then(|| std::fs::write(path, "")); // they complain if it cannot be
        }
        set_all(&[
            ("ADMA_STATS", &self.stats),
            ("ADMA_STATS", &(self.quiet && !self.profile).then(|| "off".to_owned())),
            ("ADMA_STATS_FILE", &self.stats_file),
            ("ADMA_PROFILE", &self.profile.then(|| "1".to_owned())),
        ]);
    }
}

fn set_all(knobs: &[(&str, &Option<String>)]) {
    for (name, value) in knobs {
        if let Some(value) = value {
            set(name, value.as_ref());
        }
    }
}

/// Returns a parser that accepts what the knob of this name accepts.
fn of_knob(name: &'static str) -> impl Fn(&str) -> Result<String, String> + Clone {
    move |text| accepted(name, text).map(|()| text.to_owned())
}

/// Returns whether a knob takes this value; else what it wants.
pub fn accepted(name: &str, text: &str) -> Result<(), String> {
    let Some(knob) = knobs::knob(name.as_bytes()) else {
        let names = KNOBS.iter().map(|knob| knob.name);
        return Err(format!("no such knob{} see --knobs", did_you_mean(name, names)));
    };
    if knob.form.parse(text).is_some() {
        return Ok(());
    }
    let words = match knob.form {
        Form::Word(words) | Form::List(_, words) => words,
        _ => &[],
    };
    let like = did_you_mean(text, words.iter().copied());
    Err(format!("want {}{}", knob.form, like.trim_end_matches(';')))
}

/// Checks every knob in the environment once, instead of in every process.
pub fn check_environment() {
    for (name, value) in std::env::vars_os() {
        if !name.as_bytes().starts_with(b"ADMA_") {
            continue;
        }
        let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
        if let Err(why) = accepted(&name, &value) {
            let is_known = knobs::knob(name.as_bytes()).is_some();
            let value = if is_known { format!("={value}") } else { String::new() };
            fail(FAILED, printable(&format!("{name}{value}: {why}")));
        }
    }
}

/// Returns `; did you mean NAME?`, if one is similar enough; else a semicolon.
pub fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> String {
    let likeness = |known: &str| strsim::normalized_damerau_levenshtein(word, known);
    let is_beginning = |known: &&str| word.len() > 2 && known.starts_with(word);
    let known: Vec<&str> = known.collect();
    if let Some(longer) = known.iter().copied().find(is_beginning) {
        return format!("; did you mean {longer}?");
    }
    let nearest = known.into_iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    match nearest.filter(|nearest| likeness(nearest) > 0.6) {
        Some(nearest) => format!("; did you mean {nearest}?"),
        None => ";".to_owned(),
    }
}

/// Parses the options of `adma` or a subcommand, or ends this process.
pub fn parse<T: Parser>(subcommand: &str, words: &[OsString]) -> T {
    let name = [say::name().as_str(), subcommand].join(" ").trim_end().to_owned();
    let command = command::<T>().bin_name(&name).no_binary_name(true);
    let matches =
        command.try_get_matches_from(words).unwrap_or_else(|error| explain(&error, &name));
    T::from_arg_matches(&matches).unwrap_or_else(|error| explain(&error, &name))
}

/// Returns clap's definition of a subcommand's options.
pub fn command<T: CommandFactory>() -> clap::Command {
    let help = Arg::new("help").short('h').long("help").action(ArgAction::Help);
    T::command()
        .help_template(TEMPLATE)
        .args_override_self(true)
        .disable_help_flag(true)
        .arg(help.help("show this help"))
}

/// Returns the help of `adma`.
pub fn help() -> String {
    by_our_name(&command::<Options>().render_help().to_string())
}

/// Replaces the program name in the usage by the one we were called by.
fn by_our_name(help: &str) -> String {
    let (usage, rest) = help.split_once("\n\n").unwrap_or((help, ""));
    format!("{}\n\n{rest}", usage.replace("adma ", &format!("{} ", say::name())))
}

/// Prints a parser's error as one line and ends this process.
fn explain(error: &clap::Error, name: &str) -> ! {
    let said = error.render().to_string();
    if error.kind() == ErrorKind::DisplayHelp {
        say::out(format_args!("{}", by_our_name(&said)));
        std::process::exit(0);
    }
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.first().cloned().unwrap_or_default(),
        _ => String::new(),
    };
    let option = context(ContextKind::InvalidArg);
    let option = option.split([' ', '=']).next().unwrap_or_default();
    let value = context(ContextKind::InvalidValue);
    let what = match error.kind() {
        ErrorKind::UnknownArgument if !option.starts_with('-') => {
            let program = name.rsplit(' ').next().unwrap_or_default();
            format!(
                "{name} takes no {option}; a program of that name: {} -- {program}",
                say::name()
            )
        }
        ErrorKind::UnknownArgument => {
            let like = context(ContextKind::SuggestedArg);
            let like = if like.is_empty() { like } else { format!(" did you mean {like}?") };
            format!("unknown option {option};{like} see {name} --help")
        }
        ErrorKind::InvalidValue if value.is_empty() => {
            format!("{option} wants a value; see {name} --help")
        }
        ErrorKind::MissingRequiredArgument => format!("{option} is missing; see {name} --help"),
        ErrorKind::TooManyValues => format!("{option} takes no value; see {name} --help"),
        ErrorKind::ArgumentConflict => {
            let other = context(ContextKind::PriorArg);
            let other = other.split(' ').next().unwrap_or_default();
            format!("{option} does not go with {other}; see {name} --help")
        }
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error).map_or(String::new(), |why| why.to_string());
            format!("{option} {value}: {why}")
        }
        _ => {
            let line = said.lines().next().unwrap_or_default();
            format!("{}; see {name} --help", line.trim_start_matches("error: "))
        }
    };
    fail(FAILED, printable(&what))
}

/// Returns the list of environment variables that the library reads, from its table.
pub fn list_of_knobs() -> String {
    let mut text =
        String::from("Environment, read by the library (also with a plain LD_PRELOAD):\n");
    for knob in &KNOBS {
        for (at, line) in knob.about.iter().enumerate() {
            let (name, default) = if at == 0 { (knob.name, knob.default) } else { ("", "") };
            text += &format!("  {name:<17}{default:<9}{line}\n");
        }
    }
    text + "Options win over the environment.\n"
}

/// Changes the environment that the program will have.
pub fn set(name: &str, value: &OsStr) {
    // No such string can exist in arguments or in the environment.
    debug_assert!(!value.as_bytes().contains(&0));
    // SAFETY: this process has one thread.
    unsafe { std::env::set_var(name, value) }
}
