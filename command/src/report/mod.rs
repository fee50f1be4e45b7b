//! `adma report FILE... [--html PAGE]`: the JSON of one or many processes, as text on standard
//! output and as a page that stands alone.
//!
//! ```text
//! process     one process's JSON, checked; from_live: its live file as such a report
//! figures     its numbers, and the sum of many
//! advice      did it help, and what should be changed
//! document    all of it in the model of adma_report, which writes the page; sections: its tables
//! text        the report for terminals; hlog: for HdrHistogram's tools
//! diff        two runs beside each other
//! ```

mod advice;
mod diff;
mod document;
pub mod figures;
pub mod from_live;
mod hlog;
pub mod process;
mod sections;
pub mod text;

#[cfg(test)]
mod tests;

use crate::say::{self, FAILED, fail, printable, say};
use adma_report::html::Html;
use adma_report::json::Json;
use adma_report::text::Text;
use adma_report::{Format, units};
use adma_shared::live::Live;
use figures::{Figures, TimeSaved};
use std::cmp::Reverse;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;

/// Reads reports in JSON, of one process or of many, and prints one report of all
/// of them; - is standard input.
/// To make such reports: adma --stats json --stats-file FILE program
#[derive(clap::Parser, Debug)]
#[command(
    name = "report",
    verbatim_doc_comment,
    override_usage = "adma report FILE... [--html PAGE] [--hlog LOG]\n       adma report --diff BEFORE AFTER"
)]
pub struct ReportOptions {
    /// Reports in JSON; - is standard input.
    #[arg(value_name = "FILE", required = true, value_hint = clap::ValueHint::FilePath)]
    files: Vec<OsString>,
    /// also make a page for a browser
    #[arg(long, value_name = "PAGE", value_hint = clap::ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// also write the histograms as a log for HdrHistogram
    #[arg(long, value_name = "LOG", value_hint = clap::ValueHint::FilePath)]
    hlog: Option<PathBuf>,
    /// compare two files with each other
    #[arg(long, conflicts_with_all = ["html", "hlog"])]
    diff: bool,
}

/// Largest file: more than a thousand full reports.
const LONGEST_FILE: u64 = 256 << 20;
/// Processes that are shown one by one; of the others only the rows of tables are kept.
const PICTURED: usize = 24;

/// One process, from its live file or from its JSON.
#[derive(Default)]
pub struct Process {
    pub version: String,
    pub pid: u64,
    /// Path of the program, or what the system reports instead.
    pub exe: String,
    /// Words of the command line, separated by blanks; empty: not known.
    pub command: String,
    /// Start in seconds since the epoch.
    pub started: f64,
    pub seconds: f64,
    /// How it ended; empty: not known.
    pub end: String,
    pub backend: String,
    /// Channels besides the caller.
    pub channels: usize,
    /// Smallest copy that was carried, if that was fixed or learned.
    pub threshold: Option<u64>,
    pub saved: Option<TimeSaved>,
    /// Seconds of its first large call and of the end of its last one.
    pub span: (f64, f64),
    pub calls: u64,
    pub bytes: u64,
    pub engine_bytes: u64,
    /// Bytes of copies and messages.
    pub all_bytes: u64,
    /// Figures; `None`: too many processes to keep them.
    pub figures: Option<Figures>,
}

/// Returns when the first call began and the last ended; unbounded where that is not known.
fn span(live: &Live, seconds: impl Fn(u64) -> f64) -> (f64, f64) {
    let line = &live.recorder.timeline;
    match line.start.load(Relaxed) {
        0 => (f64::NEG_INFINITY, f64::INFINITY),
        start => (seconds(start), seconds(line.end.load(Relaxed))),
    }
}

impl Process {
    /// Returns a process with these figures.
    fn of(figures: Figures) -> Self {
        let messages = figures.live.messages.sums().map_or(0, |sums| sums.total().1);
        let (calls, bytes) = figures.live.recorder.total();
        Self {
            backend: crate::live_files::backend(&figures.live),
            channels: figures.live.facts.channels.load(Relaxed) as usize,
            calls,
            bytes,
            engine_bytes: figures.live.recorder.engine_bytes(),
            all_bytes: bytes.saturating_add(messages),
            figures: Some(figures),
            ..Self::default()
        }
    }

    /// Returns the program without its folders.
    pub fn name(&self) -> &str {
        self.exe.rsplit('/').next().unwrap_or(&self.exe)
    }

    /// Returns the command line where it is known, or the program; both without folders in front.
    pub fn program(&self) -> &str {
        let line = if self.command.is_empty() { &self.exe } else { &self.command };
        let program = line.split(' ').next().unwrap_or(line);
        &line[program.rfind('/').map_or(0, |slash| slash + 1)..]
    }
}

/// Processes in the order of what they copied, most first, and their sum.
pub struct Report {
    processes: Vec<Process>,
    total: Figures,
    /// Estimate of the time saved; `None`: nothing was shared.
    saved: Option<TimeSaved>,
    run: Option<Run>,
}

/// Facts about a run that the command has made itself.
pub struct Run {
    pub command: String,
    pub seconds: f64,
    /// How the program has ended.
    pub end: String,
    /// Why figures of some processes are missing; `None`: none are known to be.
    pub not_kept: Option<String>,
}

impl Report {
    pub fn new(run: Option<Run>) -> Self {
        Self { processes: Vec::new(), total: Figures::new(1.0), saved: None, run }
    }

    pub fn add(&mut self, process: Process) {
        if let Some(figures) = &process.figures {
            self.total.scale = figures.scale;
            self.total.add(figures);
        }
        self.processes.push(process);
        if self.processes.len().is_multiple_of(2 * PICTURED) {
            self.sort();
            self.processes.iter_mut().skip(PICTURED).for_each(|process| process.figures = None);
        }
    }

    fn sort(&mut self) {
        self.processes.sort_by_key(|process| Reverse(process.all_bytes));
    }

    /// Completes the report when all processes were added.
    pub fn finish(mut self) -> Self {
        self.sort();
        self.saved = figures::saved(&self.processes, self.seconds());
        self
    }

    /// Returns the wall time of the run; if it was not timed, from the first start to the last end.
    pub fn seconds(&self) -> f64 {
        let begun = self.processes.iter().map(|process| process.started);
        let ended = self.processes.iter().map(|process| process.started + process.seconds);
        let passed = ended.fold(0.0, f64::max) - begun.fold(f64::INFINITY, f64::min);
        self.run.as_ref().map_or(passed.max(0.0), |run| run.seconds)
    }

    /// Returns why figures of some processes are missing; `None`: none are known to be.
    pub fn not_kept(&self) -> Option<&str> {
        self.run.as_ref()?.not_kept.as_deref()
    }

    /// Writes the page, replacing an old one.
    pub fn write_page(&self, path: &Path) -> Result<(), String> {
        std::fs::write(path, Html.write(&document::of(self)))
            .map_err(|error| say::about(path, &error))
    }

    /// Writes the report for programs, replacing an old one.
    pub fn write_json(&self, path: &Path) -> Result<(), String> {
        std::fs::write(path, Json.write(&document::for_programs(self)))
            .map_err(|error| say::about(path, &error))
    }
}

pub fn command(ReportOptions { files, html, hlog, diff }: ReportOptions) -> i32 {
    if diff {
        return compare(&files);
    }
    let (mut report, mut status, mut log) = (Report::new(None), 0, hlog::header());
    for file in &files {
        let mut add = |process: Process| {
            if hlog.is_some() {
                hlog::append(&mut log, &process);
            }
            report.add(process);
        };
        // The other files are still reported.
        if let Err(why) = take(file, &mut add) {
            say(why);
            status = 1;
        }
    }
    if report.processes.is_empty() {
        return 1;
    }
    let report = report.finish();
    let write = |path: &Path| std::fs::write(path, &log).map_err(|error| say::about(path, &error));
    let written = [hlog.map(|path| write(&path)), html.map(|path| report.write_page(&path))];
    // The text is printed even if a file cannot be written.
    for why in written.into_iter().flatten().filter_map(Result::err) {
        say(why);
        status = 1;
    }
    say::out(format_args!("{}", say::in_locale(text::of(&report))));
    status
}

fn compare(files: &[OsString]) -> i32 {
    let [before, after] = files else {
        fail(FAILED, "report --diff wants two files; see adma report --help")
    };
    let [before, after] = [before, after].map(|file| {
        let mut report = Report::new(None);
        match take(file, &mut |process| report.add(process)) {
            Ok(()) => report.finish(),
            Err(why) => fail(1, why),
        }
    });
    say::out(format_args!("{}", say::in_locale(Text.write(&diff::of(&before, &after)))));
    0
}

/// Takes every report of a file, or returns what is wrong with it.
fn take(file: &OsStr, add: &mut dyn FnMut(Process)) -> Result<(), String> {
    let read = read(file).and_then(|text| all_in(&text, add));
    read.map_err(|why| format!("{}: {why}", printable(&file.to_string_lossy())))
}

/// Reads a file; `-` is standard input.
fn read(file: &OsStr) -> Result<Vec<u8>, String> {
    let mut text = Vec::new();
    let source: Box<dyn Read> = if file == "-" {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(File::open(file).map_err(|error| say::reason(&error))?)
    };
    source.take(LONGEST_FILE + 1).read_to_end(&mut text).map_err(|error| say::reason(&error))?;
    if text.len() as u64 > LONGEST_FILE {
        return Err(format!("longer than {}", units::bytes(LONGEST_FILE)));
    }
    Ok(text)
}

/// Parses a file with the reports of all processes that have written to it. Those before a bad one
/// are kept.
fn all_in(text: &[u8], add: &mut dyn FnMut(Process)) -> Result<(), String> {
    let reports = serde_json::Deserializer::from_slice(text).into_iter::<serde_json::Value>();
    let mut number = 0;
    for value in reports {
        number += 1;
        let value = value.map_err(|error| match error.is_eof() {
            true => format!("report {number} is cut off: the file ends inside it"),
            false => format!("not JSON: {error}"),
        })?;
        add(process::of_json(value).map_err(|why| match number {
            1 => why,
            _ => format!("report {number}: {why}"),
        })?);
    }
    if number == 0 { Err("holds no report".to_owned()) } else { Ok(()) }
}
