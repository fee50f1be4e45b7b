//! What processes have copied: the numbers of one, and the sum of many.

use crate::stats::live::Fallback;
use crate::stats::worth::{self, Interval};

/// Lowest value, highest value and count of each bucket in use, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Distribution {
    pub buckets: Vec<(u64, u64, u64)>,
    pub max: u64,
}

/// Copies that went one way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    pub calls: u64,
    pub bytes: u64,
    pub sizes: Distribution,
    /// In nanoseconds.
    pub times: Distribution,
    /// By size class: the exponent of two that it begins with, bytes, nanoseconds.
    pub speeds: Vec<(u32, u64, u64)>,
}

/// A name and its number, in the order in which they were told.
pub type Named = Vec<(String, u64)>;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// Of a sum, those of all processes together.
    pub seconds: f64,
    pub engine: Traffic,
    pub libc: Traffic,
    /// Why copies stayed with libc, how many, and their bytes (0 in older reports).
    pub fallbacks: Vec<(String, u64, u64)>,
    /// Copies in which a bad page was left to the caller.
    pub faults: u64,
    pub taken_back: u64,
    pub mismatched: u64,
    /// Bytes by channel, the caller's own first.
    pub channels: Named,
    pub saved: Option<TimeSaved>,
    /// Nanoseconds of requests to the kernel helper, by what they were spent on.
    pub costs: Named,
    /// What has become of memory that was registered with a graphics card.
    pub registrations: Named,
    /// Reads of files, which are among the copies: by the engine or libc, how many, bytes.
    pub reads: Vec<(String, u64, u64)>,
    /// Messages between processes: what, how many, bytes.
    pub messages: Vec<(String, u64, u64)>,
    /// Every copy, also small ones.
    pub profile: Option<Profile>,
    /// Which code has made the large calls, most bytes first.
    pub sites: Vec<Site>,
    pub timeline: Option<Timeline>,
}

/// What the engine was worth.
#[derive(Clone, Debug, PartialEq)]
pub struct TimeSaved {
    /// Or why it is not known.
    pub interval: Result<Interval, String>,
    /// The wall time of the process, or of the run.
    pub of_seconds: f64,
}

impl TimeSaved {
    /// The one sentence of every report.
    pub fn sentence(&self) -> String {
        let mut out = String::new();
        let interval = self.interval.as_ref();
        // A `String` takes everything.
        let _ = worth::sentence(
            &mut out,
            self.of_seconds,
            match interval {
                Ok(interval) => Ok(*interval),
                Err(why) => Err(why as &dyn std::fmt::Display),
            },
        );
        out
    }
}

/// Large calls from one place of the code.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Site {
    /// Module and function.
    pub name: String,
    pub calls: u64,
    pub bytes: u64,
    pub nanoseconds: u64,
}

/// When large calls were made. Times are seconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    pub start: f64,
    pub end: f64,
    /// Length of a step in seconds.
    pub step: f64,
    /// Bytes by step, by the engine and by libc.
    pub bytes: [Vec<u64>; 2],
}

impl Timeline {
    const STEPS: usize = 64;

    /// Both in one, with steps that reach over both.
    fn with(&self, other: &Self) -> Self {
        let (start, end) = (self.start.min(other.start), self.end.max(other.end));
        let step = ((end - start) / Self::STEPS as f64).max(1e-9);
        let mut bytes = [vec![0u64; Self::STEPS], vec![0; Self::STEPS]];
        for line in [self, other] {
            for (to, from) in bytes.iter_mut().zip(&line.bytes) {
                for (number, &more) in from.iter().enumerate() {
                    let at = line.start - start + line.step * (number as f64 + 0.5);
                    let sum = &mut to[((at / step) as usize).min(Self::STEPS - 1)];
                    *sum = sum.saturating_add(more);
                }
            }
        }
        Self { start, end, step, bytes }
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    pub sizes: Distribution,
    /// Function, calls, bytes.
    pub functions: Vec<(String, u64, u64)>,
}

/// The percentiles that reports tell, and how many values one must have for it to mean anything.
pub const PARTS: [(&str, f64, u64); 5] = [
    ("p50", 0.5, 1),
    ("p90", 0.9, 10),
    ("p99", 0.99, 100),
    ("p99.9", 0.999, 1000),
    ("max", 1.0, 1),
];

impl Distribution {
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(bucket.2))
    }

    /// The value below or at which `part` of all values lie, to the bucket's upper edge.
    pub fn quantile(&self, part: f64) -> u64 {
        let wanted = ((self.count() as f64 * part).ceil() as u64).max(1);
        let mut seen = 0u64;
        for (_, highest, count) in &self.buckets {
            seen = seen.saturating_add(*count);
            if seen >= wanted {
                return (*highest).min(self.max);
            }
        }
        self.max
    }

    /// By power of two, from the first in use to the last: exponent, values, sum of the values.
    pub fn classes(&self) -> Vec<(u32, u64, u64)> {
        let mut classes: Vec<(u32, u64, u64)> = Vec::new();
        for &(lowest, highest, count) in &self.buckets {
            let class = lowest.max(1).ilog2();
            let middle = lowest + (highest.min(self.max.max(lowest)) - lowest) / 2;
            let sum = middle.saturating_mul(count);
            match classes.last_mut().filter(|last| last.0 == class) {
                Some(last) => {
                    last.1 = last.1.saturating_add(count);
                    last.2 = last.2.saturating_add(sum);
                }
                None => classes.push((class, count, sum)),
            }
        }
        classes
    }

    fn add(&mut self, other: &Self) {
        self.max = self.max.max(other.max);
        self.buckets.extend(&other.buckets);
        self.buckets.sort_unstable();
        // The same bucket of several processes is one.
        self.buckets.dedup_by(|next, kept| {
            let same = (next.0, next.1) == (kept.0, kept.1);
            if same {
                kept.2 = kept.2.saturating_add(next.2);
            }
            same
        });
    }
}

impl Traffic {
    fn add(&mut self, other: &Self) {
        self.calls = self.calls.saturating_add(other.calls);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.sizes.add(&other.sizes);
        self.times.add(&other.times);
        for &(class, bytes, nanoseconds) in &other.speeds {
            match self.speeds.iter_mut().find(|speed| speed.0 == class) {
                Some(speed) => {
                    speed.1 = speed.1.saturating_add(bytes);
                    speed.2 = speed.2.saturating_add(nanoseconds);
                }
                None => self.speeds.push((class, bytes, nanoseconds)),
            }
        }
        self.speeds.sort_unstable();
    }
}

impl Figures {
    pub fn calls(&self) -> u64 {
        self.engine.calls.saturating_add(self.libc.calls)
    }

    pub fn bytes(&self) -> u64 {
        self.engine.bytes.saturating_add(self.libc.bytes)
    }

    /// Sites of one name are one.
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
        self.sites.sort_by_key(|site| std::cmp::Reverse(site.bytes));
    }

    /// Adds all but the time saved, which is not a sum: see `saved`.
    pub fn add(&mut self, other: &Self) {
        self.seconds += other.seconds;
        self.engine.add(&other.engine);
        self.libc.add(&other.libc);
        add_pairs(&mut self.fallbacks, &other.fallbacks);
        add_named(&mut self.channels, &other.channels);
        add_named(&mut self.costs, &other.costs);
        add_named(&mut self.registrations, &other.registrations);
        self.faults = self.faults.saturating_add(other.faults);
        self.taken_back = self.taken_back.saturating_add(other.taken_back);
        self.mismatched = self.mismatched.saturating_add(other.mismatched);
        add_pairs(&mut self.reads, &other.reads);
        add_pairs(&mut self.messages, &other.messages);
        self.add_sites(&other.sites);
        if let Some(line) = &other.timeline {
            self.timeline = Some(match &self.timeline {
                Some(sum) => sum.with(line),
                None => line.clone(),
            });
        }
        if let Some(profile) = &other.profile {
            let sum = self.profile.get_or_insert_default();
            sum.sizes.add(&profile.sizes);
            add_pairs(&mut sum.functions, &profile.functions);
        }
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

fn add_pairs(sums: &mut Vec<(String, u64, u64)>, more: &[(String, u64, u64)]) {
    for (name, calls, bytes) in more {
        match sums.iter_mut().find(|sum| sum.0 == *name) {
            Some(sum) => {
                sum.1 = sum.1.saturating_add(*calls);
                sum.2 = sum.2.saturating_add(*bytes);
            }
            None => sums.push((name.clone(), *calls, *bytes)),
        }
    }
}

/// A reason for libc, in words; empty: none of this version's.
pub fn in_words(reason: &str) -> &'static str {
    Fallback::named(reason).map_or("", Fallback::words)
}

/// What a run of several processes would have taken without us. Processes that copied at once
/// competed for memory and CPUs, so what each has saved does not add up. `None`: none has shared.
pub fn saved(processes: &[&Figures], seconds: f64) -> Option<TimeSaved> {
    let mut sharing: Vec<_> = processes.iter().filter(|process| process.saved.is_some()).collect();
    sharing.sort_by(|a, b| span(a).0.total_cmp(&span(b).0));
    let first = sharing.first()?;
    let mut interval = first.saved.as_ref()?.interval.clone();
    for pair in sharing.windows(2) {
        let (before, after) = (span(pair[0]), span(pair[1]));
        let shorter = (before.1 - before.0).min(after.1 - after.0);
        if before.1 - after.0 > shorter / 20.0 {
            interval = Err(format!("{} processes copied at once", sharing.len()));
            break;
        }
        interval = match (interval, pair[1].saved.as_ref().map(|saved| &saved.interval)) {
            (Ok(a), Some(Ok(b))) => Ok(Interval {
                seconds: a.seconds + b.seconds,
                low: a.low + b.low,
                high: a.high + b.high,
            }),
            (Err(why), _) => Err(why),
            (_, Some(Err(why))) => Err(why.clone()),
            (sum, None) => sum,
        };
    }
    Some(TimeSaved { interval, of_seconds: seconds })
}

/// From its first large call to the end of its last one; where that is not known, for ever.
fn span(process: &Figures) -> (f64, f64) {
    let line = process.timeline.as_ref();
    line.map_or((f64::NEG_INFINITY, f64::INFINITY), |line| (line.start, line.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn histogram(buckets: &[(u64, u64, u64)]) -> Distribution {
        let max = buckets.last().map_or(0, |bucket| bucket.1);
        Distribution { buckets: buckets.to_vec(), max }
    }

    #[test]
    fn sum_of_histograms_is_the_histogram_of_all_values() {
        let mut sum = histogram(&[(10, 19, 2), (40, 49, 1)]);
        sum.add(&histogram(&[(10, 19, 3), (20, 29, 4)]));
        assert_eq!(sum.buckets, [(10, 19, 5), (20, 29, 4), (40, 49, 1)]);
        assert_eq!((sum.count(), sum.max), (10, 49));
        assert_eq!((sum.quantile(0.5), sum.quantile(0.51), sum.quantile(1.0)), (19, 29, 49));
    }

    #[test]
    fn sums_end_at_the_greatest_number() {
        let most = u64::MAX;
        let mut sum = histogram(&[(most, most, most)]);
        sum.add(&histogram(&[(most, most, most)]));
        assert_eq!(sum.count(), most);
        assert_eq!(sum.classes(), [(63, most, most)]);
        let mut named = vec![("a".to_owned(), most)];
        add_named(&mut named, &vec![("a".to_owned(), 1), ("b".to_owned(), 2)]);
        assert_eq!(named, [("a".to_owned(), most), ("b".to_owned(), 2)]);
    }

    /// A process that copied between these seconds and has saved this.
    fn process(from: f64, to: f64, saved: Result<f64, &str>) -> Figures {
        let interval = saved.map(|s| Interval { seconds: s, low: s / 2.0, high: s * 2.0 });
        let saved = TimeSaved { interval: interval.map_err(str::to_owned), of_seconds: 9.0 };
        let timeline = Timeline { start: from, end: to, ..Timeline::default() };
        Figures { saved: Some(saved), timeline: Some(timeline), ..Figures::default() }
    }

    #[test]
    fn savings_of_processes_that_copied_at_once_are_not_added_up() {
        let told = |all: &[Figures]| {
            saved(&all.iter().collect::<Vec<_>>(), 5.0).map(|saved| saved.sentence())
        };
        let sum = "took 5.0 s, without adma about 8.0 s (6.5 to 11.0)";
        let (one, two) = (process(0.0, 1.0, Ok(1.0)), process(1.01, 2.0, Ok(2.0)));
        assert_eq!(told(&[two.clone(), one.clone()]).unwrap(), sum);
        assert_eq!(told(&[one.clone(), Figures::default(), two.clone()]).unwrap(), sum);
        let unknown = "took 5.0 s, without adma not known: ";
        let beside = process(0.5, 1.5, Ok(1.0));
        let expected = format!("{unknown}3 processes copied at once");
        assert_eq!(told(&[one.clone(), beside, two.clone()]).unwrap(), expected);
        let busy = process(3.0, 4.0, Err("the machine was busy"));
        assert_eq!(told(&[one.clone(), busy]).unwrap(), format!("{unknown}the machine was busy"));
        let old = Figures { timeline: None, ..two };
        assert_eq!(told(&[one, old]).unwrap(), format!("{unknown}2 processes copied at once"));
        assert_eq!(told(&[Figures::default()]), None);
    }

    #[test]
    fn timelines_of_several_processes_are_one() {
        let line = |start: f64, bytes: &[u64]| Timeline {
            start,
            end: start + bytes.len() as f64,
            step: 1.0,
            bytes: [bytes.to_vec(), vec![1; bytes.len()]],
        };
        let sum = line(100.0, &[5, 5]).with(&line(110.0, &[7]));
        assert_eq!((sum.start, sum.end, sum.bytes[0].iter().sum::<u64>()), (100.0, 111.0, 17));
        assert_eq!((sum.bytes[0][2], *sum.bytes[0].last().unwrap()), (5, 0));
        assert_eq!(sum.bytes[1].iter().sum::<u64>(), 3);
    }

    #[test]
    fn every_reason_of_the_library_has_words() {
        for reason in crate::stats::live::Fallback::ALL {
            assert_ne!(in_words(reason.name()), "", "{reason:?}");
        }
    }
}
