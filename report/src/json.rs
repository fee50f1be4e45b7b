//! The document for programs: its facts, and a list of objects for each table that has a key.

use crate::{Document, Format, Row, Table, Value};
use std::collections::BTreeMap;

/// One object on one line.
pub struct Json;

impl Format for Json {
    fn write(&self, document: &Document) -> String {
        let facts = document.facts.iter().map(|(key, value)| (*key, value.clone()));
        let tables = document.sections.iter().flat_map(|section| &section.tables);
        let tables = tables.filter(|table| !table.key.is_empty());
        let lists = tables.map(|table| (table.key, Value::List(rows(table))));
        let all: BTreeMap<_, _> = facts.chain(lists).collect();
        serde_json::to_string(&all).expect("keys are texts") + "\n"
    }
}

fn rows(table: &Table) -> Vec<Value> {
    let object = |row: &Row| {
        let cells = table.columns.iter().zip(&row.cells);
        let cells = cells.filter(|(column, _)| !column.key.is_empty());
        Value::map(cells.map(|(column, value)| (column.key, value.clone())))
    };
    table.rows.iter().map(object).collect()
}
