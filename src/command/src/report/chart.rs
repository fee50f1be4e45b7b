//! Pictures as inline SVG: axes with units, series told apart by pattern as well as by colour,
//! and a description for those who do not see them. Everything a picture shows stands in the
//! table beside it too.

use super::html::escaped;
use super::units::{Scale, bytes, nanoseconds};
use adma_record::tables::PARTS;
use hdrhistogram::Histogram;
use std::fmt::Write;

const WIDTH: f64 = 640.0;
const LEFT: f64 = 92.0;
const RIGHT: f64 = 34.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 52.0;

/// A series: what it is called, and the class that gives it its pattern (see page.css).
pub type Series<'a> = (&'a str, &'a str);
pub const ENGINE: Series<'_> = ("engine", "engine");
pub const LIBC: Series<'_> = ("libc", "libc");
pub const EVERY: Series<'_> = ("every copy", "engine");

/// Every picture begins with its name and what it says.
fn begin(height: f64, title: &str, description: &str) -> String {
    format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" tabindex=\"0\" aria-label=\"{}. {}\">\n",
        escaped(title),
        escaped(description)
    )
}

fn text(out: &mut String, x: f64, y: f64, class: &str, content: &str) {
    let content = escaped(content);
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{content}</text>");
}

fn line(out: &mut String, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        out,
        "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn legend(out: &mut String, series: &[Series<'_>]) {
    let mut x = LEFT;
    for (name, class) in series {
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{x:.1}\" y=\"8\" width=\"14\" height=\"14\"/>"
        );
        text(out, x + 20.0, 19.5, "key", name);
        x += 44.0 + 8.0 * name.len() as f64;
    }
}

/// Names of the axes: below in the middle, and beside the upper end.
fn names(out: &mut String, height: f64, across: &str, up: &str) {
    text(out, (LEFT + WIDTH - RIGHT) / 2.0, height - 8.0, "axis middle", across);
    let _ = writeln!(
        out,
        "<text class=\"axis middle\" transform=\"translate(14 {:.1}) rotate(-90)\">{}</text>",
        (TOP + height - BOTTOM) / 2.0,
        escaped(up)
    );
}

/// Bars beside each other, of which the parts are stacked: `values[series][bar]`. `marks`: where on
/// the axis below, from 0 to 1, something stands.
fn stacked(
    [title, description, across, up]: [&str; 4],
    scale: &Scale,
    series: &[Series<'_>],
    values: &[Vec<f64>],
    marks: &[(f64, String)],
) -> String {
    const HEIGHT: f64 = 290.0;
    let (floor, plot) = (HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP);
    let count = values.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let step = (WIDTH - LEFT - RIGHT) / count as f64;
    let mut out = begin(HEIGHT, title, description);
    for (value, label) in &scale.marks {
        let y = floor - plot * value / scale.end;
        line(&mut out, "grid", (LEFT, y), (WIDTH - RIGHT, y));
        text(&mut out, LEFT - 8.0, y + 4.0, "tick end", label);
    }
    for (at, label) in marks {
        let x = LEFT + (WIDTH - LEFT - RIGHT) * at;
        line(&mut out, "mark", (x, floor), (x, floor + 5.0));
        text(&mut out, x, floor + 19.0, "tick middle", label);
    }
    for bar in 0..count {
        let mut y = floor;
        for ((name, class), values) in series.iter().zip(values) {
            let value = values.get(bar).copied().unwrap_or(0.0);
            if value > 0.0 {
                // One copy is seen, however many others there are.
                let height = (plot * value / scale.end).max(2.0);
                y -= height;
                let (x, width) = (LEFT + step * (bar as f64 + 0.12), step * 0.76);
                let _ = writeln!(
                    out,
                    "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" \
                     height=\"{height:.1}\"><title>{}</title></rect>",
                    escaped(name)
                );
            }
        }
    }
    line(&mut out, "base", (LEFT, floor), (WIDTH - RIGHT, floor));
    if series.len() > 1 {
        legend(&mut out, series);
    }
    names(&mut out, HEIGHT, across, up);
    out + "</svg>\n"
}

/// One bar for each power of two from `first` on.
pub fn by_size(
    [title, description, up]: [&str; 3],
    scale: &Scale,
    series: &[Series<'_>],
    first: u32,
    values: &[Vec<f64>],
) -> String {
    let count = values.first().map_or(0, Vec::len).max(1);
    // Labels stand at the edges between bars, as close as they can be read.
    let every = (72.0 * count as f64 / (WIDTH - LEFT - RIGHT)).ceil().max(1.0) as usize;
    let label =
        |edge: usize| 1u64.checked_shl(first + edge as u32).map_or("16 EiB".to_owned(), bytes);
    let marks = (0..=count).step_by(every);
    let marks: Vec<_> = marks.map(|edge| (edge as f64 / count as f64, label(edge))).collect();
    stacked([title, description, "size of a copy", up], scale, series, values, &marks)
}

/// Bytes by step of time, the engine's below. `length`: nanoseconds of all steps.
pub fn over_time(description: &str, scale: &Scale, length: f64, bytes: &[Vec<f64>]) -> String {
    let across = Scale::nanoseconds(length as u64).marks.into_iter();
    let marks = across.filter(|mark| mark.0 <= length);
    let marks: Vec<_> = marks.map(|(at, label)| (at / length.max(1.0), label)).collect();
    let words = ["Bytes by time", description, "time since the first large copy", "bytes"];
    stacked(words, scale, &[ENGINE, LIBC], bytes, &marks)
}

/// How long copies took: time over the part of the copies that took no longer.
pub fn curves(title: &str, description: &str, flows: &[(Series<'_>, &Histogram<u64>)]) -> String {
    const HEIGHT: f64 = 300.0;
    let (floor, plot) = (HEIGHT - BOTTOM, HEIGHT - BOTTOM - TOP);
    let most = flows.iter().map(|(_, times)| times.len()).max().unwrap_or(1).max(10);
    // Each nine more is one step to the right; the last step is behind the last copy.
    let right = (most as f64).log10() + 0.15;
    let x = |part: f64| {
        let nines = if part < 1.0 { -(1.0 - part).log10() } else { right };
        LEFT + (WIDTH - LEFT - RIGHT) * nines.min(right) / right
    };
    let lowest = flows.iter().map(|(_, times)| times.min().max(1)).min();
    let highest = flows.iter().map(|(_, times)| times.max().max(1)).max().unwrap_or(1);
    let first = lowest.unwrap_or(1).min(highest).ilog10();
    let last = (highest.ilog10() + 1).max(first + 1);
    let y = |time: u64| {
        let decades = (time.max(1) as f64).log10() - f64::from(first);
        floor - plot * (decades / f64::from(last - first)).clamp(0.0, 1.0)
    };
    let mut out = begin(HEIGHT, title, description);
    for decade in first..=last {
        let time = 10u64.saturating_pow(decade);
        line(&mut out, "grid", (LEFT, y(time)), (WIDTH - RIGHT, y(time)));
        text(&mut out, LEFT - 8.0, y(time) + 4.0, "tick end", &whole(time));
    }
    let parts = [(0.0, "0 %"), (0.5, "50 %"), (0.9, "90 %"), (0.99, "99 %"), (0.999, "99.9 %")];
    let more = [(0.9999, "99.99 %"), (0.99999, "99.999 %"), (0.999999, "99.9999 %")];
    for (part, label) in parts.into_iter().chain(more) {
        if x(part) < WIDTH - RIGHT - 24.0 {
            line(&mut out, "grid", (x(part), TOP), (x(part), floor + 5.0));
            text(&mut out, x(part), floor + 19.0, "tick middle", label);
        }
    }
    for ((_, class), times) in flows {
        let (mut from, mut path) = (0.0, String::new());
        for step in times.iter_recorded() {
            let height = y(step.value_iterated_to().min(times.max()));
            let (start, to) = (if path.is_empty() { 'M' } else { 'L' }, step.quantile());
            let _ = write!(path, "{start}{:.1} {height:.1}H{:.1}", x(from), x(to));
            from = to;
        }
        let _ = writeln!(out, "<path class=\"line {class}-line\" d=\"{path}\"/>");
        for (part, _, enough) in PARTS {
            if times.len() >= enough {
                let (x, y) = (x(part), y(times.value_at_quantile(part)));
                let _ = match *class {
                    "engine" => writeln!(
                        out,
                        "<circle class=\"engine-dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\"/>"
                    ),
                    _ => writeln!(
                        out,
                        "<rect class=\"libc-dot\" x=\"{:.1}\" y=\"{:.1}\" width=\"9\" height=\"9\"/>",
                        x - 4.5,
                        y - 4.5
                    ),
                };
            }
        }
    }
    line(&mut out, "base", (LEFT, floor), (WIDTH - RIGHT, floor));
    let shown: Vec<_> = flows.iter().map(|(series, _)| *series).collect();
    legend(&mut out, &shown);
    names(&mut out, HEIGHT, "part of the copies that took no longer", "time of a copy");
    out + "</svg>\n"
}

/// 1 µs, not 1.0 µs.
fn whole(time: u64) -> String {
    nanoseconds(time).replace(".0 ", " ")
}

/// A bar to the right: its name, its parts with the class of their pattern, and what stands at
/// its end.
pub type Bar<'a> = (String, Vec<(f64, &'a str)>, String);

pub fn rows(title: &str, across: &str, scale: &Scale, rows: &[Bar<'_>]) -> String {
    const ROW: f64 = 30.0;
    const NAME: f64 = 150.0;
    const ROOM: f64 = 84.0;
    let height = 8.0 + ROW * rows.len() as f64 + BOTTOM;
    let (floor, plot) = (height - BOTTOM, WIDTH - NAME - ROOM);
    let told: Vec<_> = rows.iter().map(|(name, _, end)| format!("{name} {end}")).collect();
    let mut out = begin(height, title, &format!("{}.", told.join(", ")));
    for (value, label) in &scale.marks {
        let x = NAME + plot * value / scale.end;
        line(&mut out, "grid", (x, 4.0), (x, floor + 5.0));
        text(&mut out, x, floor + 19.0, "tick middle", label);
    }
    for (index, (name, parts, end)) in rows.iter().enumerate() {
        let (mut x, y) = (NAME, 8.0 + ROW * index as f64);
        text(&mut out, NAME - 8.0, y + 17.0, "tick end", &cut(name, 20));
        for (value, class) in parts.iter().filter(|(value, _)| *value > 0.0) {
            let width = (plot * value / scale.end).clamp(2.0, plot);
            let _ = writeln!(
                out,
                "<rect class=\"{class}\" x=\"{x:.1}\" y=\"{:.1}\" width=\"{width:.1}\" height=\"18\"/>",
                y + 3.0
            );
            x += width;
        }
        text(&mut out, x + 6.0, y + 17.0, "key halo", end);
    }
    line(&mut out, "base", (NAME, 4.0), (NAME, floor));
    text(&mut out, NAME + plot / 2.0, height - 8.0, "axis middle", across);
    out + "</svg>\n"
}

/// As many characters as there is room for.
pub fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some(_) => text.chars().take(longest - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}
