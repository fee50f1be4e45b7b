//! Processes that end after a few copies: children of a server that forks for each request, and
//! programs that are executed for one. A part of `first`.

use crate::arms::interposed_memcpy;
use crate::measure::{Samples, median, now, shuffled};
use crate::memory::Area;
use crate::options::{MIB, Options};
use crate::out::{Table, figure, progress, range};
use crate::spawn::{self, Program, Scratch};
use crate::turns::ratios;

/// Rounds of one process.
const ROUNDS: usize = 100;

/// Cases: name, copies in each round, and bytes of each.
const CASES: &[(&str, usize, usize)] = &[
    ("prefork", 1, 256 << 10),
    ("prefork-8", 8, 512 << 10),
    ("turn", 1, 256 << 10),
    ("turn-1M", 1, MIB),
    ("turn-8", 8, 512 << 10),
    ("exec-once", 1, 256 << 10),
    ("first-1M", 1, MIB),
];

/// Returns whether one process makes a case once.
fn once(case: &str) -> bool {
    matches!(case, "exec-once" | "first-1M")
}

pub fn run(options: &Options, lib: Option<&str>) {
    println!(
        "Short processes, in turn: without a library, with an empty one, with the shim. prefork: fork,\n\
         copy, _exit; turn: copy, fork; exec-once: execute and copy; first: only the first copy of a\n\
         process. -8: eight of 512K, else one of 256K or 1M. ratio: shim over libc; to empty: over the\n\
         empty library, since what any preloaded library costs an executed program is not ours.\n"
    );
    let (empty, ours) = (Scratch::empty(), lib.and_then(|lib| Scratch::copy_of("ours", lib)));
    let arms = [None, empty.as_ref(), ours.as_ref()].map(|lib| lib.map(|lib| lib.0.as_str()));
    let mut table = Table::of("case|libc us|empty us|shim us|ratio|p10-p90|to empty|p10-p90");
    let runs = (options.seconds * 20.0).max(7.0) as usize;
    for &(case, ..) in CASES {
        progress(&format!("first: {case}"));
        let mut times: [Vec<f64>; 3] = Default::default();
        for _ in 0..runs * if once(case) { 10 } else { 1 } {
            let mut round = [None; 3];
            for arm in shuffled(3) {
                round[arm] = one_process(case, arms[arm]);
            }
            if let [Some(libc), Some(empty), Some(shim)] = round {
                times
                    .iter_mut()
                    .zip([libc, empty, shim])
                    .for_each(|(times, time)| times.push(time));
            }
        }
        // Medians of all sides: such short rounds scatter widely, as their p10-p90 show.
        let [libc, empty, shim] = [0, 1, 2].map(|arm| median(&times[arm]) / 1e3);
        figure(&format!("first.short.{case}.ratio"), shim / libc);
        figure(&format!("first.short.{case}.to_empty"), shim / empty);
        figure(&format!("first.short.{case}.more_us"), shim - libc);
        let mut row = vec![case.to_string()];
        row.extend([libc, empty, shim].map(|us| format!("{us:.0}")));
        for (base, ratio) in [(0, shim / libc), (1, shim / empty)] {
            row.extend([format!("{ratio:.3}"), range(&ratios(&times[2], &times[base]), 0.1)]);
        }
        table.row(row);
    }
    table.print();
}

/// Returns the nanoseconds in a process with or without the library.
fn one_process(case: &str, lib: Option<&str>) -> Option<f64> {
    if case == "exec-once" {
        let exe = std::env::current_exe().ok()?;
        let args = [exe.to_str()?, "--inner", "short", "--", case];
        return Program::new(&args, lib).time().map(|time| time as f64);
    }
    let output = spawn::itself("short", lib).args(["--", case]).output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// Runs in the process.
pub fn child(options: &Options) {
    let case = options.rest.first().map_or("", String::as_str);
    let Some(&(_, count, size)) = CASES.iter().find(|(name, ..)| *name == case) else {
        std::process::exit(2)
    };
    let copy = interposed_memcpy();
    let (src, dst) = (Area::new(count * size), Area::new(count * size));
    let copies = || {
        for at in (0..count).map(|number| number * size) {
            // SAFETY: inside both areas.
            unsafe { copy(dst.at(at).cast(), src.at(at).cast(), size) };
        }
    };
    let in_child = case.starts_with("prefork");
    let round = |_| {
        let start = now();
        if !in_child {
            copies();
        }
        if !once(case) {
            // SAFETY: the child copies and leaves; there is no other thread.
            unsafe {
                let child = libc::fork();
                if child == 0 {
                    if in_child {
                        copies();
                    }
                    libc::_exit(0);
                }
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
        }
        (now() - start) as f64
    };
    let rounds = if once(case) { 1 } else { ROUNDS };
    let time = (0..rounds).map(round).collect::<Samples>().median();
    // The whole of an executed program is timed from outside, and its output goes to the reader.
    if case != "exec-once" {
        println!("{time}");
    }
}
