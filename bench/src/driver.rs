//! Runs the benchmarks one after the other, each in a process of its own, and
//! turns what they print into the terminal's output, JSON and Markdown.

use crate::machine::{self, Ticks};
use crate::options::Options;
use crate::out::Table;
use crate::targets::{self, Figures, Verdict};
use crate::{BENCHES, Bench, ONLY_BY_NAME, spawn};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

struct Section {
    name: &'static str,
    about: &'static str,
    text: String,
}

pub fn run(options: &Options) {
    let lib = library(options);
    let machine = machine::describe();
    for (name, value) in &machine {
        println!("{name:<11} {value}");
    }
    println!("{:<11} {}", "library", lib.as_deref().unwrap_or("none: libc against itself"));

    let mut figures = Figures::new();
    let mut sections = Vec::new();
    let chosen = |bench: &&Bench| match options.names.as_slice() {
        [] => bench.name != ONLY_BY_NAME,
        names => names.iter().any(|name| name == bench.name),
    };
    for bench in BENCHES.iter().filter(chosen) {
        println!("\n== {}: {}\n", bench.name, bench.about);
        let mut section = run_one(bench, options, lib.as_deref(), &mut figures);
        let verdicts = targets::check(&figures, |name| name == bench.name);
        if !verdicts.is_empty() {
            section.text += &format!("\n{}", table(&verdicts).text());
        }
        sections.push(section);
    }

    let ran = |name: &str| sections.iter().any(|section| section.name == name);
    let verdicts = targets::check(&figures, ran);
    if !verdicts.is_empty() {
        println!("\n== targets, each with its worst figure\n");
        table(&verdicts).print();
    }
    if let Some(path) = &options.json {
        write(path, &json(&machine, options, &figures, &verdicts));
    }
    if let Some(path) = &options.save {
        write(path, &markdown(path, &machine, options, &sections));
    }
}

/// Named on the command line, or beside this program.
fn library(options: &Options) -> Option<String> {
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

fn run_one(bench: &Bench, options: &Options, lib: Option<&str>, figures: &mut Figures) -> Section {
    let mut section = Section { name: bench.name, about: bench.about, text: String::new() };
    let mut say = |line: &str| {
        println!("{line}");
        section.text += line;
        section.text.push('\n');
    };
    if let Some(warning) = disturbance() {
        say(&warning);
    }
    let mut command = spawn::itself(bench.name, lib.filter(|_| bench.preload));
    command.args(&options.given).args(["--lib", lib.unwrap_or("none")]);
    let before = Ticks::now();
    let mut child = match command.stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            say(&format!("cannot start: {error}"));
            return section;
        }
    };
    let lines = child.stdout.take().map(BufReader::new).into_iter().flat_map(BufRead::lines);
    for line in lines.map_while(Result::ok) {
        let figure = line.strip_prefix('@').and_then(|figure| figure.split_once(' '));
        match figure.and_then(|(key, value)| Some((key, value.parse().ok()?))) {
            Some((key, value)) => {
                figures.insert(key.into(), value);
            }
            None => say(&line),
        }
    }
    match child.wait() {
        Ok(status) if status.success() => {}
        Ok(status) => say(&format!("{} ended early: {status}", bench.name)),
        Err(error) => say(&format!("{}: {error}", bench.name)),
    }
    let (_, stolen) = Ticks::now().since(before);
    if stolen > 0.01 {
        say(&format!("WARNING: the host took {:.0} % of our CPU time meanwhile", stolen * 100.0));
    }
    section
}

/// A warning when somebody else uses this machine just now.
fn disturbance() -> Option<String> {
    let before = Ticks::now();
    std::thread::sleep(Duration::from_millis(500));
    let (busy, _) = Ticks::now().since(before);
    (busy > 0.05).then(|| {
        format!("WARNING: the machine is not idle ({:.0} % busy before the start)\n", busy * 100.0)
    })
}

fn table(verdicts: &[Verdict]) -> Table {
    let mut table = Table::new(["target", "wanted", "worst", "at", "verdict"]);
    for verdict in verdicts {
        let (key, value) = match &verdict.worst {
            Some((key, value)) => {
                let fields: Vec<_> = key.split('.').collect();
                let inner = fields.get(1..fields.len() - 1).unwrap_or(&[]);
                (inner.join(" "), format!("{value:.2}"))
            }
            None => ("".into(), "".into()),
        };
        table.row([verdict.text, &verdict.wanted, &value, &key, verdict.verdict()]);
    }
    table
}

fn json(
    machine: &[(&str, String)],
    options: &Options,
    figures: &Figures,
    verdicts: &[Verdict],
) -> String {
    let machine: Vec<String> = machine
        .iter()
        .map(|(name, value)| format!("    {}: {}", quote(name), quote(value)))
        .collect();
    let figures: Vec<String> = figures
        .iter()
        .map(|(key, value)| format!("    {}: {}", quote(key), number(*value)))
        .collect();
    let verdicts: Vec<String> = verdicts
        .iter()
        .map(|verdict| {
            let (key, value) = verdict.worst.clone().unwrap_or(("".into(), f64::NAN));
            format!(
                "    {{\"target\": {}, \"wanted\": {}, \"worst\": {}, \"at\": {}, \"verdict\": {}}}",
                quote(verdict.text),
                quote(&verdict.wanted),
                number(value),
                quote(&key),
                quote(verdict.verdict())
            )
        })
        .collect();
    format!(
        "{{\n  \"date\": {},\n  \"command\": {},\n  \"machine\": {{\n{}\n  }},\n  \
         \"figures\": {{\n{}\n  }},\n  \"targets\": [\n{}\n  ]\n}}\n",
        quote(&date()),
        quote(&command_line(options, "")),
        machine.join(",\n"),
        figures.join(",\n"),
        verdicts.join(",\n")
    )
}

fn quote(text: &str) -> String {
    let escaped: String = text
        .chars()
        .map(|c| match c {
            '"' | '\\' => format!("\\{c}"),
            c if c.is_control() => format!("\\u{:04x}", c as u32),
            c => c.to_string(),
        })
        .collect();
    format!("\"{escaped}\"")
}

fn number(value: f64) -> String {
    if value.is_finite() { format!("{value}") } else { "null".into() }
}

/// The old file with the sections of this run put in place of theirs.
fn markdown(
    path: &str,
    machine: &[(&str, String)],
    options: &Options,
    sections: &[Section],
) -> String {
    let old = fs::read_to_string(path).unwrap_or_default();
    let machine: Vec<String> =
        machine.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    let mut text = "# Benchmark results\n\nWritten by `bench/run --save`; each section holds the \
                    command that made it.\nRatios are to libc in the same interleaved run; above 1 \
                    the shim is faster.\n"
        .to_string();
    for bench in BENCHES {
        let head = format!("\n## {}: ", bench.name);
        if let Some(section) = sections.iter().find(|section| section.name == bench.name) {
            text += &format!(
                "{head}{}\n\n`{}`, {}, on {}.\n\n```\n{}\n```\n",
                section.about,
                command_line(options, section.name),
                date(),
                machine.join("; "),
                section.text.trim_end()
            );
        } else if let Some(start) = old.find(&head) {
            let end = old[start + 1..].find("\n## ").map_or(old.len(), |at| start + 1 + at);
            text += &old[start..end];
        }
    }
    text
}

/// The command that would make a section again.
fn command_line(options: &Options, name: &str) -> String {
    let mut args: Vec<String> = vec!["bench/run".into()];
    let mut given = options.given.iter().map(String::as_str);
    while let Some(arg) = given.next() {
        match arg {
            "--lib" | "--json" | "--save" => drop(given.next()),
            _ if options.names.iter().any(|name| name == arg) => {}
            _ if arg.contains(' ') => args.push(format!("'{arg}'")),
            _ => args.push(arg.into()),
        }
    }
    args.push(name.into());
    args.join(" ").trim_end().to_string()
}

fn date() -> String {
    let date = std::process::Command::new("date").args(["-u", "+%F %H:%M UTC"]).output();
    date.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_string()).unwrap_or_default()
}

fn write(path: &str, text: &str) {
    let path = Path::new(path);
    match fs::write(path, text) {
        Ok(()) => eprintln!("written: {}", path.display()),
        Err(error) => eprintln!("adma-bench: {}: {error}", path.display()),
    }
}
