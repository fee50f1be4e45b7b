//! A live file as a report: what a process would have written at its end, also of one that was
//! killed.

use super::figures::{Distribution, Figures, Profile, Site, TimeSaved, Timeline, Traffic};
use super::process::{ProcessReport, unknown_code};
use crate::knobs;
use crate::live::LiveProcess;
use crate::stats::histogram::Histogram;
use crate::stats::live::Flow;
use crate::stats::worth;
use crate::symbols::Symbols;
use std::sync::atomic::Ordering::Relaxed;

impl From<&LiveProcess> for ProcessReport {
    fn from(process: &LiveProcess) -> Self {
        let (live, scale, seconds) = (&process.live, process.scale(), process.seconds());
        let (recorder, facts) = (&live.recorder, &live.facts);
        let nanoseconds = |ticks: u64| (ticks as f64 * scale) as u64;
        let traffic = |flow: &Flow, bytes: u64| Traffic {
            calls: flow.sizes.count(),
            bytes,
            sizes: distribution(&flow.sizes, |bytes| bytes),
            times: distribution(&flow.ticks, nanoseconds),
            speeds: flow.speeds().map(|(c, bytes, ticks)| (c, bytes, nanoseconds(ticks))).collect(),
        };
        let bytes: Vec<_> = recorder.fallback_bytes().map(|(_, bytes)| bytes).collect();
        let fallbacks = recorder.fallbacks().zip(bytes).filter(|((_, count), _)| *count > 0);
        let name = process.channel_name();
        let channels = process.channel_bytes().into_iter().enumerate();
        let channels = channels.map(|(at, bytes)| (format!("{name}-{at}"), bytes));
        let caller = ("caller".to_owned(), facts.caller_bytes.load(Relaxed));
        let told = process.messages();
        let saved = worth::saved(recorder, scale, seconds);
        let interval = saved.interval.map_err(|why| why.to_string());
        let started = live.head.start_wall.load(Relaxed) as f64 / 1e9;
        let threshold = facts.min_bytes.load(Relaxed).max(facts.threshold.load(Relaxed));
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: process.pid as u64,
            exe: process.path_of_program(),
            command: process.command_line(),
            started,
            backend: process.backend(),
            channels: u64::from(facts.channels.load(Relaxed)),
            threshold: (threshold > 0).then_some(threshold),
            figures: Figures {
                seconds,
                engine: traffic(&recorder.engine, recorder.engine_bytes()),
                libc: traffic(&recorder.libc, recorder.libc_bytes()),
                fallbacks: fallbacks
                    .map(|((why, count), bytes)| (why.to_owned(), count, bytes))
                    .collect(),
                faults: facts.faults.load(Relaxed),
                taken_back: facts.taken_back.load(Relaxed),
                mismatched: recorder.mismatched.load(Relaxed),
                channels: std::iter::once(caller).chain(channels).collect(),
                saved: saved.shared.then_some(TimeSaved { interval, of_seconds: seconds }),
                sites: sites(process),
                timeline: timeline(process, started),
                messages: told.map_or(Vec::new(), |told| {
                    let row =
                        |&(name, count, bytes): &(&str, u64, u64)| (name.to_owned(), count, bytes);
                    told.directions.iter().map(row).collect()
                }),
                profile: (recorder.every_size.count() > 0).then(|| Profile {
                    sizes: distribution(&recorder.every_size, |bytes| bytes),
                    functions: knobs::OPS
                        .iter()
                        .zip(&recorder.by_function)
                        .map(|(name, calls)| {
                            (name.to_string(), calls.calls.load(Relaxed), calls.bytes.load(Relaxed))
                        })
                        .filter(|function| function.1 > 0)
                        .collect(),
                }),
                ..Figures::default()
            },
        }
    }
}

/// The call sites of a process, by module and function.
pub fn sites(process: &LiveProcess) -> Vec<Site> {
    let (mut symbols, mut all, scale) = (Symbols::default(), Figures::default(), process.scale());
    process.live.recorder.sites.for_each(|site| {
        let name = match site.module.map(String::from_utf8_lossy) {
            Some(name) if name.is_empty() => symbols.name(&process.path_of_program(), site.offset),
            Some(name) => symbols.name(&crate::say::printable(&name), site.offset),
            None => unknown_code(site.offset).to_owned(),
        };
        let nanoseconds = (site.ticks as f64 * scale) as u64;
        all.add_sites(&[Site { name, calls: site.calls, bytes: site.bytes, nanoseconds }]);
    });
    all.sites
}

fn timeline(process: &LiveProcess, started: f64) -> Option<Timeline> {
    let (line, scale) = (&process.live.recorder.timeline, process.scale());
    let begun = process.live.head.start_ticks.load(Relaxed);
    let seconds = |ticks: u64| ticks as f64 * scale / 1e9;
    let at = |ticks: u64| started + seconds(ticks.saturating_sub(begun));
    let bytes = line.bytes().map(|steps| steps.collect::<Vec<_>>());
    (!bytes[0].is_empty()).then(|| Timeline {
        start: at(line.start.load(Relaxed)),
        end: at(line.end.load(Relaxed)),
        step: seconds(line.step()),
        bytes,
    })
}

fn distribution(histogram: &Histogram, unit: impl Fn(u64) -> u64) -> Distribution {
    let buckets = histogram.buckets().map(|(low, high, count)| (unit(low), unit(high), count));
    Distribution { buckets: buckets.collect(), max: unit(histogram.max()) }
}
