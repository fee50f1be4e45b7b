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

/// Parts of a bar, each with its CSS class (see page.css).
pub type Bar = Vec<(f64, &'static str)>;

/// Returns a bar of one part.
pub fn bar(value: u64, class: &'static str) -> Vec<Bar> {
    vec![vec![(value as f64, class)]]
}

/// Cells of each row, and its bars from top to bottom.
pub type Rows = Vec<(Vec<String>, Vec<Bar>)>;

/// A table whose first column names its rows. Cells are text, and escaped here; behind them are
/// bars, in proportion to the other rows.
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
        // A `String` takes everything.
        for name in self.head {
            let _ = write!(out, "<th scope=\"col\">{}</th>", escaped(name));
        }
        out.push_str(if bars().next().is_some() { "<td class=\"bars\"></td>" } else { "" });
        out.push_str("</tr></thead><tbody>\n");
        for (index, (cells, bars)) in self.rows.iter().enumerate() {
            for (column, cell) in cells.iter().map(|cell| escaped(cell)).enumerate() {
                let _ = match column {
                    0 if index < self.links => write!(
                        out,
                        "<tr><th scope=\"row\"><a href=\"#process-{index}\">{cell}</a></th>"
                    ),
                    0 => write!(out, "<tr><th scope=\"row\">{cell}</th>"),
                    _ => write!(out, "<td>{cell}</td>"),
                };
            }
            if !bars.is_empty() {
                out.push_str("<td class=\"bars\" aria-hidden=\"true\">");
                for bar in bars {
                    out.push_str("<div>");
                    for (value, class) in bar.iter().filter(|part| part.0 > 0.0) {
                        let width = 100.0 * value / longest;
                        let _ =
                            write!(out, "<i class=\"{class}\" style=\"width:{width:.2}%\"></i>");
                    }
                    out.push_str("</div>");
                }
                out.push_str("</td>");
            }
            out.push_str("</tr>\n");
        }
        out + "</tbody></table></div>\n"
    }
}
