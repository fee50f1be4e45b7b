//! Open MPI's own ping-pong, in turns with the others: `bench/mpi_pingpong.c`.

use crate::spawn;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

const SOURCE: &str = include_str!("../mpi_pingpong.c");

pub struct Mpi {
    folder: PathBuf,
    run: Child,
    orders: [File; 2],
    answers: BufReader<File>,
}

impl Mpi {
    pub fn start() -> Result<Self, String> {
        let folder = std::env::temp_dir().join(format!("adma-bench-mpi-{}", std::process::id()));
        let fails = |what: &str, why: String| format!("{what}: {why}");
        let program = build("mpicc", &folder, SOURCE)?;
        for name in ["order.0", "order.1", "answers"] {
            let made = spawn::command("mkfifo", None).arg(folder.join(name)).status();
            if !made.is_ok_and(|status| status.success()) {
                return Err("mkfifo failed".into());
            }
        }
        let run = spawn::command("mpirun", None)
            .args(["--allow-run-as-root", "--oversubscribe", "-np", "2"])
            .arg(&program)
            .arg(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| fails("mpirun", error.to_string()))?;
        // For writing and reading: opening a FIFO one way waits for the other end, which may
        // never come.
        let open = |name: &str| {
            File::options()
                .read(true)
                .write(true)
                .open(folder.join(name))
                .map_err(|error| fails(name, error.to_string()))
        };
        let orders = [open("order.0")?, open("order.1")?];
        let answers = BufReader::new(open("answers")?);
        let mut mpi = Mpi { folder, run, orders, answers };
        std::thread::sleep(std::time::Duration::from_secs(2));
        match mpi.run.try_wait() {
            Ok(None) => Ok(mpi),
            _ => Err("mpirun ended at once".into()),
        }
    }

    /// Nanoseconds of half a round trip.
    pub fn play(&mut self, size: usize, rounds: usize) -> Option<f64> {
        for order in &mut self.orders {
            writeln!(order, "{size} {rounds}").ok()?;
        }
        let mut line = String::new();
        self.answers.read_line(&mut line).ok()?;
        line.trim().parse().ok()
    }
}

/// Compiles a program of ours into a folder.
pub fn build(compiler: &str, folder: &Path, source: &str) -> Result<PathBuf, String> {
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

impl Drop for Mpi {
    fn drop(&mut self) {
        let _ = self.run.kill();
        let _ = self.run.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
