//! The document as a page: one self-contained file without scripts and network access, enforced by
//! its policy. Its tags are in templates/page.html, which escapes every text.
//!
//! Bars stand below the numbers that they show, over the whole width, in proportion to the other
//! rows of their table: beside them there would be no room on a small screen. Whatever can be opened
//! or scrolled can be reached by the Tab key.

use crate::units::seconds;
use crate::{BarPart, Column, Document, Format, Row, Section, Shade, Table, Timeline, Value};
use askama::Template;

pub struct Html;

impl Format for Html {
    fn write(&self, document: &Document) -> String {
        let page = Page {
            document,
            style: include_str!("../templates/page.css"),
            version: env!("CARGO_PKG_VERSION"),
        };
        page.render().expect("a `String` takes everything") + "\n"
    }
}

#[derive(Template)]
#[template(path = "page.html")]
struct Page<'a> {
    document: &'a Document,
    style: &'static str,
    version: &'static str,
}

/// Starts with a capital letter.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// Keeps each number and its unit on one line.
fn unbroken(cell: &Value) -> String {
    cell.page().replace(' ', "\u{a0}").replace("\u{a0}to\u{a0}", " to ")
}

impl Document {
    fn headline(&self) -> String {
        self.verdicts.first().map_or(String::new(), |verdict| capital(verdict))
    }
}

impl Section {
    /// Returns the tables that have rows.
    fn shown(&self) -> Vec<&Table> {
        self.tables.iter().filter(|table| !table.rows.is_empty()).collect()
    }

    fn is_empty(&self) -> bool {
        self.shown().is_empty() && self.pictures.is_empty() && self.verbatim.is_empty()
    }
}

impl Table {
    /// Returns the columns for people, and their places. One without any value is not shown.
    fn shown(&self) -> Vec<(usize, &Column)> {
        let is_used = |at: usize| {
            at == 0 || self.rows.iter().filter_map(|row| row.cells.get(at)).any(|v| !v.is_none())
        };
        let columns = self.columns.iter().enumerate();
        columns.filter(|(at, column)| !column.title.is_empty() && is_used(*at)).collect()
    }

    /// Returns the width of a part of a bar, in percent.
    fn width(&self, value: &f64) -> String {
        let length = |bar: &Vec<BarPart>| bar.iter().map(|part| part.0).sum::<f64>();
        let bars = self.rows.iter().flat_map(|row| &row.bars);
        let longest = bars.map(length).fold(f64::MIN_POSITIVE, f64::max);
        format!("{:.2}", 100.0 * value / longest)
    }
}

impl Row {
    /// Returns the cells behind the first.
    fn values<'a>(&'a self, columns: &'a [(usize, &Column)]) -> impl Iterator<Item = String> + 'a {
        columns.iter().skip(1).filter_map(|(at, _)| self.cells.get(*at)).map(unbroken)
    }

    fn name(&self) -> String {
        self.cells.first().map_or(String::new(), Value::page)
    }
}

impl Timeline {
    fn length(&self) -> String {
        seconds(self.seconds)
    }

    fn marks(&self) -> [String; 5] {
        [0.0, 0.25, 0.5, 0.75, 1.0].map(|part| seconds(part * self.seconds))
    }

    /// Returns the height of a part of a step, in percent.
    fn height(&self, value: &f64) -> String {
        let sums = self.steps.iter().map(|step| step.iter().map(|part| part.0).sum::<f64>());
        let most = sums.fold(1.0, f64::max);
        format!("{:.1}", 100.0 * value / most)
    }
}

impl Shade {
    /// Returns its class in page.css.
    fn class(&self) -> &'static str {
        match self {
            Self::Engine => "engine",
            Self::Libc => "libc",
            Self::Caller => "dots",
        }
    }
}
