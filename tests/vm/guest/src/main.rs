//! The tests of adma.ko that run inside the guest: one program, one name for each test.
//!
//! `adma-guest --list` names them, `adma-guest NAME` runs one, and so does a link to the
//! program that bears a test's name. Exit status 0: passed, 1: failed, 77: cannot be shown
//! here; the last line on standard error says why.
//!
//! Whatever a test was about, it has failed when it leaves pages pinned behind it, or when
//! the module counted an error that nobody had ordered.

#[macro_use]
mod verdict;
mod canary;
mod device;
mod effort;
mod faults;
mod json;
mod kernel;
mod memory;
mod modules;
mod oracle;
mod process;
mod random;
mod shim;
mod subjects;
mod trace;
mod victim;

use std::path::Path;
use std::time::Duration;
use verdict::{End, Outcome};

/// What a test may take at most; a hang is a failure.
const LIMIT: Duration = Duration::from_secs(110);

fn main() {
    process::default_signals();
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        std::process::exit(1);
    }));
    let mut arguments = std::env::args();
    let called = arguments.next().unwrap_or_default();
    let called = Path::new(&called).file_name().unwrap_or_default().to_string_lossy().into_owned();
    let arguments: Vec<String> = arguments.collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let status = match words[..] {
        ["--list"] => {
            subjects::all().for_each(|test| println!("{}", test.name));
            0
        }
        ["--victim", role, ref rest @ ..] => verdict::tell(victim::play(role, rest)),
        [name] if !name.starts_with('-') => run(name),
        [] if subjects::find(&called).is_some() => run(&called),
        _ => {
            eprintln!("usage: adma-guest --list | TEST");
            2
        }
    };
    std::process::exit(status);
}

fn run(name: &str) -> i32 {
    let Some(test) = subjects::find(name) else {
        eprintln!("there is no test {name}; try --list");
        return 2;
    };
    process::die_after(LIMIT);
    verdict::tell(watched(test))
}

/// Runs a test and looks afterwards at what no test may leave behind.
fn watched(test: &subjects::Test) -> Outcome {
    let before = kernel::Statistics::now();
    let pinned = kernel::pins_outstanding()?;
    (test.run)()?;
    kernel::settle(pinned)?;
    if let (false, Ok(before)) = (subjects::wrecks(test), before) {
        let moved = kernel::Statistics::now()?.since(&before);
        for (name, count) in [
            ("errors", moved.errors),
            ("timeouts", moved.timeouts),
            ("quarantined", moved.quarantined),
        ] {
            ensure!(count == 0, "the module counted {count} {name} and nobody had ordered any");
        }
    }
    Ok(())
}

impl From<End> for i32 {
    fn from(end: End) -> i32 {
        match end {
            End::Failed(_) => 1,
            End::Skipped(_) => 77,
        }
    }
}
