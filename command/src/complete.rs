//! `adma --complete WORD...`, for shells: lists completions of the last word.
//!
//! Prints one candidate per line, with a tab and a description; or one line that leaves it to the
//! shell: `:files`, or `:command N` for the words of a program that begins at word N.

use crate::options::{self, Options};
use crate::{SUBCOMMANDS, live_files, say};
use adma_shared::knobs;
use clap::{Arg, Command, ValueHint};
use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;

pub fn command(words: &[OsString]) {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let Some((current, before)) = words.split_last() else { return };
    say::out(format_args!("{}", answer(before, current)));
}

fn answer(before: &[String], current: &str) -> String {
    let subcommand =
        SUBCOMMANDS.iter().find(|known| before.first().is_some_and(|w| w == known.name));
    let from = usize::from(subcommand.is_some());
    let command = subcommand.map_or_else(options::command::<Options>, |known| (known.options)());
    let is_program = |arg: &Arg| arg.get_value_hint() == ValueHint::CommandWithArguments;
    let takes_program = command.get_positionals().any(is_program);
    let mut at = from;
    // The option whose value is being written.
    let mut open: Option<&Arg> = None;
    let mut options_end = false;
    while at < before.len() {
        let word = &before[at];
        at += 1;
        if open.is_some() && word == "=" {
            continue; // bash makes a word of it
        }
        if open.take().is_some() {
            continue;
        }
        if options_end || !word.starts_with('-') {
            if takes_program {
                return format!(":command {at}\n");
            }
        } else if word == "--" {
            options_end = true;
        } else {
            open = option(&command, word).filter(|arg| arg.get_action().takes_values());
        }
    }
    // bash makes a word of =, the other shells leave it where it is.
    let (mut before_value, mut current) = ("", current);
    if let (None, false, Some(at)) = (open, options_end, current.find('=')) {
        open = option(&command, &current[..at]);
        (before_value, current) = current.split_at(at + 1);
    } else if open.is_some() && current == "=" {
        current = "";
    }
    let mut out = String::new();
    let mut offer = |word: &str, about: &str| {
        if word.starts_with(current) {
            let about = if about.is_empty() { String::new() } else { format!("\t{about}") };
            let _ = writeln!(out, "{before_value}{word}{about}"); // a `String` takes everything
        }
    };
    if let Some(arg) = open {
        if matches!(arg.get_value_hint(), ValueHint::FilePath | ValueHint::DirPath) {
            return ":files\n".to_owned();
        }
        if arg.get_id() == "with" {
            offer_knobs(current, &mut offer);
        }
        values(arg).into_iter().for_each(|value| offer(value, ""));
    } else if current.starts_with('-') && !options_end {
        for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
            let about = arg.get_help().map_or(String::new(), ToString::to_string);
            let short = arg.get_short().map(|short| format!("-{short}"));
            let long = arg.get_long().map(|long| format!("--{long}"));
            short.into_iter().chain(long).for_each(|word| offer(&word, &about));
        }
    } else if takes_program {
        if before.is_empty() {
            SUBCOMMANDS.iter().for_each(|known| offer(known.name, known.about));
        }
        if current.contains('/') {
            return ":files\n".to_owned();
        }
        programs().iter().for_each(|program| offer(program, ""));
    } else if command.get_name() == "top" {
        for process in live_files::all(false, None) {
            offer(&process.pid.to_string(), &process.program());
        }
    } else if command.get_positionals().next().is_some() {
        return ":files\n".to_owned();
    }
    out
}

/// Offers knobs, each with its equals sign; behind it the values that it takes.
fn offer_knobs(current: &str, offer: &mut impl FnMut(&str, &str)) {
    let name = current.split('=').next().unwrap_or_default();
    for knob in &knobs::KNOBS {
        match current.contains('=') {
            true if knob.name == name => {
                let words = words_of(&knob.form);
                words.into_iter().for_each(|word| offer(&format!("{name}={word}"), ""));
            }
            true => {}
            false => offer(&format!("{}=", knob.name), knob.about.first().unwrap_or(&"")),
        }
    }
}

/// Returns the option that a word stands for, unless it includes its value.
fn option<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    match word.strip_prefix("--") {
        Some(long) => command.get_arguments().find(|arg| arg.get_long() == Some(long)),
        None => command.get_arguments().find(|arg| {
            arg.get_short().is_some_and(|short| word.ends_with(short) && word.len() == 2)
        }),
    }
}

/// Returns the values of an option that has the name of a knob.
fn values(arg: &Arg) -> Vec<&'static str> {
    let name = format!("ADMA_{}", arg.get_id().as_str().to_uppercase());
    knobs::knob(name.as_bytes()).map_or(Vec::new(), |knob| words_of(&knob.form))
}

/// Returns the words that a knob takes, or some sizes.
fn words_of(form: &knobs::Form) -> Vec<&'static str> {
    match form {
        knobs::Form::Word(words) => words.to_vec(),
        knobs::Form::List(alone, words) => [&[*alone], *words].concat(),
        knobs::Form::Size { .. } => vec!["auto", "256K", "1M", "4M"],
        _ => Vec::new(),
    }
}

/// Returns the names of the programs in PATH.
fn programs() -> Vec<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut names: Vec<String> = std::env::split_paths(&path)
        .flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten())
        .filter(|entry| {
            let is_program = |about: std::fs::Metadata| {
                about.is_file() && about.permissions().mode() & 0o111 != 0
            };
            std::fs::metadata(entry.path()).is_ok_and(is_program)
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}
