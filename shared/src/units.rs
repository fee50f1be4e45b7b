//! Bytes and times as people read them.
#![forbid(unsafe_code)]

use core::fmt::{Display, Formatter, Result, Write};

pub const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

/// A number of bytes as people read it.
pub struct Bytes(pub u64);

impl Display for Bytes {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        let unit = (self.0.max(1).ilog2() / 10) as usize;
        let value = self.0 as f64 / (1u64 << (10 * unit)) as f64;
        let exact = self.0.is_multiple_of(1 << (10 * unit)) || value >= 100.0;
        pad(out, value, if exact { 0 } else { 1 }, UNITS[unit])
    }
}

/// A time in nanoseconds as people read it.
pub struct Time(pub u64);

impl Display for Time {
    fn fmt(&self, out: &mut Formatter<'_>) -> Result {
        let (value, unit) = match self.0 {
            0..1000 => (self.0 as f64, "ns"),
            1000..1_000_000 => (self.0 as f64 / 1e3, "us"),
            1_000_000..1_000_000_000 => (self.0 as f64 / 1e6, "ms"),
            _ => (self.0 as f64 / 1e9, "s"),
        };
        pad(out, value, usize::from(value < 100.0 && unit != "ns"), unit)
    }
}

/// Formats without allocating, honouring the caller's width.
fn pad(out: &mut Formatter<'_>, value: f64, decimals: usize, unit: &str) -> Result {
    struct ShortText([u8; 32], usize);
    impl Write for ShortText {
        fn write_str(&mut self, text: &str) -> Result {
            let room = self.0.get_mut(self.1..self.1 + text.len()).ok_or(core::fmt::Error)?;
            room.copy_from_slice(text.as_bytes());
            self.1 += text.len();
            Ok(())
        }
    }
    let mut short = ShortText([0; 32], 0);
    write!(short, "{value:.decimals$} {unit}")?;
    out.pad(core::str::from_utf8(&short.0[..short.1]).unwrap_or("?"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;
    use std::string::ToString;

    #[test]
    fn units_are_short_and_right() {
        let bytes = [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB")];
        for (value, text) in bytes {
            assert_eq!(Bytes(value).to_string(), text);
        }
        assert_eq!(Bytes(u64::MAX).to_string(), "16.0 EiB");
        let times =
            [(999, "999 ns"), (1500, "1.5 us"), (123_400, "123 us"), (2_000_000_000, "2.0 s")];
        for (value, text) in times {
            assert_eq!(Time(value).to_string(), text);
        }
        assert_eq!(format!("{:>9}|", Bytes(1024)), "    1 KiB|");
    }
}
