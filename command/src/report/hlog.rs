//! `adma report --hlog`: the histograms as an interval log for HdrHistogram's own tools.

use super::Process;
use super::figures::distribution;
use hdrhistogram::serialization::V2DeflateSerializer;
use hdrhistogram::serialization::interval_log::{IntervalLogWriterBuilder, Tag};
use std::time::Duration;

pub fn header() -> Vec<u8> {
    concat!("#adma ", env!("CARGO_PKG_VERSION"), ": bytes and nanoseconds\n").into()
}

/// Appends a tagged line for each histogram of a process that is in use.
pub fn append(log: &mut Vec<u8>, process: &Process) {
    let Some(figures) = &process.figures else { return };
    let mut serializer = V2DeflateSerializer::new();
    let mut log = IntervalLogWriterBuilder::new()
        .begin_log_with(log, &mut serializer)
        .expect("a `Vec` takes everything");
    let recorder = &figures.live.recorder;
    let time = |ticks| figures.nanoseconds(ticks);
    let all = [
        ("engine.bytes", distribution(&recorder.engine.sizes, |bytes| bytes)),
        ("engine.ns", distribution(&recorder.engine.ticks, time)),
        ("libc.bytes", distribution(&recorder.libc.sizes, |bytes| bytes)),
        ("libc.ns", distribution(&recorder.libc.ticks, time)),
        ("every.bytes", distribution(&recorder.every_size, |bytes| bytes)),
    ];
    // Absolute times, not offsets: the processes have different starts.
    let [start, length] = [process.started, process.seconds]
        .map(|seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default());
    for (tag, histogram) in all.iter().filter(|(_, histogram)| !histogram.is_empty()) {
        // Fails only for counts that no program reaches.
        let _ = log.write_histogram(histogram, start, length, Tag::new(tag));
    }
}
