//! The numbers: that each is right.

use super::*;

#[test]
fn json_names_the_process_and_when_it_ran() {
    let mut command = fixed("stats_copies", "memcpy 1000000 5");
    let before = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    let json = only_report(command.env("ADMA_BACKEND", "threads"));
    let after = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64();
    check(&json);
    assert_eq!(json["exe"], victim("stats_copies").canonicalize().unwrap().to_str().unwrap());
    assert_eq!((&json["backend"], &json["channels"]), (&"threads".into(), &2.into()));
    let (started, seconds) = (json["started"].as_f64().unwrap(), json["seconds"].as_f64().unwrap());
    assert!(started > before - 0.01 && started + seconds < after + 0.01, "{json}");
}

#[test]
fn json_counts_exactly_what_was_copied() {
    let what = "memcpy 65536-3000000 50 memmove 100001 7 overlap 200000 4 mempcpy 70000 3 \
                bcopy 80000 2 wmemcpy 400000 3 memcpy 65535 20";
    let json = only_report(&mut fixed("stats_copies", what));
    check(&json);
    let step = (3_000_000 - 65_536) / 49;
    let ranged: u64 = (0..50).map(|n| 65_536 + n * step).sum();
    let carried = ranged + 7 * 100_001 + 3 * 70_000 + 2 * 80_000 + 3 * 400_000;
    let engine = &json["paths"]["engine"];
    assert_eq!((number(&engine["calls"]), number(&engine["bytes"])), (65, carried));
    assert_eq!(number(&engine["size"]["max"]), 65_536 + 49 * step);
    let libc = &json["paths"]["libc"];
    assert_eq!((number(&libc["calls"]), number(&libc["bytes"])), (4, 800_000));
    assert_eq!(json["fallbacks"]["overlap"], 4);
    assert_eq!(channel_bytes(&json), carried);
}

#[test]
fn json_is_consistent_while_learning() {
    let mut command =
        fixed("stats_copies", "memcpy 1100000 300 memcpy 4000000 60 overlap 1200000 5");
    let json = only_report(command.env_remove("ADMA_MIN_BYTES"));
    check(&json);
    assert_eq!(json["min_bytes"], "auto");
    let sum =
        |what: &str| number(&json["paths"]["engine"][what]) + number(&json["paths"]["libc"][what]);
    assert_eq!(sum("calls"), 365);
    assert_eq!(sum("bytes"), 300 * 1_100_000 + 60 * 4_000_000 + 5 * 1_200_000);
    let reasons = json["fallbacks"].as_object().unwrap().iter();
    let by_reason: u64 =
        reasons.filter(|(why, _)| *why != "fault").map(|(_, count)| number(count)).sum();
    assert_eq!(by_reason, number(&json["paths"]["libc"]["calls"]), "{json}");
    assert!(number(&json["paths"]["engine"]["calls"]) > 0, "shared from the first copy: {json}");
}

#[test]
fn percentiles_are_those_of_the_copies_made() {
    let what = "memcpy 70000 900 memcpy 200000 90 memcpy 1000000 10";
    let json = only_report(&mut fixed("stats_copies", what));
    check(&json);
    let size = &json["paths"]["engine"]["size"];
    let expected = [("p50", 70_000), ("p90", 70_000), ("p99", 200_000), ("p99.9", 1_000_000)];
    for (name, exact) in expected {
        let found = number(&size[name]);
        assert!((exact..=exact + exact / 32).contains(&found), "{name}: {found}, not {exact}");
    }
    assert_eq!(size["max"], 1_000_000);
}

#[test]
fn many_threads_together_are_counted_exactly() {
    for channels in ["1", "3"] {
        let mut command = fixed("stats_threads", "8 300000 200");
        let json = only_report(command.env("ADMA_CHANNELS", channels));
        check(&json);
        let (engine, libc) = (&json["paths"]["engine"], &json["paths"]["libc"]);
        assert_eq!(number(&engine["calls"]) + number(&libc["calls"]), 8 * 200);
        assert_eq!(number(&engine["bytes"]) + number(&libc["bytes"]), 8 * 200 * 300_000);
        assert_eq!(channel_bytes(&json), number(&engine["bytes"]));
    }
}

#[test]
fn bytes_beyond_32_bits_are_counted_exactly() {
    let mut command = fixed("stats_copies", "memcpy 16777216 300");
    let (_, err) = succeed(command.env("ADMA_STATS", "text,json"));
    assert!(err.contains("4.7 GiB"), "{err}");
    let json = parsed(err.lines().last().unwrap());
    check(&json);
    assert_eq!(number(&json["paths"]["engine"]["bytes"]), 300 * 16 * MIB);
    assert_eq!(channel_bytes(&json), 300 * 16 * MIB);
}

#[test]
fn copies_of_the_library_itself_are_not_counted() {
    let json = only_report(fixed("stats_copies", "memcpy 100000 10").env("ADMA_MIN_BYTES", "1"));
    check(&json);
    let (engine, libc) = (&json["paths"]["engine"], &json["paths"]["libc"]);
    assert_eq!((number(&engine["calls"]), number(&libc["calls"])), (10, 0), "{json}");
}
