//! Reads of files in an unmodified python3: pairs of processes, one with the shim and one without,
//! which take turns.

use crate::machine;
use crate::measure::{Samples, shuffled};
use crate::options::{MIB, Options};
use crate::out::{Table, median, progress, range, ratio, spread};
use crate::programs::jobs;
use crate::programs::needs::Place;
use crate::spawn::{self, Server};
use crate::turns::in_turn;
use std::fs;
use std::path::Path;

/// Most pairs for reads of less than 16 MiB, with `LEAST` seconds each: the alignment of a buffer
/// to cache lines makes 10 % of such reads, and depends on the heap and the environment.
const PAIRS: usize = 11;
const LEAST: f64 = 0.5;

pub fn run(options: &Options) {
    let Ok(place) = Place::new() else {
        return println!("skipped: no folder for files beside this program\n");
    };
    let Some(python) = place.python_with("numpy").or(place.python_with("sys")) else {
        return println!("skipped: no python3\n");
    };
    // Not on tmpfs, where nothing is cold.
    let folder = std::env::var("BENCH_FOLDER").unwrap_or("/var/tmp".to_owned());
    let folder = Path::new(&folder).join(format!("adma-reads-{}", std::process::id()));
    println!("cold: dropped from the page cache before each read\n");
    let usual: &[usize] = if options.quick { &[1, 256] } else { &[1, 4, 16, 64, 256, 1024] };
    let sizes = options.sizes_or(&usual.iter().map(|size| size * MIB).collect::<Vec<_>>());
    let most = machine::available_memory() / 6;
    let sizes = sizes.into_iter().filter(|&size| size >= MIB && size <= most);
    let script = place.scripts.join("reads_jobs.py");
    let arm = |lib| {
        let mut command = spawn::command(python, lib);
        command.env("BENCH_FOLDER", &folder).env("BENCH_PADDING", "x".repeat(16 * shuffled(64)[0]));
        Server::start(command.arg(&script).args(["serve", "0"]))
    };
    let start = || Some([arm(None)?, arm(options.library())?]);
    if fs::create_dir(&folder).is_ok() {
        let mut table = Table::of("what|size|libc ms|x libc|q1-q3|lowest|rounds")
            .with_widths_of("np_fromfile|1024M|1000.00|10.00|10-10|10.00");
        for size in sizes {
            let chosen = |job: &&&str| {
                options.jobs.as_ref().is_none_or(|all| all.contains(&job.to_string()))
            };
            for job in jobs::READS.iter().filter(chosen) {
                table.row(cell(start, job, size / MIB, options.seconds));
                table.print_new();
                let _ = fs::remove_file(folder.join(format!("{job}-{}M.npy", size / MIB)));
            }
        }
    }
    let _ = fs::remove_dir_all(folder);
}

/// Measures a row of the table.
fn cell(
    start: impl Fn() -> Option<[Server; 2]>,
    job: &str,
    mebibytes: usize,
    seconds: f64,
) -> Vec<String> {
    let size = format!("{mebibytes}M");
    progress(&format!("reads: {job}, {size}"));
    let pairs = if mebibytes < 16 { ((seconds / LEAST) as usize).clamp(1, PAIRS) } else { 1 };
    let (mut plain, mut gain) = (Samples::default(), Samples::default());
    for _ in 0..pairs {
        let Some(mut arms) = start() else {
            return vec![job.into(), size, "skipped: python3 does not start".into()];
        };
        // A turn is one read, or as many small ones as take 5 ms.
        let mut ask = |arm: usize| arms[arm].ask(&format!("{job} {mebibytes} 0.005"));
        // The first turns import a module and make the file; they are not counted.
        for arm in [0, 1] {
            let answer = ask(arm).unwrap_or_default();
            if answer.parse::<f64>().is_err() {
                return vec![job.into(), size, format!("skipped: {answer}")];
            }
        }
        let time = |arm| ask(arm).ok().and_then(|answer| answer.parse().ok()).unwrap_or(f64::NAN);
        let (times, mut ratios) = in_turn(seconds / pairs as f64, 2, time);
        plain.append(times);
        gain.append(ratios.remove(0));
    }
    spread(&format!("reads.{job}.{size}.ratio"), &gain);
    let (ms, lowest) = (ratio(plain.median() / 1e6), ratio(gain.quantile(0.0)));
    let rounds = gain.len().to_string();
    vec![job.into(), size, ms, median(&gain), range(&gain, 0.25), lowest, rounds]
}
