//! Messages of one line to standard error, under the name that we were called by, and standard
//! output that may be full or closed.

use std::fmt::{Arguments, Display};
use std::io::Write;
use std::path::Path;

/// Exit status: adma itself cannot do what was asked.
pub const FAILED: i32 = 125;
/// Exit status: the program exists, but cannot be executed.
pub const NOT_EXECUTABLE: i32 = 126;
pub const NOT_FOUND: i32 = 127;

/// Returns our own name: preload.sh and links to us have others than `adma`.
pub fn name() -> String {
    let called = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&called).file_name().unwrap_or("adma".as_ref());
    name.to_string_lossy().into_owned()
}

pub fn say(what: impl Display) {
    // One write, so that lines of several processes do not mix. There is no place to report a failure.
    let _ = std::io::stderr().write_all(format!("{}: {what}\n", name()).as_bytes());
}

pub fn fail(status: i32, what: impl Display) -> ! {
    say(what);
    std::process::exit(status)
}

/// Returns the system's message, without its number.
pub fn reason(error: &std::io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error ").next().unwrap_or(&text).to_owned()
}

/// Describes what is wrong with a file.
pub fn about(file: &Path, error: &std::io::Error) -> String {
    format!("{}: {}", printable(&file.to_string_lossy()), reason(error))
}

/// Returns what is wrong with a file that is to be written later. An old one is left as it is.
pub fn writable(file: &Path) -> Result<(), String> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(file);
    opened.map(drop).map_err(|error| about(file, &error))
}

/// Writes to standard output; a full disk is a failure.
pub fn out(what: Arguments<'_>) {
    let mut stdout = std::io::stdout().lock();
    if let Err(error) = stdout.write_fmt(what).and_then(|()| stdout.flush()) {
        fail(FAILED, format_args!("standard output: {error}"));
    }
}

/// Replaces characters that the user's locale lacks.
pub fn in_locale(text: String) -> String {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"]
        .into_iter()
        .find_map(|name| std::env::var_os(name).filter(|value| !value.is_empty()));
    let locale = set.unwrap_or_default().to_string_lossy().to_uppercase();
    if text.is_ascii() || locale.contains("UTF-8") || locale.contains("UTF8") {
        return text;
    }
    let plain = |c| match c {
        'µ' => 'u',
        '−' | '–' => '-',
        '…' => '.',
        '\u{202f}' => ' ',
        c if c.is_ascii() => c,
        _ => '?',
    };
    text.chars().map(plain).collect()
}

/// Makes untrusted text safe for a terminal: a program's name can hold escape sequences.
pub fn printable(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if hidden(c) { '?' } else { c }).collect()
}
