//! Converts a live file to a report: what a process would have written at its end, even if it was
//! killed.

use super::figures::{Figures, Site, TimeSaved};
use super::process::unknown_code;
use super::{Process, span};
use crate::live_files::LiveProcess;
use crate::symbols;
use adma_shared::worth;
use std::sync::atomic::Ordering::Relaxed;

impl Process {
    /// Converts a process; `end`: how it ended, as far as that is known.
    pub fn of_live(process: LiveProcess, end: String) -> Self {
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
                sites: sites(&process),
                live: process.live,
                ..Figures::new(scale)
            })
        }
    }
}

/// Returns the call sites of a process, by module and function.
pub fn sites(process: &LiveProcess) -> Vec<Site> {
    let (mut all, scale) = (Figures::new(1.0), process.scale());
    process.live.recorder.sites.for_each(|site| {
        let name = match site.module.map(String::from_utf8_lossy) {
            Some(name) if name.is_empty() => symbols::name(&process.path_of_program(), site.offset),
            Some(name) => symbols::name(&crate::say::printable(&name), site.offset),
            None => unknown_code(site.offset).to_owned(),
        };
        let nanoseconds = (site.ticks as f64 * scale) as u64;
        all.add_sites(&[Site { name, calls: site.calls, bytes: site.bytes, nanoseconds }]);
    });
    all.sites
}
