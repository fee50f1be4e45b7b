//! The page's sections, for one process or for all: each a heading, what it is about, a picture
//! and a table with the same numbers.

use super::chart::{self, ENGINE, EVERY, LIBC};
use super::figures::{Distribution, Figures, PARTS, Site, TimeSaved, Traffic, in_words};
use super::html::{escaped, table};
use super::units::{Scale, bytes, count, nanoseconds, percent, seconds};
use std::fmt::Write;

/// What there is to see of one process, or of all.
pub fn all(out: &mut String, figures: &Figures, whose: &str, level: u8) {
    worth(out, figures, whose, level);
    speeds(out, figures, whose, level);
    sites(out, figures, whose, level);
    timeline(out, figures, level);
    if figures.bytes() > 0 {
        sizes(out, figures, whose, level);
        times(out, figures, whose, level);
        channels(out, figures, whose, level);
        fallbacks(out, figures, whose, level);
    }
    notes(out, figures);
    costs(out, figures, whose, level);
    registrations(out, figures, whose, level);
    reads(out, figures, level);
    messages(out, figures, level);
    profile(out, figures, whose, level);
}

/// A heading, what it is about, a picture and its table.
fn figure(out: &mut String, level: u8, title: &str, about: &str, picture: &str, table: &str) {
    let _ = writeln!(
        out,
        "<figure><figcaption><h{level}>{}</h{level}><p>{}</p></figcaption>\n\
         <div class=\"pair\">\n<div>{picture}</div>\n<div>{table}</div>\n</div></figure>",
        escaped(title),
        escaped(about)
    );
}

/// The run as it was, and as it would have been.
fn worth(out: &mut String, figures: &Figures, whose: &str, level: u8) {
    let Some(TimeSaved { interval: Ok(saved), of_seconds }) = &figures.saved else { return };
    let (saved, of_seconds) = (*saved, *of_seconds);
    let without = (of_seconds + saved.seconds).max(0.0);
    let [low, high] = [saved.low, saved.high].map(|saved| (of_seconds + saved).max(0.0));
    let rows = [
        ("with adma", of_seconds),
        ("without, about", without),
        ("at least", low),
        ("at most", high),
    ];
    let table = table(
        &format!("Wall time of {whose}"),
        &["run", "time"],
        &rows.map(|(name, time)| vec![name.to_owned(), seconds(time)]),
    );
    let nanoseconds = |time: f64| (time * 1e9) as u64;
    let bars = [
        (rows[0].0, vec![(of_seconds * 1e9, "engine")], seconds(of_seconds)),
        (rows[1].0, vec![(without * 1e9, "libc")], seconds(without)),
    ];
    let scale = Scale::nanoseconds(nanoseconds(of_seconds.max(without)).max(1));
    let told = format!("With adma {}, without about {}.", bars[0].2, bars[1].2);
    let picture = chart::rows("Time with and without adma", &told, "wall time", &scale, &bars);
    let about = "Estimated inside the copies themselves: parts of shared copies that the caller does \
                 alone, and whole copies by libc, tell what libc would have taken. The bounds hold \
                 in nine of ten runs.";
    figure(out, level, "Time saved", about, &picture, &table);
}

/// The powers of two from the first in use to the last, and the two numbers of each histogram.
fn by_class(histograms: &[&Distribution]) -> (u32, Vec<Vec<(u64, u64)>>) {
    let classes: Vec<_> = histograms.iter().map(|histogram| histogram.classes()).collect();
    let used = || classes.iter().flatten().map(|class| class.0);
    let (first, last) = (used().min().unwrap_or(0), used().max().unwrap_or(0));
    let of = |all: &Vec<(u32, u64, u64)>, wanted: u32| {
        let found = all.iter().find(|class| class.0 == wanted);
        found.map_or((0, 0), |class| (class.1, class.2))
    };
    let rows = classes.iter().map(|all| (first..=last).map(|class| of(all, class)).collect());
    (first, rows.collect())
}

fn range(class: u32) -> String {
    let to = 1u64.checked_shl(class + 1).map_or("16 EiB".to_owned(), bytes);
    format!("{} to {to}", bytes(1 << class))
}

/// GB/s by size class: the two ways beside each other where both had copies of that size.
fn speeds(out: &mut String, figures: &Figures, whose: &str, level: u8) {
    let [engine, libc] = [&figures.engine.speeds, &figures.libc.speeds];
    let mut classes: Vec<u32> = engine.iter().chain(libc).map(|speed| speed.0).collect();
    classes.sort_unstable();
    classes.dedup();
    let speed = |all: &[(u32, u64, u64)], class: u32| {
        let found = all.iter().find(|speed| speed.0 == class && speed.2 > 0);
        found.map(|speed| speed.1 as f64 / speed.2 as f64)
    };
    let told = |speed: Option<f64>| speed.map_or("–".to_owned(), |speed| format!("{speed:.1}"));
    let (mut rows, mut bars) = (Vec::new(), Vec::new());
    for &class in &classes {
        let [engine, libc] = [engine, libc].map(|all| speed(all, class));
        let ratio = engine.zip(libc).map(|(engine, libc)| engine / libc);
        let ratio = ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        rows.push(vec![range(class), told(engine), told(libc), ratio]);
        for (name, class_name, speed) in [("engine", "engine", engine), ("libc", "libc", libc)] {
            if let Some(speed) = speed {
                bars.push((format!("{} {name}", bytes(1 << class)), class_name, speed));
            }
        }
    }
    if bars.is_empty() {
        return;
    }
    let most = bars.iter().map(|bar| bar.2).fold(0.1, f64::max);
    let table = table(
        &format!("GB/s of large copies of {whose}, by size"),
        &["size", "engine", "libc", "ratio"],
        &rows,
    );
    let shown: Vec<_> = bars
        .iter()
        .map(|(name, class, speed)| {
            (name.as_str(), vec![(*speed, *class)], format!("{speed:.1} GB/s"))
        })
        .collect();
    let told: Vec<_> = shown.iter().map(|bar| format!("{} {}", bar.0, bar.2)).collect();
    let picture = chart::rows(
        "Speed by size",
        &format!("{}.", told.join(", ")),
        "GB/s",
        &Scale::speeds(most),
        &shown,
    );
    let about = "How fast large copies were, by their size. Libc's are those that were left to it, \
                 which may be others than those that were carried.";
    figure(out, level, "Speed", about, &picture, &table);
}

/// Which code copies.
fn sites(out: &mut String, figures: &Figures, whose: &str, level: u8) {
    const SHOWN: usize = 12;
    let Some(first) = figures.sites.first() else { return };
    let row = |site: &Site| {
        let speed = site.bytes as f64 / site.nanoseconds.max(1) as f64;
        vec![
            site.name.clone(),
            count(site.calls),
            bytes(site.bytes),
            nanoseconds(site.nanoseconds),
            format!("{speed:.1}"),
        ]
    };
    let rows: Vec<_> = figures.sites.iter().map(row).collect();
    let table = table(
        &format!("Large calls of {whose}, by where they come from"),
        &["module and function", "calls", "bytes", "time", "GB/s"],
        &rows,
    );
    let shown = figures.sites.iter().take(SHOWN);
    let bars: Vec<_> = shown
        .map(|site| (site.name.as_str(), vec![(site.bytes as f64, "engine")], bytes(site.bytes)))
        .collect();
    let told: Vec<_> = bars.iter().map(|bar| format!("{} {}", bar.0, bar.2)).collect();
    let picture = chart::rows(
        "Bytes by call site",
        &format!("{}.", told.join(", ")),
        "bytes",
        &Scale::bytes(first.bytes),
        &bars,
    );
    let about = "The function that called memcpy or its like. Where a module has no symbols, the \
                 place in its file stands instead.";
    figure(out, level, "Who copies", about, &picture, &table);
}

/// When the copies were.
fn timeline(out: &mut String, figures: &Figures, level: u8) {
    let Some(line) = figures.timeline.as_ref().filter(|line| line.end > line.start) else { return };
    let sum = |step: usize| {
        line.bytes
            .iter()
            .filter_map(|steps| steps.get(step))
            .fold(0u64, |a, b| a.saturating_add(*b))
    };
    let steps = line.bytes.iter().map(Vec::len).max().unwrap_or(0);
    let most = (0..steps).map(sum).max().unwrap_or(0);
    let told = format!("From the first to the last large call {}.", seconds(line.end - line.start));
    let picture = chart::over_time("Bytes by time", &told, &Scale::bytes(most), line);
    let row = |(name, steps): (&str, &Vec<u64>)| {
        let used = steps.iter().filter(|bytes| **bytes > 0).count();
        let all = steps.iter().fold(0u64, |a, b| a.saturating_add(*b));
        vec![name.to_owned(), bytes(all), percent(used as u64, steps.len() as u64)]
    };
    let rows: Vec<_> = ["engine", "libc"].into_iter().zip(&line.bytes).map(row).collect();
    let table = table(&told, &["way", "bytes", "of the time"], &rows);
    let about = "Bytes of large copies by when they began; the axis starts with the first.";
    figure(out, level, "When", about, &picture, &table);
}

fn sizes(out: &mut String, figures: &Figures, whose: &str, level: u8) {
    let (first, classes) = by_class(&[&figures.engine.sizes, &figures.libc.sizes]);
    let pick = |pick: fn(&(u64, u64)) -> u64| -> Vec<Vec<f64>> {
        classes.iter().map(|all| all.iter().map(|class| pick(class) as f64).collect()).collect()
    };
    let most = |values: &[Vec<f64>]| -> u64 {
        let bars = values.first().map_or(0, Vec::len);
        (0..bars).map(|bar| values.iter().map(|all| all[bar]).sum::<f64>()).fold(0.0, f64::max)
            as u64
    };
    let (calls, sums) = (pick(|class| class.0), pick(|class| class.1));
    let rows: Vec<Vec<String>> = (0..classes[0].len())
        .map(|row| {
            let (engine, libc) = (classes[0][row], classes[1][row]);
            vec![
                range(first + row as u32),
                count(engine.0),
                count(libc.0),
                bytes(engine.1.saturating_add(libc.1)),
            ]
        })
        .collect();
    let table = table(
        &format!("Large copies of {whose} by size"),
        &["size", "engine", "libc", "bytes"],
        &rows,
    );
    let busiest = rows
        .iter()
        .zip(0..)
        .max_by_key(|(_, row)| classes[0][*row].0.saturating_add(classes[1][*row].0));
    let busiest =
        busiest.map_or(String::new(), |(row, _)| format!("Most copies are of {}.", row[0]));
    let picture = chart::bars(
        "Copies by size and way",
        &busiest,
        "copies",
        &Scale::counts(most(&calls)),
        &[ENGINE, LIBC],
        first,
        &calls,
    ) + &chart::bars(
        "Bytes by size and way",
        "The same copies by their bytes.",
        "bytes",
        &Scale::bytes(most(&sums)),
        &[ENGINE, LIBC],
        first,
        &sums,
    );
    let about = "How large the copies were, and which way they went. Above their number, below \
                 their bytes, which are what takes time.";
    figure(out, level, "Sizes", about, &picture, &table);
}

fn times(out: &mut String, figures: &Figures, whose: &str, level: u8) {
    let flows = [(ENGINE, &figures.engine), (LIBC, &figures.libc)];
    let flows: Vec<_> = flows.into_iter().filter(|(_, flow)| flow.times.count() > 0).collect();
    if flows.is_empty() {
        return;
    }
    let mut head = vec![""];
    head.extend(flows.iter().map(|((name, _), _)| *name));
    type Told<'a> = &'a dyn Fn(&Traffic, f64) -> String;
    let rows = |told: Told<'_>| -> Vec<Vec<String>> {
        let row = |(name, part, enough): (&str, f64, u64)| {
            let cell = |flow: &Traffic| match flow.times.count() >= enough {
                true => told(flow, part),
                false => "–".to_owned(), // a percentile of too few copies says nothing
            };
            let cells = flows.iter().map(|(_, flow)| cell(flow));
            [name.to_owned()].into_iter().chain(cells).collect()
        };
        PARTS.into_iter().map(row).collect()
    };
    let table = table(
        &format!("Time of a copy, {whose}"),
        &head,
        &rows(&|flow, part| nanoseconds(flow.times.quantile(part))),
    ) + &table(
        &format!("Size of a copy, {whose}"),
        &head,
        &rows(&|flow, part| bytes(flow.sizes.quantile(part))),
    );
    let told: Vec<_> = flows
        .iter()
        .map(|((name, _), flow)| {
            format!(
                "Half of the copies by {name} took at most {}, the longest {}.",
                nanoseconds(flow.times.quantile(0.5)),
                nanoseconds(flow.times.max)
            )
        })
        .collect();
    let curves: Vec<_> = flows.iter().map(|(series, flow)| (*series, &flow.times)).collect();
    let picture = chart::curves("Time of copies by percentile", &told.join(" "), &curves);
    let about = "How long a copy took. The two ways had copies of different sizes: compare the \
                 sizes before the times.";
    figure(out, level, "Latency", about, &picture, &table);
}

fn channels(out: &mut String, figures: &Figures, whose: &str, level: u8) {
    let all = figures.channels.iter().fold(0u64, |sum, channel| sum.saturating_add(channel.1));
    if all == 0 {
        return;
    }
    let most = figures.channels.iter().map(|channel| channel.1).max().unwrap_or(1);
    let row =
        |(name, share): &(String, u64)| vec![name.clone(), bytes(*share), percent(*share, all)];
    let rows: Vec<_> = figures.channels.iter().map(row).collect();
    let table = table(
        &format!("Bytes of carried copies of {whose}, by who copied them"),
        &["channel", "bytes", "share"],
        &rows,
    );
    let bars: Vec<_> = figures
        .channels
        .iter()
        .take(17)
        .map(|(name, share)| {
            let class = if name == "caller" { "dots" } else { "engine" };
            (name.as_str(), vec![(*share as f64, class)], percent(*share, all))
        })
        .collect();
    let told: Vec<_> = rows.iter().take(17).map(|row| format!("{} {}", row[0], row[2])).collect();
    let picture = chart::rows(
        "Shares of the channels",
        &format!("{}.", told.join(", ")),
        "bytes",
        &Scale::bytes(most),
        &bars,
    );
    let about = "Who moved the bytes of the copies that were carried: the program's own thread \
                 (caller) does its part of each.";
    figure(out, level, "Channels", about, &picture, &table);
}

fn fallbacks(out: &mut String, figures: &Figures, whose: &str, level: u8) {
    if figures.fallbacks.is_empty() {
        return;
    }
    let mut reasons: Vec<_> = figures.fallbacks.iter().collect();
    reasons.sort_by_key(|reason| std::cmp::Reverse((reason.2, reason.1)));
    let most = |number: fn(&(String, u64, u64)) -> u64| reasons.iter().map(|r| number(r)).max();
    // Older reports tell no bytes.
    let has_bytes = most(|reason| reason.2) > Some(0);
    let mut head = vec!["reason", "copies", "in words"];
    if has_bytes {
        head.insert(2, "bytes");
    }
    let row = |(name, copies, sum): &&(String, u64, u64)| {
        let mut row = vec![name.clone(), count(*copies), in_words(name).to_owned()];
        if has_bytes {
            row.insert(2, bytes(*sum));
        }
        row
    };
    let rows: Vec<_> = reasons.iter().map(row).collect();
    let table = table(&format!("Large copies of {whose} that stayed with libc"), &head, &rows);
    let bar = |(name, copies, sum): &&'_ (String, u64, u64)| match has_bytes {
        true => (name.clone(), *sum, bytes(*sum)),
        false => (name.clone(), *copies, count(*copies)),
    };
    let bars: Vec<_> = reasons.iter().take(12).map(bar).collect();
    let told: Vec<_> = bars.iter().map(|(name, _, end)| format!("{name} {end}")).collect();
    let bars: Vec<_> = bars
        .iter()
        .map(|(name, value, end)| (name.as_str(), vec![(*value as f64, "libc")], end.clone()))
        .collect();
    let (across, scale) = match has_bytes {
        true => ("bytes", Scale::bytes(most(|reason| reason.2).unwrap_or(1))),
        false => ("copies", Scale::counts(most(|reason| reason.1).unwrap_or(1))),
    };
    let picture =
        chart::rows("Reasons for libc", &format!("{}.", told.join(", ")), across, &scale, &bars);
    let about = "Why large copies were left to libc. Copies below the threshold are not among \
                 them: they are never looked at.";
    figure(
        out,
        level,
        "Left to libc, and why",
        about,
        &picture,
        &format!("<div class=\"words\">{table}</div>"),
    );
}

/// What happens rarely, in sentences.
fn notes(out: &mut String, figures: &Figures) {
    let mut notes = Vec::new();
    if figures.mismatched > 0 {
        notes.push(format!("{} copies were wrong and have been repaired; the engine was switched off. Please report this.", count(figures.mismatched)));
    }
    if figures.faults > 0 {
        notes.push(format!(
            "In {} copies a bad page was left to the caller.",
            count(figures.faults)
        ));
    }
    if figures.taken_back > 0 {
        notes.push(format!(
            "In {} copies the caller did not wait for a worker that did not run.",
            count(figures.taken_back)
        ));
    }
    if !notes.is_empty() {
        out.push_str("<ul class=\"notes\">\n");
        notes.iter().for_each(|note| {
            let _ = writeln!(out, "<li>{}</li>", escaped(note));
        });
        out.push_str("</ul>\n");
    }
}

/// Where the time of requests to the kernel helper went.
fn costs(out: &mut String, figures: &Figures, whose: &str, level: u8) {
    let all = figures.costs.iter().fold(0u64, |sum, cost| sum.saturating_add(cost.1));
    if all == 0 {
        return;
    }
    let most = figures.costs.iter().map(|cost| cost.1).max().unwrap_or(1);
    let row =
        |(name, time): &(String, u64)| vec![name.clone(), nanoseconds(*time), percent(*time, all)];
    let rows: Vec<_> = figures.costs.iter().map(row).collect();
    let table =
        table(&format!("Time of the I/OAT requests of {whose}"), &["step", "time", "share"], &rows);
    let bars: Vec<_> = figures
        .costs
        .iter()
        .take(12)
        .map(|(name, time)| (name.as_str(), vec![(*time as f64, "engine")], percent(*time, all)))
        .collect();
    let told: Vec<_> = rows.iter().map(|row| format!("{} {}", row[0], row[2])).collect();
    let picture = chart::rows(
        "Time of requests by step",
        &format!("{}.", told.join(", ")),
        "time",
        &Scale::nanoseconds(most),
        &bars,
    );
    figure(
        out,
        level,
        "Requests to the kernel helper",
        "Where the time of a request went.",
        &picture,
        &table,
    );
}

fn registrations(out: &mut String, figures: &Figures, whose: &str, level: u8) {
    if figures.registrations.is_empty() {
        return;
    }
    let row = |(name, value): &(String, u64)| {
        vec![name.clone(), if name == "most_bytes" { bytes(*value) } else { count(*value) }]
    };
    let rows: Vec<_> = figures.registrations.iter().map(row).collect();
    let table = table(&format!("Registrations of {whose}"), &["what", "number"], &rows);
    let _ = writeln!(out, "<h{level}>Memory registered with the card</h{level}>\n{table}");
}

fn reads(out: &mut String, figures: &Figures, level: u8) {
    let head = ["way", "reads", "bytes"];
    counted(out, "Reads of files", "Large reads by way", &head, &figures.reads, level);
}

fn messages(out: &mut String, figures: &Figures, level: u8) {
    let head = ["direction", "messages", "bytes"];
    let rows = &figures.messages;
    counted(out, "Messages between processes", "Messages by direction", &head, rows, level);
}

/// A table of numbers and bytes, if there are any.
fn counted(
    out: &mut String,
    title: &str,
    caption: &str,
    head: &[&str],
    counts: &[(String, u64, u64)],
    level: u8,
) {
    if counts.is_empty() {
        return;
    }
    let row =
        |(name, number, sum): &(String, u64, u64)| vec![name.clone(), count(*number), bytes(*sum)];
    let rows: Vec<_> = counts.iter().map(row).collect();
    let table = table(caption, head, &rows);
    let _ = writeln!(out, "<h{level}>{title}</h{level}>\n{table}");
}

fn profile(out: &mut String, figures: &Figures, whose: &str, level: u8) {
    let Some(profile) = figures.profile.as_ref().filter(|profile| profile.sizes.count() > 0) else {
        return;
    };
    let (first, classes) = by_class(&[&profile.sizes]);
    let calls: Vec<f64> = classes[0].iter().map(|class| class.0 as f64).collect();
    let most = classes[0].iter().map(|class| class.0).max().unwrap_or(1);
    let rows: Vec<_> = classes[0]
        .iter()
        .enumerate()
        .map(|(row, class)| vec![range(first + row as u32), count(class.0), bytes(class.1)])
        .collect();
    let mut functions: Vec<_> = profile.functions.iter().collect();
    functions.sort_by_key(|function| std::cmp::Reverse(function.2));
    let functions: Vec<_> = functions
        .into_iter()
        .map(|(name, calls, sum)| vec![name.clone(), count(*calls), bytes(*sum)])
        .collect();
    let tables =
        table(&format!("Every copy of {whose} by size"), &["size", "copies", "bytes"], &rows)
            + &table("By function", &["function", "calls", "bytes"], &functions);
    let picture = chart::bars(
        "Every copy by size",
        "Counted because a profile was asked for.",
        "copies",
        &Scale::counts(most),
        &[EVERY],
        first,
        &[calls],
    );
    figure(
        out,
        level,
        "Profile: every copy",
        "Also the small ones, which are never carried.",
        &picture,
        &tables,
    );
}
