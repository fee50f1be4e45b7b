//! Reads of files in a python3 that knows nothing of us. The shim cannot be switched off
//! inside a process, so short processes take turns: A B B A.

use crate::measure::Samples;
use crate::options::{MIB, Options};
use crate::out::{Table, progress, spread};
use crate::{machine, spawn};
use std::collections::BTreeMap;
use std::process::Command;

/// Carried inside the binary, so that one file is enough on another machine.
const READS: &str = include_str!("../../reads.py");

/// What and size -> nanoseconds of a copy.
type Cases = BTreeMap<(String, String), f64>;

/// Reads of files; a virtual environment in target/release/programs may have numpy and others.
pub fn run(options: &Options) {
    let own = std::env::current_exe().ok().and_then(|exe| {
        let own = exe.parent()?.join("programs/venv/bin/python3");
        own.exists().then(|| own.display().to_string())
    });
    let Some(python) = own.or_else(|| python("import numpy")).or_else(|| python("")) else {
        println!("skipped: no python3\n");
        return;
    };
    // Not in a file system that is memory: there nothing is cold.
    let folder = std::env::var("BENCH_FOLDER").unwrap_or("/var/tmp".to_owned());
    let most = (machine::available_memory() / 6 / MIB).min(1024);
    println!("{python}; files in {folder}; cold: dropped from the page cache before each read\n");
    in_turn(options, &python, &[folder, most.to_string()]);
}

fn in_turn(options: &Options, python: &str, arguments: &[String]) {
    let lib = options.library();
    let pairs = ((options.seconds * 3.0) as usize).max(4);
    let seconds = (options.seconds / 6.0).to_string();
    let mut ratios: BTreeMap<(String, String), Samples> = BTreeMap::new();
    let mut plain: BTreeMap<(String, String), Samples> = BTreeMap::new();
    for pair in 0..pairs {
        progress(&format!("reads: pair {} of {pairs}", pair + 1));
        let mut sides: [Cases; 2] = Default::default();
        for turn in 0..2 {
            let with = (pair + turn) % 2;
            let mut command = spawn::command(python, lib.filter(|_| with == 1));
            command.args(["-c", READS, &seconds]).args(arguments);
            sides[with] = cases(&mut command);
        }
        let [without, with] = sides;
        for (case, ns) in without {
            if let Some(shim) = with.get(&case) {
                ratios.entry(case.clone()).or_default().push(ns / shim);
                plain.entry(case).or_default().push(ns);
            }
        }
    }

    let mut table = Table::of("what|size|libc ms|x libc|lowest|highest");
    for ((heat, size), ratio) in &ratios {
        spread(&format!("reads.{heat}.{size}.ratio"), ratio);
        table.row([
            heat.clone(),
            size.clone(),
            format!("{:.2}", plain[&(heat.clone(), size.clone())].median() / 1e6),
            format!("{:.2}", ratio.median()),
            format!("{:.2}", ratio.quantile(0.0)),
            format!("{:.2}", ratio.quantile(1.0)),
        ]);
    }
    table.print();
}

/// A python3 that can do this.
fn python(import: &str) -> Option<String> {
    let works = |python: &&str| {
        let tried = spawn::command(python, None).args(["-c", import]).output();
        tried.is_ok_and(|output| output.status.success())
    };
    ["/usr/bin/python3", "python3"].into_iter().find(works).map(String::from)
}

fn cases(command: &mut Command) -> Cases {
    let Ok(output) = command.output() else { return Cases::new() };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines()
        .filter_map(|line| {
            let mut words = line.split(' ');
            let case = (words.next()?.to_string(), words.next()?.to_string());
            Some((case, words.next()?.parse().ok()?))
        })
        .collect()
}
