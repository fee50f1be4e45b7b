//! Looks up one value in a JSON object by the names on the way to it.
//!
//! Enough for the shim's reports, which are well-formed; anything else gives None.
#![forbid(unsafe_code)]

/// The text of the value, as it stands there.
pub fn value<'a>(text: &'a str, way: &[&str]) -> Option<&'a str> {
    let text = text.trim_start();
    let Some((name, rest_of_way)) = way.split_first() else {
        return Some(text[..end_of_value(text)?].trim_end());
    };
    let mut rest = text.strip_prefix('{')?.trim_start();
    while let Some(member) = rest.strip_prefix('"') {
        let end = end_of_string(member)?;
        let after = member[end + 1..].trim_start().strip_prefix(':')?.trim_start();
        if member[..end] == **name {
            return value(after, rest_of_way);
        }
        rest = after[end_of_value(after)?..].trim_start();
        rest = rest.strip_prefix(',').unwrap_or(rest).trim_start();
    }
    None
}

pub fn number(text: &str, way: &[&str]) -> Option<u64> {
    value(text, way)?.parse().ok()
}

pub fn string<'a>(text: &'a str, way: &[&str]) -> Option<&'a str> {
    value(text, way)?.strip_prefix('"')?.strip_suffix('"')
}

/// Where the closing quote is; `text` begins after the opening one.
fn end_of_string(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

fn end_of_value(text: &str) -> Option<usize> {
    let (mut depth, mut at) = (0, 0);
    loop {
        match *text.as_bytes().get(at)? {
            b'"' => at += 1 + end_of_string(&text[at + 1..])?,
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return Some(at),
            b'}' | b']' => depth -= 1,
            b',' if depth == 0 => return Some(at),
            _ => {}
        }
        at += 1;
        if at == text.len() && depth == 0 {
            return Some(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"{"version":"0.1.0", "exe":"/bin/a\"}b","backend":"ioat","paths":
        {"engine":{"calls":3,"bytes":4096,"size":{"buckets":[[1,2],[3,4]],"max":9}},
         "libc":{"calls":0,"bytes":1}},"channel_bytes":{"caller":5,"adma-0":7}}"#;

    #[test]
    fn values_are_found_by_their_way() {
        assert_eq!(string(REPORT, &["backend"]), Some("ioat"));
        assert_eq!(number(REPORT, &["paths", "engine", "bytes"]), Some(4096));
        assert_eq!(number(REPORT, &["paths", "engine", "size", "max"]), Some(9));
        assert_eq!(number(REPORT, &["paths", "libc", "bytes"]), Some(1));
        assert_eq!(number(REPORT, &["channel_bytes", "adma-0"]), Some(7));
        assert_eq!(string(REPORT, &["exe"]), Some(r#"/bin/a\"}b"#));
    }

    #[test]
    fn what_is_not_there_is_none() {
        assert_eq!(value(REPORT, &["bytes"]), None);
        assert_eq!(value(REPORT, &["paths", "cpu"]), None);
        assert_eq!(value(REPORT, &["backend", "calls"]), None);
        assert_eq!(value(r#"{"half":"#, &["half"]), None);
        assert_eq!(value("", &["any"]), None);
    }
}
