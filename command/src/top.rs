//! `adma top`: what processes copy right now, and keys to change how.
//!
//! ```text
//! sample      reads all live files, twice makes a rate
//! columns     every figure of a process, for people and programs; which of them a terminal shows
//! lines       the table for pipes and files; JSON and metrics for programs
//! screen      the table on a terminal, by ratatui
//! set         what the user wants of a process goes into its live file
//! ```

mod columns;
mod lines;
mod screen;
mod set;

use crate::live_files::{self, LiveProcess, State};
use crate::report::figures::Site;
use crate::report::from_live;
use crate::say::{FAILED, fail};
use crate::watch::{Lines, Watch};
use adma_shared::live::Recorder;
use adma_shared::worth::{self, Interval, Saved};
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
    override_usage = "adma top [PID] [--all] [--folder DIR] [--once] [--json | --metrics]\n       adma top --set PID WHAT...",
    after_help = "\
WHAT is off, on, min=SIZE (64K, 1M), min=auto, channels=N or channels=auto.
On a terminal h shows the keys. Processes are seen that have statistics on:
started by adma, or with ADMA_STATS, or with ADMA_LIVE=DIR for --folder DIR."
)]
pub struct Wish {
    /// one sample, then leave
    #[arg(long)]
    once: bool,
    /// for programs
    #[arg(long)]
    json: bool,
    /// one sample for Prometheus
    #[arg(long, conflicts_with = "json")]
    metrics: bool,
    /// processes of all users; for root
    #[arg(long)]
    all: bool,
    /// also those that keep their statistics there
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    folder: Option<PathBuf>,
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
    if let Some(Err(why)) = wish.folder.as_deref().map(live_files::readable) {
        fail(FAILED, format_args!("--folder {why}"));
    }
    let can_draw = std::env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb");
    let wants_lines = wish.once || wish.json || wish.metrics;
    if !wants_lines && can_draw && std::io::stdout().is_terminal() {
        return screen::run(&wish);
    }
    lines::run(&wish)
}

/// A process, with its changes since the last sample.
struct Row {
    process: LiveProcess,
    program: String,
    /// Its command line, while it runs.
    command: String,
    user: String,
    copies: u64,
    bytes: u64,
    copies_per_second: f64,
    bytes_per_second: f64,
    messages_per_second: f64,
    reads_per_second: f64,
    /// Part of the bytes that the engine has carried since the last sample.
    engine: f64,
    saved: Saved,
    /// Lines of its script that have made large calls since they are looked for.
    lines: Option<Lines>,
}

impl Row {
    /// Returns the seconds saved; `None`: not known.
    fn seconds_saved(&self) -> Option<f64> {
        self.saved.interval.as_ref().ok().and_then(Interval::estimate)
    }

    /// Returns the code that has made the large calls, most bytes first.
    fn sites(&self) -> Vec<Site> {
        from_live::sites(&self.process, self.lines.as_ref())
    }

    fn recorder(&self) -> &Recorder {
        &self.process.live.recorder
    }

    fn is_off(&self) -> bool {
        self.process.live.facts.off.load(Relaxed) == 1
    }

    /// Returns the size from which copies are carried, as set, configured or learned.
    fn threshold(&self) -> Option<u64> {
        let (control, facts) = (&self.process.live.control, &self.process.live.facts);
        let known = [&control.min_bytes, &facts.min_bytes, &facts.threshold];
        known.into_iter().map(|bytes| bytes.load(Relaxed)).find(|&bytes| bytes > 0)
    }

    /// Returns the reason for which libc has copied most.
    fn because(&self) -> &'static str {
        let [(why, _, bytes), ..] = self.recorder().reasons();
        if bytes > 0 { why.name() } else { "" }
    }

    /// Returns the part of the shared bytes that callers have copied themselves.
    fn caller(&self) -> Option<f64> {
        let caller = self.process.live.facts.caller_bytes.load(Relaxed) as f64;
        let channels: f64 =
            live_files::channel_bytes(&self.process.live).iter().map(|&bytes| bytes as f64).sum();
        (caller + channels > 0.0).then(|| caller / (caller + channels))
    }
}

/// Counters of a process at the last sample: copies, bytes by the engine, bytes in all, messages,
/// reads of files.
type Before = [u64; 5];

/// Samples processes, and remembers counters to compute rates.
struct Sampler {
    before: HashMap<PathBuf, Before>,
    when: Instant,
    watch: Watch,
}

impl Sampler {
    fn new() -> Self {
        Self { before: HashMap::new(), when: Instant::now(), watch: Watch::default() }
    }

    /// Samples all processes, or one. The rate of a new process is that of its life.
    fn sample(&mut self, wish: &Wish) -> Vec<Row> {
        let pid = wish.pid;
        let mut processes = live_files::all(wish.all, wish.folder.as_deref());
        // A process that has executed another program is shown as the new one.
        processes.retain(|process| {
            pid.is_none_or(|pid| process.pid == pid) && process.state != State::Replaced
        });
        self.watch.keep(&processes);
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
        let (copies, bytes) = recorder.total();
        let (engine, seconds) = (recorder.engine_bytes(), process.seconds());
        let messages = process.messages().map_or(0, |told| told.total().0);
        let reads = recorder.counts_apart(0).map(|(_, calls, _)| calls).iter().sum();
        let now = [copies, engine, bytes, messages, reads];
        seen.insert(process.path.clone(), now);
        let (before, passed) = match self.before.get(&process.path) {
            Some(before) => (*before, passed),
            None => (Before::default(), seconds.max(1e-3)),
        };
        let [copies_new, engine_new, bytes_new, messages_new, reads_new] =
            std::array::from_fn(|at| now[at].saturating_sub(before[at]) as f64);
        Row {
            program: process.program(),
            command: process.command_line(),
            user: live_files::name_of(process.owner),
            copies,
            bytes,
            copies_per_second: copies_new / passed,
            bytes_per_second: bytes_new / passed,
            messages_per_second: messages_new / passed,
            reads_per_second: reads_new / passed,
            engine: if bytes_new > 0.0 { (engine_new / bytes_new).min(1.0) } else { 0.0 },
            saved: worth::saved(recorder, process.scale(), seconds),
            lines: self.watch.seen.get(&process.path).cloned(),
            process,
        }
    }
}
