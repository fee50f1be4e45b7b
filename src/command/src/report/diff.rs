//! Two runs beside each other: `adma report --diff BEFORE AFTER`.

use super::Report;
use super::figures::Figures;
use super::units::{bytes, nanoseconds, percent, seconds};
use std::fmt::Write;

pub fn of(before: &Report, after: &Report) -> String {
    let mut out = format!("adma: {:<24}{:>16}{:>16}{:>14}\n", "", "before", "after", "change");
    let (a, b) = (&before.total, &after.total);
    let mut row = |name: &str, values: [f64; 2], shown: &dyn Fn(f64) -> String| {
        if values != [0.0, 0.0] {
            let change = match values[1] / values[0] {
                ratio if ratio.is_finite() && ratio > 0.0 => format!("x {ratio:.2}"),
                _ => String::new(),
            };
            let [first, second] = values.map(shown);
            // A `String` takes everything.
            let _ = writeln!(out, "  {name:<28}{first:>16}{second:>16}{change:>14}");
        }
    };
    let count = |value: f64| format!("{value:.0}");
    let size = |value: f64| bytes(value as u64);
    let time = |value: f64| nanoseconds(value as u64);
    row("processes", [before, after].map(|r| r.processes.len() as f64), &count);
    row("seconds, all together", [a, b].map(|f| f.seconds), &seconds);
    row("large copies", [a, b].map(|f| f.calls() as f64), &count);
    row("their bytes", [a, b].map(|f| f.bytes() as f64), &size);
    let share = |f: &Figures| f.engine.bytes as f64 / f.bytes().max(1) as f64;
    row("part by the engine", [a, b].map(share), &|part| percent((part * 1e6) as u64, 1_000_000));
    for (name, part) in [("engine, median time", 0.5), ("engine, p99", 0.99)] {
        row(name, [a, b].map(|f| f.engine.times.quantile(part) as f64), &time);
    }
    for (name, part) in [("libc, median time", 0.5), ("libc, p99", 0.99)] {
        row(name, [a, b].map(|f| f.libc.times.quantile(part) as f64), &time);
    }
    for (name, of) in [("messages sent", "sent"), ("messages received", "received")] {
        let sum = |f: &Figures| f.messages.iter().filter(|m| m.0 == of).map(|m| m.1 as f64).sum();
        row(name, [a, b].map(sum), &count);
    }
    let mut reasons: Vec<&str> =
        [a, b].iter().flat_map(|f| &f.fallbacks).map(|reason| reason.0.as_str()).collect();
    reasons.sort_unstable();
    reasons.dedup();
    for reason in reasons {
        let sum = |f: &Figures| {
            f.fallbacks.iter().filter(|r| r.0 == reason).map(|r| r.1 as f64).sum::<f64>()
        };
        row(&format!("libc: {}", super::chart::cut(reason, 20)), [a, b].map(sum), &count);
    }
    out
}
