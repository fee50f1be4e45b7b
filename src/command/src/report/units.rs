//! Numbers as people read them.

use adma_record::units::{Bytes, Time, UNITS};

/// Nanoseconds, and what a thousand of each is called.
const TIMES: [&str; 4] = ["ns", "µs", "ms", "s"];

pub fn bytes(value: u64) -> String {
    Bytes(value).to_string()
}

/// As the library's reports have it, but for the sign that not every terminal has.
pub fn nanoseconds(value: u64) -> String {
    Time(value).to_string().replace("us", "µs")
}

/// Two or three digits, as the saved time deserves.
pub fn seconds(value: f64) -> String {
    match value {
        0.0 => "0 s".to_owned(),
        v if v >= 100.0 => format!("{v:.0} s"),
        v if v >= 1.0 => format!("{v:.1} s"),
        v => nanoseconds((v * 1e9) as u64),
    }
}

/// With a narrow space between thousands.
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let first = (digits.len() - 1) % 3 + 1;
    let rest = digits.as_bytes()[first..].chunks(3).map(String::from_utf8_lossy);
    rest.fold(digits[..first].to_owned(), |sum, three| sum + "\u{202f}" + &three)
}

pub fn percent(part: u64, whole: u64) -> String {
    match 100.0 * part as f64 / whole.max(1) as f64 {
        0.0 => "0 %".to_owned(),
        p if p < 0.1 => "< 0.1 %".to_owned(),
        // Not the whole unless it is the whole.
        p if p > 99.9 && part < whole => "> 99.9 %".to_owned(),
        p if p < 10.0 || p > 90.0 && part < whole => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// Day and minute of the epoch's second, in UTC.
pub fn date(epoch: f64) -> String {
    const LAST: f64 = 253_402_300_799.0; // of the year 9999
    // SAFETY: all zeros is a valid `tm`, which is filled; the year fits.
    let time = unsafe {
        let mut time: libc::tm = std::mem::zeroed();
        libc::gmtime_r(&(epoch.clamp(0.0, LAST) as libc::time_t), &mut time);
        time
    };
    let (year, month, day) = (time.tm_year + 1900, time.tm_mon + 1, time.tm_mday);
    format!("{year}-{month:02}-{day:02} {:02}:{:02} UTC", time.tm_hour, time.tm_min)
}

/// Where an axis has its marks, and what stands there; the last is its end.
pub struct Scale {
    pub end: f64,
    pub marks: Vec<(f64, String)>,
}

impl Scale {
    pub fn counts(most: u64) -> Self {
        Self::new(most as f64, 1.0, true, |value| count(value as u64))
    }

    pub fn bytes(most: u64) -> Self {
        let unit = (most.max(1).ilog2() / 10) as usize;
        let size = (1u64 << (10 * unit)) as f64;
        Self::new(most as f64, size, unit == 0, |value| short(value / size, UNITS[unit]))
    }

    pub fn nanoseconds(most: u64) -> Self {
        let unit = (most.max(1).ilog10() / 3).min(3) as usize;
        let size = 1000f64.powi(unit as i32);
        Self::new(most as f64, size, unit == 0, |value| short(value / size, TIMES[unit]))
    }

    /// In GB/s, that is bytes for a nanosecond.
    pub fn speeds(most: f64) -> Self {
        Self::new(most, 1.0, false, |value| short(value, ""))
    }

    /// About four steps of 1, 2 or 5 times a power of ten `unit`s.
    fn new(most: f64, unit: f64, whole: bool, label: impl Fn(f64) -> String) -> Self {
        let most = (most / unit).max(f64::MIN_POSITIVE);
        let power = 10f64.powf((most / 4.0).log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = step.into_iter().find(|step| most / step <= 5.0).unwrap_or(10.0 * power);
        let step = if whole { step.max(1.0) } else { step };
        let steps = (most / step).ceil().max(1.0) as u32;
        let marks = (0..=steps).map(|n| f64::from(n) * step * unit);
        let marks: Vec<_> = marks.map(|value| (value, label(value))).collect();
        Self { end: f64::from(steps) * step * unit, marks }
    }
}

fn short(value: f64, unit: &str) -> String {
    let rounded = (value * 100.0).round() / 100.0;
    format!("{rounded} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_right() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1536), "1.5 KiB");
        assert_eq!(bytes(u64::MAX), "16.0 EiB");
        assert_eq!(nanoseconds(999), "999 ns");
        assert_eq!(nanoseconds(1500), "1.5 µs");
        assert_eq!(nanoseconds(u64::MAX), "18446744074 s");
        assert_eq!(seconds(1.44), "1.4 s");
        assert_eq!(seconds(0.0123), "12.3 ms");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(percent(1, 3), "33 %");
        assert_eq!(percent(0, 0), "0 %");
        assert_eq!(percent(99_999, 100_000), "> 99.9 %");
        assert_eq!(percent(971, 1000), "97.1 %");
        assert_eq!(percent(7, 7), "100 %");
        assert_eq!(date(0.0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400.0), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_794_779_999.9), "2026-11-15 21:59 UTC");
        assert_eq!(date(f64::INFINITY), "9999-12-31 23:59 UTC");
    }

    #[test]
    fn scales_end_behind_the_greatest_value_in_a_few_steps() {
        for most in [0, 1, 2, 3, 7, 10, 44, 999, 1024, 65_537, 1 << 40, u64::MAX] {
            for scale in [Scale::counts(most), Scale::bytes(most), Scale::nanoseconds(most)] {
                assert!(scale.end >= most as f64, "{most}: {}", scale.end);
                assert!((2..=7).contains(&scale.marks.len()), "{most}: {}", scale.marks.len());
                assert_eq!(scale.marks[0].0, 0.0);
                assert_eq!(scale.marks.last().unwrap().0, scale.end);
            }
        }
        let labels: Vec<_> = Scale::bytes(3 << 30).marks.into_iter().map(|mark| mark.1).collect();
        assert_eq!(labels, ["0 GiB", "1 GiB", "2 GiB", "3 GiB"]);
    }
}
