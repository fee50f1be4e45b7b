//! Programs with and without the library, and what its reports say.

use crate::json;
use crate::random::Random;
use crate::verdict::{Context, Outcome};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The release library, beside the programs of the guest.
pub fn library() -> Outcome<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let exe = std::env::current_exe()?;
    let beside = exe.ancestors().take(4).map(|folder| folder.join("release"));
    let mut places = std::env::split_paths(&path).chain(beside);
    let found = places.find_map(|folder| {
        let file = folder.join("libadma.so");
        file.is_file().then_some(file)
    });
    match found {
        Some(file) => Ok(file),
        None => skip!("no libadma.so, neither in PATH nor in a folder `release` above"),
    }
}

/// A command without the library and with no knob of ours inherited.
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

/// The library, with the I/OAT backend and a fixed threshold.
pub fn with_library(command: &mut Command) -> Outcome<&mut Command> {
    Ok(command
        .env("LD_PRELOAD", library()?)
        .env("ADMA_BACKEND", "ioat")
        .env("ADMA_MIN_BYTES", "64K"))
}

/// The program itself in the role of a victim, under the library.
pub fn victim(role: &str, arguments: &[&str]) -> Outcome<Command> {
    let mut command = plain(std::env::current_exe()?);
    with_library(&mut command)?.arg("--victim").arg(role).args(arguments);
    Ok(command)
}

/// A fresh folder that goes with its owner.
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

/// What the library said at the end of one process.
pub struct Report(String);

impl Report {
    /// A number that must be there.
    pub fn number(&self, way: &[&str]) -> Outcome<u64> {
        match json::number(&self.0, way) {
            Some(number) => Ok(number),
            None => fail!("no {} in the report {}", way.join("."), self.0),
        }
    }

    /// Bytes that channels had a part in: without any, a caller has streamed them.
    pub fn engine_bytes(&self) -> Outcome<u64> {
        match self.number(&["channels"])? {
            0 => Ok(0),
            _ => self.number(&["paths", "engine", "bytes"]),
        }
    }

    pub fn libc_bytes(&self) -> Outcome<u64> {
        self.number(&["paths", "libc", "bytes"])
    }

    pub fn caller_bytes(&self) -> Outcome<u64> {
        self.number(&["channel_bytes", "caller"])
    }

    /// The program's name, as in python3.11.
    pub fn program(&self) -> &str {
        let exe = json::string(&self.0, &["exe"]).unwrap_or_default();
        exe.rsplit('/').next().unwrap_or_default()
    }

    /// A program that had nothing to carry has no backend either.
    fn expect_ioat(&self) -> Outcome {
        if self.engine_bytes()? > 0 {
            ensure_eq!(json::string(&self.0, &["backend"]), Some("ioat"), "backend of {}", self.0);
        }
        Ok(())
    }
}

/// Lets the library report into a folder.
pub fn report_into<'a>(command: &'a mut Command, folder: &Folder) -> &'a mut Command {
    let file = folder.path().join("%p.json");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", file)
}

/// Every report of a folder; whatever was carried, was carried by the I/OAT backend.
pub fn reports(folder: &Folder) -> Outcome<Vec<Report>> {
    let mut all = Vec::new();
    for entry in fs::read_dir(folder.path())? {
        let text = fs::read_to_string(entry?.path())?;
        all.extend(text.lines().map(|line| Report(line.to_owned())));
    }
    all.iter().try_for_each(Report::expect_ioat)?;
    Ok(all)
}

/// Runs one process under the library, insists that it goes well, and returns its report.
pub fn only_report(command: &mut Command) -> Outcome<Report> {
    let folder = Folder::new("report")?;
    let done = report_into(command, &folder).output()?;
    ensure!(
        done.status.success(),
        "{command:?}: {}: {}",
        done.status,
        String::from_utf8_lossy(&done.stderr).trim()
    );
    let mut all = reports(&folder)?;
    ensure_eq!(all.len(), 1, "reports of one process that copies: {command:?}");
    Ok(all.remove(0))
}

// ---- scripts ------------------------------------------------------------------------

/// What a run left: stdout, and the files of its folder.
#[derive(PartialEq)]
struct Traces {
    stdout: Vec<u8>,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

/// Runs a bash script with and without the library, in a folder with the same two input
/// files. Everything it leaves must be the same, and `program` must have had bytes carried
/// by the engine (an empty name: none must).
pub fn compare(script: &str, needs: &[&str], program: &str) -> Outcome {
    library()?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&&str| std::env::split_paths(&path).any(|p| p.join(name).is_file());
    if let Some(missing) = needs.iter().find(|name| !is_there(name)) {
        skip!("{missing} is not installed");
    }
    let (base, said) = (Folder::new("work")?, Folder::new("said")?);
    let mut bash = plain("bash");
    let without =
        run(&mut bash, &base.path().join("work"), script).context("without the library")?;
    let mut bash = plain("bash");
    report_into(with_library(&mut bash)?, &said);
    let with = run(&mut bash, &base.path().join("work"), script).context("with the library")?;

    ensure!(
        with.stdout == without.stdout,
        "stdout differs: {:?} and without the library {:?}",
        String::from_utf8_lossy(&with.stdout),
        String::from_utf8_lossy(&without.stdout)
    );
    for (name, bytes) in &without.files {
        ensure!(with.files.get(name) == Some(bytes), "{} differs", name.display());
    }
    ensure_eq!(with.files.len(), without.files.len(), "files left");

    let mut carried = BTreeMap::new();
    for report in reports(&said)? {
        *carried.entry(report.program().to_owned()).or_insert(0) += report.engine_bytes()?;
    }
    println!("bytes by the engine: {carried:?}");
    let of_program = carried.iter().filter(|(name, _)| name.starts_with(program));
    ensure!(
        program.is_empty() || of_program.map(|(_, bytes)| bytes).sum::<u64>() > 0,
        "{program} had nothing carried by the engine: {carried:?}"
    );
    Ok(())
}

fn run(bash: &mut Command, folder: &Path, script: &str) -> Outcome<Traces> {
    fs::create_dir(folder)?;
    fs::write(folder.join("random.bin"), random_bytes(768 << 10))?;
    fs::write(folder.join("words.txt"), words(200 << 10))?;
    bash.args(["-euc", script]).current_dir(folder);
    bash.env("LC_ALL", "C").env("TZ", "UTC").env("HOME", folder).env("PYTHONHASHSEED", "0");
    let done = bash.output()?;
    ensure!(
        done.status.success(),
        "{}: {}",
        done.status,
        String::from_utf8_lossy(&done.stderr).trim()
    );
    let mut files = BTreeMap::new();
    gather(folder, folder, &mut files)?;
    fs::remove_dir_all(folder)?;
    Ok(Traces { stdout: done.stdout, files })
}

fn gather(base: &Path, folder: &Path, files: &mut BTreeMap<PathBuf, Vec<u8>>) -> Outcome {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            gather(base, &path, files)?;
        } else {
            let name = path.strip_prefix(base).unwrap_or(&path).to_owned();
            files.insert(name, fs::read(&path)?);
        }
    }
    Ok(())
}

fn random_bytes(count: usize) -> Vec<u8> {
    let mut random = Random::new(1);
    (0..count / 8).flat_map(|_| random.next().to_le_bytes()).collect()
}

/// Lines of words and numbers, as sort and awk like them.
fn words(count: usize) -> String {
    let names = ["ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen", "ibis", "jay"];
    let mut random = Random::new(2);
    let mut text = String::with_capacity(count + 100);
    while text.len() < count {
        let number = random.below(1_000_000);
        text += &format!("{} {number} {}\n", random.pick(&names), number % 1000);
    }
    text
}
