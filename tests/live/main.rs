//! Live statistics: files that tell what a process has counted while it runs and after it was
//! killed, `adma top`, and the one report of `adma program` for all its processes.
//!
//! The victim `live` does what it is told line by line, so nothing here waits for luck.

#[path = "../common/mod.rs"]
mod common;
mod files;
mod terminal;
mod top;
mod tree;

use adma_record::Counters;
use adma_record::live::{self, Live, NO_STATUS, ended};
use common::{finish, found, number, plain, preloaded, skip, succeed, text, victim};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;

const MIB: u64 = 1 << 20;

/// A private folder in memory, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        use std::sync::atomic::AtomicU32;
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Relaxed);
        let path = format!("/dev/shm/adma-tests-{}-{number}", std::process::id());
        let _ = fs::remove_dir_all(&path);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        Self(path.into())
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn make(&self, name: &str) -> PathBuf {
        let path = self.join(name);
        fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The live files in a folder, by process and age.
fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.sort();
    files
}

fn read(path: &Path) -> Box<Live> {
    let bytes = fs::read(path).unwrap();
    assert_eq!(bytes.len(), Live::SIZE, "{}", path.display());
    let mut live = Box::new(Live::ZERO);
    live.bytes_mut().copy_from_slice(&bytes[..size_of::<Live>()]);
    assert!(live.is_valid());
    live
}

fn only(folder: &Path) -> Box<Live> {
    let files = files(folder);
    assert_eq!(files.len(), 1, "{files:?}");
    read(&files[0])
}

/// Large copies and their bytes.
fn counted(live: &Live) -> (u64, u64) {
    let flows = [&live.recorder.engine, &live.recorder.libc];
    let calls = flows.iter().map(|flow| flow.sizes.count()).sum();
    (calls, live.recorder.engine_bytes() + live.recorder.libc_bytes())
}

/// A victim that waits for orders.
struct Victim {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Victim {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, answers }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{order}").unwrap();
    }

    /// The next line, within minutes.
    fn answer(&mut self) -> String {
        let mut ready = libc::pollfd {
            fd: self.answers.get_ref().as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let known = !self.answers.buffer().is_empty();
        // SAFETY: one descriptor to look at.
        assert!(known || unsafe { libc::poll(&mut ready, 1, 300_000) } == 1, "no answer");
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    fn end(mut self) -> std::process::ExitStatus {
        drop(self.child.stdin.take());
        self.child.wait().unwrap()
    }
}

/// Whether something comes true within a minute.
fn eventually(mut is_true: impl FnMut() -> bool) -> bool {
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_true() {
        if std::time::Instant::now() > limit {
            return false;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    true
}

/// A fixed threshold, so that every copy is carried.
fn fixed(command: &mut Command) -> &mut Command {
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "1")
}

/// Counts into `folder` for a collector.
fn collected(folder: &Path) -> Command {
    let mut command = preloaded(victim("live"));
    fixed(&mut command).env("ADMA_LIVE", folder);
    command
}

/// `adma` in a world of its own: trees are kept in `folder`.
fn adma(folder: &Folder) -> Command {
    let mut command = plain(common::command());
    fixed(&mut command).env("XDG_RUNTIME_DIR", &folder.0);
    command
}

fn nothing_is_left(folder: &Folder) {
    assert_eq!(files(&folder.join("adma")), [""; 0].map(PathBuf::from));
}

fn top(folder: &Folder, arguments: &[&str]) -> String {
    let mut command = plain(common::command());
    command.env("XDG_RUNTIME_DIR", &folder.0).arg("top").args(arguments);
    succeed(&mut command).0
}

fn seen(folder: &Folder, pid: u32) -> Value {
    let out = top(folder, &["--once", "--json", &pid.to_string()]);
    let json: Value = serde_json::from_str(&out).unwrap();
    json["processes"][0].clone()
}

/// A victim that keeps live statistics where `top` looks for them.
fn watched(folder: &Folder) -> Victim {
    let mut command = preloaded(victim("live"));
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", "/dev/null");
    Victim::start(fixed(&mut command).env("XDG_RUNTIME_DIR", &folder.0))
}
