//! `adma report FILE... [--html PAGE]`: the JSON of one or many processes, as text on standard
//! output and as a page that stands alone.
//!
//! ```text
//! process   one process's JSON, checked
//! figures   its numbers, and the sum of many
//! text      the report for terminals
//! advice    did it help, and what should be changed
//! page      the report for browsers; sections: what it shows of one process or of all;
//!           chart: pictures; html: tags and escaping
//! live      a live file as such a report; diff: two runs beside each other
//! units     numbers as people read them
//! ```

mod advice;
pub mod chart;
mod diff;
pub mod figures;
pub mod html;
pub mod live;
pub mod page;
mod process;
mod sections;
pub mod text;
pub mod units;

#[cfg(test)]
mod tests;

use crate::live::LiveProcess;
use crate::say::{self, FAILED, fail, printable, say};
use figures::Figures;
use process::ProcessReport;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Reads reports in JSON, of one process or of many, and prints one report of all
/// of them; - is standard input.
/// To make such reports: adma --stats json --stats-file FILE program
#[derive(clap::Parser, Debug)]
#[command(
    name = "report",
    verbatim_doc_comment,
    override_usage = "adma report FILE... [--html PAGE]\n       adma report --diff BEFORE AFTER"
)]
pub struct Options {
    /// Reports in JSON; - is standard input.
    #[arg(value_name = "FILE", required = true, value_hint = clap::ValueHint::FilePath)]
    files: Vec<OsString>,
    /// also make a page for a browser
    #[arg(long, value_name = "PAGE", value_hint = clap::ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// compare two files with each other
    #[arg(long, conflicts_with = "html")]
    diff: bool,
}

/// More than a thousand full reports.
const LONGEST_FILE: u64 = 256 << 20;

/// Processes in the order of what they copied, most first, and their sum.
pub struct Report {
    processes: Vec<ProcessReport>,
    pub total: Figures,
    run: Option<Run>,
}

/// What the command knows of a run that it has made itself.
pub struct Run {
    pub command: String,
    pub seconds: f64,
    /// How the program has ended.
    pub end: String,
}

impl Report {
    /// Of what is known of processes without their help.
    pub fn of_live(processes: &[LiveProcess], run: Run) -> Self {
        Self::new(processes.iter().map(ProcessReport::from).collect(), Some(run))
    }

    /// Makes the page anew.
    pub fn write_page(&self, path: &Path) -> Result<(), String> {
        let cannot = |error| format!("{}: {}", path.display(), say::reason(&error));
        std::fs::write(path, page::of(self)).map_err(cannot)
    }

    fn new(mut processes: Vec<ProcessReport>, run: Option<Run>) -> Self {
        processes.sort_by_key(|process| std::cmp::Reverse(process.figures.bytes()));
        let mut total = Figures::default();
        processes.iter().for_each(|process| total.add(&process.figures));
        // From the first start to the last end, where the run itself was not timed.
        let begun = processes.iter().map(|process| process.started).fold(f64::INFINITY, f64::min);
        let end = processes.iter().map(|process| process.started + process.figures.seconds);
        let passed = (end.fold(0.0, f64::max) - begun).max(0.0);
        let seconds = run.as_ref().map_or(passed, |run| run.seconds);
        let all: Vec<_> = processes.iter().map(|process| &process.figures).collect();
        total.saved = figures::saved(&all, seconds);
        Self { processes, total, run }
    }
}

pub fn command(Options { files, html, diff }: Options) -> i32 {
    if diff {
        return compare(&files);
    }
    let mut processes = Vec::new();
    let mut status = 0;
    for file in &files {
        match read(file).and_then(|text| all_in(&text, &mut processes)) {
            Ok(()) => {}
            // The others are still worth a look.
            Err(why) => {
                say(format_args!("{}: {why}", printable(&file.to_string_lossy())));
                status = 1;
            }
        }
    }
    if processes.is_empty() {
        return 1;
    }
    let report = Report::new(processes, None);
    if let Some(Err(why)) = html.map(|path| report.write_page(&path)) {
        fail(1, why);
    }
    say::out(format_args!("{}", say::in_locale(text::of(&report))));
    status
}

fn compare(files: &[OsString]) -> i32 {
    let [before, after] = files else {
        fail(FAILED, "report --diff wants two files; see adma report --help")
    };
    let [before, after] = [before, after].map(|file| {
        let mut processes = Vec::new();
        if let Err(why) = read(file).and_then(|text| all_in(&text, &mut processes)) {
            fail(1, format_args!("{}: {why}", printable(&file.to_string_lossy())));
        }
        Report::new(processes, None)
    });
    say::out(format_args!("{}", say::in_locale(diff::of(&before, &after))));
    0
}

/// `-` is standard input.
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

/// A file holds the reports of as many processes as have written to it. Those before a bad one
/// are kept.
fn all_in(text: &[u8], processes: &mut Vec<ProcessReport>) -> Result<(), String> {
    let reports = serde_json::Deserializer::from_slice(text).into_iter::<serde_json::Value>();
    let mut number = 0;
    for value in reports {
        number += 1;
        let value = value.map_err(|error| match error.is_eof() {
            true => format!("report {number} is cut off: the file ends inside it"),
            false => format!("not JSON: {error}"),
        })?;
        processes.push(ProcessReport::new(&value).map_err(|why| match number {
            1 => why,
            _ => format!("report {number}: {why}"),
        })?);
    }
    if number == 0 { Err("holds no report".to_owned()) } else { Ok(()) }
}
