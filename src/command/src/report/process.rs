//! The JSON of one process, looked at key by key: it may be cut off, of another version, or
//! written by somebody who means harm.
//!
//! Keys that are not known are left alone. Names are kept short and without control characters;
//! whoever shows them still escapes what his format needs.

use super::figures::{Distribution, Figures, Named, Profile, Site, TimeSaved, Timeline, Traffic};
use crate::say::printable;
use crate::stats::worth::Interval;
use crate::symbols::Symbols;
use serde_json::Value;

#[derive(Clone, Debug)]
pub struct ProcessReport {
    pub version: String,
    pub pid: u64,
    /// The path of the program, or what the system tells instead.
    pub exe: String,
    /// The words of the command line, with blanks between them; empty: not known.
    pub command: String,
    /// Seconds since the epoch.
    pub started: f64,
    pub backend: String,
    /// Besides the caller.
    pub channels: u64,
    /// The smallest copy that was carried, if that was fixed or learned.
    pub threshold: Option<u64>,
    pub figures: Figures,
}

/// More than the library's histograms have.
const MOST_BUCKETS: usize = 4096;
/// More than there are channels, reasons, functions.
const MOST_NAMES: usize = 256;
const LONGEST_NAME: usize = 64;
const LONGEST_PATH: usize = 4096;

type Parsed<T> = Result<T, String>;

impl ProcessReport {
    pub fn new(value: &Value) -> Parsed<Self> {
        let top = Key { value, path: String::new() };
        if !value.is_object() {
            return Err("not a report of adma: want an object".to_owned());
        }
        let paths = top.key("paths")?;
        let started = top.optional("started").map_or(Ok(0.0), |key| key.seconds())?;
        let exe = top.key("exe")?.text(LONGEST_PATH)?;
        Ok(Self {
            command: top.optional("command").map_or(Ok(String::new()), |key| command(&key))?,
            version: top.key("version")?.text(LONGEST_NAME)?,
            pid: top.key("pid")?.number()?,
            exe,
            started,
            backend: top.key("backend")?.text(LONGEST_NAME)?,
            channels: top.key("channels")?.number()?,
            threshold: top.optional("threshold").map(|key| key.number()).transpose()?,
            figures: Figures {
                seconds: top.optional("seconds").map_or(Ok(0.0), |key| key.seconds())?,
                engine: paths.key("engine")?.flow()?,
                libc: paths.key("libc")?.flow()?,
                timeline: timeline(&top, started)?,
                ..rest(&top)?
            },
        })
    }

    /// The program without its folders.
    pub fn name(&self) -> &str {
        self.exe.rsplit('/').next().unwrap_or(&self.exe)
    }

    /// The command line where it is known, the program otherwise; both without folders in front.
    pub fn program(&self) -> &str {
        let line = if self.command.is_empty() { &self.exe } else { &self.command };
        let program = line.split(' ').next().unwrap_or(line);
        &line[program.rfind('/').map_or(0, |slash| slash + 1)..]
    }
}

/// All that older versions may not have told.
fn rest(top: &Key<'_>) -> Parsed<Figures> {
    let named = |key: Option<Key<'_>>| key.map_or(Ok(Vec::new()), |key| key.named());
    let reasons = named(top.optional("fallbacks"))?;
    let bytes = named(top.optional("fallback_bytes"))?;
    let of = |all: &Named, wanted: &str| {
        all.iter().find(|(name, _)| name == wanted).map_or(0, |(_, value)| *value)
    };
    let faults = of(&reasons, "fault");
    let told = reasons.iter().filter(|(name, count)| name != "fault" && *count > 0);
    let fallbacks = told.map(|(name, count)| (name.clone(), *count, of(&bytes, name))).collect();
    let channels = named(top.optional("channel_bytes"))?;
    let number = |key: Option<Key<'_>>| key.map_or(Ok(0), |key| key.number());
    let inside = |outer: &str, inner: &str| top.optional(outer).and_then(|key| key.optional(inner));
    Ok(Figures {
        fallbacks,
        faults,
        taken_back: number(top.optional("taken_back"))?,
        mismatched: number(inside("verify", "mismatched"))?,
        channels: in_order(channels),
        costs: named(inside("ioat", "costs_ns"))?,
        registrations: named(inside("gpu", "registrations"))?,
        reads: top
            .optional("reads")
            .map_or(Ok(Vec::new()), |key| counted(&key, ["engine", "libc"], "calls"))?,
        messages: top
            .optional("messages")
            .map_or(Ok(Vec::new()), |key| counted(&key, ["sent", "received"], "messages"))?,
        profile: top.optional("profile").map(|key| profile(&key)).transpose()?,
        saved: top.optional("saved").map_or(Ok(None), |key| saved(top, &key))?,
        sites: top.optional("sites").map_or(Ok(Vec::new()), |key| sites(&key))?,
        ..Figures::default()
    })
}

/// The caller, then the channels by their numbers: JSON keeps no order.
fn in_order(mut channels: Named) -> Named {
    let number = |name: &str| name.rsplit('-').next().and_then(|digits| digits.parse::<u64>().ok());
    channels.sort_by_key(|(name, _)| (name != "caller", number(name), name.clone()));
    channels
}

/// The number and the bytes of each of `names` that there were some of.
fn counted(key: &Key<'_>, names: [&str; 2], what: &str) -> Parsed<Vec<(String, u64, u64)>> {
    let mut all = Vec::new();
    for name in names {
        if let Some(of) = key.optional(name) {
            all.push((name.to_owned(), of.key(what)?.number()?, of.key("bytes")?.number()?));
        }
    }
    if what == "calls" {
        all.retain(|(_, calls, _)| *calls > 0);
    }
    Ok(all)
}

fn profile(key: &Key<'_>) -> Parsed<Profile> {
    let mut functions = Vec::new();
    for (name, function) in key.key("functions")?.entries()? {
        let (calls, bytes) = (function.key("calls")?.number()?, function.key("bytes")?.number()?);
        if calls > 0 {
            functions.push((name, calls, bytes));
        }
    }
    Ok(Profile { sizes: key.key("size")?.histogram()?, functions })
}

/// `None`: nothing was shared, so nothing was saved.
fn saved(top: &Key<'_>, told: &Key<'_>) -> Parsed<Option<TimeSaved>> {
    let of_seconds = top.optional("seconds").map_or(Ok(0.0), |key| key.seconds())?;
    let number = |name: &str| {
        // Negative where the engine has cost time.
        let number = |key: Key<'_>| {
            let number = key.value.as_f64().filter(|value| (-1e12..1e12).contains(value));
            key.want(number, "seconds")
        };
        told.optional(name).map(number).transpose()
    };
    let interval = match [number("seconds")?, number("low")?, number("high")?] {
        [Some(0.0), _, Some(0.0)] => return Ok(None),
        [Some(seconds), Some(low), Some(high)] => Ok(Interval { seconds, low, high }),
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

fn sites(key: &Key<'_>) -> Parsed<Vec<Site>> {
    let mut symbols = Symbols::default();
    let mut all = Figures::default();
    for site in key.list(MOST_NAMES)? {
        let number = |name: &str| site.key(name)?.number();
        let name = match site.optional("module") {
            Some(module) => symbols.name(&module.text(LONGEST_PATH)?, number("offset")?),
            None => unknown_code(number("offset")?).to_owned(),
        };
        let (calls, bytes, nanoseconds) = (number("calls")?, number("bytes")?, number("ns")?);
        all.add_sites(&[Site { name: shortened(&name, LONGEST_NAME), calls, bytes, nanoseconds }]);
    }
    Ok(all.sites)
}

/// What sites are called that belong to no file.
pub fn unknown_code(offset: u64) -> &'static str {
    if offset == 0 { "other places" } else { "code without a file" }
}

fn timeline(top: &Key<'_>, started: f64) -> Parsed<Option<Timeline>> {
    let Some(key) = top.optional("timeline") else { return Ok(None) };
    let steps = |name: &str| -> Parsed<Vec<u64>> {
        key.key(name)?.list(MOST_NAMES)?.iter().map(Key::number).collect()
    };
    let bytes = [steps("engine")?, steps("libc")?];
    if bytes.iter().all(Vec::is_empty) {
        return Ok(None);
    }
    let at = |name: &str| Ok::<_, String>(started + key.key(name)?.seconds()?);
    let step = key.key("step")?.seconds()?;
    Ok(Some(Timeline { start: at("start")?, end: at("end")?, step, bytes }))
}

/// A value, and how one came to it.
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

    /// `None` where it is missing or null.
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

    fn flow(&self) -> Parsed<Traffic> {
        Ok(Traffic {
            calls: self.key("calls")?.number()?,
            bytes: self.key("bytes")?.number()?,
            sizes: self.key("size")?.histogram()?,
            times: self.key("latency_ns")?.histogram()?,
            speeds: self.optional("by_size").map_or(Ok(Vec::new()), |key| key.speeds())?,
        })
    }

    fn list(&self, most: usize) -> Parsed<Vec<Self>> {
        let list = self.want(self.value.as_array(), "a list")?;
        let list = self.want((list.len() <= most).then_some(list), &format!("at most {most}"))?;
        Ok(list.iter().map(|value| self.below("", value)).collect())
    }

    fn speeds(&self) -> Parsed<Vec<(u32, u64, u64)>> {
        let speed = |key: &Self| -> Parsed<(u32, u64, u64)> {
            let numbers = key.list(3)?.iter().map(Self::number).collect::<Parsed<Vec<_>>>()?;
            let known = match numbers[..] {
                [class @ 0..64, bytes, nanoseconds] => Some((class as u32, bytes, nanoseconds)),
                _ => None,
            };
            key.want(known, "exponent of two, bytes and nanoseconds")
        };
        self.list(64)?.iter().map(speed).collect()
    }

    fn histogram(&self) -> Parsed<Distribution> {
        let key = self.key("buckets")?;
        let list = key.want(key.value.as_array(), "a list")?;
        let few = (list.len() <= MOST_BUCKETS).then_some(list);
        let list = key.want(few, &format!("at most {MOST_BUCKETS} buckets"))?;
        let bucket = |value: &Value| -> Option<(u64, u64, u64)> {
            let [lowest, highest, count] = value.as_array()?.as_slice() else { return None };
            let bucket = (lowest.as_u64()?, highest.as_u64()?, count.as_u64()?);
            (bucket.0 <= bucket.1).then_some(bucket)
        };
        let buckets = list.iter().map(bucket).collect::<Option<Vec<_>>>();
        let mut buckets = key.want(buckets, "lists of lowest value, highest value and count")?;
        buckets.retain(|bucket| bucket.2 > 0);
        buckets.sort_unstable();
        Ok(Distribution { buckets, max: self.key("max")?.number()? })
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
