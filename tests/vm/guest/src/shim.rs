//! Programs with and without the library, and its reports.

use crate::verdict::{Context, Outcome};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// Returns the release library, beside the programs of the guest.
pub fn library() -> Outcome<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut places = std::env::split_paths(&path).map(|folder| folder.join("libadma.so"));
    match places.find(|file| file.is_file()) {
        Some(file) => Ok(file),
        None => skip!("no libadma.so in PATH"),
    }
}

/// Returns a command without the library and with no knob of ours inherited.
pub fn plain(program: impl AsRef<Path>) -> Command {
    let mut command = Command::new(program.as_ref());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ADMA_") || name == "LD_PRELOAD" {
            command.env_remove(name);
        }
    }
    command.stdin(Stdio::null());
    command
}

/// A small program that tests/*.rs run on the host too, built by tests/vm/guest/build, and its
/// arguments; without the library, unless it is linked with it.
pub fn host_program(line: &str) -> Outcome<Command> {
    let mut words = line.split_whitespace();
    let name = words.next().unwrap_or_default();
    let path = std::env::current_dir()?.join("target/vm/guest-victims").join(name);
    if !path.is_file() {
        skip!("there is no program {name}: tests/vm/guest/build");
    }
    library()?;
    let mut command = plain(path);
    command.args(words);
    Ok(command)
}

/// Adds the library, with the I/OAT backend and a fixed threshold.
pub fn with_library(command: &mut Command) -> Outcome<&mut Command> {
    Ok(command
        .env("LD_PRELOAD", library()?)
        .env("ADMA_BACKEND", "ioat")
        .env("ADMA_MIN_BYTES", "64K"))
}

/// Returns the program itself in the role of a victim, under the library.
pub fn victim(role: &str, arguments: &[&str]) -> Outcome<Command> {
    let mut command = plain(std::env::current_exe()?);
    with_library(&mut command)?.arg("--victim").arg(role).args(arguments);
    Ok(command)
}

/// Runs a program, which must succeed; skipped where it reports that it cannot show its subject, or
/// is not installed.
pub fn finish(command: &mut Command) -> Outcome<Output> {
    let done = match command.output() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            skip!("{} is not installed", command.get_program().display())
        }
        done => done?,
    };
    let err = String::from_utf8_lossy(&done.stderr);
    match done.status.code() {
        Some(0) => Ok(done),
        Some(77) => skip!("{}", err.trim()),
        _ => fail!("{command:?}: {}: {}", done.status, err.trim()),
    }
}

/// A fresh folder, removed with its owner.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(name: &str) -> Outcome<Folder> {
        let path = PathBuf::from(format!("/tmp/adma-guest-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).context(path.display())?;
        Ok(Folder(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

// ---- reports ------------------------------------------------------------------------

/// Report of the library about one process.
pub struct Report(Value);

impl Report {
    /// Returns a number that must be there, by its JSON pointer.
    pub fn number(&self, pointer: &str) -> Outcome<u64> {
        match self.0.pointer(pointer).and_then(Value::as_u64) {
            Some(number) => Ok(number),
            None => fail!("no {pointer} in the report {}", self.0),
        }
    }

    /// Returns the bytes that channels had a part in: without any, a caller has streamed them.
    pub fn engine_bytes(&self) -> Outcome<u64> {
        match self.number("/channels")? {
            0 => Ok(0),
            _ => self.number("/paths/engine/bytes"),
        }
    }

    pub fn libc_bytes(&self) -> Outcome<u64> {
        self.number("/paths/libc/bytes")
    }

    /// Returns the program's name, like python3.11.
    fn program(&self) -> &str {
        let exe = self.0["exe"].as_str().unwrap_or_default();
        exe.rsplit('/').next().unwrap_or_default()
    }
}

/// Lets the library report into a folder.
pub fn report_into<'a>(command: &'a mut Command, folder: &Folder) -> &'a mut Command {
    let file = folder.path().join("%p.json");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", file)
}

/// Returns every report of a folder, and checks that the I/OAT backend has carried the bytes.
pub fn reports(folder: &Folder) -> Outcome<Vec<Report>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder.path())? {
        for line in fs::read_to_string(entry?.path())?.lines() {
            let Ok(value) = serde_json::from_str(line) else { fail!("not JSON: {line}") };
            let report = Report(value);
            // A program that had nothing to carry has no backend either.
            if report.engine_bytes()? > 0 {
                ensure_eq!(report.0["backend"], "ioat", "backend of {line}");
            }
            all.push(report);
        }
    }
    Ok(all)
}

/// Returns the report of a folder into which one process has reported.
pub fn report_in(folder: &Folder) -> Outcome<Report> {
    let mut all = reports(folder)?;
    ensure_eq!(all.len(), 1, "reports of one process that copies");
    Ok(all.remove(0))
}

/// Runs one process under the library, which must succeed, and returns its report.
pub fn only_report(command: &mut Command) -> Outcome<Report> {
    let folder = Folder::new("report")?;
    finish(report_into(command, &folder))?;
    report_in(&folder)
}

/// A program that copies continuously, and checks the bytes, until it is told to end.
pub struct Steady {
    program: Child,
    folder: Folder,
}

impl Steady {
    pub fn start() -> Outcome<Steady> {
        let folder = Folder::new("steady")?;
        let mut command = victim("steady", &["262144"])?;
        // The program ends when its standard input does.
        let program = report_into(&mut command, &folder).stdin(Stdio::piped()).spawn()?;
        Ok(Steady { program, folder })
    }

    pub fn end(mut self) -> Outcome<Report> {
        drop(self.program.stdin.take());
        let status = self.program.wait()?;
        ensure!(status.success(), "the program: {status}");
        report_in(&self.folder)
    }
}

impl Drop for Steady {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

// ---- scripts ------------------------------------------------------------------------

/// Runs a bash script with and without the library, each time in an empty folder. It must print the
/// same, and `program` must have had bytes carried by the engine.
pub fn compare(script: &str, program: &str) -> Outcome {
    let said = Folder::new("said")?;
    let run = |preloaded: bool| -> Outcome<String> {
        let folder = Folder::new("work")?;
        let mut bash = plain("bash");
        if preloaded {
            report_into(with_library(&mut bash)?, &said);
        }
        bash.args(["-euo", "pipefail", "-c", script]).current_dir(folder.path()).env("LC_ALL", "C");
        Ok(String::from_utf8_lossy(&finish(&mut bash)?.stdout).into_owned())
    };
    let without = run(false)?;
    ensure_eq!(run(true)?, without, "what it has printed");
    let mut carried = BTreeMap::new();
    for report in reports(&said)? {
        *carried.entry(report.program().to_owned()).or_insert(0) += report.engine_bytes()?;
    }
    println!("bytes by the engine: {carried:?}");
    let of_program = carried.iter().filter(|(name, _)| name.starts_with(program));
    ensure!(
        of_program.map(|(_, bytes)| bytes).sum::<u64>() > 0,
        "{program} had nothing carried by the engine: {carried:?}"
    );
    Ok(())
}
