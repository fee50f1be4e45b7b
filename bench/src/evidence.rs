//! `evidence`: measures the papers' experiments, keeps the results in a folder of their own, and
//! makes one page of all results that lie there. The page can be made again without measuring
//! (`page`), so results of several machines can be brought together.

mod claims;
mod page;
mod plot;

use crate::compare;
use crate::driver::{self, Results};
use crate::measure::now;
use crate::options::Options;
use crate::{BENCHES, Bench};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A benchmark, whether a graphics card carries its copies, and its options in a quick and in a
/// full run (none: only in a full one).
struct Step(&'static str, bool, Option<&'static str>, &'static str);

/// Steps: three minutes and twenty on an idle machine.
#[rustfmt::skip]
const STEPS: &[Step] = &[
    Step("copy", false, Some("--seconds 0.12 --sizes 16K,64K,256K,1M,4M,16M,64M"), "--seconds 1 --against threshold"),
    Step("async", false, Some("--seconds 0.15 --sizes 256K,1M,4M"), "--seconds 1"),
    Step("phases", false, Some("--seconds 0.15"), "--seconds 0.8"),
    Step("cache", false, Some("--seconds 0.4"), "--seconds 3"),
    Step("scaling", false, Some("--seconds 0.1 --sizes 4K,64K,1M,16M,256M"), "--seconds 0.5"),
    Step("load", false, Some("--seconds 0.1 --sizes 4K,1M,16M"), "--quick --seconds 0.4"),
    Step("neighbours", false, None, "--seconds 3"),
    Step("used", false, None, "--seconds 1 --against tuned"),
    Step("small", false, Some("--seconds 0.5"), "--seconds 1.5"),
    Step("start", false, Some("--seconds 0.2"), "--seconds 1.5"),
    Step("first", false, Some("--seconds 0.2 --sizes 4M"), "--seconds 1"),
    Step("fresh", false, None, "--seconds 0.5 --against hugetlb --against tuned"),
    Step("memset", false, None, "--seconds 0.4 --quick"),
    Step("memcmp", false, None, "--seconds 0.4 --quick"),
    Step("reads", false, None, "--seconds 0.7"),
    Step("ipc", false, Some("--seconds 0.1"), "--seconds 0.6"),
    Step("ipc-python", false, Some("--seconds 0.2"), "--seconds 2"),
    Step("mpi", false, Some("--quick --pairs 1 --sizes 4M,16M"), "--pairs 5 --seconds 1.5 --sizes 1M,4M,16M"),
    Step("pins", false, Some("--quick"), ""),
    Step("programs", false, Some("--quick --pairs 3 --jobs rust-clone"), "--quick --pairs 5 --against threshold --against hugetlb --against tuned"),
    Step("copy", true, Some("--seconds 0.2 --sizes 4M,64M --buffers 128M"), "--seconds 1 --sizes 4M,64M --buffers 128M"),
    Step("phases", true, Some("--seconds 0.2 --sizes 4M,64M --buffers 128M"), "--seconds 1 --sizes 4M,64M --buffers 128M"),
    Step("cache", true, Some("--seconds 0.5"), "--seconds 3"),
];

pub fn run(options: &Options) {
    let folder = folder(options);
    let lib = driver::library(options);
    let bench = |step: &Step| BENCHES.iter().find(|bench| bench.name == step.0);
    let named: Vec<&String> = options.names.iter().filter(|name| *name != "evidence").collect();
    let card = Path::new("/dev/nvidia0").exists();
    let steps: Vec<(&Step, &Bench)> = STEPS
        .iter()
        .filter(|step| named.is_empty() || named.iter().any(|name| *name == step.0))
        .filter(|step| !step.1 || card && lib.is_some())
        .filter(|step| !options.quick || step.2.is_some())
        .filter_map(|step| Some((step, bench(step)?)))
        .collect();
    let mut results = Results::new(driver::command_line(&options.given));
    // A run that is killed leaves this folder; the next one adopts the steps in it that had ended.
    let own = name(&results);
    let unfinished = folder.join(format!("{own}-unfinished-{}", std::process::id()));
    let begun = now();
    for (number, (step, bench)) in steps.iter().enumerate() {
        let card = if step.1 { " by the graphics card" } else { "" };
        let title =
            format!("{} of {}: {}{card}: {}", number + 1, steps.len(), bench.name, bench.about);
        println!("\n== {title}\n");
        eprintln!("evidence, {} s: {title}", (now() - begun) / 1_000_000_000);
        // The papers' engine copies all; ours leaves a part to the caller unless CPUs are to be spared.
        const CARD: [(&str, &str); 2] = [("ADMA_BACKEND", "gpu"), ("ADMA_GOAL", "cpu")];
        let knobs = match (step.1, bench.name) {
            (false, _) => &CARD[..0],
            (true, "cache") => &CARD[..],
            (true, _) => &CARD[..1],
        };
        results.add(bench, &arguments(step, options), lib.as_deref(), knobs, Some(&unfinished));
        finish(results.write(&unfinished));
    }
    eprintln!("evidence: measured in {} s", (now() - begun) / 1_000_000_000);
    finish(keep(&folder, &own, &unfinished, results));
    page(options);
}

/// Returns the arguments of the step, then the user's, of which the last counts.
fn arguments(step: &Step, options: &Options) -> Vec<String> {
    let own = if options.quick { step.2.unwrap_or_default() } else { step.3 };
    let mut words: Vec<String> = own.split_whitespace().map(String::from).collect();
    let mut given = options.given.iter();
    while let Some(word) = given.next() {
        match word.as_str() {
            "--out" => drop(given.next()), // which may be called as a benchmark is
            "--quick" => {}
            name if options.names.iter().any(|other| other == name) => {}
            _ => words.push(word.clone()),
        }
    }
    words
}

/// Makes the page of all results.
pub fn page(options: &Options) {
    let folder = folder(options);
    finish(folders(&folder).and_then(|all| {
        let all: Vec<Results> = all.into_iter().map(|(_, results)| results).collect();
        page::write(&folder, &all)
    }));
    println!("{}", folder.join(page::FILE).display());
}

fn folder(options: &Options) -> PathBuf {
    options.out.clone().unwrap_or("evidence".into())
}

fn finish(done: io::Result<()>) {
    if let Err(error) = done {
        eprintln!("adma-bench: evidence: {error}");
        std::process::exit(1);
    }
}

/// Returns the name of a folder of results: machine and date.
fn name(results: &Results) -> String {
    let day = results.date.split(' ').next().unwrap_or_default();
    format!("{}-cpus-{day}", results.about("cpus"))
}

/// Keeps the results of a complete run. Older ones of that machine are first compared with them,
/// the most recent first, and then replaced, except for benchmarks that were not run.
fn keep(folder: &Path, own: &str, unfinished: &Path, mut results: Results) -> io::Result<()> {
    let mut replaced = vec![unfinished.to_path_buf()];
    for (path, before) in folders(folder)?.into_iter().rev() {
        let same = ["cpus", "cpu"].iter().all(|name| before.about(name) == results.about(name));
        if same && path != unfinished {
            results.carry_over(&before);
            let report = compare::report(&before, &results);
            println!("\n== compared with {}\n\n{report}", path.display());
            replaced.push(path);
        }
    }
    results.write(&folder.join(own))?;
    replaced.retain(|path| *path != folder.join(own) && path.exists());
    replaced.iter().try_for_each(fs::remove_dir_all)
}

/// Returns all results in the folder, those of the fewest CPUs first.
fn folders(folder: &Path) -> io::Result<Vec<(PathBuf, Results)>> {
    fs::create_dir_all(folder)?;
    let mut all = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.join("about.json").exists() {
            all.push((path.clone(), Results::read(&path)?));
        }
    }
    all.sort_by_key(|(path, results)| (results.about("cpus").parse().unwrap_or(0), path.clone()));
    Ok(all)
}
