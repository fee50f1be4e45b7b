//! Reads of files in a python3 that knows nothing of us.

use crate::options::{MIB, Options};
use crate::out::{Table, ratio, spread};
use crate::programs::needs::imports;
use crate::{machine, pairs, spawn};

/// Carried inside the binary, so that one file is enough on another machine.
const READS: &str = include_str!("../../reads.py");

/// A virtual environment in target/release/programs may have numpy and others.
pub fn run(options: &Options) {
    let own = std::env::current_exe().ok().and_then(|exe| {
        let own = exe.parent()?.join("programs/venv/bin/python3");
        own.exists().then(|| own.display().to_string())
    });
    let with = |module: &str| {
        let mut pythons = ["/usr/bin/python3", "python3"].into_iter();
        pythons.find(|python| imports(python, module)).map(String::from)
    };
    let Some(python) = own.or_else(|| with("numpy")).or_else(|| with("sys")) else {
        return println!("skipped: no python3\n");
    };
    // Not in a file system that is memory: there nothing is cold.
    let folder = std::env::var("BENCH_FOLDER").unwrap_or("/var/tmp".to_owned());
    let most = machine::available_memory() / 6;
    let usual: &[usize] = if options.quick { &[1, 16, 256] } else { &[1, 4, 16, 64, 256, 1024] };
    let sizes = options.sizes.clone().unwrap_or(usual.iter().map(|size| size * MIB).collect());
    let sizes = sizes.iter().filter(|&&size| size <= most).map(|size| (size / MIB).to_string());
    let sizes = sizes.collect::<Vec<_>>().join(",");
    println!("{python}; files in {folder}; cold: dropped from the page cache before each read\n");
    let seconds = (options.seconds / 6.0).to_string();
    let cases = pairs::run(((options.seconds * 3.0) as usize).max(4), "reads", |with| {
        let mut command = spawn::command(&python, options.library().filter(|_| with));
        command.args(["-c", READS, &seconds, &folder, &sizes]);
        command
    });
    let mut table = Table::of("what|size|libc ms|x libc|lowest|highest");
    for ((what, size), case) in &cases {
        let size = format!("{}M", size / MIB);
        spread(&format!("reads.{what}.{size}.ratio"), &case.gain);
        let row = [what.clone(), size, ratio(case.plain.median() / 1e6)];
        table.row(row.into_iter().chain(case.cells()));
    }
    table.print();
}
