//! Two runs beside each other: `adma report --diff BEFORE AFTER`.

use super::Report;
use adma_report::{Document, Row, Section, Table, Value};
use adma_shared::tables::PARTS;

/// Makes a value of a number.
type Unit = fn(f64) -> Value;

pub fn of(before: &Report, after: &Report) -> Document {
    let mut rows = Vec::new();
    let (both, totals) = ([before, after], [&before.total, &after.total]);
    let mut row = |name: &str, values: [f64; 2], unit: Unit| {
        if values != [0.0, 0.0] {
            let ratio =
                Some(values[1] / values[0]).filter(|ratio| ratio.is_finite() && *ratio > 0.0);
            let change = ratio.map_or(String::new(), |ratio| format!("x {ratio:.2}"));
            let [first, second] = values.map(unit);
            rows.push(Row::new([name.into(), first, second, change.into()]));
        }
    };
    let count: Unit = |value| Value::Count(value as u64);
    row("processes", both.map(|report| report.processes.len() as f64), count);
    row("from first start to last end", both.map(Report::seconds), Value::Seconds);
    let recorders = totals.map(|f| &f.live.recorder);
    row("large copies", recorders.map(|r| r.total().0 as f64), count);
    row("their bytes", recorders.map(|r| r.total().1 as f64), |sum| Value::Bytes(sum as u64));
    let share = recorders.map(|r| r.engine_bytes() as f64 / r.total().1.max(1) as f64);
    row("part by the engine", share, |part| Value::Share((part * 1e6) as u64, 1_000_000));
    for (way, name) in ["engine", "libc"].into_iter().enumerate() {
        let ticks = recorders.map(|r| &r.flows()[way].ticks);
        for (part, what, _) in
            PARTS.iter().filter(|part| ticks.iter().all(|ticks| ticks.count() >= part.2))
        {
            let times = [0, 1].map(|at| totals[at].nanoseconds(ticks[at].quantile(*part)) as f64);
            let name = format!("{name}, {what} of a copy");
            row(&name, times, |ns| Value::Nanoseconds(ns as u64));
        }
    }
    let sent = totals.map(|f| f.live.messages.sums().map(|sums| sums.directions));
    for (at, name) in ["messages sent", "messages received"].into_iter().enumerate() {
        row(name, sent.map(|sums| sums.map_or(0.0, |told| told[at].1 as f64)), count);
    }
    let reasons = recorders.map(|r| r.fallbacks().collect::<Vec<_>>());
    for (a, b) in reasons[0].iter().zip(&reasons[1]) {
        row(&format!("libc: {}", a.0), [a.1 as f64, b.1 as f64], count);
    }
    let table = Table::new("", ["", "before", "after", "change"], rows);
    let section =
        Section { tables: vec![table.with_widths(&[28, 14, 14, 12])], ..Section::default() };
    Document { sections: vec![section], ..Document::default() }
}
