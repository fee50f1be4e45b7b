//! The document in the text format of Prometheus: the columns that are metrics.

use crate::{Column, Document, Format, Kind, Metric, Row, Table, Value};
use std::fmt::Write;

/// One sample of everything; names begin with `adma_`.
pub struct Metrics;

impl Format for Metrics {
    fn write(&self, document: &Document) -> String {
        let mut out = String::new();
        for table in document.sections.iter().flat_map(|section| &section.tables) {
            for (at, column) in table.columns.iter().enumerate() {
                column.metrics.iter().for_each(|metric| family(&mut out, table, at, metric));
            }
        }
        out
    }
}

fn family(out: &mut String, table: &Table, at: usize, metric: &Metric) {
    let Metric { name, help, .. } = metric;
    let kind = match metric.kind {
        Kind::Counter => "counter",
        Kind::Gauge => "gauge",
    };
    // A `String` takes everything.
    let _ = writeln!(out, "# HELP adma_{name} {help}\n# TYPE adma_{name} {kind}");
    for row in &table.rows {
        let labels = labels(&table.columns, row);
        for (more, value) in row.cells.get(at).map_or(Vec::new(), |cell| samples(cell, metric)) {
            let labels: Vec<&str> = labels.iter().chain(&more).map(String::as_str).collect();
            let _ = writeln!(out, "adma_{name}{{{}}} {value}", labels.join(","));
        }
    }
}

fn labels(columns: &[Column], row: &Row) -> Vec<String> {
    let labels = columns.iter().zip(&row.cells).filter(|(column, _)| !column.label.is_empty());
    labels.map(|(column, value)| label(column.label, &value.text())).collect()
}

/// Returns a label with its value escaped.
fn label(name: &str, value: &str) -> String {
    let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
    format!("{name}=\"{value}\"")
}

/// Returns the numbers of a value, each with the label that only it has.
fn samples(value: &Value, metric: &Metric) -> Vec<(Option<String>, f64)> {
    let of_entry = |(key, value): (&String, &Value)| {
        let number = match value {
            Value::Map(fields) => fields.get(metric.field)?.number()?,
            value => value.number()?,
        };
        Some((Some(label(metric.label, key)), number))
    };
    let all: Vec<_> = match value {
        Value::Map(entries) => entries.iter().filter_map(of_entry).collect(),
        value => value.number().map(|number| (None, number)).into_iter().collect(),
    };
    all.into_iter().filter(|(_, number)| *number != 0.0 || !metric.skips_zero).collect()
}
