//! Programs that copy nothing large: what the shim costs them.

use crate::measure::{Rng, Samples};
use crate::options::Options;
use crate::out::{Table, figure, progress, time};
use crate::spawn::{self, Program};

pub fn run(options: &Options) {
    let lib = options.library();
    // What any preloaded library costs is not ours.
    let empty = Scratch::empty_library();
    let ours = lib.and_then(Scratch::copy_of);
    let rival = options.against.as_deref().and_then(Scratch::copy_of);
    let path = |scratch: &Option<Scratch>| scratch.as_ref().map(|scratch| scratch.0.clone());
    let mut arms = vec![None, path(&empty), path(&ours)];
    arms.extend(rival.is_some().then(|| path(&rival)));
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
        table.row([
            name.to_string(),
            runs.to_string(),
            time(without),
            time(empty),
            time(with),
            format!("{:.3}", with / without),
            format!("{:.3}", with / empty),
            against,
        ]);
    }
    table.print();
}

/// A library for this run only.
struct Scratch(String);

impl Scratch {
    fn new(name: &str) -> Option<Self> {
        let path = std::env::temp_dir().join(format!("adma-{name}-{}.so", std::process::id()));
        path.to_str().map(|path| Self(path.to_owned()))
    }

    /// With nothing in it.
    fn empty_library() -> Option<Self> {
        let made = Self::new("empty")?;
        std::fs::write(&made.0, spawn::NULL_LIBRARY).is_ok().then_some(made)
    }

    /// As installed, that is, copied: what a linker has just written through a mapping lies in
    /// the file cache page by page, and every fault then brings fewer pages.
    fn copy_of(lib: &str) -> Option<Self> {
        let copied = Self::new("ours")?;
        std::fs::copy(lib, &copied.0).is_ok().then_some(copied)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Nanoseconds of each run with each library, in random order.
fn timed(args: &[&str], arms: &[Option<String>], runs: usize) -> Option<Vec<Samples>> {
    let programs: Vec<Program> =
        arms.iter().map(|lib| Program::new(args, lib.as_deref())).collect();
    let mut times = vec![Samples::default(); arms.len()];
    let mut order: Vec<usize> = (0..arms.len()).collect();
    let mut rng = Rng::new();
    for program in &programs {
        program.time()?; // the file cache
    }
    for _ in 0..runs {
        rng.shuffle(&mut order);
        for &which in &order {
            times[which].push(programs[which].time()? as f64);
        }
    }
    Some(times)
}
