//! Sections of the page, for one process or for all: each a heading, an explanation, and tables in
//! which every row has a bar.

use super::figures::{Figures, Named, TimeSaved};
use super::html::{NONE, Rows, Table, bar, escaped};
use super::units::{bytes, count, nanoseconds, percent, seconds, speed};
use adma_shared::histogram::Histogram;
use adma_shared::knobs::OPS;
use adma_shared::live::Flow;
use adma_shared::tables::{FAULT, PARTS, TAKEN_BACK};
use std::cmp::Reverse;
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

/// CSS classes of bars, which are also the names of the two paths of a copy.
const WAYS: [&str; 2] = ["engine", "libc"];

/// Figures to show: of one process, or of all.
type Shown<'a> = (&'a Figures, Option<&'a TimeSaved>);

/// Caption, names of columns, rows.
type Listed = (&'static str, &'static [&'static str], fn(&Shown<'_>) -> Rows);

/// A section, shown if a table has rows.
struct Section {
    title: &'static str,
    about: &'static str,
    /// Functions that make tags above the tables.
    pictures: &'static [fn(&Figures) -> String],
    tables: &'static [Listed],
}

macro_rules! sections {
    ($($title:literal, $about:literal $(, $picture:ident)?
        { $($caption:literal [$($column:literal)*] $rows:expr;)* })*) => {
        const SECTIONS: &[Section] = &[$(Section {
            title: $title,
            about: $about,
            pictures: &[$($picture)?],
            tables: &[$(($caption, &[$($column),*], $rows)),*],
        }),*];
    };
}

sections! {
    "Time saved", "Estimated inside the copies themselves: parts of shared copies that the caller does \
        alone, and whole copies by libc, tell what libc would have taken. adma bench runs the \
        program both ways and measures it." {
        "Time with and without adma" ["run" "time"] worth;
    }
    "Speed by size", "How fast large copies were. Libc's are those that were left to it, which may be \
        others than those that were carried." {
        "Speed of large copies by size" ["size" "engine" "libc" "ratio"] speeds;
    }
    "Who copies", "The function that called memcpy or its like. Where a module has no symbols, the \
        place in its file stands instead." {
        "Large calls by where they come from"
            ["module and function" "calls" "bytes" "time" "speed"] sites;
    }
    "When", "Bytes of large copies by when they began, in time since the first of them.", strip {
        "Large copies by way" ["way" "bytes" "of the time"] timeline;
    }
    "Sizes", "How large the copies were, and which way they went: their number, and their bytes, which \
        are what takes time." {
        "Large copies by size" ["size" "engine" "libc"]
            |shown| by_size(shown, |_, _, (copies, _)| copies, count);
        "Bytes in them by size" ["size" "engine" "libc"]
            |shown| by_size(shown, exact_bytes, bytes);
    }
    "Latency", "How long a copy took: no longer than this did half of the copies (p50), nine of ten \
        (p90), and so on. The two ways had copies of different sizes: compare the sizes before the \
        times." {
        "Time of a copy" ["copies" "engine" "libc"]
            |shown| percentiles(shown, |flow| &flow.ticks, |figures, ticks| {
                nanoseconds(figures.nanoseconds(ticks))
            });
        "Size of a copy" ["copies" "engine" "libc"]
            |shown| percentiles(shown, |flow| &flow.sizes, |_, size| bytes(size));
    }
    "Channels", "Which thread or engine moved the bytes of the copies that were carried: the program's \
        own thread (caller) does its part of each." {
        "Bytes of carried copies" ["channel" "bytes" "share"]
            |(figures, _)| shares(&figures.channels(), bytes);
    }
    "Left to libc, and why", "Copies below the threshold are not among them: they are never looked at." {
        "Large copies that stayed with libc" ["reason" "copies" "bytes"] fallbacks;
    }
    "Out of the ordinary", "What happens rarely." {
        "Rare events" ["what happened" "copies"] notes;
    }
    "Requests to the kernel helper", "Where the time of a request went." {
        "Time of the I/OAT requests" ["part" "time" "share"]
            |(figures, _)| shares(&figures.costs, nanoseconds);
    }
    "Memory registered with the card", "What has become of it." {
        "Registrations" ["what" "number"] registrations;
    }
    "Files and messages", "Reads of files, and messages between processes." {
        "Large reads of files" ["way" "reads" "bytes"]
            |(figures, _)| counts(figures.live.recorder.read_counts());
        "Messages" ["direction" "messages" "bytes"] messages;
    }
    "Profile: every copy", "Also the small ones, which are never carried." {
        "Every copy by size" ["size" "copies" "bytes"] every_size;
        "By function" ["function" "calls" "bytes"] functions;
    }
}

/// Writes all sections of one process, or of all.
pub fn all(out: &mut String, figures: &Figures, saved: Option<&TimeSaved>, whose: &str, level: u8) {
    for section in SECTIONS {
        let tables = section.tables.iter().map(|(caption, head, rows)| {
            Table::new(format!("{caption}, {whose}"), head, rows(&(figures, saved)))
        });
        let tables = tables.filter(|table| !table.rows.is_empty());
        let tables: String = tables.map(|table| table.html()).collect();
        if tables.is_empty() {
            continue;
        }
        let pictures: String = section.pictures.iter().map(|picture| picture(figures)).collect();
        let (title, about) = (escaped(section.title), escaped(section.about));
        // A `String` takes everything.
        let _ = writeln!(
            out,
            "<figure><figcaption><h{level}>{title}</h{level}><p>{about}</p></figcaption>\n\
             {pictures}{tables}</figure>"
        );
    }
}

/// Returns the time of the run as it was, and as it would have been.
fn worth((_, saved): &Shown<'_>) -> Rows {
    let Some(TimeSaved { interval: Ok(saved), of_seconds }) = saved else { return Rows::new() };
    let without = |saved: f64| (of_seconds + saved).max(0.0);
    let rows = [
        ("with adma", *of_seconds, WAYS[0]),
        ("without, about", without(saved.seconds), WAYS[1]),
        ("at least", without(saved.low), WAYS[1]),
        ("at most", without(saved.high), WAYS[1]),
    ];
    rows.map(|(name, s, way)| (vec![name.to_owned(), seconds(s)], vec![vec![(s, way)]])).to_vec()
}

/// Returns GB/s by size class, for both paths where both had copies of that size.
fn speeds((figures, _): &Shown<'_>) -> Rows {
    let row = |class: u32| {
        let flows = figures.live.recorder.flows();
        let speeds = flows.map(|flow| Some(flow.speed(class)? / figures.scale));
        let ratio = speeds[0].zip(speeds[1]).map(|(engine, libc)| format!("{:.2}", engine / libc));
        let told = speeds.map(|one| one.map(speed));
        let cells = told.into_iter().chain([ratio]).map(|cell| cell.unwrap_or(NONE.to_owned()));
        let bars = speeds.into_iter().zip(WAYS);
        let bars: Vec<_> = bars.filter_map(|(speed, way)| Some(vec![(speed?, way)])).collect();
        let cells = std::iter::once(range(class)).chain(cells).collect();
        (!bars.is_empty()).then_some((cells, bars))
    };
    (0..64).filter_map(row).collect()
}

/// Returns a row for each call site.
fn sites((figures, _): &Shown<'_>) -> Rows {
    let rows = figures.sites.iter().map(|site| {
        let time = nanoseconds(site.nanoseconds);
        let speed = speed(site.bytes as f64 / site.nanoseconds.max(1) as f64);
        let cells = vec![site.name.clone(), count(site.calls), bytes(site.bytes), time, speed];
        (cells, bar(site.bytes, WAYS[0]))
    });
    rows.collect()
}

/// Returns the bytes by step of time and by path.
fn steps(figures: &Figures) -> [Vec<u64>; 2] {
    figures.live.recorder.timeline.bytes().map(Iterator::collect)
}

fn timeline((figures, _): &Shown<'_>) -> Rows {
    let rows = WAYS.into_iter().zip(steps(figures)).filter(|(_, steps)| !steps.is_empty());
    let rows = rows.map(|(way, steps)| {
        let busy = steps.iter().filter(|bytes| **bytes > 0).count();
        let all = steps.iter().fold(0u64, |a, b| a.saturating_add(*b));
        let part = percent(busy as u64, steps.len() as u64);
        (all > 0).then(|| (vec![way.to_owned(), bytes(all), part], bar(all, way)))
    });
    rows.flatten().collect()
}

/// Returns the timeline of copies: a column for each step.
fn strip(figures: &Figures) -> String {
    let [engine, libc] = steps(figures);
    let step = figures.live.recorder.timeline.step() as f64 * figures.scale / 1e9;
    let length = engine.len().max(libc.len()) as f64 * step;
    let told = format!("From the first to the last large call {}.", seconds(length));
    let sums = engine.iter().zip(&libc).map(|(a, b)| a.saturating_add(*b));
    let most = sums.max().unwrap_or(0).max(1) as f64;
    let mut out = format!("<div class=\"strip\" role=\"img\" aria-label=\"{told}\">");
    for (engine, libc) in engine.into_iter().zip(libc) {
        let [engine, libc] = [engine, libc].map(|bytes| 100.0 * bytes as f64 / most);
        let _ = write!(
            out,
            "<div><i class=\"libc\" style=\"height:{libc:.1}%\"></i>\
             <i class=\"engine\" style=\"height:{engine:.1}%\"></i></div>"
        );
    }
    let marks = [0.0, 0.25, 0.5, 0.75, 1.0].map(|part| seconds(part * length));
    let marks = marks.map(|mark| format!("<div>{mark}</div>")).concat();
    format!("{out}</div>\n<div class=\"axis\" aria-hidden=\"true\">{marks}</div>\n")
}

fn by_size(
    (figures, _): &Shown<'_>,
    pick: fn(&Flow, u32, (u64, u64)) -> u64,
    told: fn(u64) -> String,
) -> Rows {
    let flows = figures.live.recorder.flows();
    let (first, classes) = by_class(&flows.map(|flow| &flow.sizes));
    let rows = (first..).zip(classes[0].iter().zip(&classes[1])).map(|(class, (engine, libc))| {
        let parts = [pick(flows[0], class, *engine), pick(flows[1], class, *libc)];
        let bar = parts.into_iter().map(|part| part as f64).zip(WAYS).collect();
        let cell = |part: u64| if part > 0 { told(part) } else { NONE.to_owned() };
        let is_used = parts.iter().any(|part| *part > 0);
        is_used.then(|| (vec![range(class), cell(parts[0]), cell(parts[1])], vec![bar]))
    });
    rows.flatten().collect()
}

/// Returns the bytes of a size class as they were counted; in a report of an older version, the sum
/// of its buckets.
fn exact_bytes(flow: &Flow, class: u32, (_, sum): (u64, u64)) -> u64 {
    flow.speeds().find(|speed| speed.0 == class).map_or(sum, |speed| speed.1)
}

fn percentiles(
    (figures, _): &Shown<'_>,
    of: fn(&Flow) -> &Histogram,
    told: fn(&Figures, u64) -> String,
) -> Rows {
    let ways = figures.live.recorder.flows().map(of);
    let rows = PARTS.iter().filter(|_| ways.iter().any(|way| way.count() > 0));
    let rows = rows.map(|(part, name, enough)| {
        // A percentile of too few copies is not shown.
        let values = ways.map(|way| (way.count() >= *enough).then(|| way.quantile(*part)));
        let cells = values.map(|v| v.map_or(NONE.to_owned(), |value| told(figures, value)));
        let bars = values.into_iter().zip(WAYS);
        let bars: Vec<_> = bars.filter_map(|(v, way)| Some(vec![(v? as f64, way)])).collect();
        let cells = std::iter::once(name.to_string()).chain(cells).collect();
        (!bars.is_empty()).then_some((cells, bars))
    });
    rows.flatten().collect()
}

/// Returns rows for the parts of one sum.
fn shares(parts: &Named, told: fn(u64) -> String) -> Rows {
    let all = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.1));
    let rows = parts.iter().filter(|_| all > 0).map(|(name, part)| {
        let class = if name == "caller" { "dots" } else { WAYS[0] };
        (vec![name.clone(), told(*part), percent(*part, all)], bar(*part, class))
    });
    rows.collect()
}

fn fallbacks((figures, _): &Shown<'_>) -> Rows {
    let reasons = figures.live.recorder.reasons().into_iter().filter(|(_, copies, _)| *copies > 0);
    let rows = reasons.map(|(why, copies, sum)| {
        let what = format!("{}: {}", why.name(), why.words());
        (vec![what, count(copies), bytes(sum)], bar(sum, WAYS[1]))
    });
    rows.collect()
}

fn notes((figures, _): &Shown<'_>) -> Rows {
    let live = &figures.live;
    let notes = [
        (&live.recorder.mismatched, "wrong, and repaired; the engine is off: please report this"),
        (&live.facts.faults, FAULT),
        (&live.facts.taken_back, TAKEN_BACK),
    ];
    let rows = notes.into_iter().map(|(number, what)| (number.load(Relaxed), what));
    let rows = rows.filter(|(number, _)| *number > 0);
    rows.map(|(number, what)| (vec![what.to_owned(), count(number)], Vec::new())).collect()
}

fn registrations((figures, _): &Shown<'_>) -> Rows {
    let rows = figures.registrations.iter().map(|(name, value)| {
        let value = if name == "most_bytes" { bytes(*value) } else { count(*value) };
        (vec![name.clone(), value], Vec::new())
    });
    rows.collect()
}

fn messages((figures, _): &Shown<'_>) -> Rows {
    figures.live.messages.told().map_or(Rows::new(), |told| counts(told.directions))
}

fn functions((figures, _): &Shown<'_>) -> Rows {
    let functions = OPS.iter().zip(&figures.live.recorder.by_function);
    let functions = functions.map(|(name, calls)| (*name, calls.get()[0], calls.get()[1]));
    let mut functions: Vec<_> = functions.collect();
    functions.sort_by_key(|(.., sum)| Reverse(*sum));
    counts(functions)
}

/// Returns rows for names with numbers and bytes, as far as there are some.
fn counts<'a>(counts: impl IntoIterator<Item = (&'a str, u64, u64)>) -> Rows {
    let used = counts.into_iter().filter(|(_, number, _)| *number > 0);
    let rows = used.map(|(name, number, sum)| {
        (vec![name.to_owned(), count(number), bytes(sum)], bar(sum, WAYS[0]))
    });
    rows.collect()
}

fn every_size((figures, _): &Shown<'_>) -> Rows {
    let (first, classes) = by_class(&[&figures.live.recorder.every_size]);
    let used = (first..).zip(&classes[0]).filter(|(_, (copies, _))| *copies > 0);
    let rows = used.map(|(class, (copies, sum))| {
        (vec![range(class), count(*copies), bytes(*sum)], bar(*copies, WAYS[0]))
    });
    rows.collect()
}

/// Sums each histogram by powers of two, from the first in use to the last: values and their sum.
fn by_class(histograms: &[&Histogram]) -> (u32, Vec<Vec<(u64, u64)>>) {
    let class = |value: u64| value.max(1).ilog2();
    let used = || histograms.iter().flat_map(|all| all.buckets()).map(|bucket| class(bucket.0));
    let (first, behind) = (used().min().unwrap_or(0), used().max().map_or(0, |last| last + 1));
    let rows = histograms.iter().map(|histogram| {
        let mut row = vec![(0u64, 0u64); (behind - first) as usize];
        for (lowest, highest, count) in histogram.buckets() {
            let middle = lowest.midpoint(highest.min(histogram.max().max(lowest)));
            let sum = &mut row[(class(lowest) - first) as usize];
            sum.0 = sum.0.saturating_add(count);
            sum.1 = sum.1.saturating_add(middle.saturating_mul(count));
        }
        row
    });
    (first, rows.collect())
}

fn range(class: u32) -> String {
    let to = 1u64.checked_shl(class + 1).map_or("16 EiB".to_owned(), bytes);
    format!("{} to {to}", bytes(1 << class))
}
