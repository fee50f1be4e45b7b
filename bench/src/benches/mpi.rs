//! Unmodified Open MPI and MPICH with and without the shim: ping-pong, alltoall, allreduce and an
//! integer sort, with 2, 4 and 8 ranks and as many as there are CPUs; Open MPI by its own transport and
//! by UCX, each over cma (process_vm_readv) and copy-in-copy-out, with ranks that run anywhere and with
//! ranks bound to cores. Runs take turns, A B B A, and print a line "operation size nanoseconds" for each
//! case.

use crate::measure::Samples;
use crate::options::{MIB, Options};
use crate::out::{self, Table, figure, median, progress, ratio, spread};
use crate::programs::needs::Place;
use crate::programs::run::Surroundings;
use crate::spawn;
use adma_shared::knobs;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SOURCE: &str = include_str!("../../mpi_collectives.c");

/// A run that takes longer is killed.
const LIMIT_SECONDS: u32 = 120;

/// An MPI with one way for its messages.
struct Way {
    /// Its name in keys of figures.
    name: &'static str,
    /// Its name in the table.
    title: &'static str,
    program: Program,
    /// Whether each rank keeps to one core, which is the default of Open MPI's mpirun for two.
    is_bound: bool,
    /// Arguments of mpirun.
    args: &'static str,
}

/// What the ranks run.
#[derive(Clone, Copy, PartialEq)]
enum Program {
    /// Ours, for Open MPI and for MPICH.
    OpenMpi,
    Mpich,
    /// Intel's IMB-MPI1 as it comes, with Debian's MPICH, whose binary interface is that of Intel's MPI.
    Imb,
}
use Program::{Imb, Mpich, OpenMpi};

impl Program {
    /// Builds it in a folder, or finds it; returns its file.
    fn made(self, folder: &Path) -> Result<PathBuf, String> {
        match self {
            OpenMpi => build(&open_mpi("mpicc"), folder),
            Mpich => build("mpicc.mpich", folder),
            Imb => imb(folder),
        }
    }
}

const CMA: &str = "--mca pml ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism cma";
const NONE: &str = "--mca pml ob1 --mca btl self,vader --mca btl_vader_single_copy_mechanism none";
// UCX asks for a network card unless any device will do. XPMEM would need a kernel module.
const UCX: &str =
    "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=self,posix,sysv,cma";
const UCX_COPIES: &str =
    "--mca pml ucx --mca pml_ucx_tls any --mca pml_ucx_devices any -x UCX_TLS=self,posix,sysv";

#[rustfmt::skip]
const WAYS: &[Way] = &[
    Way { name: "cma", title: "cma", program: OpenMpi, is_bound: false, args: CMA },
    Way { name: "cma_bound", title: "cma, bound to cores", program: OpenMpi, is_bound: true, args: CMA },
    Way { name: "none", title: "copy in, copy out", program: OpenMpi, is_bound: false, args: NONE },
    Way { name: "ucx", title: "UCX, cma", program: OpenMpi, is_bound: false, args: UCX },
    Way { name: "ucx_copies", title: "UCX, copy in, copy out", program: OpenMpi, is_bound: false, args: UCX_COPIES },
    Way { name: "mpich", title: "MPICH", program: Mpich, is_bound: false, args: "" },
    Way { name: "mpich_bound", title: "MPICH, bound to cores", program: Mpich, is_bound: true, args: "-bind-to core" },
    Way { name: "imb", title: "MPICH, IMB-MPI1", program: Imb, is_bound: false, args: "" },
];

impl Way {
    /// Returns whether it is measured with this many ranks on this many CPUs: the usual ways with all,
    /// those beside them with two.
    fn is_wanted(&self, ranks: usize, cpus: usize, is_quick: bool) -> bool {
        let is_possible = !self.is_bound || ranks <= cpus;
        is_possible
            && match self.name {
                "cma" | "none" | "mpich" => true,
                "cma_bound" | "ucx" => ranks == 2 || !is_quick,
                _ => ranks == 2 && !is_quick,
            }
    }
}

/// At most so many rounds of each size, so many MB and messages; fewer if that takes ten seconds.
const ROUNDS_OF_IMB: [&str; 4] = ["-iter", "1000,320,100", "-iter_policy", "dynamic"];

/// File with the sizes of IMB-MPI1.
const LENGTHS: &str = "lengths";

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
    way: &'static Way,
    /// Set if ranks that wait yield their CPU (mpi_yield_when_idle).
    yielding: bool,
}

impl Setting {
    fn name(&self) -> String {
        let yielding = if self.yielding { ".yield" } else { "" };
        format!("{}.{}{yielding}", self.ranks, self.way.name)
    }

    fn command(&self, program: &Path, around: &Surroundings, options: &Options) -> Command {
        let usual: &[usize] =
            if options.quick { &[MIB, 16 * MIB] } else { &[MIB / 4, MIB, 4 * MIB, 16 * MIB] };
        let sizes = options.sizes_or(usual).into_iter().map(|size| size.to_string());
        let seconds = (options.seconds / 15.0).to_string();
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
        if self.way.program != OpenMpi {
            command.args(["mpirun.mpich", "-np", &ranks]).args(self.way.args.split_whitespace());
            for (name, value) in &set {
                command.args(["-genv", name, value]);
            }
        } else {
            let yielding = if self.yielding { "1" } else { "0" };
            let binding = if self.way.is_bound { "core:overload-allowed" } else { "none" };
            command.args([&open_mpi("mpirun"), "--allow-run-as-root", "--oversubscribe"]);
            command
                .args(["--bind-to", binding, "-np", &ranks])
                .args(self.way.args.split_whitespace());
            command.args(["--mca", "mpi_yield_when_idle", yielding]);
            for (name, value) in &set {
                command.args(["-x", &format!("{name}={value}")]);
            }
        }
        if self.way.program == Imb {
            let folder = program.parent().unwrap_or(Path::new("/"));
            let lengths = folder.join(LENGTHS);
            let _ = fs::write(&lengths, sizes.collect::<Vec<_>>().join("\n"));
            command.args([OsStr::new("-genv"), OsStr::new("LD_LIBRARY_PATH"), folder.as_os_str()]);
            command.arg(program).args(["PingPong", "Alltoall", "Allreduce", "-npmin", &ranks]);
            command.args(ROUNDS_OF_IMB).arg("-msglen").arg(lengths);
        } else {
            command.arg(program).arg(seconds).args(sizes);
        }
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
    for what in [OpenMpi, Mpich, Imb] {
        let all = ranks.iter().flat_map(|&ranks| WAYS.iter().map(move |way| (ranks, way)));
        let settings: Vec<(usize, &Way)> = all
            .filter(|(ranks, way)| {
                way.program == what && way.is_wanted(*ranks, cpus, options.quick)
            })
            .collect();
        if settings.is_empty() {
            continue;
        }
        let program = match what.made(&folder.0) {
            Ok(program) => program,
            Err(why) => {
                println!("skipped: {why}\n");
                continue;
            }
        };
        for (ranks, way) in settings {
            for yielding in [false, true] {
                // Only where they would take CPUs from each other.
                if !yielding || ranks >= cpus && ["cma", "none"].contains(&way.name) {
                    compare(&Setting { ranks, way, yielding }, &program, options, &mut table);
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
    let setting = Setting { ranks: 4, way: &WAYS[0], yielding: true }; // cma
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
    let mut cases: BTreeMap<Case, [Samples; 2]> = BTreeMap::new();
    let mut failed = String::new();
    for pair in 0..pairs {
        progress(&format!("mpi: {name}: pair {} of {pairs}", pair + 1));
        let mut sides: [BTreeMap<Case, f64>; 2] = Default::default();
        for turn in 0..2 {
            let with = (pair + turn) % 2;
            let lib = options.library().filter(|_| with == 1);
            let around = Surroundings { preload: lib, ..Surroundings::default() };
            let Ok(output) = setting.command(program, &around, options).output() else { continue };
            if !output.status.success() {
                failed = format!("mpirun failed: {}", last_words(&output));
            }
            let text = String::from_utf8_lossy(&output.stdout);
            sides[with] = match setting.way.program {
                Imb => imb_cases(&text),
                OpenMpi | Mpich => text.lines().filter_map(case).collect(),
            };
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
    if cases.is_empty() && failed.is_empty() {
        failed = "no times".into();
    }
    if !failed.is_empty() {
        table.row([ranks.clone(), format!("{name}: {failed}")]);
    }
    let way = format!("{}{}", setting.way.title, if setting.yielding { ", yielding" } else { "" });
    for ((operation, size), [plain, gain]) in &cases {
        let (size, plain) = (out::size(*size), plain.median());
        figure(&format!("mpi.us.{name}.{operation}.{size}"), plain / 1e3);
        spread(&format!("mpi.{name}.{operation}.{size}.ratio"), gain);
        let row = [ranks.clone(), way.clone(), operation.clone(), size, out::time(plain)];
        let ends = [0.0, 1.0].map(|end| ratio(gain.quantile(end)));
        table.row(row.into_iter().chain([median(gain)]).chain(ends));
    }
}

/// Returns the line that says why a run failed: that of our own program, or else the first.
fn last_words(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr);
    let own = text.lines().find(|line| line.ends_with("wrong bytes"));
    let any = || text.lines().find(|line| line.chars().any(char::is_alphanumeric));
    format!("{}, {}", output.status, own.or_else(any).unwrap_or("no message").trim())
}

/// Operation and size.
type Case = (String, usize);

/// Returns what the tables of IMB-MPI1 say, in nanoseconds: the time of a message, or the mean of all
/// ranks' times.
fn imb_cases(text: &str) -> BTreeMap<Case, f64> {
    let mut operation = String::new();
    let mut cases = BTreeMap::new();
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("# Benchmarking ") {
            operation = name.trim().to_lowercase();
        }
        let cells: Vec<&str> = line.split_whitespace().collect();
        let time = match cells[..] {
            [_, _, time, _] | [_, _, _, _, time] => time.parse::<f64>(),
            _ => continue,
        };
        if let (Ok(size), Ok(time)) = (cells[0].parse(), time) {
            cases.insert((operation.clone(), size), time * 1e3);
        }
    }
    cases
}

fn case(line: &str) -> Option<(Case, f64)> {
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
        Err(_) => Err(format!(
            "no {compiler} (apt install openmpi-bin libopenmpi-dev mpich libmpich-dev)"
        )),
    }
}

/// Makes a folder with links to IMB-MPI1 and to MPICH by the name of Intel's library.
fn imb(folder: &Path) -> Result<PathBuf, String> {
    let venv = Place::folder().map(|folder| folder.join("venv/bin"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = venv.into_iter().chain(std::env::split_paths(&path));
    let program = folders.find_map(|folder| Some(folder.join("IMB-MPI1")).filter(|p| p.is_file()));
    let program = program.ok_or("no IMB-MPI1 (pip install --no-deps impi-rt)")?;
    let mut library = spawn::command("ldd", None);
    let output = library.arg(folder.join("by-mpicc.mpich")).output();
    let text = output.map_or(String::new(), |o| String::from_utf8_lossy(&o.stdout).into_owned());
    let mut words = text
        .lines()
        .filter(|line| line.trim().starts_with("libmpich"))
        .flat_map(str::split_whitespace);
    let library = words.find(|word| word.starts_with('/')).ok_or("no libmpich for IMB-MPI1")?;
    let own = folder.join("imb");
    let link = own.join("IMB-MPI1");
    let made = fs::create_dir_all(&own)
        .and_then(|()| symlink(library, own.join("libmpi.so.12")))
        .and_then(|()| symlink(program, &link));
    made.map(|()| link).map_err(|error| format!("{}: {error}", own.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_imb_are_read() {
        let text = "# PingPong\n#------\n# Benchmarking PingPong \n# #processes = 2 \n\
                    \x20      #bytes #repetitions      t[usec]   Mbytes/sec\n\
                    \x20     4194304           10     13674.83       306.72\n\n\
                    # Benchmarking Alltoall \n\
                    \x20      #bytes #repetitions  t_min[usec]  t_max[usec]  t_avg[usec]\n\
                    \x20     1048576           10     24992.14     26930.18     25961.16\n\n\
                    # All processes entering MPI_Finalize\n";
        let cases: Vec<_> = imb_cases(text).into_iter().collect();
        let case = |name: &str, size, ns| ((name.to_string(), size), ns);
        assert_eq!(
            cases,
            [case("alltoall", MIB, 25_961_160.0), case("pingpong", 4 * MIB, 13_674_830.0)]
        );
    }
}
