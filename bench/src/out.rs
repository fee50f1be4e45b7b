//! Output of a benchmark. Plain lines are for the reader; a line that starts with `@` is a figure
//! for the driver: `@key,value,low,high`.

use crate::measure::Samples;
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

/// A number, and its 95 % confidence interval where that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub value: f64,
    pub interval: Option<(f64, f64)>,
}

/// Figures by key: the benchmark's name, then fields, between dots.
pub type Figures = BTreeMap<String, Figure>;

/// Returns "key,value,low,high"; without an interval the last two fields are empty.
pub fn csv_line(key: &str, figure: &Figure) -> String {
    let ends = figure.interval.map_or(",".into(), |(low, high)| format!("{low:.6},{high:.6}"));
    format!("{key},{:.6},{ends}", figure.value)
}

pub fn from_csv(line: &str) -> Option<(String, Figure)> {
    let mut fields = line.split(',');
    let key = fields.next()?.to_string();
    let value = fields.next()?.parse().ok()?;
    let mut end = || fields.next()?.parse().ok();
    let interval = end().zip(end());
    Some((key, Figure { value, interval }))
}

/// Records one number for the results and for the targets.
pub fn figure(key: &str, value: f64) {
    keep(key, Figure { value, interval: None });
}

/// Records the median of samples, and its confidence interval.
pub fn spread(key: &str, samples: &Samples) {
    keep(key, Figure { value: samples.median(), interval: Some(samples.median_interval()) });
}

fn keep(key: &str, figure: Figure) {
    if figure.value.is_finite() {
        println!("@{}", csv_line(&key.replace(',', ""), &figure));
    }
}

/// Prints on stderr what is being measured, on one line where that works.
pub fn progress(text: &str) {
    let mut err = std::io::stderr().lock();
    let _ =
        if err.is_terminal() { write!(err, "\r\x1b[K{text}\r") } else { writeln!(err, "{text}") };
    let _ = err.flush();
}

/// Formats a size as "64K" or "1M": the sizes here are round.
pub fn size(bytes: usize) -> String {
    let (number, unit) = match bytes {
        b if b >= 1 << 30 && b % (1 << 30) == 0 => (b >> 30, "G"),
        b if b >= 1 << 20 && b % (1 << 20) == 0 => (b >> 20, "M"),
        b if b >= 1 << 10 && b % (1 << 10) == 0 => (b >> 10, "K"),
        b => (b, ""),
    };
    format!("{number}{unit}")
}

/// Formats a ratio with two digits.
pub fn ratio(value: f64) -> String {
    if value.is_finite() { format!("{value:.2}") } else { "-".into() }
}

/// Formats the median as a ratio.
pub fn median(samples: &Samples) -> String {
    ratio(samples.median())
}

/// Formats two quantiles of ratios: `part` of the samples lies below, `part` above.
pub fn range(samples: &Samples, part: f64) -> String {
    // Of a disturbed run only the magnitude matters.
    let short = |value: f64| match value {
        v if v < 10.0 => format!("{v:.2}"),
        v if v < 100.0 => format!("{v:.0}"),
        _ => "99+".into(),
    };
    format!("{}-{}", short(samples.quantile(part)), short(samples.quantile(1.0 - part)))
}

/// Formats nanoseconds with three digits and a unit.
pub fn time(ns: f64) -> String {
    match ns {
        n if !n.is_finite() => "-".into(),
        n if n < 1e3 => format!("{n:.0} ns"),
        n if n < 1e5 => format!("{:.2} us", n / 1e3),
        n if n < 1e6 => format!("{:.1} us", n / 1e3),
        n => format!("{:.2} ms", n / 1e6),
    }
}

/// A table that is printed whole or row by row, as `adma_report::text` writes it. A short row ends in
/// a remark, which may have any length.
pub struct Table {
    table: adma_report::Table,
    /// Lines that are printed already.
    printed: usize,
}

impl Table {
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Self {
        let titles = head.into_iter().map(Into::into);
        Table { table: adma_report::Table::new("", titles, Vec::new()), printed: 0 }
    }

    /// Makes a table; columns of the head are separated by `|`.
    pub fn of(head: &str) -> Self {
        Self::new(head.split('|'))
    }

    /// Sets the widths of a table that is printed row by row to those of these cells.
    pub fn with_widths_of(mut self, cells: &str) -> Self {
        let widths: Vec<usize> = cells.split('|').map(|cell| cell.chars().count()).collect();
        self.table = self.table.with_widths(&widths);
        self
    }

    /// Prints the rows since the last call.
    pub fn print_new(&mut self) {
        for line in self.text().lines().skip(self.printed) {
            println!("{line}");
        }
        self.printed = self.table.rows.len() + 1;
    }

    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.table.rows.push(adma_report::Row::new(cells.into_iter().map(Into::into)));
    }

    pub fn print(&self) {
        println!("{}", self.text());
    }

    pub fn text(&self) -> String {
        adma_report::text::table(&self.table)
    }
}

#[cfg(test)]
mod tests {
    use super::{Figure, Table, csv_line, from_csv};

    #[test]
    fn figures_are_read_as_they_were_written() {
        for interval in [None, Some((1.25, 1.5))] {
            let figure = Figure { value: 1.375, interval };
            let line = csv_line("copy.cold.4M.row_libc", &figure);
            assert_eq!(from_csv(&line), Some(("copy.cold.4M.row_libc".into(), figure)));
        }
        assert_eq!(from_csv("key,value,low,high"), None, "the head");
    }

    #[test]
    fn a_remark_does_not_widen_its_column() {
        let mut table = Table::of("job|s|x");
        table.row(["one", "1.0", "2"]);
        table.row(["three", "skipped: for a reason"]);
        let lines = ["  job      s  x", "  one    1.0  2", "  three  skipped: for a reason", ""];
        assert_eq!(table.text(), lines.join("\n"));
    }
}
