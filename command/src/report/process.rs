//! Reads the JSON of one process, which may be truncated, of another version, or malicious.
//!
//! The types below are its layout: unknown keys are ignored, and null is as good as no key. Lists
//! are limited; names are kept short and without control characters, and each output still escapes
//! them.

use super::figures::{Figures, Named, Site, TimeSaved};
use super::{Process, span};
use crate::say::printable;
use crate::symbols;
use adma_shared::histogram::Histogram;
use adma_shared::knobs::OPS;
use adma_shared::live::{Fallback, Flow, Live, MOST_CHANNELS, REASONS, word};
use adma_shared::worth::Interval;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;

/// Most buckets: more than the library's histograms have.
const MOST_BUCKETS: usize = 4096;
/// Most names: more than there are channels, reasons, functions.
const MOST_NAMES: usize = 256;
const LONGEST_NAME: usize = 64;
const LONGEST_PATH: usize = 4096;
const LONGEST_REASON: usize = 60;
/// Longest error.
const LONGEST_ERROR: usize = 200;
/// Smallest copy that is considered, unless a threshold is set.
pub const FLOOR: u64 = 256 << 10;

#[derive(Deserialize)]
struct Json {
    version: Text<LONGEST_NAME>,
    pid: u64,
    exe: Text<LONGEST_PATH>,
    command: Option<Few<Text<LONGEST_PATH>, MOST_NAMES>>,
    started: Option<Seconds>,
    seconds: Option<Seconds>,
    backend: Text<LONGEST_NAME>,
    channels: u64,
    /// A fixed threshold is a number, a learned one a word.
    min_bytes: Option<Value>,
    threshold: Option<u64>,
    paths: Paths,
    reads: Option<Entries<Count>>,
    to_card: Option<Entries<Count>>,
    from_card: Option<Entries<Count>>,
    fallbacks: Option<Entries<u64>>,
    fallback_bytes: Option<Entries<u64>>,
    taken_back: Option<u64>,
    saved: Option<Saved>,
    channel_bytes: Option<Entries<u64>>,
    verify: Option<Verify>,
    messages: Option<Messages>,
    sites: Option<Few<SiteOfJson, MOST_NAMES>>,
    timeline: Option<Timeline>,
    profile: Option<Profile>,
    ioat: Option<Ioat>,
    gpu: Option<Gpu>,
}

#[derive(Deserialize)]
struct Paths {
    engine: Path,
    libc: Path,
}

#[derive(Deserialize)]
struct Path {
    bytes: u64,
    size: Buckets,
    latency_ns: Buckets,
    by_size: Option<Few<Speed, 64>>,
}

#[derive(Deserialize)]
struct Buckets {
    max: u64,
    buckets: Few<Bucket, MOST_BUCKETS>,
}

/// Lowest value, highest value and count.
#[derive(Deserialize)]
#[serde(try_from = "(u64, u64, u64)")]
struct Bucket(u64, u64, u64);

/// Exponent of two, bytes and nanoseconds.
#[derive(Deserialize)]
#[serde(try_from = "(u64, u64, u64)")]
struct Speed(u32, u64, u64);

#[derive(Deserialize)]
struct Count {
    #[serde(alias = "messages")]
    calls: u64,
    bytes: u64,
}

#[derive(Deserialize)]
struct Saved {
    seconds: Option<Difference>,
    low: Option<Difference>,
    high: Option<Difference>,
    calls: Option<Difference>,
    reason: Option<Text<LONGEST_REASON>>,
}

#[derive(Deserialize)]
struct Verify {
    mismatched: Option<u64>,
}

#[derive(Deserialize)]
struct Messages {
    sent: Count,
    received: Count,
}

#[derive(Deserialize)]
struct SiteOfJson {
    module: Option<Text<LONGEST_PATH>>,
    offset: u64,
    calls: u64,
    bytes: u64,
    ns: u64,
}

/// Bytes over time, in seconds since the start.
#[derive(Deserialize)]
struct Timeline {
    start: Seconds,
    end: Seconds,
    step: Seconds,
    engine: Few<u64, MOST_NAMES>,
    libc: Few<u64, MOST_NAMES>,
}

#[derive(Deserialize)]
struct Profile {
    size: Buckets,
    functions: Entries<Count>,
}

#[derive(Deserialize)]
struct Ioat {
    costs_ns: Option<Entries<u64>>,
}

#[derive(Deserialize)]
struct Gpu {
    registrations: Option<Entries<u64>>,
}

/// Text of at most `N` characters; the rest is cut off.
#[derive(Deserialize)]
#[serde(from = "String")]
struct Text<const N: usize>(String);

/// A list of at most `N`.
#[derive(Deserialize)]
#[serde(try_from = "Vec<T>", bound = "T: Deserialize<'de>")]
struct Few<T, const N: usize>(Vec<T>);

/// Names with values.
#[derive(Deserialize)]
#[serde(try_from = "BTreeMap<String, T>", bound = "T: Deserialize<'de>")]
struct Entries<T>(Vec<(String, T)>);

/// A time from 0 up.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "f64")]
struct Seconds(f64);

/// A difference of times: negative where the engine has cost time.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "f64")]
struct Difference(f64);

impl<const N: usize> From<String> for Text<N> {
    fn from(text: String) -> Self {
        Self(shortened(&text, N))
    }
}

impl<T, const N: usize> TryFrom<Vec<T>> for Few<T, N> {
    type Error = String;

    fn try_from(list: Vec<T>) -> Result<Self, String> {
        if list.len() <= N { Ok(Self(list)) } else { Err(format!("want at most {N}")) }
    }
}

impl<T> TryFrom<BTreeMap<String, T>> for Entries<T> {
    type Error = String;

    fn try_from(map: BTreeMap<String, T>) -> Result<Self, String> {
        if map.len() > MOST_NAMES {
            return Err(format!("want at most {MOST_NAMES} entries"));
        }
        let entry = |(name, value): (String, T)| (shortened(&name, LONGEST_NAME), value);
        Ok(Self(map.into_iter().map(entry).collect()))
    }
}

impl TryFrom<f64> for Seconds {
    type Error = &'static str;

    fn try_from(value: f64) -> Result<Self, Self::Error> {
        if (0.0..1e12).contains(&value) { Ok(Self(value)) } else { Err("want seconds") }
    }
}

impl TryFrom<f64> for Difference {
    type Error = &'static str;

    fn try_from(value: f64) -> Result<Self, Self::Error> {
        if (-1e12..1e12).contains(&value) { Ok(Self(value)) } else { Err("want seconds") }
    }
}

impl TryFrom<(u64, u64, u64)> for Bucket {
    type Error = &'static str;

    fn try_from((lowest, highest, count): (u64, u64, u64)) -> Result<Self, Self::Error> {
        match lowest <= highest {
            true => Ok(Self(lowest, highest, count)),
            false => Err("want lowest value, highest value and count"),
        }
    }
}

impl TryFrom<(u64, u64, u64)> for Speed {
    type Error = &'static str;

    fn try_from((class, bytes, ns): (u64, u64, u64)) -> Result<Self, Self::Error> {
        match class {
            0..64 => Ok(Self(class as u32, bytes, ns)),
            _ => Err("want exponent of two, bytes and nanoseconds"),
        }
    }
}

/// Reads a report. Times in JSON are nanoseconds, so a tick of this record is one.
pub fn of_json(value: Value) -> Result<Process, String> {
    if !value.is_object() {
        return Err("not a report of adma: want an object".to_owned());
    }
    serde_path_to_error::deserialize(value).map(Json::process).map_err(|error| {
        let (path, why) = (error.path().to_string(), error.inner().to_string());
        let text = match (why.starts_with("missing field"), path.as_str()) {
            (true, ".") => format!("not a report of adma: {why}"),
            (true, path) => format!("not a report of adma: {why} in {path}"),
            (false, path) => format!("{path}: {why}"),
        };
        shortened(&text, LONGEST_ERROR)
    })
}

impl Json {
    fn process(self) -> Process {
        let started = self.started.map_or(0.0, |seconds| seconds.0);
        let seconds = self.seconds.map_or(0.0, |seconds| seconds.0);
        let named = |all: Option<Entries<u64>>| all.map_or(Named::new(), |entries| entries.0);
        let mut figures = Figures {
            costs: named(self.ioat.and_then(|ioat| ioat.costs_ns)),
            registrations: named(self.gpu.and_then(|gpu| gpu.registrations)),
            ..Figures::new(1.0)
        };
        for site in self.sites.into_iter().flat_map(|sites| sites.0) {
            figures.add_sites(&[site.site()]);
        }
        let live = &figures.live;
        let (recorder, facts) = (&live.recorder, &live.facts);
        self.paths.store(live);
        for (name, count) in named(self.fallbacks) {
            match name.as_str() {
                "fault" => facts.faults.store(count, Relaxed),
                name => recorder.fallbacks[reason(name)].add([count, 0]),
            }
        }
        let mut left = self.paths.libc.bytes;
        for (name, bytes) in named(self.fallback_bytes) {
            recorder.fallbacks[reason(&name)].add([0, bytes.min(left)]);
            left -= bytes.min(left);
        }
        recorder.fallbacks[REASONS - 1].add([0, left]); // older versions have none by reason
        let apart = [self.reads, self.to_card, self.from_card];
        for (counted, counts) in apart.into_iter().zip(&recorder.apart) {
            for (name, Count { calls, bytes }) in counted.into_iter().flat_map(|all| all.0) {
                counts[usize::from(name != "engine")].add([calls, bytes]);
            }
        }
        let mismatched = self.verify.and_then(|verify| verify.mismatched);
        recorder.mismatched.store(mismatched.unwrap_or(0), Relaxed);
        if let Some(Messages { sent, received }) = self.messages {
            live.messages.add("sent", sent.calls, sent.bytes);
            live.messages.add("received", received.calls, received.bytes);
        }
        if let Some(profile) = self.profile {
            profile.store(live);
        }
        if let Some(timeline) = self.timeline {
            timeline.store(started, live);
        }
        let backend = self.backend.0;
        facts.backend.store(word(&backend), Relaxed);
        facts.taken_back.store(self.taken_back.unwrap_or(0), Relaxed);
        facts.threshold.store(self.threshold.unwrap_or(0), Relaxed);
        let fixed = self.min_bytes.and_then(|value| value.as_u64());
        facts.floor.store(fixed.unwrap_or(FLOOR), Relaxed);
        store_channels(&named(self.channel_bytes), live);
        let words = self.command.into_iter().flat_map(|command| command.0);
        Process {
            command: words.map(|word| word.0).collect::<Vec<_>>().join(" "),
            version: self.version.0,
            pid: self.pid,
            exe: self.exe.0,
            started,
            seconds,
            threshold: self.threshold,
            saved: self.saved.and_then(|saved| saved.time_saved(seconds)),
            span: span(live, |ticks| ticks as f64 / 1e9),
            channels: self.channels.min(MOST_CHANNELS as u64) as usize,
            backend,
            ..Process::of(figures)
        }
    }
}

/// Returns the index of a reason; that of another version is the last one.
fn reason(name: &str) -> usize {
    let known = Fallback::ALL.iter().find(|why| why.name() == name);
    known.map_or(REASONS - 1, |why| *why as usize)
}

fn store_channels(all: &Named, live: &Live) {
    let (facts, mut channels) = (&live.facts, 0);
    for (name, bytes) in all {
        let number = name.rsplit('-').next().and_then(|digits| digits.parse::<usize>().ok());
        match number.filter(|number| *number < MOST_CHANNELS) {
            Some(number) => {
                channels = channels.max(number + 1);
                facts.channel_bytes[number].store(*bytes, Relaxed);
            }
            None => facts.caller_bytes.store(*bytes, Relaxed),
        }
    }
    facts.channels.store(channels as u32, Relaxed);
}

impl Paths {
    fn store(&self, live: &Live) {
        let recorder = &live.recorder;
        recorder.carried.store(self.engine.bytes, Relaxed);
        self.engine.store(&recorder.engine);
        self.libc.store(&recorder.libc);
    }
}

impl Path {
    fn store(&self, flow: &Flow) {
        self.size.store(&flow.sizes);
        self.latency_ns.store(&flow.ticks);
        for Speed(class, bytes, ns) in self.by_size.iter().flat_map(|speeds| &speeds.0) {
            flow.note_speed(*class, *bytes, *ns);
        }
    }
}

impl Buckets {
    fn store(&self, histogram: &Histogram) {
        for Bucket(lowest, highest, count) in &self.buckets.0 {
            histogram.record_n((*highest).min(self.max).max(*lowest), *count);
        }
        histogram.record_n(self.max, 0);
    }
}

impl Profile {
    fn store(self, live: &Live) {
        self.size.store(&live.recorder.every_size);
        for (name, Count { calls, bytes }) in self.functions.0 {
            if let Some(at) = OPS.iter().position(|op| *op == name) {
                live.recorder.by_function[at].add([calls, bytes]);
            }
        }
    }
}

impl Timeline {
    /// Stores bytes over time, in ticks since the epoch.
    fn store(self, started: f64, live: &Live) {
        let end = (started + self.end.0) * 1e9;
        for (way, steps) in [self.engine, self.libc].into_iter().enumerate() {
            for (number, bytes) in steps.0.into_iter().enumerate() {
                let begun = (started + self.start.0 + self.step.0 * number as f64) * 1e9;
                live.recorder.timeline.note(begun as u64, end as u64, way == 1, bytes);
            }
        }
    }
}

impl Saved {
    /// Returns the time saved. `None`: nothing was shared, so nothing was saved.
    fn time_saved(self, of_seconds: f64) -> Option<TimeSaved> {
        let [seconds, low, high, calls] =
            [self.seconds, self.low, self.high, self.calls].map(|one| one.map(|time| time.0));
        let interval = match [seconds, low, high] {
            [Some(0.0), _, Some(0.0)] => return None,
            [Some(seconds), Some(low), Some(high)] => {
                Ok(Interval { seconds, low, high, calls: calls.unwrap_or(0.0) })
            }
            [Some(_), ..] => Err("told by an older version, without bounds".to_owned()),
            _ => Err(self.reason.map_or("no reason told".to_owned(), |reason| reason.0)),
        };
        Some(TimeSaved { interval, of_seconds })
    }
}

impl SiteOfJson {
    fn site(self) -> Site {
        let name = match self.module {
            Some(module) => symbols::name(&module.0, self.offset),
            None => unknown_code(self.offset).to_owned(),
        };
        let name = shortened(&name, LONGEST_NAME);
        Site { name, calls: self.calls, bytes: self.bytes, nanoseconds: self.ns }
    }
}

/// Returns the name of sites that belong to no file.
pub fn unknown_code(offset: u64) -> &'static str {
    if offset == 0 { "other places" } else { "code without a file" }
}

fn shortened(text: &str, longest: usize) -> String {
    let mut kept = printable(text);
    if let Some((end, _)) = kept.char_indices().nth(longest) {
        kept.truncate(end);
        kept.push('…');
    }
    kept
}
