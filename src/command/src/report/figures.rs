//! What processes have copied: the numbers of one, and the sum of many.

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
}

/// What the engine was worth.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct TimeSaved {
    pub seconds: f64,
    /// The wall time of the processes that told it.
    pub of_seconds: f64,
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
    }
}

impl Figures {
    pub fn calls(&self) -> u64 {
        self.engine.calls.saturating_add(self.libc.calls)
    }

    pub fn bytes(&self) -> u64 {
        self.engine.bytes.saturating_add(self.libc.bytes)
    }

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
        if let Some(saved) = other.saved {
            let sum = self.saved.get_or_insert_default();
            sum.seconds += saved.seconds;
            sum.of_seconds += saved.of_seconds;
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

/// A reason for libc, in words.
pub fn in_words(reason: &str) -> &'static str {
    match reason {
        "off" => "switched off by ADMA_BACKEND, or because a copy was wrong",
        "overlap" => "source and destination overlap",
        "learned" => "measured: libc is at least as fast for such copies",
        "compared" => "libc's turn, to know how it compares",
        "busy" => "as many copies were under way as there is help for",
        "refused" => "the system refused threads, or what the kernel helper needs",
        "one_cpu" => "there was only one CPU for the process",
        "starting" => "the engine was just being started",
        "no_channels" => "every DMA channel has failed",
        "unaligned" => "the I/OAT engine cannot copy between such addresses",
        "unsupported" => "the DMA engine only copies, and within one process",
        "early" => "comparisons whose first bytes differed",
        "real_time" => "real-time threads do not wait for workers",
        "below_min" => "below the threshold set by adma top",
        "not_cached" => "the file was not in the page cache",
        _ => "",
    }
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

    #[test]
    fn every_reason_of_the_library_has_words() {
        for reason in crate::stats::live::Fallback::ALL {
            assert_ne!(in_words(reason.name()), "", "{reason:?}");
        }
    }
}
