//! The page's sections, for one process or for all: each a heading, what it is about, a picture
//! and a table with the same numbers.

use super::chart::{self, Bar, ENGINE, EVERY, LIBC};
use super::figures::{Figures, TimeSaved, distribution};
use super::html::{escaped, table};
use super::units::{Scale, bytes, count, nanoseconds, percent, seconds};
use adma_record::histogram::Histogram;
use adma_record::knobs::OPS;
use adma_record::live::Flow;
use adma_record::tables::PARTS;
use std::cmp::Reverse;
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

/// Bars of one picture; tables have all rows.
const BARS: usize = 17;

/// A page that is being written: whose numbers it shows, and which headings it has.
struct Sections<'a> {
    out: &'a mut String,
    figures: &'a Figures,
    whose: &'a str,
    level: u8,
}

/// What there is to see of one process, or of all.
pub fn all(out: &mut String, figures: &Figures, saved: Option<&TimeSaved>, whose: &str, level: u8) {
    let mut sections = Sections { out, figures, whose, level };
    if let Some(TimeSaved { interval: Ok(interval), of_seconds }) = saved {
        let [without, low, high] = [interval.seconds, interval.low, interval.high]
            .map(|saved| (of_seconds + saved).max(0.0));
        sections.worth(*of_seconds, without, low, high);
    }
    sections.speeds();
    sections.sites();
    sections.timeline();
    if figures.bytes() > 0 {
        sections.sizes();
        sections.times();
        sections.channels();
        sections.fallbacks();
    }
    sections.notes();
    sections.costs();
    sections.counts();
    sections.profile();
}

impl Sections<'_> {
    fn figure(&mut self, title: &str, about: &str, picture: &str, table: &str) {
        let level = self.level;
        let _ = writeln!(
            self.out,
            "<figure><figcaption><h{level}>{}</h{level}><p>{}</p></figcaption>\n\
             <div class=\"pair\">\n<div>{picture}</div>\n<div>{table}</div>\n</div></figure>",
            escaped(title),
            escaped(about)
        );
    }

    /// A heading and a table, if that has rows.
    fn listed(&mut self, title: &str, caption: &str, head: &[&str], rows: &[Vec<String>]) {
        let level = self.level;
        if !rows.is_empty() {
            let table = table(caption, head, rows);
            let _ = writeln!(self.out, "<h{level}>{title}</h{level}>\n{table}");
        }
    }

    /// The run as it was, and as it would have been.
    fn worth(&mut self, with: f64, without: f64, low: f64, high: f64) {
        let rows = [
            ("with adma", with),
            ("without, about", without),
            ("at least", low),
            ("at most", high),
        ];
        let table = table(
            &format!("Wall time of {}", self.whose),
            &["run", "time"],
            &rows.map(|(name, time)| vec![name.to_owned(), seconds(time)]),
        );
        let bar = |(name, time): (&str, f64), class| {
            (name.to_owned(), vec![(time * 1e9, class)], seconds(time))
        };
        let scale = Scale::nanoseconds(((with.max(without) * 1e9) as u64).max(1));
        let bars = [bar(rows[0], "engine"), bar(rows[1], "libc")];
        let picture = chart::rows("Time with and without adma", "wall time", &scale, &bars);
        let about = "Estimated inside the copies themselves: parts of shared copies that the \
                     caller does alone, and whole copies by libc, tell what libc would have taken. \
                     The bounds hold in nine of ten runs.";
        self.figure("Time saved", about, &picture, &table);
    }

    /// GB/s by size class: the two ways beside each other where both had copies of that size.
    fn speeds(&mut self) {
        let recorder = &self.figures.live.recorder;
        let flows = [&recorder.engine, &recorder.libc];
        let speed = |flow: &Flow, class: u32| {
            let found = flow.speeds().find(|speed| speed.0 == class && speed.2 > 0);
            found.map(|(_, bytes, ticks)| bytes as f64 / (ticks as f64 * self.figures.scale))
        };
        let told =
            |speed: Option<f64>| speed.map_or("–".to_owned(), |speed| format!("{speed:.1}"));
        let (mut rows, mut bars, mut most) = (Vec::new(), Vec::new(), 0.1);
        for class in 0..64 {
            let [engine, libc] = flows.map(|flow| speed(flow, class));
            if engine.or(libc).is_none() {
                continue;
            }
            let ratio = engine.zip(libc).map(|(engine, libc)| engine / libc);
            let ratio = ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
            rows.push(vec![range(class), told(engine), told(libc), ratio]);
            for (name, speed) in [("engine", engine), ("libc", libc)] {
                let Some(speed) = speed else { continue };
                most = speed.max(most);
                let (title, end) = (format!("{} {name}", bytes(1 << class)), told(Some(speed)));
                bars.push((title, vec![(speed, name)], format!("{end} GB/s")));
            }
        }
        if bars.is_empty() {
            return;
        }
        let caption = format!("GB/s of large copies of {}, by size", self.whose);
        let table = table(&caption, &["size", "engine", "libc", "ratio"], &rows);
        let picture = chart::rows("Speed by size", "GB/s", &Scale::speeds(most), &bars);
        let about = "How fast large copies were, by their size. Libc's are those that were left to \
                     it, which may be others than those that were carried.";
        self.figure("Speed", about, &picture, &table);
    }

    /// Which code copies.
    fn sites(&mut self) {
        let sites = &self.figures.sites;
        let Some(first) = sites.first() else { return };
        let rows = sites.iter().map(|site| {
            let speed = site.bytes as f64 / site.nanoseconds.max(1) as f64;
            let time = nanoseconds(site.nanoseconds);
            vec![
                site.name.clone(),
                count(site.calls),
                bytes(site.bytes),
                time,
                format!("{speed:.1}"),
            ]
        });
        let table = table(
            &format!("Large calls of {}, by where they come from", self.whose),
            &["module and function", "calls", "bytes", "time", "GB/s"],
            &rows.collect::<Vec<_>>(),
        );
        let bar = |site: &super::figures::Site| -> Bar<'_> {
            (site.name.clone(), vec![(site.bytes as f64, "engine")], bytes(site.bytes))
        };
        let bars: Vec<_> = sites.iter().take(BARS).map(bar).collect();
        let picture = chart::rows("Bytes by call site", "bytes", &Scale::bytes(first.bytes), &bars);
        let about = "The function that called memcpy or its like. Where a module has no symbols, \
                     the place in its file stands instead.";
        self.figure("Who copies", about, &picture, &table);
    }

    /// When the copies were.
    fn timeline(&mut self) {
        let line = &self.figures.live.recorder.timeline;
        let (start, end) = (line.start.load(Relaxed), line.end.load(Relaxed));
        let steps = line.bytes().map(|steps| steps.collect::<Vec<_>>());
        if end <= start || steps[0].is_empty() {
            return;
        }
        let used = steps[0].len();
        let most = (0..used).map(|step| steps[0][step].saturating_add(steps[1][step])).max();
        let length = (end - start) as f64 * self.figures.scale / 1e9;
        let told = format!("From the first to the last large call {}.", seconds(length));
        let values: Vec<Vec<f64>> =
            steps.iter().map(|steps| steps.iter().map(|&bytes| bytes as f64).collect()).collect();
        let scale = Scale::bytes(most.unwrap_or(0));
        let across = line.step() as f64 * used as f64 * self.figures.scale;
        let picture = chart::over_time(&told, &scale, across, &values);
        let row = |(name, steps): (&str, &Vec<u64>)| {
            let busy = steps.iter().filter(|bytes| **bytes > 0).count();
            let all = steps.iter().fold(0u64, |a, b| a.saturating_add(*b));
            vec![name.to_owned(), bytes(all), percent(busy as u64, used as u64)]
        };
        let rows: Vec<_> = ["engine", "libc"].into_iter().zip(&steps).map(row).collect();
        let table = table(&told, &["way", "bytes", "of the time"], &rows);
        let about = "Bytes of large copies by when they began; the axis starts with the first.";
        self.figure("When", about, &picture, &table);
    }

    fn sizes(&mut self) {
        let recorder = &self.figures.live.recorder;
        let (first, classes) = by_class(&[&recorder.engine.sizes, &recorder.libc.sizes]);
        let pick = |pick: fn(&(u64, u64)) -> u64| -> (u64, Vec<Vec<f64>>) {
            let sum = |row: usize| pick(&classes[0][row]).saturating_add(pick(&classes[1][row]));
            let most = (0..classes[0].len()).map(sum).max().unwrap_or(0);
            let values = |all: &Vec<(u64, u64)>| all.iter().map(|c| pick(c) as f64).collect();
            (most, classes.iter().map(values).collect())
        };
        let ((calls, by_calls), (sums, by_bytes)) = (pick(|class| class.0), pick(|class| class.1));
        let rows: Vec<Vec<String>> = (0..classes[0].len())
            .map(|row| {
                let (engine, libc) = (classes[0][row], classes[1][row]);
                let sum = bytes(engine.1.saturating_add(libc.1));
                vec![range(first + row as u32), count(engine.0), count(libc.0), sum]
            })
            .collect();
        let caption = format!("Large copies of {} by size", self.whose);
        let table = table(&caption, &["size", "engine", "libc", "bytes"], &rows);
        let series = [ENGINE, LIBC];
        let words = ["Copies by size and way", "Numbers as in the table.", "copies"];
        let picture = chart::by_size(words, &Scale::counts(calls), &series, first, &by_calls);
        let words = ["Bytes by size and way", "The copies above by their bytes.", "bytes"];
        let below = chart::by_size(words, &Scale::bytes(sums), &series, first, &by_bytes);
        let about = "How large the copies were, and which way they went. Above their number, below \
                     their bytes, which are what takes time.";
        self.figure("Sizes", about, &(picture + &below), &table);
    }

    fn times(&mut self) {
        let flows = self.figures.flows();
        let flows = [(ENGINE, flows[0].1), (LIBC, flows[1].1)].into_iter();
        let flows: Vec<_> = flows
            .filter(|(_, flow)| flow.ticks.count() > 0)
            .map(|(name, flow)| {
                (name, self.figures.times(flow), distribution(&flow.sizes, |bytes| bytes))
            })
            .collect();
        if flows.is_empty() {
            return;
        }
        let head: Vec<&str> =
            std::iter::once("").chain(flows.iter().map(|((name, _), ..)| *name)).collect();
        let (mut times, mut sizes) = (Vec::new(), Vec::new());
        for (part, name, enough) in PARTS {
            let (mut time_row, mut size_row) = (vec![name.to_owned()], vec![name.to_owned()]);
            for (_, times, sizes) in &flows {
                // A percentile of too few copies says nothing.
                let told = |text: String| if times.len() >= enough { text } else { "–".into() };
                time_row.push(told(nanoseconds(times.value_at_quantile(part))));
                size_row.push(told(bytes(sizes.value_at_quantile(part))));
            }
            times.push(time_row);
            sizes.push(size_row);
        }
        let table = table(&format!("Time of a copy, {}", self.whose), &head, &times)
            + &table(&format!("Size of a copy, {}", self.whose), &head, &sizes);
        let told = flows.iter().map(|((name, _), times, _)| {
            let [half, longest] = [0.5, 1.0].map(|part| nanoseconds(times.value_at_quantile(part)));
            format!("Half of the copies by {name} took at most {half}, the longest {longest}.")
        });
        let curves: Vec<_> = flows.iter().map(|(series, times, _)| (*series, times)).collect();
        let told = told.collect::<Vec<_>>().join(" ");
        let picture = chart::curves("Time of copies by percentile", &told, &curves);
        let about = "How long a copy took. The two ways had copies of different sizes: compare the \
                     sizes before the times.";
        self.figure("Latency", about, &picture, &table);
    }

    /// Parts of one sum: a bar and a row with its share for each.
    fn shares(
        &mut self,
        [title, about, caption, what]: [&str; 4],
        parts: &[(String, u64)],
        told: fn(u64) -> String,
        scale: fn(u64) -> Scale,
    ) {
        let all = parts.iter().fold(0u64, |sum, part| sum.saturating_add(part.1));
        if all == 0 {
            return;
        }
        let row =
            |(name, part): &(String, u64)| vec![name.clone(), told(*part), percent(*part, all)];
        let caption = format!("{caption} of {}", self.whose);
        let rows: Vec<_> = parts.iter().map(row).collect();
        let table = table(&caption, &["", what, "share"], &rows);
        let bar = |(name, part): &(String, u64)| {
            let class = if name == "caller" { "dots" } else { "engine" };
            (name.clone(), vec![(*part as f64, class)], percent(*part, all))
        };
        let bars: Vec<_> = parts.iter().take(BARS).map(bar).collect();
        let most = parts.iter().map(|part| part.1).max().unwrap_or(1);
        let picture = chart::rows(title, what, &scale(most), &bars);
        self.figure(title, about, &picture, &table);
    }

    fn channels(&mut self) {
        let about = "Which thread or engine moved the bytes of the copies that were carried: the \
                     program's own thread (caller) does its part of each.";
        let words = ["Channels", about, "Bytes of carried copies", "bytes"];
        self.shares(words, &self.figures.channels(), bytes, Scale::bytes);
    }

    /// Where the time of requests to the kernel helper went.
    fn costs(&mut self) {
        let about = "Where the time of a request went.";
        let words = ["Requests to the kernel helper", about, "Time of the I/OAT requests", "time"];
        self.shares(words, &self.figures.costs, nanoseconds, Scale::nanoseconds);
    }

    fn fallbacks(&mut self) {
        let reasons = self.figures.reasons();
        if reasons.is_empty() {
            return;
        }
        let rows = reasons.iter().map(|(name, words, copies, sum)| {
            vec![name.to_string(), count(*copies), bytes(*sum), words.to_string()]
        });
        let table = table(
            &format!("Large copies of {} that stayed with libc", self.whose),
            &["reason", "copies", "bytes", "in words"],
            &rows.collect::<Vec<_>>(),
        );
        let bars: Vec<_> = reasons
            .iter()
            .take(BARS)
            .map(|(name, _, _, sum)| (name.to_string(), vec![(*sum as f64, "libc")], bytes(*sum)))
            .collect();
        let most = reasons.first().map_or(1, |reason| reason.3);
        let picture = chart::rows("Reasons for libc", "bytes", &Scale::bytes(most), &bars);
        let about = "Why large copies were left to libc. Copies below the threshold are not among \
                     them: they are never looked at.";
        let table = format!("<div class=\"words\">{table}</div>");
        self.figure("Left to libc, and why", about, &picture, &table);
    }

    /// What happens rarely, in sentences.
    fn notes(&mut self) {
        let live = &self.figures.live;
        let notes = [
            (
                &live.recorder.mismatched,
                "copies were wrong and have been repaired; the engine was \
                 switched off. Please report this.",
            ),
            (&live.facts.faults, "copies left a bad page to the caller."),
            (&live.facts.taken_back, "copies did not wait for a worker that did not run."),
        ];
        let notes = notes.map(|(number, what)| (number.load(Relaxed), what));
        if notes.iter().all(|(number, _)| *number == 0) {
            return;
        }
        self.out.push_str("<ul class=\"notes\">\n");
        for (number, what) in notes.into_iter().filter(|(number, _)| *number > 0) {
            let _ = writeln!(self.out, "<li>{} {what}</li>", count(number));
        }
        self.out.push_str("</ul>\n");
    }

    /// Registrations with a card, reads of files and messages: tables without pictures.
    fn counts(&mut self) {
        let figures = self.figures;
        let registrations = figures.registrations.iter().map(|(name, value)| {
            let value = if name == "most_bytes" { bytes(*value) } else { count(*value) };
            vec![name.clone(), value]
        });
        let caption = format!("Registrations of {}", self.whose);
        let (title, rows) = ("Memory registered with the card", registrations.collect::<Vec<_>>());
        self.listed(title, &caption, &["what", "number"], &rows);
        let rows = |counts: &[(&str, u64, u64)]| -> Vec<Vec<String>> {
            let used = counts.iter().filter(|(_, number, _)| *number > 0);
            used.map(|(name, number, sum)| vec![name.to_string(), count(*number), bytes(*sum)])
                .collect()
        };
        let reads = rows(&figures.live.recorder.read_counts());
        self.listed("Reads of files", "Large reads by way", &["way", "reads", "bytes"], &reads);
        let messages = figures.live.messages.told().map_or(Vec::new(), |t| rows(&t.directions));
        let head = ["direction", "messages", "bytes"];
        self.listed("Messages between processes", "Messages by direction", &head, &messages);
    }

    fn profile(&mut self) {
        let recorder = &self.figures.live.recorder;
        if !self.figures.has_profile() {
            return;
        }
        let (first, classes) = by_class(&[&recorder.every_size]);
        let calls: Vec<f64> = classes[0].iter().map(|class| class.0 as f64).collect();
        let most = classes[0].iter().map(|class| class.0).max().unwrap_or(1);
        let rows: Vec<_> = (first..)
            .zip(&classes[0])
            .map(|(class, (copies, sum))| vec![range(class), count(*copies), bytes(*sum)])
            .collect();
        let functions = OPS.iter().zip(&recorder.by_function);
        let functions = functions.map(|(name, calls)| (name, calls.get()));
        let mut functions: Vec<_> = functions.filter(|(_, (calls, _))| *calls > 0).collect();
        functions.sort_by_key(|(_, (_, sum))| Reverse(*sum));
        let functions: Vec<_> = functions
            .into_iter()
            .map(|(name, (calls, sum))| vec![name.to_string(), count(calls), bytes(sum)])
            .collect();
        let caption = format!("Every copy of {} by size", self.whose);
        let tables = table(&caption, &["size", "copies", "bytes"], &rows)
            + &table("By function", &["function", "calls", "bytes"], &functions);
        let words = ["Every copy by size", "Counted because a profile was asked for.", "copies"];
        let picture = chart::by_size(words, &Scale::counts(most), &[EVERY], first, &[calls]);
        let about = "Also the small ones, which are never carried.";
        self.figure("Profile: every copy", about, &picture, &tables);
    }
}

/// The powers of two from the first in use to the last: values and their sum, of each histogram.
fn by_class(histograms: &[&Histogram]) -> (u32, Vec<Vec<(u64, u64)>>) {
    let class = |value: u64| value.max(1).ilog2();
    let used = || histograms.iter().flat_map(|all| all.buckets()).map(|bucket| class(bucket.0));
    let (first, last) = (used().min().unwrap_or(0), used().max().unwrap_or(0));
    let rows = histograms.iter().map(|histogram| {
        let mut row = vec![(0u64, 0u64); (last - first + 1) as usize];
        for (lowest, highest, count) in histogram.buckets() {
            let middle = lowest.midpoint(highest.min(histogram.max().max(lowest)));
            let sum = &mut row[(class(lowest) - first) as usize];
            sum.0 = sum.0.saturating_add(count);
            sum.1 = sum.1.saturating_add(middle.saturating_mul(count));
        }
        row
    });
    (first, rows.collect())
}

fn range(class: u32) -> String {
    let to = 1u64.checked_shl(class + 1).map_or("16 EiB".to_owned(), bytes);
    format!("{} to {to}", bytes(1 << class))
}
