//! The page: one self-contained file without scripts and network access, enforced by its policy.
//!
//! Bars stand behind the numbers that they show; whatever can be opened or scrolled can be reached
//! by the Tab key.

use super::advice;
use super::figures::TimeSaved;
use super::html::{NONE, Table, escaped};
use super::sections;
use super::units::{bytes, count, cut, date, percent, seconds};
use super::{PICTURED, Process, Report, Run};
use std::fmt::Write;

pub fn of(report: &Report) -> String {
    let Report { processes, total, .. } = report;
    let name = match processes.as_slice() {
        [one] => one.program().to_owned(),
        [first, ..] => format!("{} and {} more", first.program(), processes.len() - 1),
        [] => report.run.as_ref().map_or(String::new(), |run| cut(&run.command, 200)),
    };
    let mut out = String::new();
    let several = processes.len() > 1;
    let whose = if several { "all processes" } else { "this process" };
    sections::all(&mut out, total, report.saved.as_ref(), whose, 2);
    if several {
        out += &list(processes);
        out.push_str("<h2 id=\"each\">Each process</h2>\n");
        for (index, process) in processes.iter().take(PICTURED).enumerate() {
            one(&mut out, index, process);
        }
        if let Some(rest) = processes.len().checked_sub(PICTURED).filter(|rest| *rest > 0) {
            let _ = writeln!(out, "<p>The {rest} that copied least are in the table only.</p>");
        }
    }
    let mut head = String::new();
    if let Some(saved) = &report.saved {
        let _ =
            writeln!(head, "<p class=\"sentence\">{}</p>", escaped(&saved.sentence().to_string()));
    }
    for advice in advice::advice(report) {
        let _ = writeln!(head, "<p class=\"advice\">{}</p>", escaped(&advice));
    }
    let _ = writeln!(head, "<p class=\"faint\">{}</p>", escaped(&subject(report)));
    head += &cards(report);
    if total.live.recorder.total().0 > 0 {
        head += &words();
    }
    document(&name, &advice::verdict(report), &head, &out)
}

/// Returns a whole page. `head` and `main` are tags, the others text.
pub fn document(name: &str, headline: &str, head: &str, main: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>adma: {name}</title>\n<style>\n{style}</style>\n</head>\n<body>\n\
         <a class=\"skip wide\" href=\"#figures\">Skip to the figures</a>\n\
         <header class=\"wide\"><h1>{headline}</h1>\n{head}</header>\n\
         <main class=\"wide\" id=\"figures\">\n{main}</main>\n\
         <footer class=\"wide faint\">Made by adma {version}. This page loads nothing: it can be \
         kept, sent and printed.</footer>\n</body>\n</html>\n",
        name = escaped(name),
        style = include_str!("page.css"),
        headline = escaped(headline),
        version = env!("CARGO_PKG_VERSION"),
    )
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
fn subject(report: &Report) -> String {
    let Report { processes, run, .. } = report;
    let mut parts = Vec::new();
    if let Some(Run { command, end, .. }) = run {
        parts.push(cut(command, 200));
        parts.push(end.clone());
        parts.push(machine());
    }
    match &processes[..] {
        [] => return parts.join(" · "),
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
    parts.join(" · ")
}

fn cards(report: &Report) -> String {
    let total = &report.total.live.recorder;
    let (calls, sum) = total.total();
    let mut cards = Vec::new();
    if let Some(TimeSaved { interval: Ok(saved), of_seconds }) = &report.saved {
        let share = 100.0 * saved.seconds / (of_seconds + saved.seconds).max(f64::MIN_POSITIVE);
        let what = if saved.seconds < 0.0 { "lost" } else { "saved" };
        let share = format!("{:.0} % of the time without", share.abs());
        cards.push((format!("{what} about {}", seconds(saved.seconds.abs())), share));
    }
    cards.push((
        percent(total.engine_bytes(), sum),
        format!("of the bytes carried by the engine: {}", bytes(total.engine_bytes())),
    ));
    cards.push((count(calls), format!("large copies, {} in all", bytes(sum))));
    cards.push((count(total.libc.sizes.count()), "of them stayed with libc".to_owned()));
    if report.saved.is_none() {
        cards.push((seconds(report.seconds()), "from start to end".to_owned()));
    }
    let mut out = String::from("<ul class=\"cards\">\n");
    for (index, (number, what)) in cards.into_iter().enumerate() {
        let class = if index == 0 { " class=\"first\"" } else { "" };
        let _ = writeln!(out, "<li{class}><b>{}</b> {}</li>", escaped(&number), escaped(&what));
    }
    out + "</ul>\n"
}

/// Returns one line for each word of the tables that is not a usual one.
fn words() -> String {
    let words = [
        ("Engine", "what copies beside the program: worker threads, DMA channels or a card"),
        ("Channel", "one of its parts, such as a worker thread; the caller copies as well"),
        ("Carried", "copied by the engine and the caller together; the rest is left to libc"),
        ("Libc", "the C library's own memcpy and the like, in the calling thread alone"),
    ];
    let words = words.map(|(word, means)| format!("<li><b>{word}</b>: {means}</li>\n"));
    format!("<ul class=\"words\">\n{}</ul>\n", words.concat())
}

/// Returns the list of all processes, most bytes first.
fn list(processes: &[Process]) -> String {
    let rows = processes.iter().map(|process| {
        let cells = vec![
            format!("{} ({})", cut(process.program(), 40), process.pid),
            seconds(process.seconds),
            count(process.calls),
            bytes(process.bytes),
            super::text::engine_share(process).replace('-', NONE),
            super::text::saved(process).unwrap_or(NONE.to_owned()),
        ];
        let (engine, all) = (process.engine_bytes, process.bytes);
        (cells, vec![vec![(engine as f64, "engine"), ((all - engine) as f64, "libc")]])
    });
    let rows = rows.collect();
    let head = ["process", "ran", "copies", "bytes", "engine", "saved"];
    let caption = "All processes, those that copied most first";
    let mut table = Table::new(caption, &head, rows);
    table.links = PICTURED;
    format!(
        "<figure><figcaption><h2 id=\"processes\">Processes</h2><p>Which process copied how much: \
         solid what the engine carried, hatched what libc did.</p></figcaption>\n{}</figure>\n",
        table.html()
    )
}

fn one(out: &mut String, index: usize, process: &Process) {
    let Some(figures) = &process.figures else { return };
    let whose = format!("{} ({})", cut(process.program(), 40), process.pid);
    let mut summary = format!("{whose} · {}", bytes(process.bytes));
    if process.bytes > 0 {
        summary += &format!(" · {} by the engine", percent(process.engine_bytes, process.bytes));
    }
    let _ = writeln!(
        out,
        "<details><summary>{}</summary>\n\
         <p class=\"faint\" id=\"process-{index}\"><code>{}</code> · {}</p>",
        escaped(&summary),
        escaped(&process.exe),
        escaped(&facts(process))
    );
    sections::all(out, figures, process.saved.as_ref(), &whose, 3);
    out.push_str("</details>\n");
}

fn engine(process: &Process) -> String {
    let plural = if process.channels == 1 { "" } else { "s" };
    format!("{}, {} channel{plural}", process.backend, process.channels)
}

fn facts(process: &Process) -> String {
    let mut facts = engine(process);
    let _ = write!(facts, " · ran {}", seconds(process.seconds));
    if let Some(threshold) = process.threshold {
        let _ = write!(facts, " · carries copies from {} up", bytes(threshold));
    }
    if let Some(saved) = &process.saved {
        let _ = write!(facts, " · {}", saved.sentence());
    }
    facts
}
