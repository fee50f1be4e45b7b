//! Unmodified Open MPI and MPICH with and without the shim: ping-pong, alltoall, allreduce and an
//! integer sort, with 2, 4 and 8 ranks and as many as there are CPUs; Open MPI over cma
//! (process_vm_readv) and copy-in-copy-out. Runs take turns, A B B A, and print a line "operation size
//! nanoseconds" for each case.

use crate::measure::Samples;
use crate::options::{MIB, Options};
use crate::out::{self, Table, figure, median, progress, ratio, spread};
use crate::programs::run::Surroundings;
use crate::spawn;
use adma_shared::knobs;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCE: &str = include_str!("../../mpi_collectives.c");

/// A run that takes longer is killed.
const LIMIT_SECONDS: u32 = 120;

const MPICH: &str = "mpich";

/// Where programs are built; removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        Folder(std::env::temp_dir().join(format!("adma-bench-mpi-{}", std::process::id())))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A configuration of all runs.
struct Setting {
    ranks: usize,
    /// Mechanism of Open MPI, or MPICH.
    mechanism: &'static str,
    /// Set if ranks that wait yield their CPU (mpi_yield_when_idle).
    yielding: bool,
}

impl Setting {
    fn name(&self) -> String {
        let yielding = if self.yielding { ".yield" } else { "" };
        format!("{}.{}{yielding}", self.ranks, self.mechanism)
    }

    fn command(&self, program: &Path, around: &Surroundings, options: &Options) -> Command {
        // A run that hangs gives no figure, and does not block the benchmark.
        let mut command = spawn::command("timeout", None);
        command.args(["-k", "5", &LIMIT_SECONDS.to_string()]);
        let owned = |(name, value): (&str, &str)| (name.to_string(), value.to_string());
        let knobs = std::env::vars().filter(|(name, _)| name.starts_with("ADMA_"));
        let preload = around.preload.map(|lib| owned(("LD_PRELOAD", lib)));
        let set =
            knobs.filter(|_| preload.is_some()).chain(around.knobs.iter().copied().map(owned));
        let set: Vec<_> = set.chain(preload.clone()).collect();
        let ranks = self.ranks.to_string();
        if self.mechanism == MPICH {
            command.args(["mpirun.mpich", "-np", &ranks]);
            for (name, value) in &set {
                command.args(["-genv", name, value]);
            }
        } else {
            let yielding = if self.yielding { "1" } else { "0" };
            command.args([&open_mpi("mpirun"), "--allow-run-as-root", "--oversubscribe"]);
            command.args(["--bind-to", "none", "-np", &ranks, "--mca", "btl", "self,vader"]);
            command.args(["--mca", "btl_vader_single_copy_mechanism", self.mechanism]);
            command.args(["--mca", "mpi_yield_when_idle", yielding]);
            for (name, value) in &set {
                command.args(["-x", &format!("{name}={value}")]);
            }
        }
        let usual: &[usize] =
            if options.quick { &[MIB, 16 * MIB] } else { &[MIB / 4, MIB, 4 * MIB, 16 * MIB] };
        command.arg(program).arg((options.seconds / 15.0).to_string());
        command.args(options.sizes_or(usual).iter().map(usize::to_string));
        command
    }
}

/// The command of Open MPI, also where MPICH is the default.
fn open_mpi(name: &str) -> String {
    let known = format!("{name}.openmpi");
    if Path::new("/usr/bin").join(&known).exists() { known } else { name.into() }
}

pub fn run(options: &Options) {
    let folder = Folder::new();
    println!("time of one operation without the shim, and how much faster it is with it\n");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut ranks = vec![2, 4, 8, cpus.max(2)];
    ranks.retain(|ranks| !options.quick || *ranks <= cpus.max(2));
    ranks.sort_unstable();
    ranks.dedup();
    let mut table = Table::of("ranks|way|operation|size|without|x|lowest|highest")
        .with_widths_of("16|copy in, copy out, yielding|allreduce|64M|10.00 ms");
    let open_mpicc = open_mpi("mpicc");
    for (compiler, mechanisms) in
        [(open_mpicc.as_str(), &["cma", "none"][..]), ("mpicc.mpich", &[MPICH])]
    {
        let program = match build(compiler, &folder.0) {
            Ok(program) => program,
            Err(why) => {
                println!("skipped: {why}\n");
                continue;
            }
        };
        for (&ranks, &mechanism) in
            ranks.iter().flat_map(|r| mechanisms.iter().map(move |m| (r, m)))
        {
            for yielding in [false, true] {
                // Only where they would take CPUs from each other.
                if !yielding || ranks >= cpus && mechanism != MPICH {
                    let setting = Setting { ranks, mechanism, yielding };
                    compare(&setting, &program, options, &mut table);
                    table.print_new();
                }
            }
        }
    }
}

/// Runs four ranks of Open MPI, which read each other's memory, once.
pub fn traced(around: &Surroundings, options: &Options) -> Result<(), String> {
    let folder = Folder::new();
    let program = build(&open_mpi("mpicc"), &folder.0)?;
    let setting = Setting { ranks: 4, mechanism: "cma", yielding: true };
    let mut options = options.clone();
    (options.sizes, options.seconds) = (Some(vec![4 * MIB]), 0.1);
    let output = setting.command(&program, around, &options).output();
    let output = output.map_err(|error| error.to_string())?;
    output.status.success().then_some(()).ok_or(format!("mpirun: {}", output.status))
}

fn compare(setting: &Setting, program: &Path, options: &Options, table: &mut Table) {
    let (name, ranks) = (setting.name(), setting.ranks.to_string());
    let pairs = options.pairs.unwrap_or(if options.quick { 3 } else { 5 });
    // Nanoseconds without the shim, and how many times faster the run with it was.
    let mut cases: BTreeMap<_, [Samples; 2]> = BTreeMap::new();
    for pair in 0..pairs {
        progress(&format!("mpi: {name}: pair {} of {pairs}", pair + 1));
        let mut sides: [BTreeMap<_, f64>; 2] = Default::default();
        for turn in 0..2 {
            let with = (pair + turn) % 2;
            let lib = options.library().filter(|_| with == 1);
            let around = Surroundings { preload: lib, ..Surroundings::default() };
            let Ok(output) = setting.command(program, &around, options).output() else { continue };
            let text = String::from_utf8_lossy(&output.stdout);
            sides[with] = text.lines().filter_map(case).collect();
        }
        let [without, with] = sides;
        for (case, plain) in without {
            if let Some(shim) = with.get(&case) {
                let [all, gain] = cases.entry(case).or_default();
                all.push(plain);
                gain.push(plain / shim);
            }
        }
    }
    if cases.is_empty() {
        table.row([ranks.clone(), format!("{name}: mpirun failed")]);
    }
    let way = match setting.mechanism {
        "none" => "copy in, copy out",
        other => other,
    };
    let way = format!("{way}{}", if setting.yielding { ", yielding" } else { "" });
    for ((operation, size), [plain, gain]) in &cases {
        let (size, plain) = (out::size(*size), plain.median());
        figure(&format!("mpi.us.{name}.{operation}.{size}"), plain / 1e3);
        spread(&format!("mpi.{name}.{operation}.{size}.ratio"), gain);
        let row = [ranks.clone(), way.clone(), operation.clone(), size, out::time(plain)];
        let ends = [0.0, 1.0].map(|end| ratio(gain.quantile(end)));
        table.row(row.into_iter().chain([median(gain)]).chain(ends));
    }
}

fn case(line: &str) -> Option<((String, usize), f64)> {
    let mut words = line.split(' ');
    let case = (words.next()?.to_string(), knobs::size(words.next()?)?);
    Some((case, words.next()?.parse().ok()?))
}

fn build(compiler: &str, folder: &Path) -> Result<PathBuf, String> {
    let (file, program) = (folder.join("program.c"), folder.join(format!("by-{compiler}")));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&file, SOURCE));
    written.map_err(|error| format!("{}: {error}", file.display()))?;
    let mut command = spawn::command(compiler, None);
    match command.args(["-O2", "-o"]).arg(&program).arg(&file).output() {
        Ok(output) if output.status.success() => Ok(program),
        Ok(output) => Err(format!("{compiler}: {}", String::from_utf8_lossy(&output.stderr))),
        Err(_) => Err(format!("no {compiler} (apt install openmpi-bin libopenmpi-dev mpich)")),
    }
}
