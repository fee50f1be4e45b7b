//! The result as text, as JSON and as a page.

use super::Measured;
use super::compare::{Output, Ratio, Spread, Verdict};
use crate::report::{chart, html, page, units};
use adma_record::units::Bytes;
use serde_json::{Value, json};
use std::fmt::Write;

/// Three digits.
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

/// What is to be done about it.
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

/// What else is to be known, a sentence each.
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
            "{calls} large copies of {}, {} by the engine",
            Bytes(bytes),
            units::percent(carried, bytes)
        )),
        None => {}
    }
    notes
}

pub fn text(result: &Measured) -> String {
    let mut out = String::new();
    let program = chart::cut(&result.words.join(" "), 40);
    // A `String` takes everything.
    let _ = writeln!(out, "adma: {program}: {}", subject(result));
    let _ =
        writeln!(out, "  {:<27}{:>9}   {:<20}{:>9}{:>10}", "", "wall", "quartiles", "CPU", "peak");
    for (at, arm) in result.arms.iter().enumerate() {
        let Spread { median, quartiles: (low, high), .. } = result.spread(at);
        let (user, system) = result.cpu(at);
        let _ = writeln!(
            out,
            "  {:<27}{:>9}   {:<20}{:>9}{:>10}",
            chart::cut(&arm.name, 26),
            time(median),
            format!("{} to {}", time(low), time(high)),
            time(user + system),
            Bytes(result.peak(at)).to_string(),
        );
    }
    for (at, arm) in result.arms.iter().enumerate().skip(1) {
        let _ = writeln!(out, "  {}: {}", chart::cut(&arm.name, 40), words(result, at));
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
    let arms = || result.arms.iter().enumerate();
    let rows: Vec<Vec<String>> = arms()
        .map(|(at, arm)| {
            let Spread { median, quartiles, least, most } = result.spread(at);
            let (user, system) = result.cpu(at);
            vec![
                arm.name.clone(),
                time(median),
                format!("{} to {}", time(quartiles.0), time(quartiles.1)),
                format!("{} to {}", time(least), time(most)),
                time(user + system),
                Bytes(result.peak(at)).to_string(),
                if at > 0 { words(result, at) } else { String::new() },
            ]
        })
        .collect();
    let head = ["run", "wall, median", "quartiles", "range", "CPU", "peak memory", "verdict"];
    let table = html::table("Wall time, CPU time and memory", &head, &rows);
    let bars: Vec<_> = arms()
        .map(|(at, arm)| {
            let median = result.spread(at).median;
            let filling = if at == 0 { "libc" } else { "engine" };
            let name = chart::cut(arm.name.trim_start_matches("with ADMA_"), 14);
            (name, vec![(median * 1e9, filling)], time(median))
        })
        .collect();
    let most = arms().map(|(at, _)| result.spread(at).median).fold(0.0, f64::max);
    let scale = units::Scale::nanoseconds((most * 1e9) as u64);
    let picture = chart::rows("Wall time", "wall time", &scale, &bars);
    let notes: String =
        notes(result).iter().map(|note| format!("<li>{}</li>\n", html::escaped(note))).collect();
    let name = result.words.join(" ");
    page::document(
        &name,
        &format!("With adma: {}", words(result, 1)),
        &format!("<p class=\"faint\">{} · {}</p>\n", html::escaped(&name), subject(result)),
        &format!("<figure>{picture}</figure>\n{table}<ul>\n{notes}</ul>\n"),
    )
}
