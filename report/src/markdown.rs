//! The document as Markdown, as code hosts show it: plots are files beside it, and parts can be opened.

use crate::{Document, Format, Part, Picture, Section, Table};

pub struct Markdown;

impl Format for Markdown {
    fn write(&self, document: &Document) -> String {
        let mut out = heading(1, &document.name);
        let lines = [&document.verdicts, &document.advice, &document.about];
        lines.into_iter().flatten().for_each(|line| out += &paragraph(line));
        document.sections.iter().for_each(|one| out += &section(one, 2));
        if !document.parts.all.is_empty() {
            out += &heading(2, document.parts.title);
            document.parts.all.iter().for_each(|one| out += &part(one));
        }
        out += &document.parts.others.as_deref().map(paragraph).unwrap_or_default();
        document.notes.iter().for_each(|line| out += &paragraph(line));
        out.trim_end().to_owned() + "\n"
    }
}

fn heading(level: usize, text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!("{} {}\n\n", "#".repeat(level), escape(text))
    }
}

fn paragraph(text: &str) -> String {
    if text.is_empty() { String::new() } else { escape(text) + "\n\n" }
}

fn part(part: &Part) -> String {
    let about: Vec<&str> = [part.path.as_str()]
        .into_iter()
        .chain(part.about.iter().map(String::as_str))
        .filter(|text| !text.is_empty())
        .collect();
    let sections: String = part.sections.iter().map(|one| section(one, 3)).collect();
    // The empty line ends the HTML.
    format!(
        "<details><summary>{}</summary>\n\n{}{sections}</details>\n\n",
        escape(&part.summary),
        paragraph(&about.join(" · "))
    )
}

fn section(section: &Section, level: usize) -> String {
    let pictures: String = section.pictures.iter().map(picture).collect();
    let tables: String = section.tables.iter().map(table).collect();
    heading(level, &section.title)
        + &paragraph(&section.about)
        + &pictures
        + &tables
        + &verbatim(&section.verbatim)
}

fn picture(picture: &Picture) -> String {
    format!("![{}]({})\n\n", escape(&picture.title), picture.file)
}

/// Returns the columns that people see, with the first aligned left and numbers right.
fn table(table: &Table) -> String {
    let shown: Vec<usize> = table.shown_columns();
    if table.rows.is_empty() {
        return String::new();
    }
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let is_left = |at: usize| at == shown[0] || table.columns[at].is_left;
    let rule = |at: &usize| if is_left(*at) { "---" } else { "---:" }.to_owned();
    let mut out = if table.caption.is_empty() {
        String::new()
    } else {
        format!("**{}**\n\n", escape(&table.caption))
    };
    out += &line(shown.iter().map(|at| escape(&table.columns[*at].title)).collect());
    out += &line(shown.iter().map(rule).collect());
    for row in &table.rows {
        let cell =
            |at: &usize| row.cells.get(*at).map_or(String::new(), |cell| escape(&cell.text()));
        out += &line(shown.iter().map(cell).collect());
    }
    out + "\n"
}

/// Returns lines as they are, between fences that are longer than any in them.
fn verbatim(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let runs = text.split(|letter| letter != '`').map(str::len);
    let fence = "`".repeat(runs.max().unwrap_or(0).max(2) + 1);
    format!("{fence}text\n{}\n{fence}\n\n", text.trim_end())
}

/// Escapes what would be markup, and keeps it in one line.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '<' => out += "&lt;",
            '&' => out += "&amp;",
            '\n' => out.push(' '),
            '\\' | '|' | '*' | '_' | '`' | '[' | ']' | '#' => out.extend(['\\', letter]),
            _ => out.push(letter),
        }
    }
    out
}
