//! The command `adma`: runs programs with the library preloaded, and shows what it did.
//!
//! ```text
//! main        which subcommand
//! options     what stands on the command line
//! run         adma program: finds the program and becomes it; program: how
//! tree        or runs it, and reports for all its processes; job: as its parent, unnoticed
//! top         adma top: live statistics
//! live        the files they are in; stats: what the library and the command share
//! obstacle    why a program cannot be helped
//! library     where the library is
//! report      adma report: the JSON of processes as text and as a page
//! say         messages of one line; standard output
//! ```
//!
//! What the library and the command both need is one pure file of the library's sources, included
//! here by its path: the library is a shared object only, nothing can be linked with it.

// Rust's own start-up would ignore SIGPIPE and open closed standard descriptors, and the program
// that this process becomes would inherit both.
#![cfg_attr(not(test), no_main)]
// Test executables hold the parts without `main`.
#![cfg_attr(test, allow(dead_code))]

mod job;
mod library;
mod live;
mod obstacle;
mod options;
mod program;
mod report;
mod run;
mod say;
mod stats;
mod top;
mod tree;

use options::Task;
use std::ffi::OsString;

const CHECK: &str = "\
usage: {} check

Says what this machine offers: CPUs, the kernel helper, channels, and what a
copy gains by them. Settings in the environment count, see --knobs.
";

#[cfg(not(test))]
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    // glibc hands the arguments to every initialiser, also to Rust's, so they are known here.
    command(std::env::args_os().skip(1).collect())
}

fn command(arguments: Vec<OsString>) -> i32 {
    // A subcommand is the first word; after an option or `--` that word is a program.
    match arguments.first().and_then(|word| word.to_str()) {
        Some("check") => {
            options::none("check", CHECK, &arguments[1..]);
            library::check()
        }
        Some("report") => report::command(&arguments[1..]),
        Some("top") => top::command(&arguments[1..]),
        _ => {
            let options = options::parse(arguments);
            match options.task {
                Task::Run => run::run(options),
                Task::Check => {
                    options.set();
                    library::check()
                }
                Task::LibraryPath => say::out(format_args!("{}\n", library::find().display())),
                Task::Help => say::out(format_args!("{}", options::help())),
                Task::Knobs => say::out(format_args!("{}", options::KNOBS)),
                Task::Version => {
                    say::out(format_args!("adma {}\n", env!("CARGO_PKG_VERSION")));
                }
            }
            0
        }
    }
}
