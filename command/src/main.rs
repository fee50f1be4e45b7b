//! The command `adma`: runs programs with the library preloaded, and shows what it did.
//!
//! ```text
//! main        which subcommand
//! options     what stands on the command line
//! complete    what a shell offers for a word of it
//! run         adma program: finds the program and becomes it; program: how
//! tree        or runs it, and reports for all its processes; job: as its parent, unnoticed
//! bench       adma bench: runs it with and without the library in turn
//! top         adma top: live statistics
//! live_files  the files they are in
//! obstacle    why a program cannot be helped
//! check       adma check: what this machine offers; moments: whether programs behave as without the library
//! library     where the library is
//! symbols     names of the functions that copy; watch: lines of scripts; python: in its frames
//! report      adma report: the JSON of processes as text and as a page
//! say         messages of one line; standard output
//! ```
//!
//! What the library and the command both need is the crate `adma-shared`.

// Rust's own start-up would ignore SIGPIPE and open closed standard descriptors, and the program
// that this process becomes would inherit both.
#![cfg_attr(not(test), no_main)]
// Test executables hold the parts without `main`.
#![cfg_attr(test, allow(dead_code))]

mod bench;
mod check;
mod complete;
mod demangle;
mod engine;
mod job;
mod library;
mod live_files;
mod moments;
mod obstacle;
mod options;
mod program;
mod python;
mod report;
mod run;
mod say;
mod symbols;
mod top;
mod tree;
mod watch;

use options::Options;
use std::ffi::OsString;
use std::io::Write;

/// A first word that is not a program.
pub struct Subcommand {
    name: &'static str,
    about: &'static str,
    /// Returns clap's definition of its options.
    options: fn() -> clap::Command,
    run: fn(&[OsString]) -> i32,
}

const SUBCOMMANDS: [Subcommand; 4] = [
    Subcommand {
        name: "bench",
        about: "with and without adma in turn",
        options: options::command::<bench::BenchOptions>,
        run: |words| bench::command(options::parse("bench", words)),
    },
    Subcommand {
        name: "check",
        about: "what this machine offers",
        options: options::command::<check::CheckOptions>,
        run: |words| options::parse::<check::CheckOptions>("check", words).command(),
    },
    Subcommand {
        name: "report",
        about: "reports in JSON, as text and page",
        options: options::command::<report::ReportOptions>,
        run: |words| report::command(options::parse("report", words)),
    },
    Subcommand {
        name: "top",
        about: "what processes copy right now",
        options: options::command::<top::Wish>,
        run: |words| top::command(options::parse("top", words)),
    },
];

#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    // glibc hands the arguments to every initialiser, also to Rust's, so they are known here.
    moments::play(std::env::args_os())
        .unwrap_or_else(|| command(std::env::args_os().skip(1).collect()))
}

/// `adma help [SUBCOMMAND]`
fn help(of: &[OsString]) -> i32 {
    let help: OsString = "--help".into();
    match of {
        [] => command(vec![help]),
        [one] if SUBCOMMANDS.iter().any(|known| one == known.name) => {
            command(vec![one.clone(), help])
        }
        [one, ..] => {
            let word = say::printable(&one.to_string_lossy());
            let like = options::did_you_mean(&word, SUBCOMMANDS.iter().map(|known| known.name));
            say::fail(say::FAILED, format_args!("help: no subcommand {word}{like} see adma --help"))
        }
    }
}

fn command(arguments: Vec<OsString>) -> i32 {
    // A subcommand is the first word; after an option or `--` that word is a program.
    if let [first, rest @ ..] = &arguments[..] {
        if let Some(subcommand) = SUBCOMMANDS.iter().find(|known| first == known.name) {
            return (subcommand.run)(rest);
        }
        if first == "help" {
            return help(rest);
        }
        if first == "version" && rest.is_empty() {
            return command(vec!["--version".into()]);
        }
        if first == "--complete" {
            complete::command(rest);
            return 0;
        }
    }
    let options: Options = options::parse("", &arguments);
    if options.list_knobs {
        say::out(format_args!("{}", options::list_of_knobs()));
    } else if options.version {
        say::out(format_args!("adma {}\n", env!("CARGO_PKG_VERSION")));
    } else if options.libpath {
        say::out(format_args!("{}\n", library::find().display()));
    } else if options.check {
        options.set();
        options::check_environment();
        return check::command(false);
    } else if options.words.is_empty() {
        // A failure cannot be reported anywhere.
        let _ = std::io::stderr().write_all(options::help().as_bytes());
        return say::FAILED;
    } else {
        options.set();
        run::run(options);
    }
    0
}
