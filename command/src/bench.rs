//! `adma bench program`: runs it with and without the library in turn, and says what that shows.
//!
//! ```text
//! arm         what differs between the runs: the environment
//! measure     one run of the program: times, memory, how it ended, what it wrote
//! compare     medians, spread, outliers, the ratio and its confidence interval
//! tell        the document of the result, for text, JSON and page
//! ```

mod arm;
mod compare;
mod measure;
mod tell;

use crate::job::{End, Signals};
use crate::options::{self, KnobOptions};
use crate::say::{self, FAILED, fail, printable, say};
use crate::{live_files, obstacle, program};
use adma_report::Format;
use adma_report::html::Html;
use adma_report::json::Json;
use adma_report::text::Text;
use arm::Arm;
use clap::ValueHint;
use measure::{Run, Stop};
use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Runs the program with and without adma in turn, and says which is faster, with
/// a confidence interval of 95 %, and whether its output and exit status differ.
#[derive(clap::Parser, Debug)]
#[command(
    name = "bench",
    verbatim_doc_comment,
    override_usage = "adma bench [options] [--] program [arguments]",
    after_help = "\
Ctrl-C ends the runs and reports those that were complete.
Exit status: 0; 1 if the program fails, or ends or writes differently; 125 adma
cannot be set up, 126 the program cannot be executed, 127 it cannot be found."
)]
pub struct BenchOptions {
    /// rounds; default 10, and more of short programs
    #[arg(short = 'n', long, value_name = "N", value_parser = number)]
    runs: Option<usize>,
    /// rounds before, which do not count; default 1
    #[arg(short, long, value_name = "N", value_parser = number, default_value = "1", hide_default_value = true)]
    warmup: usize,
    /// one more arm, with this knob; "A=1 B=2" for several
    #[arg(long, value_name = "KNOB=VALUE", value_parser = arm::settings)]
    with: Vec<String>,
    /// another library, or glibc: threshold, hugetlb, tuned
    #[arg(long, value_name = "NAME", value_parser = arm::rival, value_hint = ValueHint::FilePath)]
    against: Vec<arm::Rival>,
    #[command(flatten)]
    knobs: KnobOptions,
    /// what every run reads; default: nothing
    #[arg(short, long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    input: Option<PathBuf>,
    /// a command line for sh before the first run
    #[arg(long, value_name = "COMMAND")]
    setup: Option<String>,
    /// before each run
    #[arg(long, value_name = "COMMAND")]
    prepare: Option<String>,
    /// after the last run
    #[arg(long, value_name = "COMMAND")]
    cleanup: Option<String>,
    /// throw the output away instead of comparing it
    #[arg(long)]
    discard_output: bool,
    /// measure a program that fails
    #[arg(long)]
    ignore_failure: bool,
    /// print the result as JSON
    #[arg(long)]
    json: bool,
    /// also make a page for a browser
    #[arg(long, value_name = "PAGE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required = true, hide = true, value_name = "program",
          value_hint = ValueHint::CommandWithArguments)]
    words: Vec<OsString>,
}

const FEWEST: usize = 10;
const MOST: usize = 100;
/// Time until which short programs are run again.
const ENOUGH: Duration = Duration::from_secs(3);

fn number(text: &str) -> Result<usize, &'static str> {
    let number = text.parse().ok().filter(|number| *number <= 1000);
    number.ok_or("want a number up to 1000")
}

/// Results of a benchmark.
pub struct Measured {
    words: Vec<String>,
    arms: Vec<Arm>,
    /// One run of each arm.
    rounds: Vec<Vec<Run>>,
    /// Set if all rounds that were asked for were run.
    is_complete: bool,
    /// Large copies of a run with adma: number, bytes, bytes by the engine; `None`: not counted.
    copies: Option<(u64, u64, u64)>,
}

pub fn command(options: BenchOptions) -> i32 {
    options.knobs.set();
    options::check_environment();
    if options.runs == Some(0) {
        fail(FAILED, "--runs 0: want a number from 1 up");
    }
    if let Some(Err(why)) = options.html.as_deref().map(say::writable) {
        fail(FAILED, why);
    }
    let found = program::named(&options.words[0], &[]);
    if let Some(obstacle) = obstacle::of(&found) {
        fail(FAILED, obstacle);
    }
    let words = options.words.iter().map(|word| printable(&word.to_string_lossy())).collect();
    let mut result = Measured {
        words,
        arms: arm::all(&options.with, &options.against),
        rounds: Vec::new(),
        is_complete: false,
        copies: None,
    };
    let signals = Signals::held();
    let bench = Bench { options: &options, program: &found, signals: &signals };
    let stopped = bench.rounds(&mut result).err();
    progress("");
    let cleaned = bench.shell(options.cleanup.as_ref(), "cleanup").err();
    if !result.rounds.is_empty() && !matches!(stopped, Some(Stop::Failed(_))) {
        tell(&result, &options);
    }
    let fails = !result.is_alike() || (result.fails() && !options.ignore_failure);
    let (mut status, mut interrupted) = (i32::from(fails), None);
    for stop in stopped.into_iter().chain(cleaned) {
        match stop {
            Stop::Signal(signal) => interrupted = Some(signal),
            Stop::Failed(why) => {
                say(why);
                status = 1;
            }
        }
    }
    if let Some(signal) = interrupted {
        if result.rounds.is_empty() {
            say("interrupted before a round was complete");
        }
        signals.end_as(End::Signal(signal));
    }
    status
}

fn tell(result: &Measured, options: &BenchOptions) {
    let document = tell::document(result);
    let report = match options.json {
        true => Json.write(&document),
        false => say::in_locale(Text.write(&document)),
    };
    say::out(format_args!("{report}"));
    if let Some(path) = &options.html
        && let Err(error) = std::fs::write(path, Html.write(&document))
    {
        fail(1, say::about(path, &error));
    }
}

struct Bench<'a> {
    options: &'a BenchOptions,
    program: &'a Path,
    signals: &'a Signals,
}

impl Bench<'_> {
    fn rounds(&self, result: &mut Measured) -> Result<(), Stop> {
        let options = self.options;
        self.shell(options.setup.as_ref(), "setup")?;
        for round in 0..options.warmup {
            progress(&format!("warm-up {} of {}", round + 1, options.warmup));
            for (at, arm) in result.arms.iter().enumerate() {
                // The first arm with adma shows what it copies.
                let tree = if at == 1 && round == 0 { live_files::make_tree().ok() } else { None };
                let run = self.one(arm, tree.as_deref());
                if let Some(tree) = tree {
                    result.copies = Some(arm::copies(&tree));
                    live_files::remove_tree(&tree);
                }
                self.check(arm, &run?, false)?;
            }
        }
        let begun = Instant::now();
        while !self.is_enough(result.rounds.len(), begun.elapsed()) {
            let round = result.rounds.len();
            let total = options.runs.unwrap_or(FEWEST).max(round + 1);
            let left = begun.elapsed().as_secs_f64() / round.max(1) as f64 * (total - round) as f64;
            let left = if round > 0 { format!(", about {left:.0} s left") } else { String::new() };
            progress(&format!("round {} of {total}{left}", round + 1));
            // Forward and back, so that a machine that slows down treats all arms alike.
            let mut order: Vec<&Arm> = result.arms.iter().collect();
            let is_back = round % 2 == 1;
            if is_back {
                order.reverse();
            }
            let mut runs = Vec::new();
            for (done, arm) in order.into_iter().enumerate() {
                let run = self.one(arm, None)?;
                self.check(arm, &run, done > 0 && !is_back)?;
                runs.push(run);
            }
            if is_back {
                runs.reverse();
            }
            result.rounds.push(runs);
        }
        result.is_complete = true;
        Ok(())
    }

    fn is_enough(&self, rounds: usize, passed: Duration) -> bool {
        match self.options.runs {
            Some(wanted) => rounds >= wanted,
            None => rounds >= FEWEST && (passed >= ENOUGH || rounds >= MOST),
        }
    }

    fn one(&self, arm: &Arm, tree: Option<&Path>) -> Result<Run, Stop> {
        if let Some(signal) = self.signals.interrupt() {
            return Err(Stop::Signal(signal));
        }
        self.shell(self.options.prepare.as_ref(), "prepare")?;
        let invocation = measure::Invocation {
            program: self.program,
            words: &self.options.words,
            input: self.options.input.as_deref(),
            keeps_output: !self.options.discard_output,
            arm,
            tree,
        };
        measure::run(&invocation, self.signals)
    }

    /// Stops at a failure, unless failures are to be measured.
    fn check(&self, arm: &Arm, run: &Run, ran_without: bool) -> Result<(), Stop> {
        if run.end == End::Exit(0) || self.options.ignore_failure {
            return Ok(());
        }
        let mut why = format!("the program fails {}: {}", arm.name, run.end);
        if ran_without {
            why += ", and not without adma";
        }
        why += "; --ignore-failure measures it all the same";
        for line in run.complaint.lines() {
            why += &format!("\n  {}", printable(line));
        }
        Err(Stop::Failed(why))
    }

    fn shell(&self, line: Option<&String>, what: &str) -> Result<(), Stop> {
        line.map_or(Ok(()), |line| measure::shell(line, what, self.signals))
    }
}

/// Writes a progress line over the last one.
fn progress(what: &str) {
    let mut err = std::io::stderr();
    if err.is_terminal() && std::env::var_os("TERM").is_some_and(|term| term != "dumb") {
        let what = if what.is_empty() { String::new() } else { format!("adma: {what}") };
        let _ = write!(err, "\r\x1b[K{what}"); // there is no place to report a failure
    }
}
