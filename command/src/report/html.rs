//! Tags and escaping. All text of a report's file goes through `escaped`.

use std::fmt::Write;

/// Escapes text, and attributes in quotation marks.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(character),
        }
    }
    out
}

/// Keeps each number and its unit on one line.
fn unbroken(cell: &str) -> String {
    cell.replace(' ', "\u{a0}").replace("\u{a0}to\u{a0}", " to ")
}

/// Parts of a bar, each with its CSS class (see page.css).
pub type Bar = Vec<(f64, &'static str)>;

/// Returns a bar of one part.
pub fn bar(value: u64, class: &'static str) -> Vec<Bar> {
    vec![vec![(value as f64, class)]]
}

/// Cells of each row, and its bars from top to bottom.
pub type Rows = Vec<(Vec<String>, Vec<Bar>)>;

/// Cell without a value. A column of nothing else is not shown.
pub const NONE: &str = "–";

/// A table whose first column names its rows. Cells are text, and escaped here. Bars are below the
/// cells, over the whole width, in proportion to the other rows: beside them there would be no room
/// on a small screen.
pub struct Table<'a> {
    caption: String,
    head: &'a [&'a str],
    pub rows: Rows,
    /// Number of first rows whose name links to `#process-NUMBER`.
    pub links: usize,
}

impl<'a> Table<'a> {
    pub fn new(caption: impl Into<String>, head: &'a [&'a str], rows: Rows) -> Self {
        Self { caption: caption.into(), head, rows, links: 0 }
    }

    pub fn html(&self) -> String {
        let length = |bar: &Bar| bar.iter().map(|part| part.0).sum::<f64>();
        let bars = || self.rows.iter().flat_map(|(_, bars)| bars);
        let longest = bars().map(length).fold(f64::MIN_POSITIVE, f64::max);
        let mut out = format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"group\" aria-label=\"{0}\"><table>\
             <caption>{0}</caption><thead><tr>",
            escaped(&self.caption)
        );
        let is_shown = |column: usize| {
            let cells = || self.rows.iter().filter_map(|(cells, _)| cells.get(column));
            column == 0 || cells().any(|cell| !cell.is_empty() && cell != NONE)
        };
        let columns = (0..self.head.len()).filter(|column| is_shown(*column)).count();
        // A `String` takes everything.
        for (_, name) in self.head.iter().enumerate().filter(|(column, _)| is_shown(*column)) {
            let _ = write!(out, "<th scope=\"col\">{}</th>", escaped(name));
        }
        out.push_str("</tr></thead><tbody>\n");
        for (index, (cells, bars)) in self.rows.iter().enumerate() {
            out.push_str(if bars.is_empty() { "<tr>" } else { "<tr class=\"drawn\">" });
            let cells = cells.iter().map(|cell| escaped(cell)).enumerate();
            for (column, cell) in cells.filter(|(column, _)| is_shown(*column)) {
                let _ = match column {
                    0 if index < self.links => write!(
                        out,
                        "<th scope=\"row\"><a href=\"#process-{index}\">{cell}</a></th>"
                    ),
                    0 => write!(out, "<th scope=\"row\">{cell}</th>"),
                    _ => write!(out, "<td>{}</td>", unbroken(&cell)),
                };
            }
            out.push_str("</tr>\n");
            if bars.is_empty() {
                continue;
            }
            let _ =
                write!(out, "<tr class=\"bars\" aria-hidden=\"true\"><td colspan=\"{columns}\">");
            for bar in bars {
                out.push_str("<div>");
                for (value, class) in bar.iter().filter(|part| part.0 > 0.0) {
                    let width = 100.0 * value / longest;
                    let _ = write!(out, "<i class=\"{class}\" style=\"width:{width:.2}%\"></i>");
                }
                out.push_str("</div>");
            }
            out.push_str("</td></tr>\n");
        }
        out + "</tbody></table></div>\n"
    }
}
