//! `adma top`: what processes copy right now, and keys to change how.
//!
//! ```text
//! sample      reads all live files, twice makes a rate
//! lines       a table for pipes and files; json for programs
//! screen      the same on a terminal, by ratatui
//! set         what the user wants of a process goes into its live file
//! ```

mod lines;
mod screen;
mod set;

use crate::live::{self, LiveProcess, State};
use crate::stats::live::Recorder;
use crate::stats::worth;
use clap::ValueHint;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const INTERVAL: Duration = Duration::from_secs(1);

/// Shows what processes copy, each second, and changes running ones.
#[derive(clap::Parser, Debug)]
#[command(
    name = "top",
    verbatim_doc_comment,
    override_usage = "adma top [PID] [--once] [--json]\n       adma top --set PID WHAT...",
    after_help = "\
WHAT is off, on, min=SIZE (64K, 1M), min=auto, channels=N or channels=auto.
On a terminal: up and down choose a process, s sorts, space switches it off and
on, + and - change its threshold, < and > its channels, r undoes, q leaves.
Processes are seen that have statistics on: started by adma, or with ADMA_STATS."
)]
pub struct Wish {
    /// one sample, then leave
    #[arg(long)]
    once: bool,
    /// for programs
    #[arg(long)]
    json: bool,
    /// change a running process
    #[arg(long, requires = "pid")]
    set: bool,
    /// only this process
    #[arg(value_parser = pid, value_hint = ValueHint::Other)]
    pid: Option<i32>,
    /// off, on, min=SIZE, channels=N
    #[arg(hide = true, requires = "set")]
    what: Vec<String>,
}

fn pid(text: &str) -> Result<i32, &'static str> {
    text.parse().ok().filter(|pid| *pid > 0).ok_or("want a process number")
}

pub fn command(wish: Wish) -> i32 {
    if let (true, Some(pid)) = (wish.set, wish.pid) {
        return set::command(pid, &wish.what);
    }
    if !wish.once && !wish.json && std::io::stdout().is_terminal() {
        return screen::run(&wish);
    }
    lines::run(&wish)
}

/// One process, with what has changed since it was seen before.
struct Row {
    process: LiveProcess,
    program: String,
    copies: u64,
    bytes: u64,
    copies_per_second: f64,
    bytes_per_second: f64,
    messages_per_second: f64,
    /// Part of the bytes that the engine has carried, since it was seen before.
    engine: f64,
    /// Seconds; `None`: not known.
    saved: Option<f64>,
}

impl Row {
    fn recorder(&self) -> &Recorder {
        &self.process.live.recorder
    }

    fn is_off(&self) -> bool {
        self.process.live.facts.off.load(Relaxed) == 1
    }

    /// The reason for which libc has copied most.
    fn because(&self) -> &'static str {
        let reasons = self.recorder().fallback_bytes().filter(|(_, bytes)| *bytes > 0);
        reasons.max_by_key(|(_, bytes)| *bytes).map_or("", |(why, _)| why.name())
    }

    /// Part of the shared bytes that callers have copied themselves.
    fn caller(&self) -> Option<f64> {
        let caller = self.process.live.facts.caller_bytes.load(Relaxed) as f64;
        let channels: f64 = self.process.channel_bytes().iter().map(|&bytes| bytes as f64).sum();
        (caller + channels > 0.0).then(|| caller / (caller + channels))
    }
}

/// What was counted when a process was seen before: copies, bytes by the engine, bytes in all,
/// messages.
type Before = [u64; 4];

/// Remembers what it has seen, so that it can tell rates.
struct Sampler {
    before: HashMap<PathBuf, Before>,
    when: Instant,
}

impl Sampler {
    fn new() -> Self {
        Self { before: HashMap::new(), when: Instant::now() }
    }

    /// All processes, or one. Of a process that was not seen before the rate is that of its life.
    fn sample(&mut self, pid: Option<i32>) -> Vec<Row> {
        let mut processes = live::all();
        // Who has become another program is shown as what it is now.
        processes.retain(|process| {
            pid.is_none_or(|pid| process.pid == pid) && process.state != State::Replaced
        });
        let passed = self.when.elapsed().as_secs_f64().max(1e-3);
        self.when = Instant::now();
        let mut seen = HashMap::new();
        let rows = processes.into_iter().map(|process| self.row(process, passed, &mut seen));
        let rows = rows.collect();
        self.before = seen;
        rows
    }

    fn row(&self, process: LiveProcess, passed: f64, seen: &mut HashMap<PathBuf, Before>) -> Row {
        let recorder = &process.live.recorder;
        let copies = recorder.engine.sizes.count().saturating_add(recorder.libc.sizes.count());
        let engine = recorder.engine_bytes();
        let (bytes, seconds) = (process.bytes(), process.seconds());
        let messages = process.messages().map_or(0, |told| told.total().0);
        let now = [copies, engine, bytes, messages];
        seen.insert(process.path.clone(), now);
        let (before, passed) = match self.before.get(&process.path) {
            Some(before) => (*before, passed),
            None => (Before::default(), seconds.max(1e-3)),
        };
        let [copies_new, engine_new, bytes_new, messages_new] =
            std::array::from_fn(|at| now[at].saturating_sub(before[at]) as f64);
        Row {
            program: process.program(),
            copies,
            bytes,
            copies_per_second: copies_new / passed,
            bytes_per_second: bytes_new / passed,
            messages_per_second: messages_new / passed,
            engine: if bytes_new > 0.0 { (engine_new / bytes_new).min(1.0) } else { 0.0 },
            saved: worth::saved(recorder, process.scale(), seconds).seconds(),
            process,
        }
    }
}
