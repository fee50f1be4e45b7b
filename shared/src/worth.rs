//! Time saved: an estimate of what the run would have taken without us, with bounds, or why that is
//! not known; and which copies were left to libc and why.
//!
//! Without us each shared call would have taken its bytes times libc's cost, which `samples` holds
//! by kind and size. The bounds are those of the mean (Student's, of winsorised samples), and a
//! margin for what samples cannot show: a part of a call may cost less or more than the whole, and
//! what follows a copy finds other caches. Calls that no sample covers have wide bounds
//! of their own, which matter little where such calls are a small part of the run.
#![forbid(unsafe_code)]

use crate::live::Recorder;
use crate::samples::{FRESH, KEPT, Row, SIZES, Samples};
use crate::units::{Bytes, Time};
use core::fmt::{Display, Formatter, Result, Write};
use core::sync::atomic::Ordering::Relaxed;

/// Smallest part of the bytes for which a reason is reported, and the most reasons that are.
const LEAST_PART: f64 = 0.01;
const MOST_REASONS: usize = 3;

/// Fewest samples of a row that count; from this many of whole calls up only those count.
const LEAST_SAMPLES: usize = 3;
const ENOUGH_WHOLE: usize = 4;
/// Relative deviation that samples are taken to have until they show their own, as if this many had
/// shown it.
const ASSUMED_DEVIATION: f64 = 0.15;
const ASSUMED_SAMPLES: f64 = 2.0;
/// Part of the variance between calls that is known where a part of each was timed.
const TIMED_PART: f64 = 0.75;
/// Systematic error of samples of parts and of whole calls, and of what is not copying: usually,
/// and where programs or threads competed.
const PART_MARGIN: f64 = 0.14;
const WHOLE_MARGIN: f64 = 0.1;
const REST_MARGIN: f64 = 0.05;
const REST_MARGIN_IN_DOUBT: f64 = 0.1;
/// Size classes of about a CPU's own cache, which keeps some bytes of a shared call while libc is
/// timed: libc alone may be slower than its samples by this part.
const OWN_CACHE: core::ops::Range<usize> = 2..4;
const OWN_CACHE_MARGIN: f64 = 0.25;
/// First pages of fresh memory are often ones that were just freed, and in the cache: later ones may
/// cost more by this part.
const FRESH_MARGIN: f64 = 0.1;
/// Small pages take longer to be freed than huge ones, after the call: this part of what libc takes to
/// write them.
const FREEING: f64 = 0.07;
/// Least distance of the bounds, as a part of the time without us: runs of a program differ by it.
const LEAST_MARGIN: f64 = 0.17;
/// Without samples libc is taken to be at most twice as fast as the shared calls, and at most three
/// times as slow.
const UNKNOWN: (f64, f64) = (0.5, 3.0);
/// Largest parts of the time of shared calls for which samples are still valid.
const MOST_OVERLAPPED: f64 = 0.1;
const MOST_PREEMPTED: f64 = 0.2;
/// Threads, or processes, that work side by side: the busiest has at most this many times the time in
/// calls of the least.
pub const MOST_UNEVEN: f64 = 2.0;
/// At least this part of the time of calls of such threads is beside another's call, or half of what chance
/// would bring beside: threads that take turns have none.
const BESIDE: f64 = 0.3;
/// Threads with less than this part of the busiest's time do not matter.
const SLIGHT_THREAD: f64 = 0.05;
/// Largest distance of the bounds, as a part of the time without us, that is an answer: half of it, where that
/// is as short as the bounds allow.
const MOST_WIDTH: f64 = 0.5 * (1.0 - LEAST_MARGIN);
/// Part of the run below which both bounds make no difference to speak of.
const SLIGHT: f64 = 0.05;

/// Seconds saved, and their bounds. Negative: lost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Interval {
    pub seconds: f64,
    pub low: f64,
    pub high: f64,
    /// Seconds in shared calls; 0: not known.
    pub calls: f64,
}

impl Interval {
    /// Returns whether the bounds are too far apart to be an answer about a run of `wall` seconds.
    pub fn is_wide(&self, wall: f64) -> bool {
        self.high - self.low > MOST_WIDTH * (wall + self.seconds)
    }

    /// Returns whether the shared calls were too small a part of a run of `wall` seconds to matter.
    pub fn is_slight(&self, wall: f64) -> bool {
        self.calls > 0.0 && self.low > -SLIGHT * wall && self.high < SLIGHT * wall
    }

    /// Returns the seconds saved, for a column of numbers without bounds. `None`: nothing was
    /// shared, or there is no sample, so that zero is only the middle between the bounds.
    pub fn estimate(&self) -> Option<f64> {
        (self.seconds != 0.0).then_some(self.seconds)
    }
}

/// Why it is not known what was saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unknown {
    FewSamples,
    Busy,
    Threads,
    Background,
    Spread,
}

impl Display for Unknown {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        out.write_str(match self {
            Unknown::FewSamples => "too few of its calls were timed by libc",
            Unknown::Busy => "the machine was busy",
            Unknown::Threads => "several threads copied at once",
            Unknown::Background => "copies went on in the background",
            Unknown::Spread => "the samples differ too much",
        })
    }
}

/// Time saved by sharing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saved {
    pub interval: core::result::Result<Interval, Unknown>,
    /// Which part of the time of shared calls was compared with libc's.
    pub known: f64,
    /// Set if an engine has carried any bytes.
    pub shared: bool,
    wall: f64,
}

/// Estimates the time saved; `wall`: how long the process has run, in seconds.
pub fn saved(recorder: &Recorder, nanoseconds_per_tick: f64, wall: f64) -> Saved {
    let samples = &recorder.samples;
    let mut sum = Sum::default();
    samples.rows.iter().enumerate().for_each(|(index, row)| sum.add(row, index % SIZES));
    let [overlapped, background, timed, preempted] =
        [&samples.overlapped, &samples.background, &samples.timed, &samples.preempted]
            .map(|ticks| ticks.load(Relaxed) as f64);
    let shared = sum.ticks > 0.0 || recorder.engine_bytes() > 0;
    let passed = passed(recorder);
    let even = Even::of(samples).filter(|even| overlapped > even.beside(sum.ticks, passed));
    let in_doubt = if even.is_some() { 0.0 } else { overlapped };
    let doubts = [
        (Unknown::Background, background, MOST_OVERLAPPED * sum.ticks),
        (Unknown::Threads, in_doubt, MOST_OVERLAPPED * sum.ticks),
        (Unknown::Busy, preempted, MOST_PREEMPTED * timed),
    ];
    let doubt = doubts.into_iter().find(|(_, part, most)| part > most).map(|(why, ..)| why);
    // A preempted copy would have been preempted without us, too.
    let held_up = (sum.saved + sum.ticks - sum.unsampled) * preempted / timed.max(1.0) / 2.0;
    (sum.saved, sum.margin) = (sum.saved + held_up, sum.margin + held_up);
    let by_threads = doubt == Some(Unknown::Threads);
    if let Some(even) = &even {
        sum = sum.of_one_of(even);
    }
    if doubt.is_some() && !by_threads {
        let ticks = sum.ticks + background;
        sum = Sum { ticks, unsampled: ticks, ..Sum::default() };
    }
    let rest_margin = if doubt.is_some() { REST_MARGIN_IN_DOUBT } else { REST_MARGIN };
    let interval = match shared {
        true => sum.interval(nanoseconds_per_tick / 1e9, wall, rest_margin),
        false => Interval::default(), // nothing was saved, and there is no doubt about it
    };
    let interval = if by_threads { of_threads(interval, recorder) } else { interval };
    let is_wide = interval.is_wide(wall);
    let why = match () {
        () if !shared => None,
        () if sum.ticks == 0.0 => Some(Unknown::FewSamples),
        () if is_wide && doubt.is_some() => doubt,
        () if is_wide && even.is_some() => Some(Unknown::Threads),
        () if is_wide && sum.judged < 0.9 * sum.ticks => Some(Unknown::FewSamples),
        () if is_wide => Some(Unknown::Spread),
        () => None,
    };
    Saved {
        interval: why.map_or(Ok(interval), Err),
        known: if sum.ticks > 0.0 { sum.judged / sum.ticks } else { 0.0 },
        shared,
        wall,
    }
}

/// Returns what calls of several threads at once have saved: their mean at each time, with bounds from
/// none of it to all of each, because threads that wait for each other save what one of them does.
fn of_threads(all: Interval, recorder: &Recorder) -> Interval {
    let passed = passed(recorder);
    let [engine, _] = recorder
        .flows()
        .map(|flow| flow.speeds().fold(0.0, |sum, (_, _, ticks)| sum + ticks as f64));
    let at_once = if passed > 0.0 { (engine / passed).max(1.0) } else { 1.0 };
    Interval {
        seconds: all.seconds / at_once,
        low: all.low.min(0.0),
        high: all.high.max(0.0),
        ..all
    }
}

/// Returns the ticks from the first call to the end of the last one.
fn passed(recorder: &Recorder) -> f64 {
    let line = &recorder.timeline;
    line.end.load(Relaxed).saturating_sub(line.start.load(Relaxed)) as f64
}

/// Threads of which each makes about as many calls as the others, at the same time: the run takes as
/// much longer without us as one of them does.
struct Even {
    threads: f64,
    /// Distance of the least or the busiest from the mean, as a part of that.
    spread: f64,
}

impl Even {
    fn of(samples: &Samples) -> Option<Self> {
        let all = samples.threads()?;
        let most = all.clone().fold(0.0, f64::max);
        let (mut threads, mut sum, mut least) = (0.0, 0.0, most);
        for ticks in all.filter(|ticks| *ticks > SLIGHT_THREAD * most) {
            (threads, sum, least) = (threads + 1.0, sum + ticks, ticks.min(least));
        }
        let mean = sum / threads;
        let even = Self { threads, spread: (most / mean - 1.0).max(1.0 - least / mean) };
        (threads > 1.5 && most <= MOST_UNEVEN * least).then_some(even)
    }

    /// Returns the ticks, of calls that take so many in a time that has passed, from which threads are side by
    /// side.
    fn beside(&self, ticks: f64, passed: f64) -> f64 {
        let idle = (1.0 - ticks / self.threads / passed.max(1.0)).max(0.0);
        let others = self.threads as usize - 1;
        let by_chance = 1.0 - (0..others).fold(1.0, |all_idle, _| all_idle * idle);
        ticks * BESIDE.min(by_chance / 2.0)
    }
}

/// Sums over all rows, in ticks.
#[derive(Default)]
struct Sum {
    /// Of shared calls, of those whose row has no sample, and of those whose row has enough.
    ticks: f64,
    unsampled: f64,
    judged: f64,
    saved: f64,
    variance: f64,
    margin: f64,
    /// Only of the upper bound.
    upper_margin: f64,
}

impl Sum {
    fn add(&mut self, row: &Row, size: usize) {
        let [calls, bytes, ticks] = row.shared.get().map(|sum| sum as f64);
        if ticks == 0.0 {
            return;
        }
        self.ticks += ticks;
        let mut room = [0.0; KEPT];
        let is_whole = row.costs(true, &mut room).len() >= ENOUGH_WHOLE;
        let costs = row.costs(is_whole, &mut room);
        if costs.is_empty() {
            self.unsampled += ticks;
            return;
        }
        if costs.len() >= LEAST_SAMPLES {
            self.judged += ticks;
        }
        let (margin, timed) = match is_whole {
            true => (WHOLE_MARGIN, 0.0),
            false => (PART_MARGIN, (costs.len() as f64 / calls).min(1.0)),
        };
        let (mean, variance) = mean_and_variance(costs);
        let mebibytes = bytes / f64::from(1 << 20);
        self.saved += mebibytes * mean - ticks;
        if size == FRESH {
            self.saved += mebibytes * mean * FREEING;
        }
        self.variance += mebibytes * mebibytes * variance * (1.0 - TIMED_PART * timed);
        self.margin += mebibytes * mean * margin;
        self.upper_margin += mebibytes
            * mean
            * match size {
                FRESH => FRESH_MARGIN,
                _ if OWN_CACHE.contains(&size) => OWN_CACHE_MARGIN,
                _ => 0.0,
            };
    }

    /// Returns the sums of the mean thread, with a margin for what others have saved.
    fn of_one_of(&self, even: &Even) -> Self {
        let margin = self.margin + even.spread * self.saved.abs();
        let [ticks, unsampled, judged, saved, margin, upper_margin] =
            [self.ticks, self.unsampled, self.judged, self.saved, margin, self.upper_margin]
                .map(|sum| sum / even.threads);
        let variance = self.variance / (even.threads * even.threads);
        Self { ticks, unsampled, judged, saved, variance, margin, upper_margin }
    }

    fn interval(&self, seconds_per_tick: f64, wall: f64, rest_margin: f64) -> Interval {
        let margin = root(self.variance + self.margin * self.margin) * seconds_per_tick;
        let rest = rest_margin * (wall - self.ticks * seconds_per_tick).max(0.0);
        let [seconds, unsampled, upper_margin, calls] =
            [self.saved, self.unsampled, self.upper_margin, self.ticks]
                .map(|n| n * seconds_per_tick);
        // A call cannot have saved more than it would have taken.
        let most = calls.max(calls + seconds);
        let margin = (margin + rest).max(LEAST_MARGIN * (wall + seconds)).min(most);
        Interval {
            seconds,
            calls,
            low: seconds - margin - unsampled * (1.0 - UNKNOWN.0),
            high: seconds + margin + upper_margin + unsampled * (UNKNOWN.1 - 1.0),
        }
    }
}

/// Returns the winsorised mean (outermost fifths), and the square of the half width of its 95
/// percent confidence interval.
fn mean_and_variance(samples: &mut [f64]) -> (f64, f64) {
    /// Student's factor by degrees of freedom.
    const STUDENT: [f64; 11] = [12.7, 12.7, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23];
    samples.sort_unstable_by(f64::total_cmp);
    let (count, drawn) = (samples.len(), samples.len() / 5);
    let (low, high) = (samples[drawn], samples[count - 1 - drawn]);
    let values = || samples.iter().map(|value| value.clamp(low, high));
    let mean = values().sum::<f64>() / count as f64;
    let squares = values().map(|value| (value - mean) * (value - mean)).sum::<f64>();
    // From the original samples: winsorised ones deviate less.
    let (all, left) = (count as f64, (count - 2 * drawn) as f64);
    let squares = squares * (all / left) * (all / left);
    let assumed = mean * ASSUMED_DEVIATION;
    let freedom = ASSUMED_SAMPLES + all - 1.0;
    let variance = (ASSUMED_SAMPLES * assumed * assumed + squares) / freedom;
    let factor =
        STUDENT.get(ASSUMED_SAMPLES as usize + count - 2 * drawn - 1).copied().unwrap_or(2.1);
    (mean, factor * factor * variance / all)
}

/// Returns the square root, which `core` lacks.
fn root(square: f64) -> f64 {
    if square <= 0.0 {
        return 0.0;
    }
    let mut root = f64::from_bits((square.to_bits() + (1023 << 52)) / 2);
    for _ in 0..4 {
        root = (root + square / root) / 2.0;
    }
    root
}

impl Saved {
    /// `None`: nothing was shared.
    pub fn sentence(&self) -> Option<Sentence<'_>> {
        let saved = self.interval.as_ref().map(|interval| *interval).map_err(|why| why as _);
        self.shared.then_some(Sentence { wall: self.wall, saved })
    }
}

/// The sentence of every report: what a run of `wall` seconds would have taken.
pub struct Sentence<'a> {
    pub wall: f64,
    /// Seconds saved, or why that is not known.
    pub saved: core::result::Result<Interval, &'a dyn Display>,
}

impl Display for Sentence<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        let wall = self.wall;
        let time = Time((wall * 1e9) as u64);
        let Interval { seconds, low, high, .. } = match self.saved {
            Ok(interval) if interval.is_slight(wall) => {
                let copies = Time((interval.calls * 1e9) as u64);
                return write!(out, "no difference to speak of: copies were {copies} of {time}");
            }
            Ok(interval) => interval,
            Err(why) => return write!(out, "took {time}, without adma not known: {why}"),
        };
        write!(out, "took {time}, without adma ")?;
        // All three in one unit.
        let without = |saved: f64| (wall + saved).max(0.0);
        let (unit, scale) = match without(seconds) {
            1.0.. => ("s", 1.0),
            1e-3.. => ("ms", 1e3),
            _ => ("us", 1e6),
        };
        let digits = usize::from(without(seconds) * scale < 100.0);
        let [about, low, high] = [seconds, low, high].map(|saved| without(saved) * scale);
        write!(out, "about {about:.digits$} {unit} ({low:.digits$} to {high:.digits$})")
    }
}

/// Writes what libc has copied, and why: the greatest parts of all bytes, one line each. Only a
/// profile knows of copies below `floor`.
pub fn not_helped(recorder: &Recorder, floor: u64, out: &mut dyn Write) -> Result {
    let small = small_bytes(recorder, floor);
    let all = recorder.total().1.saturating_add(small);
    let mut first = true;
    let mut line = |bytes: u64, out: &mut dyn Write| -> Result {
        let part = 100.0 * bytes as f64 / all as f64;
        if first {
            first = false;
            return write!(out, "  not helped: {part:>3.0} % of the bytes, ");
        }
        write!(out, "              {part:>3.0} %, ")
    };
    let counts = |bytes: u64| bytes > 0 && bytes as f64 >= LEAST_PART * all as f64;
    if counts(small) {
        line(small, out)?;
        writeln!(out, "in copies below {}", Bytes(floor))?;
    }
    let reasons = recorder.reasons().into_iter().filter(|(.., bytes)| counts(*bytes));
    for (why, _, bytes) in reasons.take(MOST_REASONS) {
        line(bytes, out)?;
        writeln!(out, "because {}", why.words())?;
    }
    Ok(())
}

/// Returns the bytes of copies below `floor`, as far as a profile has counted them.
fn small_bytes(recorder: &Recorder, floor: u64) -> u64 {
    let small = recorder.every_size.buckets().filter(|&(_, highest, _)| highest < floor);
    small.fold(0, |sum, (lowest, highest, count)| {
        sum.saturating_add(count.saturating_mul(lowest.midpoint(highest)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Counters;
    use crate::live::{Fallback, Path};
    use crate::samples::FRESH_SHORT;
    use std::string::{String, ToString};
    use std::vec::Vec;

    fn line(saved: Saved) -> String {
        saved.sentence().map_or(String::new(), |sentence| sentence.to_string())
    }

    /// A recorder of shared calls that took a second, and of libc's times for parts of them.
    fn recorder(costs: &[u64], whole: bool) -> Recorder {
        let recorder = Recorder::ZERO;
        recorder.record(Path::Engine, 1 << 30, 1_000_000_000);
        let row = recorder.samples.row(0, 5);
        row.shared.add([1, 1 << 30, 1_000_000_000]);
        costs.iter().for_each(|&ticks| row.note_libc(1 << 20, ticks, whole));
        recorder
    }

    #[test]
    fn time_without_has_bounds_that_follow_the_samples() {
        let nothing = Recorder::ZERO;
        assert_eq!(line(saved(&nothing, 1.0, 1.0)), "");
        assert_eq!(saved(&nothing, 1.0, 1.0).interval, Ok(Interval::default()));
        // Parts of 1 MiB in 2 ms: 1 GiB would have taken two seconds.
        let even = [2_000_000; 8];
        let all = saved(&recorder(&even, false), 1.0, 1.2);
        let Interval { seconds, low, high, .. } = all.interval.unwrap();
        assert!((seconds - 1.048).abs() < 1e-3, "{all:?}");
        assert!((low - 0.666).abs() < 0.02 && (high - 1.43).abs() < 0.02, "{all:?}");
        assert_eq!(line(all), "took 1.2 s, without adma about 2.2 s (1.9 to 2.6)");
        let whole = saved(&recorder(&even, true), 1.0, 1.2).interval.unwrap();
        assert!(whole.high - whole.low <= high - low, "no less than the least: {whole:?}");
        // One sample that was held up makes no difference; a spread does.
        let held_up = [2_000_000, 2_000_000, 2_000_000, 2_000_000, 90_000_000];
        let held_up = saved(&recorder(&held_up, true), 1.0, 1.2).interval.unwrap();
        assert!((held_up.seconds - whole.seconds).abs() < 1e-6, "{held_up:?}");
        let spread = [1_500_000, 1_900_000, 2_000_000, 2_100_000, 2_500_000, 2_000_000];
        let spread = saved(&recorder(&spread, true), 1.0, 3.0).interval.unwrap();
        assert!(spread.high - spread.low > whole.high - whole.low, "{spread:?}");
    }

    #[test]
    fn estimate_from_part_of_each_call_is_narrower_than_from_a_few() {
        let width = |calls: u64| {
            let recorder = recorder(&[1_800_000, 2_000_000, 2_200_000], false);
            recorder.samples.row(0, 5).shared.add([calls - 1, 0, 0]);
            let Interval { low, high, .. } = saved(&recorder, 1.0, 2.0).interval.unwrap();
            high - low
        };
        assert!(width(3) < width(100), "{} {}", width(3), width(100));
    }

    #[test]
    fn bounds_of_a_long_run_come_from_its_calls() {
        // A second of copies that would have taken two, in a run of a hundred.
        let all = saved(&recorder(&[2_000_000; 8], false), 1.0, 100.0);
        let Interval { seconds, low, high, .. } = all.interval.unwrap();
        assert!(low >= seconds - 2.1 && high <= seconds + 2.1, "{all:?}");
        assert_eq!(line(all), "no difference to speak of: copies were 1.0 s of 100 s");
        let half = saved(&recorder(&[2_000_000; 8], false), 1.0, 10.0);
        assert!(line(half).starts_with("took 10.0 s, without adma about 11.0 s ("), "{half:?}");
    }

    #[test]
    fn calls_of_threads_at_once_have_saved_between_nothing_and_all() {
        let threads = recorder(&[2_000_000; 8], true);
        threads.samples.overlapped.store(900_000_000, Relaxed);
        threads.timeline.note(1, 500_000_001, false, 1 << 30); // a second of calls within a half
        let Interval { seconds, low, high, .. } = saved(&threads, 1.0, 4.4).interval.unwrap();
        assert!((seconds - 0.524).abs() < 1e-3, "{seconds}");
        assert!(low <= 0.0 && high > 1.048, "{low} to {high}");
        let alone = saved(&recorder(&[2_000_000; 8], true), 1.0, 3.0).interval.unwrap();
        assert!(alone.low > 0.0, "{alone:?}");
    }

    #[test]
    fn calls_of_even_threads_have_saved_what_one_of_them_has() {
        // Four threads, a second of calls together, which would have taken two.
        let made = |ticks: [u64; 4]| {
            let threads = recorder(&[2_000_000; 8], true);
            threads.samples.overlapped.store(900_000_000, Relaxed);
            ticks.iter().zip(7..).for_each(|(&ticks, id)| threads.samples.note_thread(id, ticks));
            saved(&threads, 1.0, 0.3)
        };
        let Interval { seconds, low, high, calls } = made([250_000_000; 4]).interval.unwrap();
        assert!(
            (seconds - 0.262).abs() < 1e-3 && (calls - 0.25).abs() < 1e-6,
            "{seconds}, {calls}"
        );
        assert!(low > 0.1 && high < 0.4, "{low} to {high}");
        let uneven = made([200_000_000, 300_000_000, 230_000_000, 270_000_000]).interval.unwrap();
        assert!(uneven.low <= low && uneven.high >= high, "{uneven:?}");
        // One that has hardly copied counts for nothing.
        let slight = made([330_000_000, 330_000_000, 330_000_000, 10_000_000]).interval.unwrap();
        assert!((slight.calls - 1.0 / 3.0).abs() < 1e-6, "{slight:?}");
        for uneven in [[300, 300, 300, 100], [350, 250, 200, 200]] {
            let interval = made(uneven.map(|ticks| ticks * 1_000_000)).interval;
            assert_eq!(interval, Err(Unknown::Threads), "{uneven:?}");
        }
    }

    #[test]
    fn even_threads_that_pause_are_side_by_side_where_chance_would_have_it_so() {
        // Four threads, a quarter of a second of calls in each; they meet as often as by chance, or never.
        let made = |seconds: u64, beside: u64| {
            let threads = recorder(&[2_000_000; 8], true);
            threads.timeline.note(1, seconds * 1_000_000_000 + 1, false, 1 << 30);
            threads.samples.overlapped.store(beside, Relaxed);
            (7..11).for_each(|id| threads.samples.note_thread(id, 250_000_000));
            saved(&threads, 1.0, seconds as f64 + 0.1).interval
        };
        let one = made(2, 200_000_000).unwrap();
        assert!((one.calls - 0.25).abs() < 1e-6, "{one:?}");
        let turns = made(2, 1_000_000).unwrap();
        assert!((turns.calls - 1.0).abs() < 1e-6, "{turns:?}");
        assert!(made(1, 200_000_000).is_err(), "half of what chance brings of a quarter is 0.29");
    }

    #[test]
    fn more_threads_than_are_told_apart_are_not_judged() {
        let threads = recorder(&[2_000_000; 8], true);
        threads.samples.overlapped.store(900_000_000, Relaxed);
        (1..34).for_each(|id| threads.samples.note_thread(id << 7, 30_000_000));
        assert_eq!(saved(&threads, 1.0, 0.3).interval, Err(Unknown::Threads));
    }

    #[test]
    fn short_calls_into_fresh_memory_are_compared_with_samples_of_their_own() {
        let pieces = Recorder::ZERO;
        pieces.record(Path::Engine, 1 << 30, 1_000_000_000);
        pieces.samples.row(0, FRESH_SHORT).shared.add([1024, 1 << 30, 1_000_000_000]);
        (0..8).for_each(|_| pieces.samples.row(0, FRESH).note_libc(1 << 20, 2_000_000, false));
        assert_eq!(saved(&pieces, 1.0, 1.2).interval, Err(Unknown::FewSamples));
        (0..4).for_each(|_| pieces.samples.row(0, FRESH_SHORT).note_libc(1 << 20, 1_500_000, true));
        let Interval { seconds, low, high, .. } = saved(&pieces, 1.0, 1.2).interval.unwrap();
        assert!((seconds - 0.536).abs() < 1e-3, "{seconds}");
        assert!(low > 0.0 && high < 1.0, "{low} to {high}");
    }

    #[test]
    fn loss_is_reported_as_less_time_without() {
        let text = line(saved(&recorder(&[500_000; 6], true), 1.0, 1.2));
        assert_eq!(text, "took 1.2 s, without adma about 712 ms (591 to 833)");
    }

    #[test]
    fn answer_is_not_known_where_the_samples_hold_none() {
        let why = |recorder: &Recorder| saved(recorder, 1.0, 1.2).interval.unwrap_err();
        let good = || recorder(&[2_000_000; 8], true);
        let few = recorder(&[2_000_000; 2], false);
        few.samples.row(0, 5).shared.add([99, 0, 0]);
        assert_eq!(why(&few), Unknown::FewSamples);
        assert_eq!(
            line(saved(&few, 1.0, 1.2)),
            "took 1.2 s, without adma not known: too few of its calls were timed by libc"
        );
        let odd = [500_000, 9_000_000, 700_000, 6_000_000, 1_000_000, 8_000_000];
        assert_eq!(why(&recorder(&odd, true)), Unknown::Spread);
        let overlapped = good();
        overlapped.samples.overlapped.store(200_000_000, Relaxed);
        assert_eq!(why(&overlapped), Unknown::Threads);
        let busy = good();
        busy.samples.timed.store(100, Relaxed);
        busy.samples.preempted.store(30, Relaxed);
        assert_eq!(why(&busy), Unknown::Busy);
        let background = good();
        background.samples.background.store(500_000_000, Relaxed);
        assert_eq!(why(&background), Unknown::Background);
        // Next to a long run a few calls that no sample covers make no difference.
        for recorder in [&few, &busy, &overlapped, &background] {
            assert!(saved(recorder, 1.0, 100.0).interval.is_ok());
        }
        assert_eq!(saved(&few, 1.0, 100.0).known, 0.0);
        // The time that preemption takes would have been taken without us, too.
        let preempted = good();
        preempted.samples.timed.store(100, Relaxed);
        preempted.samples.preempted.store(10, Relaxed);
        let [even, preempted] = [good(), preempted].map(|r| saved(&r, 1.0, 1.2).interval.unwrap());
        assert!(preempted.seconds > even.seconds && preempted.high > even.high);
        assert!(preempted.low < preempted.seconds - 0.2, "{preempted:?}");
        assert!((root(9.0) - 3.0).abs() < 1e-6 && (root(1e30) - 1e15).abs() < 1e9);
    }

    #[test]
    fn reasons_are_listed_by_their_bytes_greatest_first() {
        let recorder = Recorder::ZERO;
        recorder.record(Path::Engine, 500_000, 1);
        recorder.record(Path::Libc(Fallback::Overlap), 100_000, 1);
        recorder.record(Path::Libc(Fallback::Learned), 200_000, 1);
        recorder.record(Path::Libc(Fallback::Busy), 1_000, 1); // next to nothing
        for _ in 0..20 {
            recorder.profile(0, 10_000);
        }
        let mut out = String::new();
        not_helped(&recorder, 256 << 10, &mut out).unwrap();
        let lines: Vec<&str> = out.lines().collect();
        assert_eq!(lines.len(), 3, "{out}");
        assert_eq!(lines[0], "  not helped:  20 % of the bytes, in copies below 256 KiB");
        assert_eq!(lines[1].trim(), "20 %, because libc was as fast");
        assert_eq!(lines[2].trim(), "10 %, because source and destination overlap");
    }
}
