//! Many threads that copy at once, each on memory of its own.
//!
//! libc and shim alternate in whole phases. The threads run on through the end
//! of a phase's window and a copy counts with the part that lies inside, so
//! neither the waking nor the slow finish of a phase is measured.

use crate::heat::Heat;
use crate::measure::{Samples, now, shuffled};
use crate::memory::{CopyFn, Pair, Spot, Walk};
use crate::turns::TIMED_BYTES;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Time from the call to the opening of the window, and after its end.
const LEAD_NS: u64 = 2_000_000;

/// Samples of one thread in one phase that suffice for a median.
const SAMPLES: usize = 4096;

#[derive(Clone, Copy)]
struct Phase {
    copy: CopyFn,
    size: usize,
    start: u64,
    end: u64,
}

/// Bytes that one thread copied inside the window, and the times of its copies.
struct Report {
    bytes: f64,
    times: Vec<f64>,
}

/// Result of one arm in one phase.
pub struct Result {
    /// Bytes in a nanosecond, all threads together.
    pub throughput: f64,
    /// Median time of one copy, in nanoseconds.
    pub time: f64,
}

pub struct Crowd {
    threads: Vec<Sender<Phase>>,
    reports: Receiver<Report>,
}

impl Crowd {
    pub fn new(threads: usize, pair: &Arc<Pair>, size: usize, heat: Heat) -> Self {
        let (sender, reports) = channel();
        let own = pair.len() / threads / 4096 * 4096;
        let hire = |index: usize| {
            let (start, phases) = channel();
            let (pair, sender) = (Arc::clone(pair), sender.clone());
            let len = if heat == Heat::Hot { size } else { own };
            let walk = Walk::new(index * own, len);
            std::thread::spawn(move || work(&pair, walk, phases, sender));
            start
        };
        Crowd { threads: (0..threads).map(hire).collect(), reports }
    }

    /// Runs one phase for each of the two arms, in random order.
    pub fn pair(&self, arms: [CopyFn; 2], size: usize, window_ns: u64) -> [Result; 2] {
        let first = shuffled(2)[0];
        let one = self.phase(arms[first], size, window_ns);
        let other = self.phase(arms[1 - first], size, window_ns);
        if first == 0 { [one, other] } else { [other, one] }
    }

    fn phase(&self, copy: CopyFn, size: usize, window_ns: u64) -> Result {
        let start = now() + LEAD_NS;
        let phase = Phase { copy, size, start, end: start + window_ns };
        for thread in &self.threads {
            thread.send(phase).expect("the thread lives as long as we");
        }
        let mut bytes = 0.0;
        let mut times = Samples::default();
        for _ in &self.threads {
            let report = self.reports.recv().expect("every thread reports");
            bytes += report.bytes;
            report.times.into_iter().for_each(|time| times.push(time));
        }
        // Spinning workers of the shim go to sleep.
        std::thread::sleep(Duration::from_nanos(LEAD_NS));
        Result { throughput: bytes / window_ns as f64, time: times.median() }
    }
}

fn work(pair: &Pair, mut walk: Walk, phases: Receiver<Phase>, reports: Sender<Report>) {
    for phase in phases {
        let batch = (TIMED_BYTES / phase.size).max(1);
        let mut spots: Vec<Spot> = Vec::with_capacity(batch);
        let mut report = Report { bytes: 0.0, times: Vec::with_capacity(SAMPLES) };
        loop {
            spots.clear();
            spots.extend((0..batch).map(|_| walk.step(phase.size, pair)));
            let start = now();
            for spot in &spots {
                // SAFETY: the walk stays inside this thread's part of the pair.
                unsafe { (phase.copy)(spot.dst.cast(), spot.src.cast(), phase.size) };
            }
            let end = now().max(start + 1);
            let inside = end.min(phase.end).saturating_sub(start.max(phase.start));
            let part = inside as f64 / (end - start) as f64;
            report.bytes += part * (batch * phase.size) as f64;
            if inside > 0 && report.times.len() < SAMPLES {
                report.times.push((end - start) as f64 / batch as f64);
            }
            if end >= phase.end {
                break;
            }
        }
        if reports.send(report).is_err() {
            return;
        }
    }
}
