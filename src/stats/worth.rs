//! What sharing was worth, in words: the time saved, and what could not be helped and why.
//!
//! Pure, and without allocation; the command `adma` compiles this file too.
#![forbid(unsafe_code)]

use super::live::{Fallback, Recorder};
use super::units::{Bytes, Time};
use core::fmt::{Result, Write};
use core::sync::atomic::Ordering::Relaxed;

/// Of less than this part of the shared time nothing is concluded.
const LEAST_KNOWN: f64 = 0.1;
/// Reasons for less than this part of the bytes are not told, and no more reasons than this.
const LEAST_PART: f64 = 0.01;
const MOST_REASONS: usize = 3;

/// Time saved by sharing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saved {
    /// Negative: lost.
    nanoseconds: f64,
    /// Which part of the time of shared copies was compared with libc's.
    pub known: f64,
    shared: bool,
    wall: f64,
}

/// `wall`: how long the process has run, in seconds.
pub fn saved(recorder: &Recorder, nanoseconds_per_tick: f64, wall: f64) -> Saved {
    let worth = &recorder.worth;
    let (shared, judged) = (worth.shared.load(Relaxed), worth.judged.load(Relaxed));
    Saved {
        nanoseconds: worth.saved.load(Relaxed) as f64 * nanoseconds_per_tick,
        known: if shared == 0 { 0.0 } else { judged as f64 / shared as f64 },
        shared: shared > 0 || recorder.engine_bytes() > 0,
        wall,
    }
}

impl Saved {
    /// `None`: not known.
    pub fn seconds(&self) -> Option<f64> {
        let known = self.known >= LEAST_KNOWN || !self.shared;
        known.then_some(self.nanoseconds / 1e9)
    }

    /// One line; none where nothing was shared.
    pub fn write(&self, out: &mut dyn Write) -> Result {
        if !self.shared {
            return Ok(());
        }
        let Some(seconds) = self.seconds() else {
            return writeln!(out, "  time saved: not known, too little was compared with libc");
        };
        let (saved, wall) = (Time((seconds.abs() * 1e9) as u64), Time((self.wall * 1e9) as u64));
        let part = 100.0 * seconds.abs() / self.wall.max(1e-9);
        if seconds.abs() < 1e-6 || part < 0.05 {
            writeln!(out, "  saved about nothing of {wall}")
        } else if part > 100.0 && seconds > 0.0 {
            writeln!(out, "  saved about {saved}; what is left has taken {wall}")
        } else if seconds > 0.0 {
            writeln!(out, "  saved about {saved} of {wall} ({part:.*} %)", decimals(part))
        } else {
            let digits = decimals(part);
            writeln!(out, "  lost about {saved} of {wall} ({part:.digits$} %): it did not pay here")
        }
    }
}

fn decimals(part: f64) -> usize {
    usize::from(part < 10.0)
}

/// What libc has copied, and why: the greatest parts of all bytes, one line each. Of copies below
/// `floor` only a profile knows.
pub fn not_helped(recorder: &Recorder, floor: u64, out: &mut dyn Write) -> Result {
    let large = recorder.engine_bytes().saturating_add(recorder.libc_bytes());
    let small = small_bytes(recorder, floor);
    let all = large.saturating_add(small);
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
    // The greatest first, without a list.
    let mut limit = (u64::MAX, usize::MAX);
    for _ in 0..MOST_REASONS {
        let next = recorder
            .fallback_bytes()
            .map(|(why, bytes)| (bytes, why as usize, why))
            .filter(|&(bytes, number, _)| counts(bytes) && (bytes, number) < limit)
            .max_by_key(|&(bytes, number, _)| (bytes, number));
        let Some((bytes, number, why)) = next else { break };
        limit = (bytes, number);
        line(bytes, out)?;
        writeln!(out, "{}", in_words(why))?;
    }
    Ok(())
}

/// Bytes of copies that were too small to be considered, as far as a profile has counted them.
fn small_bytes(recorder: &Recorder, floor: u64) -> u64 {
    let small = recorder.every_size.buckets().filter(|&(_, highest, _)| highest < floor);
    small.fold(0, |sum, (lowest, highest, count)| {
        sum.saturating_add(count.saturating_mul(lowest.midpoint(highest)))
    })
}

fn in_words(why: Fallback) -> &'static str {
    match why {
        Fallback::Off => "because sharing was switched off",
        Fallback::Overlap => "because source and destination overlap",
        Fallback::Learned => "because libc was as fast",
        Fallback::Compared => "to compare with libc",
        Fallback::Busy => "because other copies had the CPUs",
        Fallback::Refused => "because the system refused help",
        Fallback::OneCpu => "because there was one CPU",
        Fallback::Starting => "because the engine was just starting",
        Fallback::NoChannels => "because every channel has failed",
        Fallback::Unaligned => "because the engine cannot copy such addresses",
        Fallback::Unsupported => "because the engine cannot do such calls",
        Fallback::Early => "because a comparison ended with its first bytes",
        Fallback::RealTime => "because real-time threads do not wait for workers",
        Fallback::BelowMin => "because they are below the threshold set by adma top",
        Fallback::NotCached => "because files were not in the page cache",
    }
}

#[cfg(test)]
mod tests {
    use super::super::live::Path;
    use super::*;

    fn line(saved: Saved) -> String {
        let mut out = String::new();
        saved.write(&mut out).unwrap();
        out
    }

    #[test]
    fn time_is_saved_lost_or_not_known_and_said_so() {
        let recorder = Recorder::new();
        assert_eq!(line(saved(&recorder, 1.0, 1.0)), "");
        recorder.record(Path::Engine, 1 << 20, 1_000_000_000);
        assert!(line(saved(&recorder, 1.0, 10.0)).contains("not known"));
        // A second of copies that would have taken 2.4 s.
        recorder.worth.note(1_000_000_000, Some(1_400_000_000));
        let all = saved(&recorder, 1.0, 9.8);
        assert!((all.seconds().unwrap() - 1.4).abs() < 0.01, "{all:?}");
        assert_eq!(line(all), "  saved about 1.4 s of 9.8 s (14 %)\n");
        recorder.worth.note(8_000_000_000, None);
        assert_eq!(saved(&recorder, 1.0, 9.8).seconds().map(f64::round), Some(1.0));
        recorder.worth.note(8_000_000_000, None);
        assert_eq!(saved(&recorder, 1.0, 9.8).seconds(), None, "too little is known");
        recorder.worth.note(16_000_000_000, Some(-8_000_000_000));
        assert!(line(saved(&recorder, 1.0, 20.0)).starts_with("  lost about 6.6 s of 20.0 s"));
    }

    #[test]
    fn reasons_are_told_by_their_bytes_greatest_first() {
        let recorder = Recorder::new();
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
