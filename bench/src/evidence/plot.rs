//! Line plots as SVG, readable in grey: lines differ by dashes and marks, not by colour.

use std::fmt::Write;

/// Points by x; both axes are logarithmic, or y starts at 0.
pub struct Plot<'a> {
    pub title: &'a str,
    pub x: &'a str,
    pub y: &'a str,
    pub log_y: bool,
    pub lines: Vec<(String, Vec<(f64, f64)>)>,
}

const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 170.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 45.0;
const DASHES: [&str; 6] = ["", "7 3", "2 3", "9 3 2 3", "12 4", "1 4"];
const GREYS: [&str; 6] = ["#000", "#333", "#555", "#777", "#222", "#666"];

/// Maps values to a range of pixels.
struct Axis {
    low: f64,
    high: f64,
    log: bool,
    from: f64,
    to: f64,
}

impl Axis {
    fn at(&self, value: f64) -> f64 {
        let scale = |value: f64| if self.log { value.max(1e-9).ln() } else { value };
        let (low, high) = (scale(self.low), scale(self.high));
        let part = if high > low { (scale(value) - low) / (high - low) } else { 0.5 };
        self.from + part * (self.to - self.from)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.log {
            let powers = (-3..12).flat_map(|power| [1.0, 2.0, 5.0].map(|x| x * 10f64.powi(power)));
            return powers.filter(|tick| (self.low..=self.high).contains(tick)).collect();
        }
        let rough = (self.high - self.low) / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| *step >= rough).unwrap_or(rough);
        (0..10).map(|tick| tick as f64 * step).filter(|tick| *tick <= self.high).collect()
    }
}

impl Plot<'_> {
    /// Returns all x of all lines, in order.
    pub fn xs(&self) -> Vec<f64> {
        let points = self.lines.iter().flat_map(|(_, points)| points);
        let mut xs: Vec<f64> = points.map(|point| point.0).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        xs
    }

    pub fn svg(&self) -> String {
        let (xs, mut svg) = (self.xs(), String::new());
        let ys = || self.lines.iter().flat_map(|(_, points)| points).map(|point| point.1);
        let highest = ys().fold(0.0, f64::max) * 1.08;
        let lowest = if self.log_y { ys().fold(f64::MAX, f64::min) / 1.15 } else { 0.0 };
        let (first, last) = (xs.first().copied().unwrap_or(1.0), xs.last().copied().unwrap_or(2.0));
        let x = Axis { low: first, high: last, log: true, from: LEFT, to: WIDTH - RIGHT };
        let bottom = HEIGHT - BOTTOM;
        let y = Axis { low: lowest, high: highest, log: self.log_y, from: bottom, to: TOP };
        let _ = write!(
            svg,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             width=\"{WIDTH}\" font-family=\"sans-serif\" font-size=\"12\" role=\"img\">\
             <title>{0}</title><rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\
             <text x=\"{LEFT}\" y=\"18\" font-weight=\"bold\">{0}</text>",
            escape(self.title)
        );
        for tick in y.ticks() {
            let at = y.at(tick);
            let _ = write!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0,
                number(tick)
            );
        }
        // Labels of sizes next to each other would overlap.
        let every = xs.len().div_ceil(9);
        for tick in xs.iter().step_by(every.max(1)) {
            let at = x.at(*tick);
            let _ = write!(
                svg,
                "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 16.0,
                crate::out::size(*tick as usize)
            );
        }
        let _ = write!(
            svg,
            "<path d=\"M{LEFT} {TOP}V{bottom}H{}\" fill=\"none\" stroke=\"#000\"/>\
             <text x=\"{}\" y=\"{}\" text-anchor=\"middle\">{}</text>\
             <text transform=\"translate(14 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            WIDTH - RIGHT,
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 8.0,
            escape(self.x),
            (TOP + bottom) / 2.0,
            escape(self.y)
        );
        for (index, (name, points)) in self.lines.iter().enumerate() {
            let (dash, grey) = (DASHES[index % DASHES.len()], GREYS[index % GREYS.len()]);
            let style =
                format!("stroke=\"{grey}\" stroke-dasharray=\"{dash}\" stroke-width=\"1.8\"");
            let places: Vec<(f64, f64)> =
                points.iter().map(|point| (x.at(point.0), y.at(point.1))).collect();
            let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = write!(svg, "<polyline points=\"{}\" fill=\"none\" {style}/>", path.join(" "));
            places.iter().for_each(|place| svg += &mark(index, *place, grey));
            let (legend, row) = (WIDTH - RIGHT + 10.0, TOP + 8.0 + 18.0 * index as f64);
            let _ = write!(
                svg,
                "<line x1=\"{legend}\" x2=\"{}\" y1=\"{row}\" y2=\"{row}\" {style}/>{}\
                 <text x=\"{}\" y=\"{}\">{}</text>",
                legend + 26.0,
                mark(index, (legend + 13.0, row), grey),
                legend + 31.0,
                row + 4.0,
                escape(name)
            );
        }
        svg + "</svg>"
    }
}

/// Returns a circle, square, triangle or diamond, full or empty.
fn mark(index: usize, (x, y): (f64, f64), grey: &str) -> String {
    let shape = match index % 4 {
        0 => format!("M{} {y:.1}a3.2 3.2 0 1 0 6.4 0a3.2 3.2 0 1 0-6.4 0", x - 3.2),
        1 => format!("M{:.1} {:.1}h6v6h-6z", x - 3.0, y - 3.0),
        2 => format!("M{x:.1} {:.1}l3.8 6.6h-7.6z", y - 4.0),
        _ => format!("M{x:.1} {:.1}l4 4l-4 4l-4-4z", y - 4.0),
    };
    let fill = if index.is_multiple_of(2) { grey } else { "#fff" };
    format!("<path d=\"{shape}\" fill=\"{fill}\" stroke=\"{grey}\"/>")
}

/// Formats a number with three significant digits.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v == 0.0 || v.fract() == 0.0 && v < 1e6 => format!("{value:.0}"),
        v if v < 10.0 => format!("{value:.2}"),
        v if v < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
