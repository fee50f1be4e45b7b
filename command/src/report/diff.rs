//! Two runs beside each other: `adma report --diff BEFORE AFTER`.

use super::Report;
use super::units::{bytes, nanoseconds, percent, seconds};
use adma_shared::tables::PARTS;
use std::fmt::Write;

pub fn of(before: &Report, after: &Report) -> String {
    let mut out = format!("adma: {:<24}{:>16}{:>16}{:>14}\n", "", "before", "after", "change");
    let (both, totals) = ([before, after], [&before.total, &after.total]);
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
    row("processes", both.map(|report| report.processes.len() as f64), &count);
    row("from first start to last end", both.map(Report::seconds), &seconds);
    let recorders = totals.map(|f| &f.live.recorder);
    row("large copies", recorders.map(|r| r.total().0 as f64), &count);
    row("their bytes", recorders.map(|r| r.total().1 as f64), &size);
    let share = recorders.map(|r| r.engine_bytes() as f64 / r.total().1.max(1) as f64);
    row("part by the engine", share, &|part| percent((part * 1e6) as u64, 1_000_000));
    for (way, name) in ["engine", "libc"].into_iter().enumerate() {
        let ticks = recorders.map(|r| &r.flows()[way].ticks);
        for (part, what, _) in
            PARTS.iter().filter(|part| ticks.iter().all(|ticks| ticks.count() >= part.2))
        {
            let times = [0, 1].map(|at| totals[at].nanoseconds(ticks[at].quantile(*part)) as f64);
            row(&format!("{name}, {what} of a copy"), times, &|ns| nanoseconds(ns as u64));
        }
    }
    let sent = totals.map(|f| f.live.messages.told().map(|told| told.directions));
    for (at, name) in ["messages sent", "messages received"].into_iter().enumerate() {
        row(name, sent.map(|told| told.map_or(0.0, |told| told[at].1 as f64)), &count);
    }
    let reasons = recorders.map(|r| r.fallbacks().collect::<Vec<_>>());
    for (a, b) in reasons[0].iter().zip(&reasons[1]) {
        row(&format!("libc: {}", a.0), [a.1 as f64, b.1 as f64], &count);
    }
    out
}
