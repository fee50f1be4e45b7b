//! Cost of the shim for programs without large copies.

use crate::measure::{Samples, shuffled};
use crate::options::Options;
use crate::out::{Table, figure, progress, time};
use crate::spawn::{Program, Scratch};

pub fn run(options: &Options) {
    // The cost of any preloaded library is not ours.
    let empty = Scratch::empty();
    let ours = options.library().and_then(|lib| Scratch::copy_of("ours", lib));
    let rival = options.other_library().and_then(|lib| Scratch::copy_of("against", lib));
    let mut arms = vec![None, empty.as_ref(), ours.as_ref()];
    arms.extend(rival.as_ref().map(Some));
    let mut table = Table::of("program|runs|without|empty|with|ratio|to empty|against");
    for (name, args, runs) in [
        ("true", &["/bin/true"][..], 400.0),
        ("python3", &["/usr/bin/python3", "-c", "pass"][..], 60.0),
    ] {
        let runs = (runs * options.seconds / 3.0).max(20.0) as usize;
        progress(&format!("start: {runs} runs of {name}"));
        let Some(times) = timed(args, &arms, runs) else {
            println!("{name}: cannot be run here, skipped");
            continue;
        };
        // Medians of all sides: pairs of runs this short scatter widely.
        let medians: Vec<f64> = times.iter().map(Samples::median).collect();
        let (without, empty, with) = (medians[0], medians[1], medians[2]);
        figure(&format!("start.{name}.ratio"), with / without);
        figure(&format!("start.{name}.to_empty"), with / empty);
        figure(&format!("start.{name}.more_us"), (with - without) / 1e3);
        let against = medians.get(3).map_or("-".into(), |against| {
            figure(&format!("start.{name}.against"), against / without);
            format!("{:.3}", against / without)
        });
        let mut row = vec![name.to_string(), runs.to_string()];
        row.extend([without, empty, with].map(time));
        row.extend([with / without, with / empty].map(|ratio| format!("{ratio:.3}")));
        row.push(against);
        table.row(row);
    }
    table.print();
}

/// Returns the nanoseconds of each run with each library, in random order.
fn timed(args: &[&str], arms: &[Option<&Scratch>], runs: usize) -> Option<Vec<Samples>> {
    let programs: Vec<Program> =
        arms.iter().map(|lib| Program::new(args, lib.map(|lib| lib.0.as_str()))).collect();
    let mut times = vec![Samples::default(); arms.len()];
    for program in &programs {
        program.time()?; // the file cache
    }
    for _ in 0..runs {
        for arm in shuffled(arms.len()) {
            times[arm].push(programs[arm].time()? as f64);
        }
    }
    Some(times)
}
