//! Numbers as people read them.

use adma_shared::units::{Bytes, Time};

pub fn bytes(value: u64) -> String {
    Bytes(value).to_string()
}

/// Formats a time as the library does, with a micro sign that not every terminal has.
pub fn nanoseconds(value: u64) -> String {
    Time(value).to_string().replace("us", "µs")
}

/// Formats seconds with two or three digits.
pub fn seconds(value: f64) -> String {
    match value {
        0.0 => "0 s".to_owned(),
        v if v >= 100.0 => format!("{v:.0} s"),
        v if v >= 1.0 => format!("{v:.1} s"),
        v => nanoseconds((v * 1e9) as u64),
    }
}

/// Formats a speed, in bytes per nanosecond.
pub fn speed(value: f64) -> String {
    match value {
        v if v >= 0.95 => format!("{v:.1} GB/s"),
        v if v >= 0.001 => format!("{:.0} MB/s", v * 1e3),
        v => format!("{:.0} kB/s", v * 1e6),
    }
}

/// Formats a count with a narrow space between thousands.
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
        // Never shows the whole for less than the whole.
        p if p > 99.9 && part < whole => "> 99.9 %".to_owned(),
        p if p < 10.0 || p > 90.0 && part < whole => format!("{p:.1} %"),
        p => format!("{p:.0} %"),
    }
}

/// Formats seconds with three digits, as a benchmark measures them.
pub fn timed(value: f64) -> String {
    match value {
        s if s >= 100.0 => format!("{s:.0} s"),
        s if s >= 10.0 => format!("{s:.1} s"),
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 0.1 => format!("{:.0} ms", s * 1e3),
        s if s >= 0.01 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.2} ms", s * 1e3),
    }
}

/// Formats seconds of the epoch as day and minute, in UTC.
pub fn date(epoch: f64) -> String {
    const LAST: f64 = 253_402_300_799.0; // of the year 9999
    let seconds = epoch.clamp(0.0, LAST) as u64;
    let is_leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let (mut days, mut year, mut month) = (seconds / 86_400, 1970, 1);
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    for length in [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    let (hour, minute) = (seconds / 3600 % 24, seconds / 60 % 60);
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02} UTC", days + 1)
}

/// Cuts text to the room there is.
pub fn cut(text: &str, longest: usize) -> String {
    match text.char_indices().nth(longest) {
        Some(_) => text.chars().take(longest - 1).chain(['…']).collect(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short_and_right() {
        assert_eq!(nanoseconds(1500), "1.5 µs");
        assert_eq!(nanoseconds(u64::MAX), "18446744074 s");
        assert_eq!(seconds(1.44), "1.4 s");
        assert_eq!(seconds(0.0123), "12.3 ms");
        let all = [(0.0123, "12.3 ms"), (0.123, "123 ms"), (1.234, "1.23 s"), (123.4, "123 s")];
        all.into_iter().for_each(|(value, text)| assert_eq!(timed(value), text));
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(percent(1, 3), "33 %");
        assert_eq!(percent(0, 0), "0 %");
        assert_eq!(percent(99_999, 100_000), "> 99.9 %");
        assert_eq!(percent(971, 1000), "97.1 %");
        assert_eq!(percent(7, 7), "100 %");
        assert_eq!(date(0.0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400.0), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_735_689_599.0), "2024-12-31 23:59 UTC");
        assert_eq!(date(1_794_779_999.9), "2026-11-15 21:59 UTC");
        assert_eq!(date(f64::INFINITY), "9999-12-31 23:59 UTC");
    }
}
