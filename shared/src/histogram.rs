//! Counts of values in buckets that are never wider than a thirty-second of the value.
//!
//! The layout is HdrHistogram's: linear up to 64, then 32 buckets for each power of two.

use crate::{Counters, absorb_all};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use zerocopy::{FromBytes, IntoBytes};

const HALF: usize = 32;
const BUCKETS: usize = 2 * HALF + 58 * HALF;

#[repr(C)] // lies in live files
#[derive(FromBytes, IntoBytes)]
pub struct Histogram {
    counts: [AtomicU64; BUCKETS],
    max: AtomicU64,
}

// SAFETY: atomic numbers of 64 bits.
unsafe impl Counters for Histogram {}

impl Histogram {
    #[inline]
    pub fn record(&self, value: u64) {
        self.record_n(value, 1);
    }

    #[inline]
    pub fn record_n(&self, value: u64, n: u64) {
        // `bucket` is always inside; `get` because the hook has no panics.
        if let Some(count) = self.counts.get(bucket(value)) {
            count.fetch_add(n, Relaxed);
        }
        if value > self.max.load(Relaxed) {
            self.max.fetch_max(value, Relaxed);
        }
    }

    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.saturating_add(count.load(Relaxed)))
    }

    pub fn max(&self) -> u64 {
        self.max.load(Relaxed)
    }

    /// Returns lowest value, highest value and count of each bucket in use.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u64, u64)> {
        self.counts.iter().enumerate().filter_map(|(index, count)| {
            let count = count.load(Relaxed);
            (count > 0).then(|| (lowest(index), highest(index), count))
        })
    }

    /// Returns the value at or below which `part` of all values lie, as the bucket's upper edge.
    pub fn quantile(&self, part: f64) -> u64 {
        let wanted = rounded_up(self.count() as f64 * part).max(1);
        let mut seen = 0;
        for (_, highest, count) in self.buckets() {
            seen = count.saturating_add(seen);
            if seen >= wanted {
                return highest.min(self.max());
            }
        }
        self.max()
    }

    /// Moves the counts of another one here, and leaves that empty.
    pub fn absorb(&self, from: &Self) {
        absorb_all(&self.counts, &from.counts);
        self.max.fetch_max(from.max.swap(0, Relaxed), Relaxed);
    }
}

/// Returns the ceiling, which `core` lacks.
pub fn rounded_up(number: f64) -> u64 {
    let whole = number as u64;
    whole + u64::from((whole as f64) < number)
}

fn bucket(value: u64) -> usize {
    let exponent = value.max(1).ilog2() as usize;
    if exponent < 6 {
        return value as usize;
    }
    let shift = exponent - 5;
    shift * HALF + (value >> shift) as usize
}

fn lowest(bucket: usize) -> u64 {
    if bucket < 2 * HALF {
        return bucket as u64;
    }
    let shift = bucket / HALF - 1;
    ((bucket - shift * HALF) as u64) << shift
}

fn highest(bucket: usize) -> u64 {
    if bucket + 1 == BUCKETS { u64::MAX } else { lowest(bucket + 1) - 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn buckets_cover_all_values_without_gap() {
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
        for index in 0..BUCKETS {
            assert_eq!(bucket(lowest(index)), index);
            assert_eq!(bucket(highest(index)), index);
            assert!((highest(index) - lowest(index)) as f64 <= lowest(index) as f64 / 32.0);
        }
    }

    #[test]
    fn quantiles_match_a_sorted_list() {
        let histogram = Histogram::ZERO;
        let mut values: Vec<u64> = (0..1000u64).map(|i| i * i * 37 + 5).collect();
        values.iter().for_each(|&value| histogram.record(value));
        values.sort_unstable();
        for part in [0.001f64, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let exact = values[(1000.0 * part).ceil() as usize - 1];
            let found = histogram.quantile(part);
            assert!(found >= exact && found as f64 <= exact as f64 * 1.04, "{part}");
        }
        assert_eq!(histogram.quantile(1.0), histogram.max());
        histogram.clear();
        assert_eq!((histogram.count(), histogram.quantile(0.5), histogram.max()), (0, 0, 0));
        assert_eq!(histogram.buckets().count(), 0);
    }
    /// HdrHistogram's own package needs std; the library writes percentiles, too.
    #[test]
    fn quantiles_agree_with_hdrhistogram_within_a_bucket() {
        let histogram = Histogram::ZERO;
        let mut hdr = hdrhistogram::Histogram::<u64>::new(3).unwrap();
        let mut random = 1u64;
        for count in [1, 2, 7, 100, 5000] {
            for _ in 0..count {
                random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                let value = (random >> 20) >> (random >> 59); // sizes of many powers of two
                histogram.record(value);
                hdr.record(value).unwrap();
            }
            for part in [0.0, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0] {
                let (ours, theirs) = (histogram.quantile(part), hdr.value_at_quantile(part));
                // Upper edges of buckets, which are 1/32 and 1/1024 of the value wide.
                let widths = [theirs / 1024, theirs / 32];
                assert!(
                    (theirs - widths[0]..=theirs + widths[1]).contains(&ours),
                    "{part}: {ours} {theirs}"
                );
            }
        }
    }
}
