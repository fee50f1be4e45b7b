//! Figures of processes: the record of one, and the sum of many.

use super::Process;
use crate::live_files;
use adma_report::Value;
use adma_shared::Counters;
use adma_shared::histogram::Histogram;
use adma_shared::live::{Live, channel_name};
use adma_shared::worth::{Interval, MOST_UNEVEN, Sentence};
use hdrhistogram::Histogram as Hdr;
use std::cmp::Reverse;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Names with numbers, in the order in which they were reported.
pub type Named = Vec<(String, u64)>;

pub struct Figures {
    /// Counters.
    pub live: Box<Live>,
    /// Nanoseconds of a tick.
    pub scale: f64,
    /// Code that has made the large calls, most bytes first.
    pub sites: Vec<Site>,
    /// Nanoseconds of requests to the kernel helper, by phase.
    pub costs: Named,
    /// Counts of memory that was registered with a graphics card.
    pub registrations: Named,
}

/// Time that the engine has saved.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeSaved {
    /// Seconds saved, or why that is not known.
    pub interval: Result<Interval, String>,
    /// Wall time of the process, or of the run.
    pub of_seconds: f64,
}

impl TimeSaved {
    /// Returns the sentence of every report.
    pub fn sentence(&self) -> Sentence<'_> {
        let saved = self.interval.as_ref().map(|interval| *interval).map_err(|why| why as _);
        Sentence { wall: self.of_seconds, saved }
    }

    /// Returns it for programs.
    pub fn value(&self) -> Value {
        saved_value(self.interval.as_ref().map_err(String::as_str))
    }
}

/// Returns seconds saved for programs, as reports write them; or why they are not known.
pub fn saved_value(saved: Result<&Interval, &str>) -> Value {
    let seconds = |of: fn(&Interval) -> f64| saved.ok().map(of).map(Value::Seconds).into();
    Value::map([
        ("seconds", seconds(|interval| interval.seconds)),
        ("low", seconds(|interval| interval.low)),
        ("high", seconds(|interval| interval.high)),
        ("calls", seconds(|interval| interval.calls)),
        ("reason", saved.err().map(str::to_owned).into()),
    ])
}

/// Large calls from one call site.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Site {
    /// Module and function.
    pub name: String,
    pub calls: u64,
    pub bytes: u64,
    pub nanoseconds: u64,
}

impl Site {
    /// Returns it for programs.
    pub fn value(&self) -> Value {
        Value::map([
            ("name", self.name.as_str().into()),
            ("calls", Value::Count(self.calls)),
            ("bytes", Value::Bytes(self.bytes)),
            ("nanoseconds", Value::Nanoseconds(self.nanoseconds)),
        ])
    }
}

impl Figures {
    pub fn new(scale: f64) -> Self {
        Self {
            live: Box::new(Live::ZERO),
            scale,
            sites: Vec::new(),
            costs: Vec::new(),
            registrations: Vec::new(),
        }
    }

    pub fn nanoseconds(&self, ticks: u64) -> u64 {
        (ticks as f64 * self.scale) as u64
    }

    /// Returns the bytes of shared copies by channel, the caller's own first.
    pub fn channels(&self) -> Named {
        let backend = live_files::backend(&self.live);
        let name = channel_name(&backend);
        let caller = ("caller".to_owned(), self.live.facts.caller_bytes.load(Relaxed));
        let channels = live_files::channel_bytes(&self.live).into_iter().enumerate();
        let channels = channels.map(|(number, bytes)| (format!("{name}-{number}"), bytes));
        std::iter::once(caller).chain(channels).collect()
    }

    pub fn has_profile(&self) -> bool {
        self.live.recorder.every_size.count() > 0
    }

    /// Adds call sites; those of one name are merged.
    pub fn add_sites(&mut self, more: &[Site]) {
        for site in more {
            match self.sites.iter_mut().find(|sum| sum.name == site.name) {
                Some(sum) => {
                    sum.calls = sum.calls.saturating_add(site.calls);
                    sum.bytes = sum.bytes.saturating_add(site.bytes);
                    sum.nanoseconds = sum.nanoseconds.saturating_add(site.nanoseconds);
                }
                None => self.sites.push(site.clone()),
            }
        }
        self.sites.sort_by_key(|site| Reverse(site.bytes));
    }

    pub fn add(&mut self, other: &Self) {
        let mut copy = Box::new(other.live.copy());
        let start = |live: &Live| match live.recorder.timeline.start.load(Relaxed) {
            0 => u64::MAX,
            start => start,
        };
        if start(&copy) < start(&self.live) {
            // A timeline can only be extended at its end.
            std::mem::swap(&mut copy.recorder.timeline, &mut self.live.recorder.timeline);
        }
        self.live.recorder.absorb(&copy.recorder);
        self.live.messages.absorb(&copy.messages);
        let (sum, more) = (&self.live.facts, &copy.facts);
        let add = |to: &AtomicU64, from: &AtomicU64| {
            to.store(to.load(Relaxed).saturating_add(from.load(Relaxed)), Relaxed);
        };
        add(&sum.faults, &more.faults);
        add(&sum.taken_back, &more.taken_back);
        add(&sum.caller_bytes, &more.caller_bytes);
        sum.channel_bytes.iter().zip(&more.channel_bytes).for_each(|(to, from)| add(to, from));
        sum.channels.fetch_max(more.channels.load(Relaxed), Relaxed);
        for (to, from) in [(&sum.backend, &more.backend), (&sum.floor, &more.floor)] {
            let _ = to.compare_exchange(0, from.load(Relaxed), Relaxed, Relaxed); // the first counts
        }
        match (sum.threshold.load(Relaxed), more.threshold.load(Relaxed)) {
            (_, 0) => {}
            (0, bytes) => sum.threshold.store(bytes, Relaxed),
            (_, bytes) => _ = sum.threshold.fetch_min(bytes, Relaxed),
        }
        self.add_sites(&other.sites);
        add_named(&mut self.costs, &other.costs);
        add_named(&mut self.registrations, &other.registrations);
    }
}

fn add_named(sums: &mut Named, more: &Named) {
    for (name, value) in more {
        match sums.iter_mut().find(|sum| sum.0 == *name) {
            Some(sum) => sum.1 = sum.1.saturating_add(*value),
            None => sums.push((name.clone(), *value)),
        }
    }
}

/// Converts a histogram of the record to HdrHistogram's, to two digits.
pub fn distribution(histogram: &Histogram, unit: impl Fn(u64) -> u64) -> Hdr<u64> {
    let mut all = Hdr::new(2).expect("two digits are allowed");
    all.auto(true);
    let max = histogram.max();
    for (lowest, highest, count) in histogram.buckets() {
        let value = unit(highest.min(max).max(lowest)).clamp(1, i64::MAX as u64);
        // Impossibly large counts are clamped.
        let _ = all.record_n(value, count.min(i64::MAX as u64 / 4096));
    }
    all
}

/// Average number at once below which processes count as sequential.
const MOST_AT_ONCE: f64 = 1.05;

/// Processes side by side copy at once as this part of all, and about as long (`MOST_UNEVEN`).
const SIDE_BY_SIDE: f64 = 0.8;

/// Returns what a run of several processes would have taken without us. `None`: none has shared.
///
/// Savings of sequential processes add up. Of those that copied at once the mean counts: side by side
/// with bounds that hold those of each, otherwise from nothing to all of each.
pub fn saved(processes: &[Process], seconds: f64) -> Option<TimeSaved> {
    let sharing = || processes.iter().filter_map(|p| Some((p.span, p.saved.as_ref()?)));
    let mut spans: Vec<_> = sharing().map(|(span, _)| span).collect();
    spans.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut all, mut passed, mut end) = (0.0, 0.0, spans.first()?.0);
    for (from, to) in &spans {
        all += to - from;
        passed += (to - end.max(*from)).max(0.0);
        end = end.max(*to);
    }
    let interval = sharing().try_fold(Interval::default(), |sum, (_, saved)| {
        let one = saved.interval.clone()?;
        Ok(Interval {
            seconds: sum.seconds + one.seconds,
            low: sum.low + one.low,
            high: sum.high + one.high,
            calls: sum.calls + one.calls,
        })
    });
    // NaN for a report without times of copies.
    let at_once = all / passed;
    if spans.len() == 1 || at_once < MOST_AT_ONCE {
        return Some(TimeSaved { interval, of_seconds: seconds });
    }
    let each = || sharing().filter_map(|(_, saved)| saved.interval.as_ref().ok());
    let calls = || each().map(|one| one.calls);
    let (least, most) = (calls().fold(f64::MAX, f64::min), calls().fold(0.0, f64::max));
    let even = at_once > SIDE_BY_SIDE * spans.len() as f64 && most <= MOST_UNEVEN * least;
    let several = format!("{} processes copied at once", spans.len());
    let together = interval.map(|sum| Interval {
        seconds: sum.seconds / at_once,
        low: each().map(|one| one.low).fold(if even { f64::MAX } else { 0.0 }, f64::min),
        high: each().map(|one| one.high).fold(sum.high / at_once, f64::max),
        calls: sum.calls / at_once,
    });
    let interval = match together {
        Ok(together) if at_once.is_finite() && !together.is_wide(seconds) => Ok(together),
        Ok(_) => Err(several),
        Err(why) => Err(format!("{several}, of one: {why}")),
    };
    Some(TimeSaved { interval, of_seconds: seconds })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sum_holds_the_copies_of_all_whichever_began_first() {
        let figures = |from: u64, size: u64| {
            let figures = Figures::new(1.0);
            let recorder = &figures.live.recorder;
            recorder.record(adma_shared::live::Path::Engine, size as usize, 500);
            recorder.timeline.note(from, from + 10, false, size);
            figures.live.facts.threshold.store(size, Relaxed);
            figures
        };
        let mut sum = Figures::new(1.0);
        for (from, size) in [(5 << 30, 70_000), (1 << 20, 90_000), (3 << 30, 80_000)] {
            sum.add(&figures(from, size));
        }
        let recorder = &sum.live.recorder;
        assert_eq!((recorder.total(), recorder.engine_bytes()), ((3, 240_000), 240_000));
        assert_eq!(recorder.timeline.start.load(Relaxed), 1 << 20);
        let [engine, _] = recorder.timeline.bytes().map(Iterator::collect::<Vec<_>>);
        assert_eq!((engine[0], *engine.last().unwrap()), (90_000, 70_000));
        assert_eq!(sum.live.facts.threshold.load(Relaxed), 70_000);
    }

    /// Returns a process that copied between these seconds and has saved this.
    fn process(from: f64, to: f64, saved: Result<f64, &str>) -> Process {
        let interval =
            saved.map(|s| Interval { seconds: s, low: s / 2.0, high: s * 2.0, calls: s });
        let saved = TimeSaved { interval: interval.map_err(str::to_owned), of_seconds: 9.0 };
        Process { saved: Some(saved), span: (from, to), ..Process::default() }
    }

    #[test]
    fn savings_of_processes_that_copied_at_once_do_not_add_up() {
        let told = |all: &[&Process]| {
            let all: Vec<_> = all
                .iter()
                .map(|p| Process { saved: p.saved.clone(), span: p.span, ..Process::default() })
                .collect();
            saved(&all, 5.0).map(|saved| saved.sentence().to_string())
        };
        let sum = "took 5.0 s, without adma about 8.0 s (6.5 to 11.0)";
        let (one, two) = (process(0.0, 1.0, Ok(1.0)), process(1.01, 2.0, Ok(2.0)));
        assert_eq!(told(&[&two, &one]).unwrap(), sum);
        assert_eq!(told(&[&one, &Process::default(), &two]).unwrap(), sum);
        let unknown = "took 5.0 s, without adma not known: ";
        let beside = process(0.5, 1.5, Ok(1.0));
        let expected = format!("{unknown}3 processes copied at once");
        assert_eq!(told(&[&one, &beside, &two]).unwrap(), expected);
        let mean = "took 5.0 s, without adma about 5.8 s (5.3 to 7.0)";
        assert_eq!(told(&[&one, &process(0.0, 1.0, Ok(0.52))]).unwrap(), mean);
        let uneven = "took 5.0 s, without adma about 5.7 s (5.0 to 7.0)";
        assert_eq!(told(&[&one, &process(0.0, 1.0, Ok(0.48))]).unwrap(), uneven);
        let busy = process(3.0, 4.0, Err("the machine was busy"));
        assert_eq!(told(&[&one, &busy]).unwrap(), format!("{unknown}the machine was busy"));
        let beside = process(0.5, 1.5, Err("the machine was busy"));
        let expected = format!("{unknown}2 processes copied at once, of one: the machine was busy");
        assert_eq!(told(&[&one, &beside]).unwrap(), expected);
        let old = process(f64::NEG_INFINITY, f64::INFINITY, Ok(2.0));
        assert_eq!(told(&[&one, &old]).unwrap(), format!("{unknown}2 processes copied at once"));
        assert_eq!(told(&[&Process::default()]), None);
    }
}
