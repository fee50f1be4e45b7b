//! The report for HdrHistogram's own tools: an interval log with one tagged line for each
//! histogram, packed as its version 2 ("HISTFAAA…").
//!
//! What is packed is deflated there; ours is one stored block, which every reader takes, for it is
//! short anyhow: runs of empty buckets are one number each. So this allocates nothing.
#![forbid(unsafe_code)]

use super::histogram::Histogram;
use super::snapshot::Snapshot;
use core::fmt::{Error, Result, Write};

type Unit<'a> = &'a dyn Fn(u64) -> u64;

pub fn write(snapshot: &Snapshot<'_>, out: &mut dyn Write) -> Result {
    let recorder = snapshot.recorder;
    let time = |ticks| snapshot.nanoseconds(ticks);
    let histograms: [(&str, &Histogram, Unit<'_>); 5] = [
        ("engine.bytes", &recorder.engine.sizes, &|bytes| bytes),
        ("engine.ns", &recorder.engine.ticks, &time),
        ("libc.bytes", &recorder.libc.sizes, &|bytes| bytes),
        ("libc.ns", &recorder.libc.ticks, &time),
        ("every.bytes", &recorder.every_size, &|bytes| bytes),
    ];
    let (started, seconds) = (snapshot.started.max(0.0), snapshot.seconds.max(0.0));
    writeln!(out, concat!("#adma ", env!("CARGO_PKG_VERSION"), ": bytes and nanoseconds"))?;
    writeln!(out, "#[StartTime: {started:.3} (seconds since epoch)]")?;
    for (name, histogram, unit) in histograms {
        let Some((last, _)) = counts(histogram, unit).last() else { continue };
        // Absolute, not as offsets: a file may hold the logs of several processes, and readers
        // keep the base of the first one.
        write!(out, "Tag={name},{started:.3},{seconds:.3},{:.3},", highest(last) as f64)?;
        let mut text = Base64 { out, waiting: 0, bits: 0 };
        pack(histogram, unit, highest(last), &mut |byte| text.put(byte))?;
        text.end()?;
        out.write_char('\n')?;
    }
    Ok(())
}

/// HdrHistogram's buckets for two significant digits, no coarser than ours: 256 numbers of their
/// own, then 128 buckets for each power of two.
fn index(value: u64) -> u64 {
    let shift = (value | 255).ilog2() - 7;
    128 * u64::from(shift) + (value >> shift)
}

/// The highest value of a bucket.
fn highest(index: u64) -> u64 {
    let shift = (index / 128).saturating_sub(1);
    let next = u128::from(index - 128 * shift + 1) << shift;
    (next - 1) as u64
}

/// Its buckets in use, in order, with their counts.
fn counts(histogram: &Histogram, unit: Unit<'_>) -> impl Iterator<Item = (u64, u64)> {
    let max = histogram.max();
    let mut ours = histogram.buckets().map(move |(lowest, highest, count)| {
        (index(unit(highest.min(max).max(lowest)).max(1)), count)
    });
    let mut next = ours.next();
    core::iter::from_fn(move || {
        let (index, mut count) = next?;
        // Several of ours may be one of theirs, in another unit.
        loop {
            next = ours.next();
            match next {
                Some((same, more)) if same == index => count += more,
                _ => return Some((index, count)),
            }
        }
    })
}

/// The compressed form: its own header, and zlib's around one block.
fn pack(
    histogram: &Histogram,
    unit: Unit<'_>,
    max: u64,
    put: &mut dyn FnMut(u8) -> Result,
) -> Result {
    const COMPRESSED: u32 = 0x1c84_9314;
    const STORED: [u8; 3] = [0x78, 0x01, 1]; // zlib, fastest, and the last block
    let (mut len, mut sums) = (0u32, (1u32, 0u32));
    payload(histogram, unit, max, 0, &mut |_| {
        len += 1;
        Ok(())
    })?;
    let block = u16::try_from(len).map_err(|_| Error)?; // ten times what there can be
    let numbers = [COMPRESSED.to_be_bytes(), (len + 11).to_be_bytes()];
    let lengths = [block.to_le_bytes(), (!block).to_le_bytes()];
    let mut head = numbers.into_iter().flatten().chain(STORED).chain(lengths.into_iter().flatten());
    head.try_for_each(&mut *put)?;
    payload(histogram, unit, max, len - HEADER, &mut |byte| {
        sums.0 = (sums.0 + u32::from(byte)) % 65521;
        sums.1 = (sums.1 + sums.0) % 65521;
        put(byte)
    })?;
    (sums.1 << 16 | sums.0).to_be_bytes().into_iter().try_for_each(put)
}

/// Bytes before the counts.
const HEADER: u32 = 40;

/// What is compressed; `len` bytes of counts are in it.
fn payload(
    histogram: &Histogram,
    unit: Unit<'_>,
    max: u64,
    len: u32,
    put: &mut dyn FnMut(u8) -> Result,
) -> Result {
    const COOKIE: u32 = 0x1c84_9313;
    const DIGITS: u32 = 2;
    let words = [COOKIE, len, 0, DIGITS].map(u32::to_be_bytes);
    let values = [1, max.max(2), 1f64.to_bits()].map(u64::to_be_bytes);
    let mut head = words.into_iter().flatten().chain(values.into_iter().flatten());
    head.try_for_each(&mut *put)?;
    let mut at = 0;
    for (index, count) in counts(histogram, unit) {
        match index - at {
            0 => {}
            1 => number(0, put)?,
            empty => number(-(empty as i64), put)?,
        }
        number(i64::try_from(count).map_err(|_| Error)?, put)?;
        at = index + 1;
    }
    Ok(())
}

/// Seven bits in each byte, the lowest first; a ninth byte has eight. Signs are in the lowest bit.
fn number(value: i64, put: &mut dyn FnMut(u8) -> Result) -> Result {
    let mut rest = (value << 1 ^ value >> 63) as u64;
    for _ in 0..8 {
        if rest < 0x80 {
            break;
        }
        put(rest as u8 | 0x80)?;
        rest >>= 7;
    }
    put(rest as u8)
}

/// Bytes as text, six bits in each character.
struct Base64<'a> {
    out: &'a mut dyn Write,
    waiting: u32,
    bits: u32,
}

impl Base64<'_> {
    fn put(&mut self, byte: u8) -> Result {
        self.waiting = self.waiting << 8 | u32::from(byte);
        self.bits += 8;
        while self.bits >= 6 {
            self.bits -= 6;
            self.digit(self.waiting >> self.bits)?;
        }
        Ok(())
    }

    fn end(&mut self) -> Result {
        match self.bits {
            0 => Ok(()),
            bits => {
                self.digit(self.waiting << (6 - bits))?;
                self.out.write_str(if bits == 2 { "==" } else { "=" })
            }
        }
    }

    fn digit(&mut self, value: u32) -> Result {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        self.out.write_char(char::from(DIGITS[value as usize % 64]))
    }
}

#[cfg(test)]
mod tests {
    use super::super::snapshot::tests::rendered;
    use super::*;
    use hdrhistogram::Histogram as Theirs;
    use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};
    use hdrhistogram::serialization::{Deserializer, Serializer, V2Serializer};

    /// HdrHistogram itself is the oracle: what it packs of the same values, and what it reads.
    #[test]
    fn packed_histograms_are_what_the_crate_packs_and_reads() {
        for (first, factor, unit) in
            [(1u64, 1.0, 1u64), (300, 1.07, 1), (7, 3.0, 3), (u64::MAX >> 1, 1.0, 1)]
        {
            let (ours, mut theirs) = (Histogram::new(), Theirs::<u64>::new(2).unwrap());
            let scaled = |value: u64| value / unit;
            for step in 0..60 {
                let value = (first as f64 * f64::powi(factor, step)) as u64;
                (0..=step % 5 * 50).for_each(|_| ours.record(value));
            }
            for (lowest, highest, count) in ours.buckets() {
                let value = scaled(highest.min(ours.max()).max(lowest)).max(1);
                theirs.record_n(value, count).unwrap();
            }
            let (mut payload_, mut expected) = (Vec::new(), Vec::new());
            let (last, _) = counts(&ours, &scaled).last().unwrap();
            assert_eq!(highest(last), theirs.max());
            let mut len = 0;
            payload(&ours, &scaled, 0, 0, &mut |_| {
                len += 1;
                Ok(())
            })
            .unwrap();
            payload(&ours, &scaled, highest(last), len - HEADER, &mut |byte| {
                payload_.push(byte);
                Ok(())
            })
            .unwrap();
            V2Serializer::new().serialize(&theirs, &mut expected).unwrap();
            // But for the highest value that fits, which is theirs to choose.
            assert_eq!(payload_[..24], expected[..24]);
            assert_eq!(payload_[32..], expected[32..]);
            let mut packed = Vec::new();
            pack(&ours, &scaled, highest(last), &mut |byte| {
                packed.push(byte);
                Ok(())
            })
            .unwrap();
            let read: Theirs<u64> =
                Deserializer::new().deserialize(&mut packed.as_slice()).unwrap();
            assert!(read.iter_recorded().eq(theirs.iter_recorded()));
        }
    }

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
