//! A table for pipes and files, and JSON and metrics for programs: one sample, or one each second.

use super::columns::{Layout, document};
use super::{INTERVAL, Row, Sampler, Wish};
use crate::say::{self, fail, say};
use adma_report::Format;
use adma_report::json::Json;
use adma_report::metrics::Metrics;
use std::io::Write as _;
use std::time::Instant;

pub fn run(wish: &Wish) -> i32 {
    let mut sampler = Sampler::new();
    loop {
        let rows = sampler.sample(wish);
        if let (Some(pid), true) = (wish.pid, rows.is_empty()) {
            fail(1, format_args!("process {pid} keeps no live statistics, or has ended"));
        }
        let text = match (wish.json, wish.metrics) {
            (true, _) => Json.write(&document(&rows, true)),
            (_, true) => Metrics.write(&document(&rows, false)),
            _ => say::in_locale(table(&rows, wish)),
        };
        let mut out = std::io::stdout().lock();
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            return 1; // the reader has gone
        }
        if wish.once || wish.metrics {
            if rows.is_empty() && !wish.json && !wish.metrics {
                say("no process keeps live statistics now; programs run by adma do");
            }
            return 0;
        }
        let next = Instant::now() + INTERVAL;
        while Instant::now() < next {
            let again = if wish.json { sampler.watch.look() } else { INTERVAL };
            std::thread::sleep(again.min(next.saturating_duration_since(Instant::now())));
        }
    }
}

fn table(rows: &[Row], wish: &Wish) -> String {
    let layout = Layout::new(rows, width(), wish.all);
    let line = |cells: Vec<String>| format!("{}\n", cells.join(" ").trim_end());
    let mut text = line(layout.titles());
    rows.iter().for_each(|row| text += &line(layout.cells(row)));
    text
}

/// Returns the columns of the terminal; a pipe or a file takes all.
fn width() -> usize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    size.ok().map(|size| size.ws_col.into()).filter(|columns| *columns > 0).unwrap_or(1000)
}
