//! The document of a run, or of reports that were read: verdict and advice, then the sections of
//! all processes and of each.

use super::figures::{Site, TimeSaved};
use super::{PICTURED, Process, Report, Run, advice, sections};
use adma_report::units::{bytes, cut, date, percent, seconds};
use adma_report::{Document, Part, Parts, Row, Section, Shade, Table, Value};

/// Words of the tables that are not usual ones.
const WORDS: [(&str, &str); 4] = [
    ("Engine", "what copies beside the program: worker threads, DMA channels or a card"),
    ("Channel", "one of its parts, such as a worker thread; the caller copies as well"),
    ("Carried", "copied by the engine and the caller together; the rest is left to libc"),
    ("Libc", "the C library's own memcpy and the like, in the calling thread alone"),
];

pub fn of(report: &Report) -> Document {
    let Report { processes, total, .. } = report;
    let name = match processes.as_slice() {
        [one] => one.program().to_owned(),
        [first, ..] => format!("{} and {} more", first.program(), processes.len() - 1),
        [] => report.run.as_ref().map_or(String::new(), |run| cut(&run.command, 200)),
    };
    let several = processes.len() > 1;
    let whose = if several { "all processes" } else { "this process" };
    let mut sections = sections::all(total, report.saved.as_ref(), whose);
    let mut verdicts = vec![advice::verdict(report)];
    verdicts.extend(report.saved.as_ref().map(|saved| saved.sentence().to_string()));
    let mut parts = Parts::default();
    if several {
        sections.push(list(processes));
        parts.title = "Each process";
        parts.all = processes.iter().take(PICTURED).filter_map(part).collect();
        parts.others = processes
            .len()
            .checked_sub(PICTURED)
            .filter(|rest| *rest > 0)
            .map(|rest| format!("The {rest} that copied least are in the table only."));
    }
    Document {
        name,
        verdicts,
        advice: advice::advice(report),
        about: subject(report),
        cards: cards(report),
        words: if total.live.recorder.total().0 > 0 { WORDS.to_vec() } else { Vec::new() },
        sections,
        parts,
        ..Document::default()
    }
}

/// Returns the figures of a run for programs. Sites are those of all processes together.
pub fn for_programs(report: &Report) -> Document {
    let Report { processes, total, run, .. } = report;
    let recorder = &total.live.recorder;
    let (calls, bytes) = recorder.total();
    let mut facts = vec![
        ("version", env!("CARGO_PKG_VERSION").into()),
        ("seconds", Value::Seconds(report.seconds())),
        ("copies", Value::Count(calls)),
        ("bytes", Value::Bytes(bytes)),
        ("engine_bytes", Value::Bytes(recorder.engine_bytes())),
        ("saved", report.saved.as_ref().map_or(Value::None, TimeSaved::value)),
        ("not_kept", report.not_kept().map(str::to_owned).into()),
        ("sites", Value::List(total.sites.iter().map(Site::value).collect())),
        ("processes", Value::List(processes.iter().map(process).collect())),
    ];
    facts.extend(run.iter().flat_map(|run| {
        [("command", run.command.as_str().into()), ("end", run.end.as_str().into())]
    }));
    Document { facts, ..Document::default() }
}

fn process(process: &Process) -> Value {
    Value::map([
        ("pid", Value::Count(process.pid)),
        ("exe", process.exe.as_str().into()),
        ("command", process.command.as_str().into()),
        ("end", process.end.as_str().into()),
        ("seconds", Value::Seconds(process.seconds)),
        ("backend", process.backend.as_str().into()),
        ("channels", Value::Count(process.channels as u64)),
        ("copies", Value::Count(process.calls)),
        ("bytes", Value::Bytes(process.bytes)),
        ("engine_bytes", Value::Bytes(process.engine_bytes)),
        ("saved", process.saved.as_ref().map_or(Value::None, TimeSaved::value)),
    ])
}

/// Returns name, kernel and CPU of the machine that this command runs on.
fn machine() -> String {
    let line = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let info = line("/proc/cpuinfo");
    let model = info.lines().find(|line| line.starts_with("model name"));
    let model = model.and_then(|line| line.split(": ").nth(1)).unwrap_or("CPU not known");
    let cpus = std::thread::available_parallelism().map_or(1, |cpus| cpus.get());
    let (host, kernel) = (line("/proc/sys/kernel/hostname"), line("/proc/sys/kernel/osrelease"));
    format!("{host} · Linux {kernel} · {cpus} × {model}")
}

/// Returns what distinguishes one run from another.
fn subject(report: &Report) -> Vec<String> {
    let Report { processes, run, .. } = report;
    let mut parts = Vec::new();
    if let Some(Run { command, end, .. }) = run {
        parts.push(cut(command, 200));
        parts.push(end.clone());
        parts.push(machine());
    }
    match &processes[..] {
        [] => return parts,
        [one] => parts.push(format!("{} (process {})", one.exe, one.pid)),
        many => parts.push(format!("{} processes", many.len())),
    }
    let mut engines: Vec<String> = Vec::new();
    for process in processes {
        let engine = format!("{} beside the caller", engine(process));
        if !engines.contains(&engine) {
            engines.push(engine);
        }
    }
    let thresholds = processes.iter().filter_map(|process| process.threshold);
    if let Some(least) = thresholds.min() {
        parts.push(format!("carries copies from {} up", bytes(least)));
    }
    parts.push(if engines.len() > 3 { "several engines".to_owned() } else { engines.join("; ") });
    let began = processes.iter().map(|process| process.started).fold(f64::INFINITY, f64::min);
    if began > 0.0 && began.is_finite() {
        parts.push(format!("began {}", date(began)));
    }
    let mut versions: Vec<&str> = processes.iter().map(|process| &*process.version).collect();
    versions.sort_unstable();
    versions.dedup();
    versions.truncate(4);
    parts.push(format!("adma {}", versions.join(", ")));
    parts
}

fn cards(report: &Report) -> Vec<(Value, String)> {
    let total = &report.total.live.recorder;
    let (calls, sum) = total.total();
    let mut cards = Vec::new();
    if let Some(TimeSaved { interval: Ok(saved), of_seconds }) = &report.saved {
        let share = 100.0 * saved.seconds / (of_seconds + saved.seconds).max(f64::MIN_POSITIVE);
        let what = if saved.seconds < 0.0 { "lost" } else { "saved" };
        let share = format!("{:.0} % of the time without", share.abs());
        cards.push((format!("{what} about {}", seconds(saved.seconds.abs())).into(), share));
    }
    let engine = total.engine_bytes();
    let carried = format!("of the bytes carried by the engine: {}", bytes(engine));
    cards.push((Value::Share(engine, sum), carried));
    cards.push((Value::Count(calls), format!("large copies, {} in all", bytes(sum))));
    cards.push((Value::Count(total.libc.sizes.count()), "of them stayed with libc".to_owned()));
    if report.saved.is_none() {
        cards.push((Value::Seconds(report.seconds()), "from start to end".to_owned()));
    }
    cards
}

/// Returns the list of all processes, most bytes first.
fn list(processes: &[Process]) -> Section {
    let row = |(index, process): (usize, &Process)| {
        let cells = [
            whose(process).into(),
            Value::Seconds(process.seconds),
            Value::Count(process.calls),
            Value::Bytes(process.bytes),
            engine_share(process),
            saved(process),
        ];
        let (engine, all) = (process.engine_bytes, process.bytes);
        let bar = vec![(engine as f64, Shade::Engine), ((all - engine) as f64, Shade::Libc)];
        Row { bars: vec![bar], part: (index < PICTURED).then_some(index), ..Row::new(cells) }
    };
    let titles = ["process", "ran", "copies", "bytes", "engine", "saved"];
    let caption = "All processes, those that copied most first";
    let rows = processes.iter().enumerate().map(row).collect();
    Section {
        id: "processes",
        title: "Processes".into(),
        about:
            "Which process copied how much: solid what the engine carried, hatched what libc did."
                .into(),
        tables: vec![Table::new(caption, titles, rows)],
        ..Section::default()
    }
}

/// Returns the engine's part of the bytes, if there were any.
pub fn engine_share(process: &Process) -> Value {
    (process.bytes > 0).then_some(Value::Share(process.engine_bytes, process.bytes)).into()
}

/// Returns the time that a process has saved, if that is known.
pub fn saved(process: &Process) -> Value {
    let known = process.saved.as_ref().and_then(|saved| saved.interval.as_ref().ok());
    known.and_then(|interval| interval.estimate()).map(Value::Seconds).into()
}

fn whose(process: &Process) -> String {
    format!("{} ({})", cut(process.program(), 40), process.pid)
}

fn part(process: &Process) -> Option<Part> {
    let figures = process.figures.as_ref()?;
    let whose = whose(process);
    let mut summary = format!("{whose} · {}", bytes(process.bytes));
    if process.bytes > 0 {
        summary += &format!(" · {} by the engine", percent(process.engine_bytes, process.bytes));
    }
    Some(Part {
        summary,
        path: process.exe.clone(),
        about: facts(process),
        sections: sections::all(figures, process.saved.as_ref(), &whose),
    })
}

fn engine(process: &Process) -> String {
    let plural = if process.channels == 1 { "" } else { "s" };
    format!("{}, {} channel{plural}", process.backend, process.channels)
}

fn facts(process: &Process) -> Vec<String> {
    let mut facts = vec![engine(process), format!("ran {}", seconds(process.seconds))];
    let threshold = process.threshold.map(|size| format!("carries copies from {} up", bytes(size)));
    facts.extend(threshold);
    facts.extend(process.saved.as_ref().map(|saved| saved.sentence().to_string()));
    facts
}
