//! How values are written: sizes, numbers, names and lists of them.
#![forbid(unsafe_code)]

use super::Formats;
use crate::functions::Op;

pub const EVERY_OP: u32 = (1 << Op::ALL.len()) - 1;

pub fn choose<T: Copy>(field: &mut T, names: &[(&str, T)], value: &str) -> bool {
    let found = names.iter().find(|(name, _)| *name == value);
    found.map(|(_, chosen)| *field = *chosen).is_some()
}

pub fn auto_or<T>(field: &mut Option<T>, value: &str, parse: fn(&str) -> Option<T>) -> bool {
    if value == "auto" {
        *field = None;
        return true;
    }
    parse(value).map(|parsed| *field = Some(parsed)).is_some()
}

/// Digits, then nothing or one of K, M, G in either case. Nothing else, no sign, no blank.
pub fn size(text: &str) -> Option<usize> {
    let (digits, shift) = match text.as_bytes().last()?.to_ascii_uppercase() {
        b'K' => (&text[..text.len() - 1], 10),
        b'M' => (&text[..text.len() - 1], 20),
        b'G' => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = whole(digits)?;
    let bytes = number.checked_mul(1 << shift)?;
    (bytes > 0).then_some(bytes)
}

pub fn none_or_size(text: &str) -> Option<usize> {
    if text == "0" { Some(0) } else { size(text) }
}

/// `str::parse` would take a plus sign.
fn whole(digits: &str) -> Option<usize> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

pub fn within(text: &str, least: usize, most: usize) -> Option<usize> {
    whole(text).filter(|number| (least..=most).contains(number))
}

pub fn share(text: &str) -> Option<f32> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let number: f32 = plain.then(|| text.parse().ok())??;
    (0.0..=1.0).contains(&number).then_some(number)
}

pub fn ops(text: &str) -> Option<u32> {
    if text == "all" {
        return Some(EVERY_OP);
    }
    text.split(',').try_fold(0, |ops, name| {
        let op = Op::ALL.iter().find(|op| op.name() == name)?;
        Some(ops | 1 << *op as u32)
    })
}

pub fn formats(text: &str) -> Option<Formats> {
    let mut formats = Formats::default();
    if text == "off" {
        return Some(formats);
    }
    for name in text.split(',') {
        match name {
            "text" => formats.text = true,
            "json" => formats.json = true,
            "hlog" => formats.hlog = true,
            _ => return None,
        }
    }
    Some(formats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_accepts_suffixes_and_nothing_else() {
        let good = [
            ("1", 1),
            ("65536", 65536),
            ("64K", 65536),
            ("64k", 65536),
            ("1M", 1 << 20),
            ("2G", 2 << 30),
        ];
        for (text, bytes) in good {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "0", "K", "64KB", "-1", "+1", " 1", "1 ", "1.5M", "0x10", "١", "64Kk"] {
            assert_eq!(size(text), None, "{text}");
        }
        assert_eq!(size("99999999999999999999"), None);
        assert_eq!(size("18446744073709551615G"), None);
    }
}
