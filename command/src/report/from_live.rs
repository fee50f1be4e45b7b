//! Converts a live file to a report: what a process would have written at its end, even if it was
//! killed.

use super::figures::{Figures, Site, TimeSaved};
use super::process::unknown_code;
use super::{Process, span};
use crate::live_files::LiveProcess;
use crate::symbols;
use crate::watch::Lines;
use adma_shared::worth;
use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

impl Process {
    /// Converts a process; `end`: how it ended, as far as that is known; `lines`: those of its script.
    pub fn of_live(process: LiveProcess, end: String, lines: Option<&Lines>) -> Self {
        let (scale, seconds) = (process.scale(), process.seconds());
        let head = &process.live.head;
        let saved = worth::saved(&process.live.recorder, scale, seconds);
        let interval = saved.interval.map_err(|why| why.to_string());
        let facts = &process.live.facts;
        let threshold = facts.min_bytes.load(Relaxed).max(facts.threshold.load(Relaxed));
        let started = head.start_wall.load(Relaxed) as f64 / 1e9;
        let begun = head.start_ticks.load(Relaxed);
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: process.pid as u64,
            exe: process.path_of_program(),
            command: process.command_line(),
            started,
            seconds,
            end,
            threshold: (threshold > 0).then_some(threshold),
            saved: saved.shared.then_some(TimeSaved { interval, of_seconds: seconds }),
            span: span(&process.live, |ticks| {
                started + ticks.saturating_sub(begun) as f64 * scale / 1e9
            }),
            ..Self::of(Figures {
                sites: sites(&process, lines),
                live: process.live,
                ..Figures::new(scale)
            })
        }
    }
}

/// Returns the call sites of a process, by module and function. One whose lines were seen is divided
/// among these, in the proportion in which they were.
pub fn sites(process: &LiveProcess, lines: Option<&Lines>) -> Vec<Site> {
    let (mut all, scale) = (Figures::new(1.0), process.scale());
    process.live.recorder.sites.for_each(|site| {
        let name = match site.module.map(String::from_utf8_lossy) {
            Some(name) if name.is_empty() => symbols::name(&process.path_of_program(), site.offset),
            Some(name) => symbols::name(&crate::say::printable(&name), site.offset),
            None => symbols::in_perf_map(process.pid, process.owner, site.address)
                .unwrap_or_else(|| unknown_code(site.offset).to_owned()),
        };
        let nanoseconds = (site.ticks as f64 * scale) as u64;
        let whole = Site { name, calls: site.calls, bytes: site.bytes, nanoseconds };
        match lines.and_then(|lines| lines.get(&site.address)) {
            Some(lines) => all.add_sites(&divided(&whole, lines)),
            None => all.add_sites(&[whole]),
        }
    });
    all.sites
}

/// Divides a site among the lines that have made its calls. Nothing is lost by rounding.
fn divided(whole: &Site, lines: &HashMap<String, u64>) -> Vec<Site> {
    let all: u64 = lines.values().sum();
    let mut lines: Vec<_> = lines.iter().collect();
    lines.sort();
    let (mut before, mut sites) = (0, Vec::new());
    for (line, times) in lines {
        let part = |number: u64| {
            let up_to =
                |times: u64| (u128::from(number) * u128::from(times) / u128::from(all)) as u64;
            up_to(before + times) - up_to(before)
        };
        sites.push(Site {
            name: format!("{line}, {}", whole.name),
            calls: part(whole.calls),
            bytes: part(whole.bytes),
            nanoseconds: part(whole.nanoseconds),
        });
        before += times;
    }
    sites
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn site_is_divided_among_its_lines_without_loss() {
        let whole = Site { name: "libx copy".into(), calls: 10, bytes: 1001, nanoseconds: 7 };
        let lines = HashMap::from([("a.py:1 f".to_owned(), 3), ("b.py:2 g".to_owned(), 1)]);
        let parts = divided(&whole, &lines);
        assert_eq!(parts[0].name, "a.py:1 f, libx copy");
        let sum = |of: fn(&Site) -> u64| parts.iter().map(of).sum::<u64>();
        let sums = [sum(|s| s.calls), sum(|s| s.bytes), sum(|s| s.nanoseconds)];
        assert_eq!((parts[0].bytes, sums), (750, [10, 1001, 7]));
    }
}
