//! Tests with truncated, corrupt or malicious files: an error of one line, or a page that holds
//! only text of theirs.

use super::*;

/// Of real processes: adma --profile --stats json --stats-file python.json python3 pipeline.py
const SAMPLE: &str = include_str!("../../samples/python.json");

fn read_text(text: &[u8]) -> Result<Report, String> {
    let mut report = Report::new(None);
    all_in(text, &mut |process| report.add(process)).map(|()| report.finish())
}

fn page_of(report: &Report) -> String {
    Html.write(&document::of(report))
}

/// Makes both reports, or returns the error; checks that neither does harm.
fn harmless(text: &[u8], what: &str) -> Result<String, String> {
    match read_text(text) {
        Ok(report) => {
            let page = page_of(&report);
            is_sound(&page, what);
            for line in text::of(&report).lines() {
                let columns = line.chars().count();
                assert!(!line.contains(|c: char| c.is_control()), "{what}: {line:?}");
                assert!(columns <= 80, "{what}: {columns} columns: {line}");
            }
            Ok(page)
        }
        Err(why) => {
            assert!(!why.is_empty() && why.len() < 300, "{what}: {why}");
            assert!(!why.contains(|c: char| c.is_control()), "{what}: {why:?}");
            Err(why)
        }
    }
}

fn first() -> serde_json::Value {
    serde_json::from_str(SAMPLE.lines().next().unwrap()).unwrap()
}

/// Checks that every tag is ours and closed; no other attribute, no script, no outside address.
fn is_sound(page: &str, what: &str) {
    let mut open = vec!["html"];
    let body = page.split_once("</head>").expect("a head").1;
    for part in body.split('<').skip(1) {
        let (tag, text) = part.split_once('>').unwrap_or_else(|| panic!("{what}: <{part}"));
        assert!(!text.contains('>'), "{what}: a bare > in {text:?}");
        let name = tag.split(' ').next().unwrap();
        if let Some(name) = name.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{what}: </{name}>");
        } else if !tag.ends_with('/') {
            open.push(name);
        }
        let known = "a b body caption code details div figcaption figure footer h1 h2 \
                     h3 header html i li main p summary table tbody td th thead title tr ul";
        let name = name.trim_start_matches('/').trim_end_matches('/');
        assert!(known.split(' ').any(|known| known == name), "{what}: <{tag}>");
        for (index, outside) in tag.split('"').enumerate() {
            if index % 2 == 0 {
                assert!(!outside.to_lowercase().contains(" on"), "{what}: <{tag}>");
            }
        }
    }
    assert_eq!(open, [""; 0], "{what}: left open");
    assert!(!page.contains("http:") && !page.contains("https:"), "{what}");
}

#[test]
fn sample_is_read_and_shown_whole() {
    let report = read_text(SAMPLE.as_bytes()).unwrap();
    assert!(report.processes.len() > 1);
    let page = harmless(SAMPLE.as_bytes(), "the sample").unwrap();
    for part in ["Sizes", "Latency", "Channels", "Left to libc", "Processes"] {
        assert!(page.contains(part), "{part}");
    }
    let sum: u64 = report.processes.iter().map(|process| process.calls).sum();
    assert_eq!(report.total.live.recorder.total().0, sum);
    let sum: u64 = report.processes.iter().map(|process| process.bytes).sum();
    assert_eq!(report.total.live.recorder.total().1, sum);
}

/// The first process of the sample, with these as `saved`.
fn with_saved(saved: &str) -> String {
    let mut whole = first();
    whole["seconds"] = 8.into();
    whole["saved"] = serde_json::from_str(saved).unwrap();
    whole.to_string()
}

#[test]
fn time_without_is_one_sentence_with_bounds_or_a_reason() {
    let cases = [
        (r#"{"seconds":1.44,"low":1.0,"high":2.0}"#, "about 9.4 s (9.0 to 10.0)"),
        (r#"{"seconds":-0.25,"low":-0.5,"high":0.1}"#, "about 7.8 s (7.5 to 8.1)"),
        (r#"{"seconds":null,"reason":"the machine was busy"}"#, "not known: the machine was busy"),
        (r#"{"seconds":1.0}"#, "not known: told by an older version, without bounds"),
    ];
    for (saved, expected) in cases {
        let text = with_saved(saved);
        let expected = format!("took 8.0 s, without adma {expected}");
        let report = read_text(text.as_bytes()).unwrap();
        assert!(text::of(&report).contains(&format!("\n  {expected}\n")), "{}", text::of(&report));
        let page = harmless(text.as_bytes(), saved).unwrap();
        assert!(page.contains(&format!(">{expected}</p>")), "{saved}");
        let drawn = page.contains("Time with and without adma");
        assert_eq!(drawn, !expected.contains("not known"), "{saved}");
    }
}

#[test]
fn saved_time_without_samples_is_a_dash_in_the_list() {
    let both = with_saved(r#"{"seconds":0.0,"low":-0.5,"high":0.5}"#).repeat(2);
    let told = text::of(&read_text(both.as_bytes()).unwrap());
    let listed = told.lines().skip_while(|line| !line.ends_with("  saved")).skip(1).take(2);
    assert_eq!(listed.filter(|line| line.ends_with("  -")).count(), 2, "{told}");
}

/// Command line, call sites, speeds and the time axis of one report.
#[test]
fn page_shows_callers_times_and_speeds() {
    let mut whole = first();
    whole["command"] = serde_json::json!(["/usr/bin/python3", "train.py", "--fast"]);
    whole["sites"] = serde_json::json!([
        {"module": "/no/such/libfoo.so.1", "offset": 4660, "calls": 3, "bytes": 3u64 << 30, "ns": 9},
        {"module": null, "offset": 7, "calls": 1, "bytes": 5, "ns": 9},
    ]);
    whole["timeline"] = serde_json::json!(
        {"start": 0.5, "end": 2.5, "step": 1.0, "engine": [1u64 << 30, 2u64 << 30], "libc": [0, 5]}
    );
    whole["paths"]["engine"]["by_size"] = serde_json::json!([[24, 8_000_000, 1_000_000]]);
    whole["paths"]["libc"]["by_size"] = serde_json::json!([[24, 4_000_000, 1_000_000]]);
    let text = whole.to_string();
    let report = read_text(text.as_bytes()).unwrap();
    let (page, told) = (harmless(text.as_bytes(), "sites").unwrap(), text::of(&report));
    let page = page.replace('\u{a0}', " ");
    for part in ["libfoo +0x1234", "3 GiB"] {
        assert!(told.contains(part) && page.contains(part), "{part}: {told}");
    }
    for part in
        ["python3 train.py", "8.0 GB/s", "2.00", "Who copies", "When", "code without a file"]
    {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn registrations_with_a_card_are_reported_where_there_is_one() {
    let of = |text: &str| read_text(text.as_bytes()).unwrap();
    let with_card = SAMPLE.replacen(
        "\"backend\"",
        "\"gpu\":{\"registrations\":{\"hits\":4711,\"most_bytes\":4194304}},\"backend\"",
        1,
    );
    let report = of(&with_card);
    assert!(text::of(&report).contains("registered memory"), "{}", text::of(&report));
    for part in ["hits 4711", "most_bytes 4 MiB"] {
        assert!(text::of(&report).contains(part), "{part}: {}", text::of(&report));
    }
    assert!(page_of(&report).contains("Memory registered with the card"));
    let without = of(SAMPLE);
    assert!(!text::of(&without).contains("registered memory"));
    assert!(!page_of(&without).contains("registered with the card"));
}

#[test]
fn text_of_a_program_stays_text() {
    let names = [
        "<script>alert(1)</script>",
        "\\\"><img src=x onerror=alert(1)>",
        "'--><svg/onload=alert(1)>",
        "</title></style><script>x</script>",
        "&lt;script&gt;",
        "\\u001b[31mred\\u0007\\r\\n",
        "\\u202egnp.exe",
        "https://example.org/<b>",
    ];
    let first = SAMPLE.lines().next().unwrap();
    let exe = first.split("\"exe\":\"").nth(1).unwrap().split('"').next().unwrap();
    for name in names {
        let mut texts = vec![first.replacen(exe, name, 1)];
        for key in ["\"threads\"", "\"caller\"", "\"overlap\"", "\"0.1.0\"", "\"learned\""] {
            texts.push(first.replacen(key, &format!("\"{name}\""), 1));
        }
        for text in texts {
            // An address as a text is no address.
            if let Ok(page) = read_text(text.as_bytes()).map(|report| page_of(&report)) {
                is_sound(&page.replace("https://example.org", ""), name);
                assert!(!page.contains("<script") && !page.contains("<img"), "{name}");
            }
            assert_ne!(text, first, "{name}: nothing was replaced");
        }
    }
}

#[test]
fn file_that_is_cut_off_anywhere_is_said_to_be() {
    let first = SAMPLE.lines().next().unwrap();
    for end in 1..first.len() {
        let why = harmless(&first.as_bytes()[..end], &format!("{end} bytes")).unwrap_err();
        assert!(why.contains("cut off"), "{end} bytes: {why}");
    }
    assert_eq!(harmless(b"", "nothing").unwrap_err(), "holds no report");
    assert_eq!(harmless(b" \n\n", "blanks").unwrap_err(), "holds no report");
    // Complete processes before the cut count.
    let mut whole = 0;
    let why =
        all_in(format!("{first}\n{{\"version\":").as_bytes(), &mut |_| whole += 1).unwrap_err();
    assert_eq!(why, "report 2 is cut off: the file ends inside it");
    assert_eq!(whole, 1);
}

/// Each key of the sample, at any depth, with each of these values; null is as good as no key.
#[test]
fn any_value_in_any_place_is_refused_or_shown() {
    const HOSTILE: &str = r#"null|true|-1|-0.0|0|1e308|18446744073709551615|18446744073709551616|""
        |"<b>&\"'"|[]|{}|[[1]]|[[2,1,1]]|[[0,18446744073709551615,18446744073709551615]]
        |{"caller":18446744073709551615,"adma-0":18446744073709551615}
        |{"seconds":-3.5}|{"seconds":1e300}"#;
    let (whole, hostile) = (first(), HOSTILE.split('|').collect::<Vec<_>>());
    let places = pointers(&whole, "");
    assert!(places.len() > 60, "{}", places.len());
    let (mut refused, mut shown) = (0, 0);
    for place in &places {
        for text in hostile.iter().map(|value| with(&whole, place, value)) {
            match harmless(text.as_bytes(), &format!("{place:?}")) {
                Ok(_) => shown += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(refused > 300 && shown > 100, "{refused} refused, {shown} shown");
}

/// Pointers to keys, to the first bucket of each list of them, and to its three numbers.
fn pointers(value: &serde_json::Value, at: &str) -> Vec<String> {
    let below: Vec<(String, &serde_json::Value)> = match value {
        serde_json::Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), v)).collect(),
        serde_json::Value::Array(list) => {
            let few = if list.first().is_some_and(|first| first.is_array()) { 1 } else { 3 };
            list.iter().take(few).enumerate().map(|(i, v)| (i.to_string(), v)).collect()
        }
        _ => return Vec::new(),
    };
    let below = below.into_iter().map(|(name, value)| (format!("{at}/{name}"), value));
    below.flat_map(|(at, value)| [vec![at.clone()], pointers(value, &at)].concat()).collect()
}

fn with(whole: &serde_json::Value, pointer: &str, replacement: &str) -> String {
    let mut changed = whole.clone();
    *changed.pointer_mut(pointer).unwrap() = "REPLACED".into();
    changed.to_string().replace("\"REPLACED\"", replacement)
}

#[test]
fn spoiled_bytes_are_refused_or_shown() {
    let first = SAMPLE.lines().next().unwrap().as_bytes();
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    for round in 0..3000 {
        let mut text = first.to_vec();
        for _ in 0..=random(3) {
            let at = random(text.len());
            match random(4) {
                0 => text[at] = random(256) as u8,
                1 => drop(text.remove(at)),
                2 => text.insert(at, b"{}[]\",:0\\<\xff\0"[random(12)]),
                _ => {
                    let end = (at + random(40)).min(text.len());
                    let piece = text[at..end].to_vec();
                    text.extend(piece);
                }
            }
        }
        let _ = harmless(&text, &format!("round {round}"));
    }
}

#[test]
fn extremes_are_refused_in_words() {
    let deep = |open: &str| open.repeat(100_000);
    let first = SAMPLE.lines().next().unwrap();
    let buckets = format!("[{}[1,1,1]]", "[1,1,1],".repeat(10_000));
    let many: String = (0..1000).map(|n| format!("\"c{n}\":1,")).collect();
    let cases = [
        (deep("["), "not JSON"),
        (deep("{\"a\":"), "not JSON"),
        ("[]".to_owned(), "want an object"),
        ("7".to_owned(), "want an object"),
        ("{}".to_owned(), "not a report of adma"),
        ("large copies  copies  bytes".to_owned(), "not JSON"),
        ("\u{feff}{}".to_owned(), "not JSON"),
        (first.replacen("\"buckets\":[", &format!("\"buckets\":{buckets},\"x\":["), 1), "at most"),
        (
            first.replacen("\"channel_bytes\":{", &format!("\"channel_bytes\":{{{many}"), 1),
            "at most",
        ),
    ];
    for (text, expected) in cases {
        let why = harmless(text.as_bytes(), expected).unwrap_err();
        assert!(why.contains(expected), "{expected}: {why}");
    }
    // A thousand processes.
    let page = harmless(format!("{first}\n").repeat(1000).as_bytes(), "a thousand").unwrap();
    assert!(page.len() < 4 << 20, "{} bytes", page.len());
}
