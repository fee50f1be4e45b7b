//! Runs the benchmarks one after the other, each in a process of its own, shows their output and
//! keeps their figures.

use crate::machine::{self, Ticks};
use crate::options::Options;
use crate::out::{self, Figures, Table};
use crate::targets::{self, Verdict};
use crate::{BENCHES, Bench, ONLY_BY_NAME, spawn};
use serde_json::{Map, Value, json};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// Results of one run, as kept in a folder: about.json and figures.csv.
#[derive(Default)]
pub struct Results {
    pub date: String,
    pub command: String,
    /// Facts about the machine, by name.
    pub machine: Map<String, Value>,
    /// Output of each benchmark.
    pub texts: Map<String, Value>,
    pub figures: Figures,
}

impl Results {
    pub fn new(command: String) -> Self {
        let machine = machine::describe().into_iter();
        let machine = machine.map(|(name, value)| (name.to_string(), json!(value))).collect();
        Results { date: date(), command, machine, ..Self::default() }
    }

    /// Returns a fact about the machine.
    pub fn about(&self, name: &str) -> &str {
        self.machine.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    pub fn read(folder: &Path) -> io::Result<Self> {
        let about: Value = serde_json::from_str(&fs::read_to_string(folder.join("about.json"))?)?;
        let text = |name: &str| about[name].as_str().unwrap_or_default().to_string();
        let map = |name: &str| about[name].as_object().cloned().unwrap_or_default();
        let figures = fs::read_to_string(folder.join("figures.csv"))?;
        Ok(Results {
            date: text("date"),
            command: text("command"),
            machine: map("machine"),
            texts: map("texts"),
            figures: figures.lines().filter_map(out::from_csv).collect(),
        })
    }

    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let about = json!({
            "date": self.date,
            "command": self.command,
            "machine": self.machine,
            "texts": self.texts,
        });
        let lines = self.figures.iter().map(|(key, figure)| out::csv_line(key, figure) + "\n");
        let figures = "key,value,low,high\n".to_string() + &lines.collect::<String>();
        let about = serde_json::to_string_pretty(&about)? + "\n";
        fs::create_dir_all(folder)?;
        // A run may be killed at any time.
        let replace = |name: &str, text: &str| {
            let new = folder.join(format!("{name}.new"));
            fs::write(&new, text)?;
            fs::rename(new, folder.join(name))
        };
        replace("about.json", &about)?;
        replace("figures.csv", &figures)
    }

    /// Adopts older results of benchmarks that were not run this time.
    pub fn carry_over(&mut self, before: &Results) {
        let is_missing = |(name, _): &(&String, &Value)| !self.texts.contains_key(*name);
        let missing: Vec<_> = before.texts.iter().filter(is_missing).collect();
        for (key, figure) in &before.figures {
            let of = |name: &str| key.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'));
            if missing.iter().any(|(name, _)| of(name)) {
                self.figures.entry(key.clone()).or_insert(*figure);
            }
        }
        for (name, text) in missing {
            let mut text = text.as_str().unwrap_or_default().to_string();
            if !text.starts_with("kept from") {
                text = format!("kept from {}\n\n{text}", before.date);
            }
            self.texts.insert(name.clone(), json!(text));
        }
    }

    /// Runs one benchmark with these arguments, and adds its figures and its output. With knobs,
    /// names begin with "gpu.". Figures are written into the folder as they come: of a run that is
    /// killed, those of its last benchmark lie there, without its output.
    pub fn add(
        &mut self,
        bench: &Bench,
        args: &[String],
        lib: Option<&str>,
        knobs: &[(&str, &str)],
        folder: Option<&Path>,
    ) {
        let prefix = if knobs.is_empty() { "" } else { "gpu." };
        let mut text = String::new();
        let mut say = |line: &str| {
            println!("{line}");
            text += line;
            text.push('\n');
        };
        disturbance().iter().for_each(|warning| say(warning));
        let mut command = spawn::itself(bench.name, lib.filter(|_| bench.preload));
        command.args(args).args(["--lib", lib.unwrap_or("none")]);
        command.envs(knobs.iter().copied());
        let (before, figures) = (Ticks::now(), self.figures.len());
        let mut written = Instant::now();
        let ended = command.stdout(Stdio::piped()).spawn().and_then(|mut child| {
            let lines = child.stdout.take().map(BufReader::new).into_iter();
            for line in lines.flat_map(BufRead::lines).map_while(Result::ok) {
                match line.strip_prefix('@').and_then(out::from_csv) {
                    Some((key, figure)) => {
                        self.figures.insert(format!("{prefix}{key}"), figure);
                        if written.elapsed() > Duration::from_secs(1) {
                            // The whole is written at the end, and said there if it cannot be.
                            let _ = folder.map(|folder| self.write(folder));
                            written = Instant::now();
                        }
                    }
                    None => say(&line),
                }
            }
            child.wait()
        });
        match &ended {
            Ok(status) if status.success() => {}
            Ok(status) => say(&format!("{} ended early: {status}", bench.name)),
            Err(error) => say(&format!("{}: {error}", bench.name)),
        }
        let stolen = 100.0 * Ticks::now().since(before).1;
        if stolen > 1.0 {
            say(&format!("WARNING: the host took {stolen:.0} % of our CPU time meanwhile"));
        }
        // Of one that could not begin, older results are kept.
        if ended.is_ok_and(|status| status.success()) || self.figures.len() > figures {
            self.texts.insert(format!("{prefix}{}", bench.name), json!(text));
        }
    }
}

pub fn run(options: &Options) {
    let lib = library(options);
    let mut results = Results::new(command_line(&options.given));
    for (name, value) in &results.machine {
        println!("{name:<11} {}", value.as_str().unwrap_or_default());
    }
    println!("{:<11} {}", "library", lib.as_deref().unwrap_or("none: libc against itself"));
    let chosen = |bench: &&Bench| match options.names.as_slice() {
        [] => bench.name != ONLY_BY_NAME,
        names => names.iter().any(|name| name == bench.name),
    };
    for bench in BENCHES.iter().filter(chosen) {
        println!("\n== {}: {}\n", bench.name, bench.about);
        results.add(bench, &options.given, lib.as_deref(), &[], options.out.as_deref());
    }
    let verdicts = targets::check(&results.figures, |name| results.texts.contains_key(name));
    if !verdicts.is_empty() {
        println!("\n== targets, each with its worst figure\n");
        table(&verdicts).print();
    }
    if let Some(folder) = &options.out {
        match results.write(folder) {
            Ok(()) => eprintln!("written: {}", folder.display()),
            Err(error) => eprintln!("adma-bench: {}: {error}", folder.display()),
        }
    }
}

/// Returns the library named on the command line, or the one beside this program.
pub fn library(options: &Options) -> Option<String> {
    let path = match options.lib.as_deref() {
        Some("none") => return None,
        Some(path) => path.into(),
        None => std::env::current_exe().ok()?.parent()?.join("libadma.so"),
    };
    match fs::canonicalize(&path) {
        Ok(path) => Some(path.to_string_lossy().into_owned()),
        Err(error) => {
            eprintln!("adma-bench: {}: {error}; libc is measured against itself", path.display());
            None
        }
    }
}

/// Returns a warning when other programs use this machine now.
fn disturbance() -> Option<String> {
    let before = Ticks::now();
    std::thread::sleep(Duration::from_millis(300));
    let (busy, _) = Ticks::now().since(before);
    (busy > 0.05).then(|| {
        format!("WARNING: the machine is not idle ({:.0} % busy before the start)\n", busy * 100.0)
    })
}

fn table(verdicts: &[Verdict]) -> Table {
    let mut table = Table::of("target|wanted|worst|at|verdict");
    for verdict in verdicts {
        let (key, value) = verdict.worst.clone().map_or(Default::default(), |(key, value)| {
            let fields: Vec<_> = key.split('.').collect();
            let inner = fields.get(1..fields.len() - 1).unwrap_or(&[]);
            (inner.join(" "), format!("{value:.2}"))
        });
        table.row([verdict.text, &verdict.wanted, &value, &key, verdict.verdict]);
    }
    table
}

/// Returns the command that would measure this again.
pub fn command_line(given: &[String]) -> String {
    let mut words = vec!["bench/run".to_string()];
    let mut given = given.iter();
    while let Some(arg) = given.next() {
        match arg.as_str() {
            "--lib" | "--out" => drop(given.next()),
            "--against" => {
                let what = given.next().filter(|what| !what.contains('/'));
                words.push(format!("--against {}", what.map_or("LIB.so", String::as_str)));
            }
            _ if arg.contains(' ') => words.push(format!("'{arg}'")),
            _ => words.push(arg.clone()),
        }
    }
    words.join(" ")
}

fn date() -> String {
    let date = std::process::Command::new("date").args(["-u", "+%F %H:%M UTC"]).output();
    date.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_string()).unwrap_or_default()
}
