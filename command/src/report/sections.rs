//! Sections of the report of processes, for one of them or for all: each a title, an explanation,
//! and tables in which every row has a bar. A new table of figures is one line of `sections!`.

use super::figures::{Figures, Named, TimeSaved};
use adma_report::units::bytes;
use adma_report::{Row, Section, Shade, Table, Timeline, Value};
use adma_shared::histogram::Histogram;
use adma_shared::knobs::OPS;
use adma_shared::live::Flow;
use adma_shared::tables::{FAULT, PARTS, TAKEN_BACK};
use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

/// Paths of a copy.
const WAYS: [(&str, Shade); 2] = [("engine", Shade::Engine), ("libc", Shade::Libc)];

type Rows = Vec<Row>;

/// Figures to show: of one process, or of all.
type Shown<'a> = (&'a Figures, Option<&'a TimeSaved>);

/// Caption, names of columns, rows.
type Listed = (&'static str, &'static [&'static str], fn(&Shown<'_>) -> Rows);

/// A section, shown if a table has rows.
struct Outline {
    title: &'static str,
    about: &'static str,
    timeline: fn(&Figures) -> Option<Timeline>,
    tables: &'static [Listed],
}

macro_rules! sections {
    ($($title:literal, $about:literal, $timeline:ident
        { $($caption:literal [$($column:literal)*] $rows:expr;)* })*) => {
        const SECTIONS: &[Outline] = &[$(Outline {
            title: $title,
            about: $about,
            timeline: $timeline,
            tables: &[$(($caption, &[$($column),*], $rows)),*],
        }),*];
    };
}

sections! {
    "Time saved", "Estimated inside the copies themselves: parts of shared copies that the caller does \
        alone, and whole copies by libc, tell what libc would have taken. adma bench runs the \
        program both ways and measures it.", none {
        "Time with and without adma" ["run" "time"] worth;
    }
    "Speed by size", "How fast large copies were. Libc's are those that were left to it, which may be \
        others than those that were carried.", none {
        "Speed of large copies by size" ["size" "engine" "libc" "ratio"] speeds;
    }
    "Who copies", "The function that called memcpy or its like. Where a module has no symbols, the \
        place in its file stands instead.", none {
        "Large calls by where they come from"
            ["module and function" "calls" "bytes" "time" "speed"] sites;
    }
    "When", "Bytes of large copies by when they began, in time since the first of them.", by_time {
        "Large copies by way" ["way" "bytes" "of the time"] timeline;
    }
    "Sizes", "How large the copies were, and which way they went: their number, and their bytes, which \
        are what takes time.", none {
        "Large copies by size" ["size" "engine" "libc"]
            |shown| by_size(shown, |_, _, (copies, _)| copies, Value::Count);
        "Bytes in them by size" ["size" "engine" "libc"]
            |shown| by_size(shown, exact_bytes, Value::Bytes);
    }
    "Latency", "How long a copy took: no longer than this did half of the copies (p50), nine of ten \
        (p90), and so on. The two ways had copies of different sizes: compare the sizes before the \
        times.", none {
        "Time of a copy" ["copies" "engine" "libc"]
            |shown| percentiles(shown, |flow| &flow.ticks, |figures, ticks| {
                Value::Nanoseconds(figures.nanoseconds(ticks))
            });
        "Size of a copy" ["copies" "engine" "libc"]
            |shown| percentiles(shown, |flow| &flow.sizes, |_, size| Value::Bytes(size));
    }
    "Channels", "Which thread or engine moved the bytes of the copies that were carried: the program's \
        own thread (caller) does its part of each.", none {
        "Bytes of carried copies" ["channel" "bytes" "share"]
            |(figures, _)| shares(&figures.channels(), Value::Bytes);
    }
    "Left to libc, and why", "Copies below the threshold are not among them: they are never looked at.", none {
        "Large copies that stayed with libc" ["reason" "copies" "bytes"] fallbacks;
    }
    "Out of the ordinary", "What happens rarely.", none {
        "Rare events" ["what happened" "copies"] notes;
    }
    "Requests to the kernel helper", "Where the time of a request went.", none {
        "Time of the I/OAT requests" ["part" "time" "share"]
            |(figures, _)| shares(&figures.costs, Value::Nanoseconds);
    }
    "Memory registered with the card", "What has become of it.", none {
        "Registrations" ["what" "number"] registrations;
    }
    "Files, cards and messages", "Reads of files, copies to cards and from them, and messages.", none {
        "Large reads of files" ["way" "reads" "bytes"]
            |(figures, _)| counts(figures.live.recorder.counts_apart(0));
        "Large copies to a card" ["way" "copies" "bytes"]
            |(figures, _)| counts(figures.live.recorder.counts_apart(1));
        "Large copies from a card" ["way" "copies" "bytes"]
            |(figures, _)| counts(figures.live.recorder.counts_apart(2));
        "Messages" ["direction" "messages" "bytes"] messages;
    }
    "Profile: every copy", "Also the small ones, which are never carried.", none {
        "Every copy by size" ["size" "copies" "bytes"] every_size;
        "By function" ["function" "calls" "bytes"] functions;
    }
}

/// Returns all sections of one process, or of all.
pub fn all(figures: &Figures, saved: Option<&TimeSaved>, whose: &str) -> Vec<Section> {
    let section = |outline: &Outline| {
        let tables = outline.tables.iter().map(|(caption, titles, rows)| {
            Table::new(
                format!("{caption}, {whose}"),
                titles.iter().copied(),
                rows(&(figures, saved)),
            )
        });
        Section {
            title: outline.title.into(),
            about: outline.about.into(),
            timeline: (outline.timeline)(figures),
            tables: tables.collect(),
            ..Section::default()
        }
    };
    SECTIONS.iter().map(section).collect()
}

/// Returns the time of the run as it was, and as it would have been.
fn worth((_, saved): &Shown<'_>) -> Rows {
    let Some(TimeSaved { interval: Ok(saved), of_seconds }) = saved else { return Rows::new() };
    let without = |saved: f64| (of_seconds + saved).max(0.0);
    let rows = [
        ("with adma", *of_seconds, Shade::Engine),
        ("without, about", without(saved.seconds), Shade::Libc),
        ("at least", without(saved.low), Shade::Libc),
        ("at most", without(saved.high), Shade::Libc),
    ];
    rows.map(|(name, s, shade)| Row::new([name.into(), Value::Seconds(s)]).bar(s, shade)).into()
}

/// Returns the speed by size class, for both paths where both had copies of that size.
fn speeds((figures, _): &Shown<'_>) -> Rows {
    let row = |class: u32| {
        let flows = figures.live.recorder.flows();
        let speeds = flows.map(|flow| Some(flow.speed(class)? / figures.scale));
        let ratio = speeds[0].zip(speeds[1]).map(|(engine, libc)| Value::Ratio(engine / libc));
        let [engine, libc] = speeds.map(|speed| speed.map(Value::Speed).into());
        let row = Row::new([range(class), engine, libc, ratio.into()]);
        let known =
            speeds.into_iter().zip(WAYS).filter_map(|(speed, (_, way))| Some((speed?, way)));
        let row = known.fold(row, |row, (speed, way)| row.bar(speed, way));
        (!row.bars.is_empty()).then_some(row)
    };
    (0..64).filter_map(row).collect()
}

/// Returns a row for each call site.
fn sites((figures, _): &Shown<'_>) -> Rows {
    let row = |site: &super::figures::Site| {
        let speed = site.bytes as f64 / site.nanoseconds.max(1) as f64;
        let cells = [
            site.name.as_str().into(),
            Value::Count(site.calls),
            Value::Bytes(site.bytes),
            Value::Nanoseconds(site.nanoseconds),
            Value::Speed(speed),
        ];
        Row::new(cells).bar(site.bytes as f64, Shade::Engine)
    };
    figures.sites.iter().map(row).collect()
}

/// Returns the bytes by step of time and by path.
fn steps(figures: &Figures) -> [Vec<u64>; 2] {
    figures.live.recorder.timeline.bytes().map(Iterator::collect)
}

fn timeline((figures, _): &Shown<'_>) -> Rows {
    let rows = WAYS.into_iter().zip(steps(figures)).filter(|(_, steps)| !steps.is_empty());
    let rows = rows.map(|((way, shade), steps)| {
        let busy = steps.iter().filter(|bytes| **bytes > 0).count();
        let all = steps.iter().fold(0u64, |a, b| a.saturating_add(*b));
        let part = Value::Share(busy as u64, steps.len() as u64);
        (all > 0).then(|| Row::new([way.into(), Value::Bytes(all), part]).bar(all as f64, shade))
    });
    rows.flatten().collect()
}

fn none(_: &Figures) -> Option<Timeline> {
    None
}

/// Returns when copies were made, libc's above the engine's.
fn by_time(figures: &Figures) -> Option<Timeline> {
    let [engine, libc] = steps(figures);
    let step = figures.live.recorder.timeline.step() as f64 * figures.scale / 1e9;
    let seconds = engine.len().max(libc.len()) as f64 * step;
    let steps = engine
        .into_iter()
        .zip(libc)
        .map(|(engine, libc)| vec![(libc as f64, Shade::Libc), (engine as f64, Shade::Engine)]);
    Some(Timeline { seconds, steps: steps.collect() })
}

fn by_size(
    (figures, _): &Shown<'_>,
    pick: fn(&Flow, u32, (u64, u64)) -> u64,
    unit: fn(u64) -> Value,
) -> Rows {
    let flows = figures.live.recorder.flows();
    let (first, classes) = by_class(&flows.map(|flow| &flow.sizes));
    let rows = (first..).zip(classes[0].iter().zip(&classes[1])).map(|(class, (engine, libc))| {
        let parts = [pick(flows[0], class, *engine), pick(flows[1], class, *libc)];
        let bar = parts.into_iter().zip(WAYS).map(|(part, (_, way))| (part as f64, way)).collect();
        let [engine, libc] = parts.map(|part| (part > 0).then(|| unit(part)).into());
        let row = Row { bars: vec![bar], ..Row::new([range(class), engine, libc]) };
        parts.iter().any(|part| *part > 0).then_some(row)
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
    unit: fn(&Figures, u64) -> Value,
) -> Rows {
    let ways = figures.live.recorder.flows().map(of);
    let rows = PARTS.iter().filter(|_| ways.iter().any(|way| way.count() > 0));
    let rows = rows.map(|(part, name, enough)| {
        // A percentile of too few copies is not shown.
        let values = ways.map(|way| (way.count() >= *enough).then(|| way.quantile(*part)));
        let [engine, libc] = values.map(|value| value.map(|value| unit(figures, value)).into());
        let row = Row::new([Value::from(*name), engine, libc]);
        let known =
            values.into_iter().zip(WAYS).filter_map(|(value, (_, way))| Some((value?, way)));
        let row = known.fold(row, |row, (value, way)| row.bar(value as f64, way));
        (!row.bars.is_empty()).then_some(row)
    });
    rows.flatten().collect()
}

/// Returns rows for the parts of one sum.
fn shares(parts: &Named, unit: fn(u64) -> Value) -> Rows {
    let all = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.1));
    let rows = parts.iter().filter(|_| all > 0).map(|(name, part)| {
        let shade = if name == "caller" { Shade::Caller } else { Shade::Engine };
        let cells = [name.as_str().into(), unit(*part), Value::Share(*part, all)];
        Row::new(cells).bar(*part as f64, shade)
    });
    rows.collect()
}

fn fallbacks((figures, _): &Shown<'_>) -> Rows {
    let reasons = figures.live.recorder.reasons().into_iter().filter(|(_, copies, _)| *copies > 0);
    let rows = reasons.map(|(why, copies, sum)| {
        let what = format!("{}: {}", why.name(), why.words());
        Row::new([what.into(), Value::Count(copies), Value::Bytes(sum)])
            .bar(sum as f64, Shade::Libc)
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
    rows.map(|(number, what)| Row::new([what.into(), Value::Count(number)])).collect()
}

fn registrations((figures, _): &Shown<'_>) -> Rows {
    let row =
        |(name, value): &(String, u64)| Row::new([name.as_str().into(), registered(name, *value)]);
    figures.registrations.iter().map(row).collect()
}

/// Returns a count of registrations; one of them is of bytes.
pub fn registered(name: &str, value: u64) -> Value {
    if name == "most_bytes" { Value::Bytes(value) } else { Value::Count(value) }
}

fn messages((figures, _): &Shown<'_>) -> Rows {
    figures.live.messages.sums().map_or(Rows::new(), |sums| counts(sums.directions))
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
        let cells = [name.into(), Value::Count(number), Value::Bytes(sum)];
        Row::new(cells).bar(sum as f64, Shade::Engine)
    });
    rows.collect()
}

fn every_size((figures, _): &Shown<'_>) -> Rows {
    let (first, classes) = by_class(&[&figures.live.recorder.every_size]);
    let used = (first..).zip(&classes[0]).filter(|(_, (copies, _))| *copies > 0);
    let rows = used.map(|(class, (copies, sum))| {
        let cells = [range(class), Value::Count(*copies), Value::Bytes(*sum)];
        Row::new(cells).bar(*copies as f64, Shade::Engine)
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

fn range(class: u32) -> Value {
    let to = 1u64.checked_shl(class + 1).map_or("16 EiB".to_owned(), bytes);
    format!("{} to {to}", bytes(1 << class)).into()
}
