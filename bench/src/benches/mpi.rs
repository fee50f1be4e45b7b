//! Unmodified Open MPI and MPICH with and without the shim: ping-pong, alltoall, allreduce and an
//! integer sort, with 2, 4 and 8 ranks and as many as there are CPUs; Open MPI over cma
//! (process_vm_readv) and copy-in-copy-out. Runs take turns: A B B A.

use crate::measure::Samples;
use crate::options::{MIB, Options};
use crate::out::{self, Table, figure, progress, spread};
use crate::spawn;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const SOURCE: &str = include_str!("../../mpi_collectives.c");

/// A run that takes longer is killed.
const LIMIT_SECONDS: u32 = 120;

/// Operation and size -> nanoseconds.
type Cases = BTreeMap<(String, usize), f64>;

/// One way to run all of it.
struct Setting {
    ranks: usize,
    /// A mechanism of Open MPI, or MPICH.
    mechanism: &'static str,
    /// Ranks that wait give their CPU away (mpi_yield_when_idle).
    yielding: bool,
}

impl Setting {
    fn name(&self) -> String {
        let yielding = if self.yielding { ".yield" } else { "" };
        format!("{}.{}{yielding}", self.ranks, self.mechanism)
    }

    fn run(&self, program: &Path, lib: Option<&str>, options: &Options) -> Cases {
        // A run that hangs is a figure that is missing, not a benchmark without end.
        let mut command = spawn::command("timeout", None);
        command.args(["-k", "5", &LIMIT_SECONDS.to_string()]);
        let knobs = std::env::vars().filter(|(name, _)| name.starts_with("ADMA_"));
        let preload = lib.map(|lib| ("LD_PRELOAD".to_string(), lib.to_string()));
        let set = knobs.filter(|_| lib.is_some()).chain(preload);
        let ranks = self.ranks.to_string();
        if self.mechanism == MPICH {
            command.args(["mpirun.mpich", "-np", &ranks]);
            for (name, value) in set {
                command.args(["-genv", &name, &value]);
            }
        } else {
            let yielding = if self.yielding { "1" } else { "0" };
            command.args([open_mpi("mpirun"), "--allow-run-as-root", "--oversubscribe"]);
            command.args(["--bind-to", "none", "-np", &ranks, "--mca", "btl", "self,vader"]);
            command.args(["--mca", "btl_vader_single_copy_mechanism", self.mechanism]);
            command.args(["--mca", "mpi_yield_when_idle", yielding]);
            for (name, value) in set {
                command.args(["-x", &format!("{name}={value}")]);
            }
        }
        command.arg(program).arg((options.seconds / 15.0).to_string());
        command.args(sizes(options).iter().map(usize::to_string));
        let Ok(output) = command.output() else { return Cases::new() };
        let text = String::from_utf8_lossy(&output.stdout);
        let case = |line: &str| {
            let mut words = line.split(' ');
            let operation = words.next()?.to_string();
            let size = words.next()?.parse().ok()?;
            Some(((operation, size), words.next()?.parse().ok()?))
        };
        text.lines().filter_map(case).collect()
    }
}

fn sizes(options: &Options) -> Vec<usize> {
    let usual =
        if options.quick { vec![MIB, 16 * MIB] } else { vec![MIB / 4, MIB, 4 * MIB, 16 * MIB] };
    options.sizes.clone().unwrap_or(usual)
}

const MPICH: &str = "mpich";

/// The command of Open MPI, also where MPICH is the default.
fn open_mpi(name: &'static str) -> &'static str {
    let known = match name {
        "mpicc" => "mpicc.openmpi",
        _ => "mpirun.openmpi",
    };
    if Path::new("/usr/bin").join(known).exists() { known } else { name }
}

pub fn run(options: &Options) {
    let lib = options.library();
    let folder = std::env::temp_dir().join(format!("adma-bench-mpi-{}", std::process::id()));
    println!("time of one operation without the shim, and how much faster it is with it\n");
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let mut ranks = vec![2, 4, 8, cpus.max(2)];
    ranks.retain(|ranks| !options.quick || *ranks <= cpus.max(2));
    ranks.sort_unstable();
    ranks.dedup();
    let mut table = Table::of("ranks|way|operation|size|without|x|lowest|highest")
        .with_widths_of(["16", "copy in, copy out, yielding", "allreduce", "64M", "10.00 ms"]);
    for (compiler, mechanisms) in
        [(open_mpi("mpicc"), &["cma", "none"][..]), ("mpicc.mpich", &[MPICH])]
    {
        let program = match build(compiler, &folder, SOURCE) {
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
                    compare(&setting, &program, lib, options, &mut table);
                    table.print_new();
                }
            }
        }
    }
    let _ = fs::remove_dir_all(&folder);
}

fn compare(
    setting: &Setting,
    program: &Path,
    lib: Option<&str>,
    options: &Options,
    table: &mut Table,
) {
    let pairs = options.pairs.unwrap_or(if options.quick { 3 } else { 5 });
    let mut ratios: BTreeMap<(String, usize), Samples> = BTreeMap::new();
    let mut plain: BTreeMap<(String, usize), Samples> = BTreeMap::new();
    for pair in 0..pairs {
        progress(&format!("mpi: {}, pair {} of {pairs}", setting.name(), pair + 1));
        let mut sides: [Cases; 2] = Default::default();
        for turn in 0..2 {
            let with = (pair + turn) % 2;
            sides[with] = setting.run(program, lib.filter(|_| with == 1), options);
        }
        let [without, with] = sides;
        for (case, ns) in without {
            if let Some(shim) = with.get(&case) {
                ratios.entry(case.clone()).or_default().push(ns / shim);
                plain.entry(case).or_default().push(ns);
            }
        }
    }
    if ratios.is_empty() {
        table.row([setting.ranks.to_string(), format!("{}: mpirun failed", setting.name())]);
    }
    let way = match setting.mechanism {
        "none" => "copy in, copy out",
        other => other,
    };
    let way = format!("{way}{}", if setting.yielding { ", yielding" } else { "" });
    for (case, ratio) in &ratios {
        let (operation, size) = case;
        let size = out::size(*size);
        let key = format!("mpi.us.{}.{operation}.{size}", setting.name());
        figure(&key, plain[case].median() / 1e3);
        spread(&format!("mpi.{}.{operation}.{size}.ratio", setting.name()), ratio);
        table.row([
            setting.ranks.to_string(),
            way.clone(),
            operation.clone(),
            size,
            out::time(plain[case].median()),
            format!("{:.2}", ratio.median()),
            format!("{:.2}", ratio.quantile(0.0)),
            format!("{:.2}", ratio.quantile(1.0)),
        ]);
    }
}

fn build(compiler: &str, folder: &Path, source: &str) -> Result<PathBuf, String> {
    let (file, program) = (folder.join("program.c"), folder.join(format!("by-{compiler}")));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&file, source));
    written.map_err(|error| format!("{}: {error}", file.display()))?;
    let mut command = spawn::command(compiler, None);
    match command.args(["-O2", "-o"]).arg(&program).arg(&file).output() {
        Ok(output) if output.status.success() => Ok(program),
        Ok(output) => Err(format!("{compiler}: {}", String::from_utf8_lossy(&output.stderr))),
        Err(_) => Err(format!("no {compiler} (apt install openmpi-bin libopenmpi-dev mpich)")),
    }
}
