//! Parses the JSON of one process, key by key: it may be truncated, of another version, or
//! malicious.
//!
//! Unknown keys are ignored. Names are kept short and without control characters; each output still
//! escapes them.

use super::figures::{Figures, Named, Site, TimeSaved};
use super::{Process, span};
use crate::say::printable;
use crate::symbols;
use adma_shared::histogram::Histogram;
use adma_shared::knobs::OPS;
use adma_shared::live::{Fallback, Flow, Live, MOST_CHANNELS, REASONS, word};
use adma_shared::worth::Interval;
use serde_json::Value;
use std::sync::atomic::Ordering::Relaxed;

/// Most buckets: more than the library's histograms have.
const MOST_BUCKETS: usize = 4096;
/// Most names: more than there are channels, reasons, functions.
const MOST_NAMES: usize = 256;
const LONGEST_NAME: usize = 64;
const LONGEST_PATH: usize = 4096;
/// Smallest copy that is considered, unless a threshold is set.
pub const FLOOR: u64 = 256 << 10;

type Parsed<T> = Result<T, String>;

/// Parses a report. Times in JSON are nanoseconds, so a tick of this record is one.
pub fn of_json(value: &Value) -> Parsed<Process> {
    let top = Key { value, path: String::new() };
    if !value.is_object() {
        return Err("not a report of adma: want an object".to_owned());
    }
    let started = top.optional("started").map_or(Ok(0.0), |key| key.seconds())?;
    let seconds = top.optional("seconds").map_or(Ok(0.0), |key| key.seconds())?;
    let exe = top.key("exe")?.text(LONGEST_PATH)?;
    let named = |outer: &str, inner: &str| match top.optional(outer) {
        Some(key) => key.optional(inner).map_or(Ok(Vec::new()), |key| key.named()),
        None => Ok(Vec::new()),
    };
    let mut figures = Figures {
        costs: named("ioat", "costs_ns")?,
        registrations: named("gpu", "registrations")?,
        ..Figures::new(1.0)
    };
    let backend = top.key("backend")?.text(LONGEST_NAME)?;
    figures.live.facts.backend.store(word(&backend), Relaxed);
    counts(&top, &figures.live)?;
    facts(&top, &figures.live)?;
    if let Some(key) = top.optional("timeline") {
        timeline(&key, started, &figures.live)?;
    }
    if let Some(key) = top.optional("sites") {
        sites(&key, &mut figures)?;
    }
    let number = |name: &str| top.optional(name).map(|key| key.number()).transpose();
    Ok(Process {
        command: top.optional("command").map_or(Ok(String::new()), |key| command(&key))?,
        version: top.key("version")?.text(LONGEST_NAME)?,
        pid: top.key("pid")?.number()?,
        exe,
        started,
        seconds,
        threshold: number("threshold")?,
        saved: top.optional("saved").map_or(Ok(None), |key| saved(&key, seconds))?,
        span: span(&figures.live, |ticks| ticks as f64 / 1e9),
        channels: top.key("channels")?.number()?.min(MOST_CHANNELS as u64) as usize,
        backend,
        ..Process::of(figures)
    })
}

/// Parses copies, messages and the profile.
fn counts(top: &Key<'_>, live: &Live) -> Parsed<()> {
    let recorder = &live.recorder;
    let paths = top.key("paths")?;
    let engine = paths.key("engine")?.flow(&recorder.engine)?;
    recorder.carried.store(engine, Relaxed);
    let libc = paths.key("libc")?.flow(&recorder.libc)?;
    let named = |name: &str| top.optional(name).map_or(Ok(Vec::new()), |key| key.named());
    let slot = |name: &str| {
        let known = Fallback::ALL.iter().find(|why| why.name() == name);
        &recorder.fallbacks[known.map_or(REASONS - 1, |why| *why as usize)]
    };
    for (name, count) in named("fallbacks")? {
        match name.as_str() {
            "fault" => live.facts.faults.store(count, Relaxed),
            name => slot(name).add([count, 0]),
        }
    }
    let mut left = libc;
    for (name, bytes) in named("fallback_bytes")? {
        slot(&name).add([0, bytes.min(left)]);
        left -= bytes.min(left);
    }
    recorder.fallbacks[REASONS - 1].add([0, left]); // older versions tell none by reason
    let reads = top.optional("reads").map_or(Ok(Vec::new()), |key| key.counted("calls"))?;
    for (name, calls, bytes) in reads {
        recorder.reads[usize::from(name != "engine")].add([calls, bytes]);
    }
    let verify = top.optional("verify").and_then(|key| key.optional("mismatched"));
    recorder.mismatched.store(verify.map_or(Ok(0), |key| key.number())?, Relaxed);
    if let Some(key) = top.optional("messages") {
        for name in ["sent", "received"] {
            let of = key.key(name)?;
            let (count, bytes) = (of.key("messages")?.number()?, of.key("bytes")?.number()?);
            live.messages.add(name, count, bytes);
        }
    }
    if let Some(key) = top.optional("profile") {
        key.key("size")?.histogram(&recorder.every_size)?;
        for (name, calls, bytes) in key.key("functions")?.counted("calls")? {
            if let Some(at) = OPS.iter().position(|op| *op == name) {
                recorder.by_function[at].add([calls, bytes]);
            }
        }
    }
    Ok(())
}

fn facts(top: &Key<'_>, live: &Live) -> Parsed<()> {
    let facts = &live.facts;
    let number = |name: &str| top.optional(name).map_or(Ok(0), |key| key.number());
    facts.taken_back.store(number("taken_back")?, Relaxed);
    facts.threshold.store(number("threshold")?, Relaxed);
    // A fixed threshold is a number, a learned one a word.
    let fixed = top.optional("min_bytes").and_then(|key| key.value.as_u64());
    facts.floor.store(fixed.unwrap_or(FLOOR), Relaxed);
    let mut channels = 0;
    for (name, bytes) in top.optional("channel_bytes").map_or(Ok(Vec::new()), |key| key.named())? {
        let number = name.rsplit('-').next().and_then(|digits| digits.parse::<usize>().ok());
        match number.filter(|number| *number < MOST_CHANNELS) {
            Some(number) => {
                channels = channels.max(number + 1);
                facts.channel_bytes[number].store(bytes, Relaxed);
            }
            None => facts.caller_bytes.store(bytes, Relaxed),
        }
    }
    facts.channels.store(channels as u32, Relaxed);
    Ok(())
}

/// Parses the time saved. `None`: nothing was shared, so nothing was saved.
fn saved(told: &Key<'_>, of_seconds: f64) -> Parsed<Option<TimeSaved>> {
    let number = |name: &str| {
        // Negative where the engine has cost time.
        let number = |key: Key<'_>| {
            let number = key.value.as_f64().filter(|value| (-1e12..1e12).contains(value));
            key.want(number, "seconds")
        };
        told.optional(name).map(number).transpose()
    };
    let calls = number("calls")?.unwrap_or(0.0);
    let interval = match [number("seconds")?, number("low")?, number("high")?] {
        [Some(0.0), _, Some(0.0)] => return Ok(None),
        [Some(seconds), Some(low), Some(high)] => Ok(Interval { seconds, low, high, calls }),
        [Some(_), ..] => Err("told by an older version, without bounds".to_owned()),
        _ => Err(told
            .optional("reason")
            .map_or(Ok("no reason told".to_owned()), |key| key.text(60))?),
    };
    Ok(Some(TimeSaved { interval, of_seconds }))
}

fn command(key: &Key<'_>) -> Parsed<String> {
    let words = key.list(MOST_NAMES)?;
    let words = words.iter().map(|word| word.text(LONGEST_PATH)).collect::<Parsed<Vec<_>>>();
    Ok(words?.join(" "))
}

fn sites(key: &Key<'_>, figures: &mut Figures) -> Parsed<()> {
    for site in key.list(MOST_NAMES)? {
        let number = |name: &str| site.key(name)?.number();
        let name = match site.optional("module") {
            Some(module) => symbols::name(&module.text(LONGEST_PATH)?, number("offset")?),
            None => unknown_code(number("offset")?).to_owned(),
        };
        let (calls, bytes, nanoseconds) = (number("calls")?, number("bytes")?, number("ns")?);
        let name = shortened(&name, LONGEST_NAME);
        figures.add_sites(&[Site { name, calls, bytes, nanoseconds }]);
    }
    Ok(())
}

/// Returns the name of sites that belong to no file.
pub fn unknown_code(offset: u64) -> &'static str {
    if offset == 0 { "other places" } else { "code without a file" }
}

/// Parses bytes over time, in ticks since the epoch.
fn timeline(key: &Key<'_>, started: f64, live: &Live) -> Parsed<()> {
    let at = |name: &str| Ok::<_, String>(started + key.key(name)?.seconds()?);
    let (start, end, step) = (at("start")?, at("end")?, key.key("step")?.seconds()?);
    for (way, name) in ["engine", "libc"].into_iter().enumerate() {
        for (number, bytes) in key.key(name)?.list(MOST_NAMES)?.iter().enumerate() {
            let begun = (start + step * number as f64) * 1e9;
            let bytes = bytes.number()?;
            live.recorder.timeline.note(begun as u64, (end * 1e9) as u64, way == 1, bytes);
        }
    }
    Ok(())
}

/// A value and its path.
struct Key<'a> {
    value: &'a Value,
    path: String,
}

impl<'a> Key<'a> {
    fn below(&self, name: &str, value: &'a Value) -> Self {
        let name = shortened(name, LONGEST_NAME);
        let path = if self.path.is_empty() { name } else { format!("{}.{name}", self.path) };
        Key { value, path }
    }

    /// Returns a member; `None` where it is missing or null.
    fn optional(&self, name: &str) -> Option<Self> {
        let value = self.value.get(name).filter(|value| !value.is_null())?;
        Some(self.below(name, value))
    }

    fn key(&self, name: &str) -> Parsed<Self> {
        self.optional(name).ok_or_else(|| match self.path.as_str() {
            "" => format!("not a report of adma: no {name}"),
            path => format!("not a report of adma: no {name} in {path}"),
        })
    }

    fn want<T>(&self, found: Option<T>, what: &str) -> Parsed<T> {
        found.ok_or_else(|| format!("{}: want {what}", self.path))
    }

    fn number(&self) -> Parsed<u64> {
        self.want(self.value.as_u64(), "a whole number from 0 up")
    }

    fn seconds(&self) -> Parsed<f64> {
        let found = self.value.as_f64().filter(|value| (0.0..1e12).contains(value));
        self.want(found, "seconds")
    }

    fn text(&self, longest: usize) -> Parsed<String> {
        self.want(self.value.as_str(), "a text").map(|text| shortened(text, longest))
    }

    fn entries(&self) -> Parsed<Vec<(String, Self)>> {
        let map = self.want(self.value.as_object(), "an object")?;
        let few = (map.len() <= MOST_NAMES).then_some(map);
        let map = self.want(few, &format!("at most {MOST_NAMES} entries"))?;
        let entry = |(name, value): (&String, &'a Value)| {
            (shortened(name, LONGEST_NAME), self.below(name, value))
        };
        Ok(map.iter().map(entry).collect())
    }

    fn named(&self) -> Parsed<Named> {
        let number = |(name, key): (String, Self)| Ok((name, key.number()?));
        self.entries()?.into_iter().map(number).collect()
    }

    fn list(&self, most: usize) -> Parsed<Vec<Self>> {
        let list = self.want(self.value.as_array(), "a list")?;
        let list = self.want((list.len() <= most).then_some(list), &format!("at most {most}"))?;
        Ok(list.iter().map(|value| self.below("", value)).collect())
    }

    /// Parses names with the number of `what` and the bytes of each.
    fn counted(&self, what: &str) -> Parsed<Vec<(String, u64, u64)>> {
        let row = |(name, of): (String, Self)| {
            Ok((name, of.key(what)?.number()?, of.key("bytes")?.number()?))
        };
        self.entries()?.into_iter().map(row).collect()
    }

    /// Parses the numbers of one path. Returns its bytes.
    fn flow(&self, flow: &Flow) -> Parsed<u64> {
        self.key("calls")?.number()?;
        self.key("size")?.histogram(&flow.sizes)?;
        self.key("latency_ns")?.histogram(&flow.ticks)?;
        for speed in self.optional("by_size").map_or(Ok(Vec::new()), |key| key.list(64))? {
            let numbers = speed.list(3)?.iter().map(Self::number).collect::<Parsed<Vec<_>>>()?;
            match numbers[..] {
                [class @ 0..64, bytes, ns] => flow.note_speed(class as u32, bytes, ns),
                _ => return speed.want(None, "exponent of two, bytes and nanoseconds"),
            }
        }
        self.key("bytes")?.number()
    }

    fn histogram(&self, into: &Histogram) -> Parsed<()> {
        let max = self.key("max")?.number()?;
        for bucket in self.key("buckets")?.list(MOST_BUCKETS)? {
            let numbers = bucket.value.as_array().map_or(&[][..], Vec::as_slice);
            let numbers: Vec<u64> = numbers.iter().filter_map(Value::as_u64).collect();
            match numbers[..] {
                [lowest, highest, count] if lowest <= highest => {
                    into.record_n(highest.min(max).max(lowest), count);
                }
                _ => return bucket.want(None, "lowest value, highest value and count"),
            }
        }
        into.record_n(max, 0);
        Ok(())
    }
}

fn shortened(text: &str, longest: usize) -> String {
    let mut kept = printable(text);
    if let Some((end, _)) = kept.char_indices().nth(longest) {
        kept.truncate(end);
        kept.push('…');
    }
    kept
}
