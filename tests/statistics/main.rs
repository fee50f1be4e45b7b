//! Statistics: that every number is right, in every format, however the process ends; that a report that
//! cannot be written never harms the program; live files, which tell what a process has counted while it
//! runs and after it was killed; `adma top`, and the one report of `adma program` for all its processes.
//!
//! The victim `live` takes orders line by line, so no test depends on timing.

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod files;
mod live;
mod numbers;
mod terminal;
mod top;
mod tree;

use adma_shared::Counters;
use adma_shared::live::{Control, Facts, Live, NO_STATUS, ended as how_ended};
use common::{
    Folder, copy_program, ended, finish, fixed, has, needs, number, only_report, plain, preloaded,
    skip_this, succeed, text, victim,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

const MIB: u64 = 1 << 20;

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Checks what must hold in every report.
fn check(json: &Value) {
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    for key in ["pid", "channels"] {
        assert!(json[key].is_u64(), "{key}: {json}");
    }
    for key in ["exe", "backend"] {
        assert!(json[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {json}");
    }
    for path in ["engine", "libc"] {
        let flow = &json["paths"][path];
        let (calls, bytes) = (number(&flow["calls"]), number(&flow["bytes"]));
        let size = check_histogram(&flow["size"], calls);
        check_histogram(&flow["latency_ns"], calls);
        assert!(size.0 <= bytes && bytes <= size.1, "{path}: {bytes} bytes are not in {size:?}");
        let longest = number(&flow["latency_ns"]["max"]) as f64;
        assert!(longest <= json["seconds"].as_f64().unwrap() * 1e9, "longer than the process");
    }
    let fallbacks = json["fallbacks"].as_object().unwrap();
    for name in ["overlap", "busy", "refused", "fault"] {
        assert!(fallbacks.contains_key(name), "{name}: {json}");
    }
    // A fault is redone by the caller within a carried copy; all others are calls of libc.
    let reasons = fallbacks.iter().filter(|(name, _)| *name != "fault");
    let reasons: u64 = reasons.map(|(_, count)| number(count)).sum();
    assert_eq!(reasons, number(&json["paths"]["libc"]["calls"]), "{json}");
}

/// Checks a histogram. Returns the least and the greatest sum its values can have.
fn check_histogram(histogram: &Value, calls: u64) -> (u64, u64) {
    let percentiles = ["p50", "p90", "p99", "p99.9", "max"].map(|name| number(&histogram[name]));
    assert!(percentiles.is_sorted(), "{histogram}");
    let buckets: Vec<[u64; 3]> = histogram["buckets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bucket| [0, 1, 2].map(|index| number(&bucket[index])))
        .collect();
    assert_eq!(buckets.iter().map(|bucket| bucket[2]).sum::<u64>(), calls, "{histogram}");
    assert!(buckets.iter().all(|&[low, high, count]| low <= high && count > 0), "{histogram}");
    assert!(buckets.windows(2).all(|two| two[0][1] <= two[1][0]), "{histogram}");
    if let Some(&[low, high, _]) = buckets.last() {
        assert!((low..=high).contains(&percentiles[4]), "{histogram}");
    }
    let sum = |edge: usize| buckets.iter().map(|bucket| bucket[edge] * bucket[2]).sum();
    (sum(0), sum(1))
}

fn channel_bytes(json: &Value) -> u64 {
    json["channel_bytes"].as_object().unwrap().values().map(number).sum()
}

/// Makes a private folder in memory.
fn in_memory() -> Folder {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Relaxed);
    let path = format!("/dev/shm/adma-tests-{}-{number}", std::process::id());
    let _ = fs::remove_dir_all(&path);
    Folder(made(path.into()))
}

fn made(path: PathBuf) -> PathBuf {
    fs::DirBuilder::new().mode(0o700).create(&path).unwrap();
    path
}

/// Returns the live files in a folder, by process and age.
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

/// Returns the number of large copies and their bytes.
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

    /// Returns the next line, within minutes.
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

/// Returns whether something comes true within a minute.
fn eventually(mut is_true: impl FnMut() -> bool) -> bool {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_true() && Instant::now() < limit {
        std::thread::sleep(Duration::from_millis(10));
    }
    is_true()
}

/// Sets a fixed threshold, so that every copy is carried.
fn carrying(command: &mut Command) -> &mut Command {
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "1")
}

/// Returns a command that counts into `folder` for a collector.
fn collected(folder: &Path) -> Command {
    let mut command = preloaded(victim("live"));
    carrying(&mut command).env("ADMA_LIVE", folder);
    command
}

/// Returns `adma` with its trees in `folder`.
fn adma(folder: &Folder) -> Command {
    let mut command = plain(common::command());
    carrying(&mut command).env("XDG_RUNTIME_DIR", &folder.0);
    command
}

fn nothing_is_left(folder: &Folder) {
    assert_eq!(files(&folder.join("adma")), [""; 0].map(PathBuf::from));
}

fn top_command(folder: &Folder, arguments: &[&str]) -> Command {
    let mut command = plain(common::command());
    command.env("XDG_RUNTIME_DIR", &folder.0).arg("top").args(arguments);
    command
}

fn top(folder: &Folder, arguments: &[&str]) -> String {
    succeed(&mut top_command(folder, arguments)).0
}

fn seen(folder: &Folder, pid: u32) -> Value {
    let out = top(folder, &["--once", "--json", &pid.to_string()]);
    let json: Value = serde_json::from_str(&out).unwrap();
    json["processes"][0].clone()
}

/// Starts a victim whose live statistics `top` finds.
fn watched(folder: &Folder) -> Victim {
    let mut command = preloaded(victim("live"));
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", "/dev/null");
    Victim::start(carrying(&mut command).env("XDG_RUNTIME_DIR", &folder.0))
}

/// Writes a Python script whose fourth line copies, for some seconds.
fn script_that_copies(folder: &Path, seconds: f64) -> PathBuf {
    let script = folder.join("train.py");
    let code = format!(
        "import time\n\ndef load_batch(a):\n    return bytes(a)\n\n\
         a = bytearray(16 << 20)\nend = time.monotonic() + {seconds}\n\
         while time.monotonic() < end:\n    load_batch(a)\n"
    );
    fs::write(&script, code).unwrap();
    script
}
