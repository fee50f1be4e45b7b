//! `np.copyto` in a python3 that knows nothing of us. The shim cannot be
//! switched off inside a process, so short processes take turns: A B B A.

use crate::measure::Samples;
use crate::options::{MIB, Options};
use crate::out::{Table, figure, progress};
use crate::{machine, spawn};
use std::collections::BTreeMap;

/// Carried inside the binary, so that one file is enough on another machine.
const SCRIPT: &str = include_str!("../../numpy_copy.py");

/// Heat and size -> nanoseconds of a copy.
type Cases = BTreeMap<(String, String), f64>;

pub fn run(options: &Options) {
    let lib = options.lib.as_deref().filter(|lib| *lib != "none");
    let Some(python) = python() else {
        println!("skipped: no python3 with numpy (apt install python3-numpy)\n");
        return;
    };
    println!("{python}; cold: arrays in rotation; hot: the same two arrays\n");
    let pairs = ((options.seconds * 3.0) as usize).max(4);
    let seconds = (options.seconds / 6.0).to_string();
    let cold =
        (2 * machine::last_level_cache()).max(1024 * MIB).min(machine::available_memory() / 3);

    let mut ratios: BTreeMap<(String, String), Samples> = BTreeMap::new();
    let mut plain: BTreeMap<(String, String), Samples> = BTreeMap::new();
    for pair in 0..pairs {
        progress(&format!("numpy: pair {} of {pairs}", pair + 1));
        let mut sides: [Cases; 2] = Default::default();
        for turn in 0..2 {
            let with = (pair + turn) % 2;
            let lib = lib.filter(|_| with == 1);
            sides[with] = python_cases(&python, lib, &seconds, cold);
        }
        let [without, with] = sides;
        for (case, ns) in without {
            if let Some(shim) = with.get(&case) {
                ratios.entry(case.clone()).or_default().push(ns / shim);
                plain.entry(case).or_default().push(ns);
            }
        }
    }

    let mut table = Table::new(["copyto", "size", "libc ms", "x libc", "lowest", "highest"]);
    for ((heat, size), ratio) in &ratios {
        figure(&format!("numpy.{heat}.{size}.ratio"), ratio.median());
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

fn python() -> Option<String> {
    let works = |python: &&str| {
        let import = spawn::command(python, None).args(["-c", "import numpy"]).output();
        import.is_ok_and(|output| output.status.success())
    };
    ["/usr/bin/python3", "python3"].into_iter().find(works).map(String::from)
}

fn python_cases(python: &str, lib: Option<&str>, seconds: &str, cold: usize) -> Cases {
    let mut command = spawn::command(python, lib);
    command.args(["-c", SCRIPT, seconds, &cold.to_string()]);
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
