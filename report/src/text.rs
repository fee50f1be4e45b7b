//! The document for terminals: columns as wide as their cells, and lines without markup.

use crate::units::cut;
use crate::{Column, Document, Format, Row, Table, Value};

pub struct Text;

/// Width of a name in the first line.
const NAME: usize = 40;

impl Format for Text {
    fn write(&self, document: &Document) -> String {
        let mut out = String::new();
        if let [names @ .., last] = &document.about[..] {
            let names: String = names.iter().map(|name| cut(name, NAME) + ": ").collect();
            out += &format!("adma: {names}{last}\n");
        }
        for section in &document.sections {
            section.tables.iter().for_each(|table| out += &self::table(table));
            out += &section.verbatim;
        }
        // Without a first line, the titles of the first table are that.
        if document.about.is_empty() && out.starts_with("       ") {
            out.replace_range(..5, "adma:");
        }
        let lines = [&document.verdicts, &document.advice, &document.notes];
        lines.into_iter().flatten().for_each(|line| out += &format!("  {line}\n"));
        out
    }
}

/// Returns a table: titles, unless there are none, and rows. The first column is aligned left, and
/// numbers right. A row with fewer cells than the others ends in a remark of any length.
pub fn table(table: &Table) -> String {
    let columns = table.shown_columns();
    let cells = |row: &Row| -> Vec<String> {
        let cells =
            columns.iter().filter_map(|at| Some((row.cells.get(*at)?, &table.columns[*at])));
        let cut_off = |(cell, column): (&Value, &Column)| match column.longest {
            0 => cell.text(),
            longest => cut(&cell.text(), longest),
        };
        cells.map(cut_off).collect()
    };
    let titles: Vec<String> =
        columns.iter().map(|at| table.columns[*at].title.to_string()).collect();
    let has_titles = titles.iter().any(|title| !title.is_empty());
    let lines = has_titles.then_some(titles).into_iter().chain(table.rows.iter().map(cells));
    let lines: Vec<Vec<String>> = lines.collect();
    let is_remark =
        |line: &[String], at: usize| at > 0 && line.len() < columns.len() && at + 1 == line.len();
    let width = |at: usize| {
        let cells =
            lines.iter().filter(|line| !is_remark(line, at)).filter_map(|line| line.get(at));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widest.max(table.columns[columns[at]].width)
    };
    let widths: Vec<usize> = (0..columns.len()).map(width).collect();
    let mut out = String::new();
    for line in &lines {
        let mut text = String::new();
        for (at, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let is_left = at == 0 || table.columns[columns[at]].is_left || is_remark(line, at);
            text +=
                &if is_left { format!("  {cell:<width$}") } else { format!("  {cell:>width$}") };
        }
        out += text.trim_end();
        out.push('\n');
    }
    out
}
