//! Reports of the tools: one model of tables, and the formats in which it is written.
//!
//! ```text
//! value       a number with its unit, a text, or a list or map of them
//! units       numbers as people read them
//! text        for terminals
//! html        a page for browsers, by templates/page.html
//! json        for programs
//! markdown    a page that code hosts show
//! metrics     for Prometheus
//! ```
//!
//! A tool makes a `Document` of its figures and hands it to a `Format`. A new format is one file
//! here that implements the trait; a new figure is one column or one table of a document. The
//! report that the library writes at the end of a process is not made of it: it must not allocate
//! (`adma_shared::tables`).
#![forbid(unsafe_code)]

pub mod html;
pub mod json;
pub mod markdown;
pub mod metrics;
pub mod text;
pub mod units;
mod value;

#[cfg(test)]
mod tests;

pub use value::Value;

use std::borrow::Cow;

/// Words of ours, mostly known when the tool was built.
pub type Words = Cow<'static, str>;

/// A form in which documents are written.
pub trait Format {
    fn write(&self, document: &Document) -> String;
}

/// A report: what was found out, and the tables that show it. Texts may come from anywhere; each
/// format escapes them.
#[derive(Default)]
pub struct Document {
    /// Title of a page.
    pub name: String,
    /// Conclusions, the most important first: it is the headline of a page.
    pub verdicts: Vec<String>,
    /// What should be done about it.
    pub advice: Vec<String>,
    /// What distinguishes this run from another.
    pub about: Vec<String>,
    /// Numbers that are shown large, and what they are.
    pub cards: Vec<(Value, String)>,
    /// Words of the tables that are not usual, and what they mean.
    pub words: Vec<(&'static str, &'static str)>,
    pub sections: Vec<Section>,
    /// Parts of the whole, such as processes, each with sections of its own.
    pub parts: Parts,
    /// Remarks of one sentence each.
    pub notes: Vec<String>,
    /// Values for programs only, by key.
    pub facts: Vec<(&'static str, Value)>,
}

#[derive(Default)]
pub struct Parts {
    pub title: &'static str,
    pub all: Vec<Part>,
    /// Where the others are that are not shown here.
    pub others: Option<String>,
}

pub struct Part {
    pub summary: String,
    /// Its program or file; may be empty.
    pub path: String,
    pub about: Vec<String>,
    pub sections: Vec<Section>,
}

/// Tables about one question.
#[derive(Default)]
pub struct Section {
    /// Anchor on a page; may be empty.
    pub id: &'static str,
    pub title: Words,
    /// How to read it.
    pub about: Words,
    pub timeline: Option<Timeline>,
    pub pictures: Vec<Picture>,
    pub tables: Vec<Table>,
    /// Output of a program, line by line.
    pub verbatim: String,
}

/// A drawing of ours, which no format escapes.
pub struct Picture {
    pub svg: String,
    /// Name of its file, for formats that cannot hold it.
    pub file: String,
    pub title: Words,
}

/// Values over time, one stack for each step.
pub struct Timeline {
    /// Length of all steps.
    pub seconds: f64,
    pub steps: Vec<Vec<BarPart>>,
}

/// A table whose first column names its rows.
#[derive(Default)]
pub struct Table {
    /// Key of the list of rows for programs; empty: not for programs.
    pub key: &'static str,
    pub caption: String,
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
}

impl Table {
    /// Returns a table for people; columns have these titles.
    pub fn new<T: Into<Words>>(
        caption: impl Into<String>,
        titles: impl IntoIterator<Item = T>,
        rows: Vec<Row>,
    ) -> Self {
        let column = |title: T| Column { title: title.into(), ..Column::default() };
        let columns = titles.into_iter().map(column).collect();
        Self { caption: caption.into(), columns, rows, ..Self::default() }
    }

    /// Makes the first columns at least so wide, in text.
    pub fn with_widths(mut self, widths: &[usize]) -> Self {
        self.columns.iter_mut().zip(widths).for_each(|(column, width)| column.width = *width);
        self
    }

    /// Returns the columns that people see.
    fn shown_columns(&self) -> Vec<usize> {
        let is_for_people = self.columns.iter().all(|column| column.key.is_empty());
        let is_shown = |at: &usize| is_for_people || !self.columns[*at].title.is_empty();
        (0..self.columns.len()).filter(is_shown).collect()
    }
}

/// A column: which formats show it, and how.
#[derive(Clone, Default)]
pub struct Column {
    /// For people; empty: not shown to them, unless no column has a title.
    pub title: Words,
    /// Key for programs; empty: not for programs.
    pub key: &'static str,
    /// Name of the label that it is for all metrics of its row; empty: none.
    pub label: &'static str,
    pub metrics: &'static [Metric],
    /// Least and greatest width in text; 0: any.
    pub width: usize,
    pub longest: usize,
    /// Set if text is aligned left, as in the first column.
    pub is_left: bool,
}

impl Column {
    pub const fn new(title: &'static str) -> Self {
        Self {
            title: Cow::Borrowed(title),
            key: "",
            label: "",
            metrics: &[],
            width: 0,
            longest: 0,
            is_left: false,
        }
    }

    /// Returns a column for programs only.
    pub const fn keyed(key: &'static str) -> Self {
        Self::new("").key(key)
    }

    /// Cuts longer texts off, in text.
    pub const fn cut(mut self, longest: usize) -> Self {
        self.longest = longest;
        self
    }

    pub const fn left(mut self) -> Self {
        self.is_left = true;
        self
    }

    pub const fn key(mut self, key: &'static str) -> Self {
        self.key = key;
        self
    }

    pub const fn label(mut self, label: &'static str) -> Self {
        self.label = label;
        self
    }

    pub const fn metrics(mut self, metrics: &'static [Metric]) -> Self {
        self.metrics = metrics;
        self
    }
}

/// A family of metrics, made of the values of one column.
pub struct Metric {
    pub name: &'static str,
    pub kind: Kind,
    pub help: &'static str,
    /// Of a map: the label that has its keys as values.
    pub label: &'static str,
    /// Of a map of maps: the key of the number; others are left out.
    pub field: &'static str,
    /// Set if zeros are left out.
    pub skips_zero: bool,
}

#[derive(Clone, Copy)]
pub enum Kind {
    Counter,
    Gauge,
}

#[derive(Default)]
pub struct Row {
    /// In the order of the columns. A row with fewer ends in a remark.
    pub cells: Vec<Value>,
    /// Pictures of its values on a page, from top to bottom.
    pub bars: Vec<Vec<BarPart>>,
    /// Part of the document that its name leads to.
    pub part: Option<usize>,
}

impl Row {
    pub fn new(cells: impl IntoIterator<Item = impl Into<Value>>) -> Self {
        Self { cells: cells.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// Adds a bar of one part.
    pub fn bar(mut self, value: f64, shade: Shade) -> Self {
        self.bars.push(vec![(value, shade)]);
        self
    }
}

pub type BarPart = (f64, Shade);

/// Pattern of a bar, which identifies it without colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shade {
    /// Solid: by the engine, or with adma.
    Engine,
    /// Hatched: by libc, or without adma.
    Libc,
    /// Dotted: by the caller in a shared copy.
    Caller,
}
