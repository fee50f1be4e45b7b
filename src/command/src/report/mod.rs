//! `adma report FILE... [--html PAGE]`: the JSON of one or many processes, as text on standard
//! output and as a page that stands alone.
//!
//! ```text
//! process   one process's JSON, checked
//! figures   its numbers, and the sum of many
//! text      the report for terminals
//! page      the report for browsers; sections: what it shows of one process or of all;
//!           chart: pictures; html: tags and escaping
//! units     numbers as people read them
//! ```

pub mod chart;
mod figures;
pub mod html;
pub mod page;
mod process;
mod sections;
mod text;
pub mod units;

#[cfg(test)]
mod tests;

use crate::say::{self, fail, printable, say};
use figures::Figures;
use process::ProcessReport;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

/// Reads reports in JSON, of one process or of many, and prints one report of all
/// of them; - is standard input.
/// To make such reports: adma --stats json --stats-file FILE program
#[derive(clap::Parser, Debug)]
#[command(
    name = "report",
    verbatim_doc_comment,
    override_usage = "adma report FILE... [--html PAGE]"
)]
pub struct Options {
    /// Reports in JSON; - is standard input.
    #[arg(value_name = "FILE", required = true, value_hint = clap::ValueHint::FilePath)]
    files: Vec<OsString>,
    /// also make a page for a browser
    #[arg(long, value_name = "PAGE", value_hint = clap::ValueHint::FilePath)]
    html: Option<PathBuf>,
}

/// More than a thousand full reports.
const LONGEST_FILE: u64 = 256 << 20;

/// Processes in the order of what they copied, most first, and their sum.
pub struct Report {
    processes: Vec<ProcessReport>,
    total: Figures,
}

impl Report {
    fn new(mut processes: Vec<ProcessReport>) -> Self {
        processes.sort_by_key(|process| std::cmp::Reverse(process.figures.bytes()));
        let mut total = Figures::default();
        processes.iter().for_each(|process| total.add(&process.figures));
        Self { processes, total }
    }
}

pub fn command(Options { files, html }: Options) -> i32 {
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
    let report = Report::new(processes);
    if let Some(path) = html
        && let Err(error) = std::fs::write(&path, page::of(&report))
    {
        fail(1, format_args!("{}: {}", path.display(), say::reason(&error)));
    }
    say::out(format_args!("{}", say::in_locale(text::of(&report))));
    status
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
