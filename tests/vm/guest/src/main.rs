//! The tests of adma.ko that run inside the guest: one program.
//!
//! `adma-guest NAME` runs a test, or all tests of a subject, and so does a link to the
//! program that bears the name. Exit status 0: passed, 1: failed, 77: cannot be shown here;
//! the last line on standard error says why.
//!
//! `adma-guest --list` names the subjects, for tests/vm/run makes a test of each: starting
//! one costs the guest more than most tests take. `adma-guest --list-each` names every single test.
//!
//! Whatever a test was about, it has failed when it leaves pages pinned behind it, or when
//! the module counted an error that the test had not ordered.

#[macro_use]
mod verdict;
#[allow(dead_code)] // the whole interface, also what no test needs
#[path = "../../../../shared/src/abi.rs"]
mod abi;
mod canary;
mod cgroup;
mod device;
mod effort;
mod faults;
mod kernel;
mod memory;
mod modules;
mod oracle;
#[path = "../../src/orders.rs"]
mod orders;
mod pair;
mod partner;
mod probes;
mod process;
mod random;
mod scene;
mod shim;
mod subjects;
mod trace;
mod victim;

use process::Ended;
use std::path::Path;
use std::time::Instant;
use subjects::{TESTS, Test};
use verdict::{End, Outcome};

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
            subjects::subjects().for_each(|subject| println!("{subject}"));
            0
        }
        ["--list-each"] => {
            TESTS.iter().for_each(|test| println!("{}", test.name));
            0
        }
        ["--victim", role, ref rest @ ..] => verdict::tell(victim::play(role, rest)),
        ["--fault", kind, ref rest @ ..] => verdict::tell(faults::order(kind, rest)),
        ["--counters"] => verdict::tell(faults::print_counters()),
        [name] if !name.starts_with('-') => run(name),
        [] if !subjects::named(&called).is_empty() => run(&called),
        _ => {
            eprintln!(
                "usage: adma-guest --list | --list-each | --counters | --fault KIND [NAME=VALUE ...] | SUBJECT | TEST"
            );
            2
        }
    };
    std::process::exit(status);
}

fn run(name: &str) -> i32 {
    match subjects::named(name)[..] {
        [] => {
            eprintln!("there is no test {name}; try --list");
            2
        }
        [test] => run_one(test),
        ref tests => i32::from(tests.iter().filter(|test| !verdict_of(test)).count() > 0),
    }
}

fn run_one(test: &Test) -> i32 {
    process::die_after(effort::limit());
    let begun = Instant::now();
    let outcome = watched(test);
    println!("{} took {:.1} s", test.name, begun.elapsed().as_secs_f64());
    verdict::tell(outcome)
}

/// Runs a test in a process of its own, and says the verdict as tests/vm/run reads it.
fn verdict_of(test: &Test) -> bool {
    let name = test.name;
    kernel::note(&format!("test {name} begins"));
    let (ended, reason) = process::confined(|| run_one(test));
    kernel::note(&format!("test {name} ends"));
    match ended {
        Ended::Exited(0) => println!("adma-vm: ok {name}"),
        Ended::Exited(77) => println!("adma-vm: skip {name}: {reason}"),
        Ended::Exited(_) => println!("adma-vm: not ok {name}: {reason}"),
        Ended::Killed(signal) => println!("adma-vm: not ok {name}: signal {signal}; {reason}"),
    }
    matches!(ended, Ended::Exited(0 | 77))
}

/// Runs a test and looks afterwards at what no test may leave behind.
fn watched(test: &Test) -> Outcome {
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
            ensure!(count == 0, "the module counted {count} {name} and the test had ordered none");
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
