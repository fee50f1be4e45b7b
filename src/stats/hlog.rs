//! The report for HdrHistogram's own tools: an interval log with one tagged line for each
//! histogram. Unlike the other formats this one allocates; it is written at exit only.

use super::histogram::Histogram as Counts;
use super::snapshot::Snapshot;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use std::fmt::{Result, Write};
use std::time::{Duration, UNIX_EPOCH};

pub fn write(snapshot: &Snapshot<'_>, out: &mut dyn Write) -> Result {
    let recorder = snapshot.recorder;
    let time = |ticks| snapshot.nanoseconds(ticks);
    type Unit<'a> = &'a dyn Fn(u64) -> u64;
    let histograms: [(&str, &Counts, Unit<'_>); 5] = [
        ("engine.bytes", &recorder.engine.sizes, &|bytes| bytes),
        ("engine.ns", &recorder.engine.ticks, &time),
        ("libc.bytes", &recorder.libc.sizes, &|bytes| bytes),
        ("libc.ns", &recorder.libc.ticks, &time),
        ("every.bytes", &recorder.every_size, &|bytes| bytes),
    ];
    let mut log = Vec::new();
    // Absolute, not as offsets: a file may hold the logs of several processes, and readers
    // keep the base of the first one.
    let started = Duration::from_secs_f64(snapshot.started.max(0.0));
    let mut serializer = V2DeflateSerializer::new();
    let mut writer = IntervalLogWriterBuilder::new()
        .add_comment(concat!("adma ", env!("CARGO_PKG_VERSION"), ": bytes and nanoseconds"))
        .with_start_time(UNIX_EPOCH + started)
        .begin_log_with(&mut log, &mut serializer)
        .map_err(|_| std::fmt::Error)?;
    for (name, counts, unit) in histograms.into_iter().filter(|(_, counts, _)| counts.count() > 0) {
        let filled = filled(counts, unit).ok_or(std::fmt::Error)?;
        let length = Duration::from_secs_f64(snapshot.seconds.max(0.0));
        writer
            .write_histogram(&filled, started, length, Tag::new(name))
            .map_err(|_| std::fmt::Error)?;
    }
    out.write_str(&String::from_utf8_lossy(&log))
}

/// Two significant digits: no finer than what was recorded.
fn filled(counts: &Counts, unit: impl Fn(u64) -> u64) -> Option<Histogram<u64>> {
    let mut histogram = Histogram::new(2).ok()?;
    for (lowest, highest, count) in counts.buckets() {
        let value = unit(highest.min(counts.max()).max(lowest)).max(1);
        histogram.record_n(value, count).ok()?;
    }
    Some(histogram)
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::tests::rendered;
    use hdrhistogram::serialization::Deserializer;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

    #[test]
    fn log_is_read_back_with_the_same_counts() {
        let log = rendered(true, super::write);
        let mut counts = Vec::new();
        for entry in IntervalLogIterator::new(log.as_bytes()) {
            if let LogEntry::Interval(interval) = entry.unwrap() {
                let tag = interval.tag().unwrap().as_str().to_string();
                let packed = base64_decoded(interval.encoded_histogram());
                let histogram: hdrhistogram::Histogram<u64> =
                    Deserializer::new().deserialize(&mut packed.as_slice()).unwrap();
                counts.push((tag, histogram.len()));
            }
        }
        let expected =
            [("engine.bytes", 100), ("engine.ns", 100), ("libc.bytes", 2), ("libc.ns", 2)];
        for (tag, count) in expected {
            assert!(counts.contains(&(tag.to_string(), count)), "{tag}: {counts:?}");
        }
        assert!(counts.contains(&("every.bytes".to_string(), 7)));
    }

    fn base64_decoded(text: &str) -> Vec<u8> {
        let digit = |byte: u8| match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            _ => 63,
        };
        let bits: Vec<u8> = text.bytes().filter(|&byte| byte != b'=').map(digit).collect();
        let group = |four: &[u8]| {
            let value = four.iter().fold(0u32, |all, &six| all << 6 | u32::from(six))
                << (6 * (4 - four.len()));
            value.to_be_bytes()[1..four.len()].to_vec()
        };
        bits.chunks(4).flat_map(group).collect()
    }
}
