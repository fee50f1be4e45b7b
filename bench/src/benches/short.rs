//! Processes that end after a few copies: children of a server that forks for each request, and
//! programs that are executed for one. A part of `first`.

use crate::arms::interposed_memcpy;
use crate::measure::{Rng, Samples, now};
use crate::memory::Area;
use crate::options::{MIB, Options};
use crate::out::{Table, figure, progress};
use crate::spawn::{self, Program};

/// Rounds of one process.
const ROUNDS: usize = 100;

/// What is timed: its name, copies in each round, and bytes of each.
const CASES: &[(&str, usize, usize)] = &[
    ("prefork", 1, 256 << 10),
    ("prefork-8", 8, 512 << 10),
    ("turn", 1, 256 << 10),
    ("turn-1M", 1, MIB),
    ("turn-8", 8, 512 << 10),
    ("exec-once", 1, 256 << 10),
    ("first-1M", 1, MIB),
];

pub fn run(options: &Options, lib: Option<&str>) {
    println!(
        "Short processes, with the shim and without, in turn. prefork: fork, copy, _exit; turn: copy,\n\
         fork; exec once: execute and copy; first: only the first copy of a process. -8: eight of 512K,\n\
         else one of 256K or 1M.\n"
    );
    let mut table = Table::of("case|libc us|shim us|ratio|more us");
    let runs = (options.seconds * 5.0).max(7.0) as usize;
    for &(case, ..) in CASES {
        progress(&format!("first: {case}"));
        // One process makes a hundred rounds, or just one.
        let runs = runs * if matches!(case, "exec-once" | "first-1M") { 10 } else { 1 };
        let mut times = [Vec::new(), Vec::new()];
        let mut rng = Rng::new();
        for _ in 0..runs {
            let mut order = [(0, None), (1, lib)];
            rng.shuffle(&mut order);
            for (arm, lib) in order {
                times[arm].extend(one_process(case, lib));
            }
        }
        let [libc, shim] = times.map(|times| times.into_iter().collect::<Samples>().median() / 1e3);
        figure(&format!("first.short.{case}.ratio"), shim / libc);
        figure(&format!("first.short.{case}.more_us"), shim - libc);
        table.row([
            case.to_string(),
            format!("{libc:.0}"),
            format!("{shim:.0}"),
            format!("{:.3}", shim / libc),
            format!("{:+.0}", shim - libc),
        ]);
    }
    table.print();
}

/// Nanoseconds, by a process with or without the library.
fn one_process(case: &str, lib: Option<&str>) -> Option<f64> {
    if case == "exec-once" {
        let exe = std::env::current_exe().ok()?;
        let args = [exe.to_str()?, "--inner", "short", "--", case];
        return Program::new(&args, lib).time().map(|time| time as f64);
    }
    let output = spawn::itself("short", lib).args(["--", case]).output().ok()?;
    String::from_utf8_lossy(&output.stdout).trim().parse().ok()
}

/// The process.
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
        if !matches!(case, "exec-once" | "first-1M") {
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
    let rounds = if case.starts_with("prefork") || case.starts_with("turn") { ROUNDS } else { 1 };
    println!("{}", (0..rounds).map(round).collect::<Samples>().median());
}
