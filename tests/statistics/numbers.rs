//! The numbers of a report: that each is right, in every format.

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
    assert!(number(&json["paths"]["engine"]["calls"]) > 0, "shared from the first copy: {json}");
}

#[test]
fn short_copies_into_fresh_memory_are_compared_with_libc() {
    let short = || {
        let mut command = fixed("stats_copies", "fresh 1048576 2000");
        command.env_remove("ADMA_MIN_BYTES").env("ADMA_BACKEND", "threads");
        command
    };
    let json = only_report(&mut short());
    check(&json);
    let by_libc = number(&json["fallbacks"]["compared"]);
    assert!((8..=10).contains(&by_libc), "one in 61, then one in 251: {json}");
    assert!(number(&json["paths"]["engine"]["calls"]) > 1900, "{json}");
    let report = text(&finish(short().env("ADMA_STATS", "text")).stderr);
    assert!(report.contains("without adma") && !report.contains("too few"), "{report}");
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
        let mut command = fixed("trap_copy", "threads 8 300000 200");
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

// ---- the report for people: what it shows, in 80 columns

fn narrow(report: &str) {
    for line in report.lines() {
        assert!(line.chars().count() <= 80, "{} columns: {line}", line.chars().count());
    }
}

#[test]
fn text_shows_paths_reasons_bars_and_percentiles() {
    let mut command = fixed("stats_copies", "memcpy 100000 64 memcpy 1000000 16 overlap 200000 4");
    let (_, err) = succeed(command.env("ADMA_STATS", "text"));
    narrow(&err);
    assert!(err.starts_with("adma: stats_copies (pid "), "{err}");
    for part in ["by the engine", "by libc", "overlap 4", "channel shares", "p50", "p99.9"] {
        assert!(err.contains(part), "{part}: {err}");
    }
    // The most frequent class has the longest bar.
    let bar = |class: &str| {
        let line = err.lines().find(|line| line.trim_start().starts_with(class)).unwrap();
        line.matches(['#', '-']).count() - 1 // the dash of the range
    };
    assert!(bar("64 KiB - 128") > bar("512 KiB - 1"), "{err}");
    assert!(bar("512 KiB - 1") > bar("128 KiB - 256"), "{err}");
    assert!(bar("128 KiB - 256") > 0 && bar("256 KiB - 512") == 0, "{err}");
}

#[test]
fn text_with_long_names_large_counts_and_many_channels_fits_80_columns() {
    let folder = Folder::new("reports");
    let program = folder.join("a_program_with_quite_a_long_name_of_its_own");
    copy_program(victim("stats_copies"), &program);
    // The backend libc carries nothing, so ten million copies take little time.
    let table = [
        ("threads", "64K", "memcpy 1000000 20", "by the engine"),
        ("libc", "64", "overlap 128 10000000 memcpy 128 10000000", "overlap 10000000"),
    ];
    for (backend, min, work, part) in table {
        let mut command = preloaded(&program);
        command.args(work.split(' ')).env("ADMA_CHANNELS", "64").env("ADMA_STATS", "text");
        command.env("ADMA_BACKEND", backend).env("ADMA_MIN_BYTES", min);
        let (_, err) = succeed(&mut command);
        assert!(err.contains(part), "{err}");
        narrow(&err);
    }
}

// ---- the profile: copies of every size, by function

fn profile(arguments: &str) -> Value {
    let mut command = fixed("stats_copies", arguments);
    let json = only_report(command.env("ADMA_PROFILE", "1"));
    check(&json);
    let all = json["profile"]["functions"].as_object().unwrap().values();
    let calls = all.map(|function| number(&function["calls"])).sum();
    check_histogram(&json["profile"]["size"], calls);
    json
}

#[test]
fn profile_counts_small_copies_by_function() {
    let functions = ["memcpy", "memmove", "mempcpy", "bcopy", "wmemcpy", "wmemmove"];
    let run = |count: u64| {
        let what: Vec<String> =
            functions.iter().map(|name| format!("{name} 400 {count}")).collect();
        profile(&what.join(" "))
    };
    let (few, more) = (run(10), run(1010));
    for name in functions {
        let counted = |json: &Value, what: &str| number(&json["profile"]["functions"][name][what]);
        assert!(counted(&few, "calls") >= 10, "{name}: {few}");
        assert_eq!(counted(&more, "calls") - counted(&few, "calls"), 1000, "{name}");
        assert_eq!(counted(&more, "bytes") - counted(&few, "bytes"), 400_000, "{name}");
    }
    // Reported, but small: no path has seen them.
    assert_eq!(more["paths"]["engine"]["calls"], 0);
    assert_eq!(more["paths"]["libc"]["calls"], 0);
}

#[test]
fn profile_counts_the_programs_own_copies_only() {
    let json = profile("memcpy 100 25 memcpy 1000000 10");
    let memcpy = &json["profile"]["functions"]["memcpy"];
    assert_eq!((number(&memcpy["calls"]), number(&memcpy["bytes"])), (35, 10_002_500), "{json}");
}

#[test]
fn profile_without_stats_prints_distribution_and_suggestion() {
    for (what, reason) in
        [("memcpy 100 1000 memmove 5000 100", "no copy reaches"), ("memcpy 2000000 50", "")]
    {
        let mut command = fixed("stats_copies", what);
        command.env_remove("ADMA_MIN_BYTES").env("ADMA_PROFILE", "1");
        let (out, err) = succeed(&mut command);
        assert!(out.ends_with("bytes copied\n") && out.lines().count() == 1);
        let calls = err.lines().find(|line| line.trim_start().starts_with("memcpy ")).unwrap();
        let count: u64 = calls.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(count >= 50, "{err}");
        assert!(err.lines().any(|line| line.ends_with("##")), "no bars: {err}");
        let suggestion = err.lines().last().unwrap();
        assert!(suggestion.trim_start().starts_with("suggested: "), "{err}");
        assert!(suggestion.contains(reason), "{err}");
        assert!(err.lines().all(|line| line.chars().count() <= 80), "{err}");
    }
}

// ---- the HDR log: read by the tool of HdrHistogram itself

const JAR: &str = "/usr/share/java/hdrhistogram.jar";

fn why_no_tool() -> Option<&'static str> {
    if !Path::new(JAR).exists() {
        return Some("no libhdrhistogram-java");
    }
    Command::new("java").arg("-version").output().is_err().then_some("no java")
}

/// Returns what HdrHistogram's own tool reads from one tag: count, and value by percentile.
fn processed(log: &Path, tag: &str) -> (u64, BTreeMap<String, f64>) {
    let mut command = plain("java");
    command.args(["-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp", JAR]);
    command.args(["org.HdrHistogram.HistogramLogProcessor", "-outputValueUnitRatio", "1"]);
    command.args(["-tag", tag, "-i"]).arg(log);
    let (out, err) = succeed(&mut command);
    let count = out.split("Total count    =").nth(1).unwrap_or_else(|| panic!("{out}{err}"));
    let count = count.split(']').next().unwrap().trim().parse().unwrap();
    let values = out
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let value: f64 = words.next()?.parse().ok()?;
            Some((words.next()?.to_owned(), value))
        })
        .collect();
    (count, values)
}

/// Logs of two processes in one file, made of their JSON.
#[test]
fn hlog_of_two_processes_is_read_by_the_tool_of_hdrhistogram() {
    let folder = Folder::new("reports");
    let (json, log) = (folder.join("json"), folder.join("log"));
    let what = "memcpy 70000 900 memcpy 200000 90 memcpy 1000000 10 overlap 100000 5";
    let mut command = fixed("stats_copies", what);
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", &json);
    succeed(command.env("ADMA_PROFILE", "1"));
    succeed(command.env("ADMA_PROFILE", "0"));
    succeed(plain(common::command()).arg("report").arg(&json).arg("--hlog").arg(&log));
    let text = fs::read_to_string(&log).unwrap();
    let tags: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("Tag=")?.split(',').next()).collect();
    let tags_of_one = ["engine.bytes", "engine.ns", "libc.bytes", "libc.ns"];
    assert_eq!(tags, [&tags_of_one[..], &["every.bytes"], &tags_of_one].concat());
    if let Some(reason) = why_no_tool() {
        return skip_this(reason);
    }
    let (count, values) = processed(&log, "engine.bytes");
    assert_eq!(count, 2000);
    // Buckets are a thirty-second wide, and the log's own a hundredth.
    let near = |found: f64, exact: f64| (exact..exact * 1.05).contains(&found);
    assert!(near(values["0.500000000000"], 70_000.0), "{values:?}");
    assert!(near(values["0.987500000000"], 200_000.0), "{values:?}");
    assert!(near(values["1.000000000000"], 1_000_000.0), "{values:?}");
    assert_eq!(processed(&log, "engine.ns").0, 2000);
    let (count, values) = processed(&log, "libc.bytes");
    assert!(count == 10 && near(values["1.000000000000"], 100_000.0), "{values:?}");
}
