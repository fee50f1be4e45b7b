//! Output of the result as text, as JSON and as a page.

use super::Measured;
use super::compare::{Output, Ratio, Spread, Verdict};
use crate::report::html::{Table, escaped};
use crate::report::page;
use crate::report::units::{cut, percent};
use adma_shared::units::Bytes;
use serde_json::{Value, json};
use std::fmt::Write;

/// Formats a time with three digits.
fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.01 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.2} ms", s * 1e3),
    }
}

fn interval(Ratio { interval, .. }: Ratio) -> String {
    interval.map_or(String::new(), |(low, high)| format!(" ({low:.2} to {high:.2})"))
}

/// Returns the conclusion about an arm.
fn words(result: &Measured, arm: usize) -> String {
    let ratio = result.ratio(arm);
    match result.verdict(arm) {
        Verdict::Faster => format!("{:.2} x as fast{}", ratio.estimate, interval(ratio)),
        Verdict::Slower => {
            format!("slower: leave it off; {:.2} x as fast{}", ratio.estimate, interval(ratio))
        }
        Verdict::Same => format!("no difference seen{}", interval(ratio)),
        Verdict::Unknown => match ratio.interval {
            Some((low, high)) => format!("not known ({low:.2} to {high:.2}): a busy machine?"),
            None => format!("not known ({:.2} x): an interval takes 6 rounds", ratio.estimate),
        },
    }
}

fn subject(result: &Measured) -> String {
    let (rounds, arms) = (result.rounds.len(), result.arms.len());
    let plural = if rounds == 1 { "" } else { "s" };
    let early = if result.is_complete { "" } else { ", ended early" };
    format!("{rounds} round{plural} of {arms} runs in turn{early}")
}

/// Returns further notes, a sentence each.
fn notes(result: &Measured) -> Vec<String> {
    let mut notes = Vec::new();
    notes.push(match result.output() {
        Output::Same => "output: the same in all runs".to_owned(),
        Output::Varies => "output: another in each run, also without adma".to_owned(),
        Output::Differs => "OUTPUT DIFFERS with adma: please report that".to_owned(),
        Output::NotCompared => "output: not compared".to_owned(),
    });
    for (at, arm) in result.arms.iter().enumerate() {
        let ends: Vec<String> = result.ends(at).iter().map(ToString::to_string).collect();
        if ends != ["exit 0"] {
            notes.push(format!("{} it ends by {}", arm.name, ends.join(", ")));
        }
        for (round, seconds) in result.outliers(at).into_iter().take(3) {
            notes.push(format!("outlier: round {} {} took {}", round + 1, arm.name, time(seconds)));
        }
    }
    match result.copies {
        Some((0, ..)) => notes.push("nothing to carry: no large copy was made".to_owned()),
        Some((calls, bytes, carried)) => notes.push(format!(
            "{calls} large copies, {} in all, {} by the engine",
            Bytes(bytes),
            percent(carried, bytes)
        )),
        None => {}
    }
    notes
}

const HEAD: [&str; 6] = ["run", "wall, median", "quartiles", "CPU", "peak memory", "verdict"];

/// Index of the verdict, which on a page stands above the table.
const VERDICT: usize = HEAD.len() - 1;

/// Returns the cells of an arm, in the order of `HEAD`.
fn cells(result: &Measured, arm: usize) -> [String; 6] {
    let Spread { median, quartiles: (low, high), .. } = result.spread(arm);
    let (user, system) = result.cpu(arm);
    [
        result.arms[arm].name.clone(),
        time(median),
        format!("{} to {}", time(low), time(high)),
        time(user + system),
        Bytes(result.peak(arm)).to_string(),
        if arm > 0 { words(result, arm) } else { String::new() },
    ]
}

pub fn text(result: &Measured) -> String {
    let mut out = String::new();
    let program = cut(&result.words.join(" "), 40);
    // A `String` takes everything.
    let _ = writeln!(out, "adma: {program}: {}", subject(result));
    let mut row = |name: &str, [wall, quartiles, cpu, peak]: [&str; 4]| {
        let _ = writeln!(out, "  {name:<27}{wall:>9}   {quartiles:<20}{cpu:>9}{peak:>10}");
    };
    row("", ["wall", "quartiles", "CPU", "peak"]);
    let all: Vec<_> = (0..result.arms.len()).map(|arm| cells(result, arm)).collect();
    for [name, wall, quartiles, cpu, peak, _] in &all {
        row(&cut(name, 26), [wall, quartiles, cpu, peak]);
    }
    for [name, .., verdict] in all.iter().skip(1) {
        let _ = writeln!(out, "  {}: {verdict}", cut(name, 40));
    }
    for note in notes(result) {
        let _ = writeln!(out, "  {note}");
    }
    out
}

pub fn json(result: &Measured) -> String {
    let arms: Vec<Value> = result
        .arms
        .iter()
        .enumerate()
        .map(|(at, arm)| {
            let Spread { median, quartiles, least, most } = result.spread(at);
            let (user, system) = result.cpu(at);
            let Ratio { estimate, interval } = result.ratio(at);
            let ends: Vec<String> = result.ends(at).iter().map(ToString::to_string).collect();
            let outliers = result.outliers(at).into_iter();
            let outliers: Vec<Value> =
                outliers.map(|(round, s)| json!({ "round": round + 1, "seconds": s })).collect();
            let verdict = (at > 0).then(|| format!("{:?}", result.verdict(at)).to_lowercase());
            json!({
                "name": arm.name,
                "wall": {
                    "median": median, "q1": quartiles.0, "q3": quartiles.1,
                    "min": least, "max": most, "runs": result.wall(at),
                },
                "cpu": { "user": user, "system": system },
                "peak_bytes": result.peak(at),
                "ends": ends,
                "outliers": outliers,
                "ratio": (at > 0).then(|| json!({
                    "estimate": estimate,
                    "low": interval.map(|i| i.0),
                    "high": interval.map(|i| i.1),
                })),
                "verdict": verdict,
                "words": (at > 0).then(|| words(result, at)),
            })
        })
        .collect();
    let copies = result.copies.map(|(calls, bytes, carried)| {
        json!({ "calls": calls, "bytes": bytes, "engine_bytes": carried })
    });
    let all = json!({
        "version": env!("CARGO_PKG_VERSION"),
        "command": result.words,
        "rounds": result.rounds.len(),
        "complete": result.is_complete,
        "output": format!("{:?}", result.output()).to_lowercase(),
        "copies": copies,
        "arms": arms,
    });
    format!("{all}\n")
}

pub fn page(result: &Measured) -> String {
    let rows = (0..result.arms.len()).map(|arm| {
        let way = if arm == 0 { "libc" } else { "engine" };
        let cells = cells(result, arm)[..VERDICT].to_vec();
        (cells, vec![vec![(result.spread(arm).median, way)]])
    });
    let head = &HEAD[..VERDICT];
    let table = Table::new("Wall time, CPU time and memory", head, rows.collect()).html();
    let verdicts: String = (2..result.arms.len())
        .map(|arm| format!("{}: {}", result.arms[arm].name, words(result, arm)))
        .map(|line| format!("<p class=\"sentence\">{}</p>\n", escaped(&line)))
        .collect();
    let notes: String =
        notes(result).iter().map(|note| format!("<li>{}</li>\n", escaped(note))).collect();
    let name = result.words.join(" ");
    page::document(
        &name,
        &format!("With adma: {}", words(result, 1)),
        &format!("{verdicts}<p class=\"faint\">{} · {}</p>\n", escaped(&name), subject(result)),
        &format!("<figure>{table}</figure>\n<ul>\n{notes}</ul>\n"),
    )
}
