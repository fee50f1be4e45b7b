//! The reports: that every number is right, in every format, however the process ends, and
//! that a report that cannot be written never harms the program.

mod common;

use common::{
    finish, finish_within, fixed, number, only_report, plain, preloaded, scratch, skip, succeed,
    victim,
};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

const MIB: u64 = 1 << 20;

/// Removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        Self(scratch("reports"))
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(&self.0)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn parsed(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Everything that must hold in every report.
fn check(json: &Value) {
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    for key in ["pid", "channels"] {
        assert!(json[key].is_u64(), "{key}: {json}");
    }
    for key in ["exe", "backend"] {
        assert!(json[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {json}");
    }
    for path in ["engine", "libc"] {
        let flow = &json["paths"][path];
        let (calls, bytes) = (number(&flow["calls"]), number(&flow["bytes"]));
        let size = check_histogram(&flow["size"], calls);
        check_histogram(&flow["latency_ns"], calls);
        assert!(size.0 <= bytes && bytes <= size.1, "{path}: {bytes} bytes are not in {size:?}");
        let longest = number(&flow["latency_ns"]["max"]) as f64;
        assert!(longest <= json["seconds"].as_f64().unwrap() * 1e9, "longer than the process");
    }
    let fallbacks = json["fallbacks"].as_object().unwrap();
    for name in ["overlap", "busy", "refused", "fault"] {
        assert!(fallbacks.contains_key(name), "{name}: {json}");
    }
    // A fault is redone by the caller within a carried copy; all others are calls of libc.
    let reasons = fallbacks.iter().filter(|(name, _)| *name != "fault");
    let reasons: u64 = reasons.map(|(_, count)| number(count)).sum();
    assert_eq!(reasons, number(&json["paths"]["libc"]["calls"]), "{json}");
}

/// Returns the least and the greatest sum its values can have.
fn check_histogram(histogram: &Value, calls: u64) -> (u64, u64) {
    let percentiles = ["p50", "p90", "p99", "p99.9", "max"].map(|name| number(&histogram[name]));
    assert!(percentiles.is_sorted(), "{histogram}");
    let buckets: Vec<[u64; 3]> = histogram["buckets"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bucket| [0, 1, 2].map(|index| number(&bucket[index])))
        .collect();
    assert_eq!(buckets.iter().map(|bucket| bucket[2]).sum::<u64>(), calls, "{histogram}");
    assert!(buckets.iter().all(|&[low, high, count]| low <= high && count > 0), "{histogram}");
    assert!(buckets.windows(2).all(|two| two[0][1] <= two[1][0]), "{histogram}");
    if let Some(&[low, high, _]) = buckets.last() {
        assert!((low..=high).contains(&percentiles[4]), "{histogram}");
    }
    let sum = |edge: usize| buckets.iter().map(|bucket| bucket[edge] * bucket[2]).sum();
    (sum(0), sum(1))
}

fn channel_bytes(json: &Value) -> u64 {
    json["channel_bytes"].as_object().unwrap().values().map(number).sum()
}

// ---- the numbers -------------------------------------------------------------------------

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

// ---- the profile -------------------------------------------------------------------------

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
    // Counted, but small: no path has seen them.
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

#[test]
fn profile_reports_also_where_no_copy_was_large() {
    let mut command = fixed("stats_copies", "memcpy 100 50");
    let (_, err) = succeed(command.env("ADMA_PROFILE", "1").env("ADMA_STATS", "json"));
    assert!(number(&parsed(&err)["profile"]["functions"]["memcpy"]["calls"]) >= 50);
}

// ---- the text ----------------------------------------------------------------------------

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
fn text_with_a_long_program_name_and_many_channels_fits_80_columns() {
    let folder = Folder::new();
    let program = folder.join("a_program_with_quite_a_long_name_of_its_own");
    fs::copy(victim("stats_copies"), &program).unwrap();
    let mut command = preloaded(&program);
    command.args(["memcpy", "1000000", "20"]);
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "64").env("ADMA_STATS", "text");
    let (_, err) = succeed(&mut command);
    narrow(&err);
}

#[test]
fn text_with_several_reasons_and_large_counts_fits_80_columns() {
    // Enough of each to have long numbers; nothing is carried, so it is quick.
    let mut command = fixed("stats_copies", "overlap 70000 1500 memcpy 70000 1500");
    command.env("ADMA_STATS", "text").env("ADMA_BACKEND", "libc");
    let (_, err) = succeed(&mut command);
    assert!(err.contains("overlap 1500") && err.contains("off 1500"), "{err}");
    narrow(&err);
    let mut command = fixed("stats_copies", "overlap 128 10000000 memcpy 128 10000000");
    command.env("ADMA_STATS", "text").env("ADMA_BACKEND", "libc").env("ADMA_MIN_BYTES", "64");
    let (_, err) = succeed(&mut command);
    assert!(err.contains("overlap 10000000") && err.contains("off 10000000"), "{err}");
    narrow(&err);
}

// ---- the HDR log -------------------------------------------------------------------------

const JAR: &str = "/usr/share/java/hdrhistogram.jar";

fn why_no_tool() -> Option<&'static str> {
    if !Path::new(JAR).exists() {
        return Some("no libhdrhistogram-java");
    }
    Command::new("java").arg("-version").output().is_err().then_some("no java")
}

/// What HdrHistogram's own tool reads from one tag: count, and value by percentile.
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

#[test]
fn hlog_is_read_by_the_tool_of_hdrhistogram() {
    const NAME: &str = "hlog_is_read_by_the_tool_of_hdrhistogram";
    if let Some(reason) = why_no_tool() {
        return skip(NAME, reason);
    }
    let folder = Folder::new();
    let log = folder.join("log");
    let what = "memcpy 70000 900 memcpy 200000 90 memcpy 1000000 10 overlap 100000 5";
    let mut command = fixed("stats_copies", what);
    command.env("ADMA_STATS", "hlog").env("ADMA_STATS_FILE", &log);
    succeed(&mut command);

    let (count, values) = processed(&log, "engine.bytes");
    assert_eq!(count, 1000);
    // Buckets are a thirty-second wide, and the log's own a hundredth.
    let near = |found: f64, exact: f64| (exact..exact * 1.05).contains(&found);
    assert!(near(values["0.500000000000"], 70_000.0), "{values:?}");
    assert!(near(values["0.987500000000"], 200_000.0), "{values:?}");
    assert!(near(values["1.000000000000"], 1_000_000.0), "{values:?}");
    assert_eq!(processed(&log, "engine.ns").0, 1000);
    let (count, values) = processed(&log, "libc.bytes");
    assert!(count == 5 && near(values["1.000000000000"], 100_000.0), "{values:?}");
}

#[test]
fn hlog_of_two_processes_in_one_file_is_read_whole() {
    const NAME: &str = "hlog_of_two_processes_in_one_file_is_read_whole";
    if let Some(reason) = why_no_tool() {
        return skip(NAME, reason);
    }
    let folder = Folder::new();
    let log = folder.join("log");
    let mut command = fixed("stats_copies", "memcpy 70000 10");
    command.env("ADMA_STATS", "hlog").env("ADMA_STATS_FILE", &log);
    succeed(&mut command);
    succeed(&mut command);
    assert_eq!(processed(&log, "engine.bytes").0, 20);
}

#[test]
fn hlog_has_a_tagged_line_for_each_histogram_in_use() {
    let mut command = fixed("stats_copies", "memcpy 100000 5");
    let (_, err) = succeed(command.env("ADMA_STATS", "hlog").env("ADMA_PROFILE", "1"));
    let tags: Vec<&str> =
        err.lines().filter_map(|line| line.strip_prefix("Tag=")?.split(',').next()).collect();
    assert_eq!(tags, ["engine.bytes", "engine.ns", "every.bytes"]);
    assert!(err.contains("#[StartTime: "), "{err}");
}

// ---- files -------------------------------------------------------------------------------

#[test]
fn several_formats_get_a_file_each_and_one_format_the_name_as_given() {
    let folder = Folder::new();
    let run = |formats: &str, name: &str| {
        let mut command = fixed("stats_copies", "memcpy 100000 5");
        command.env("ADMA_STATS", formats).env("ADMA_STATS_FILE", folder.join(name));
        let (_, err) = succeed(&mut command);
        assert_eq!(err, "");
    };
    run("text,hlog,json", "all");
    run("json", "one");
    assert_eq!(folder.names(), ["all.hlog", "all.json", "all.text", "one"]);
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    check(&parsed(&read("all.json")));
    check(&parsed(&read("one")));
    assert!(read("all.text").starts_with("adma: stats_copies"));
    assert!(read("all.hlog").contains("Tag=engine.bytes,"));
}

#[test]
fn several_formats_on_stderr_come_one_after_the_other() {
    let mut command = fixed("stats_copies", "memcpy 100000 5");
    let (out, err) = succeed(command.env("ADMA_STATS", "json,text"));
    assert_eq!(out, "500000 bytes copied\n");
    let (last, text) = err.trim_end().rsplit_once('\n').unwrap_or_default();
    assert!(last.starts_with("adma: "), "{err}");
    check(&parsed(text));
}

#[test]
fn file_name_codes_are_expanded() {
    let folder = Folder::new();
    let mut command = fixed("stats_copies", "memcpy 100000 5");
    command.env("ADMA_STATS", "json");
    command.env("ADMA_STATS_FILE", folder.join("%e-%p-100%%-%x-%")).stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(folder.names(), [format!("stats_copies-{}-100%-%x-%", child.id())]);
}

#[test]
fn file_name_without_folder_is_relative_to_the_program() {
    let folder = Folder::new();
    let mut command = fixed("stats_copies", "memcpy 100000 5");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", "here").current_dir(&folder.0);
    succeed(&mut command);
    assert_eq!(folder.names(), ["here"]);
}

#[test]
fn processes_that_share_a_file_lose_nothing_of_each_other() {
    let folder = Folder::new();
    let file = folder.join("all");
    let script = "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do \"$@\" >/dev/null & done; wait";
    let mut command = preloaded("sh");
    command.args(["-c", script, "sh"]).arg(victim("stats_copies"));
    command.args(["memcpy", "65536-2000000", "40"]);
    command.env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2");
    command.env("ADMA_STATS", "json,text").env("ADMA_STATS_FILE", &file);
    let (_, err) = succeed(&mut command);
    assert_eq!(err, "");
    let json = fs::read_to_string(folder.join("all.json")).unwrap();
    let processes: BTreeSet<u64> = json
        .lines()
        .map(|line| {
            let json = parsed(line);
            check(&json);
            number(&json["pid"])
        })
        .collect();
    assert_eq!(processes.len(), 12);
    let text = fs::read_to_string(folder.join("all.text")).unwrap();
    let heads = text.lines().filter(|line| line.starts_with("adma: stats_copies (pid "));
    assert_eq!(heads.count(), 12, "{text}");
}

#[test]
fn long_report_is_written_in_one_piece() {
    const NAME: &str = "long_report_is_written_in_one_piece";
    if Command::new("strace").arg("-V").output().is_err() {
        return skip(NAME, "no strace");
    }
    // Two writes of one report would let another process's report in between.
    let folder = Folder::new();
    let (trace, file) = (folder.join("trace"), folder.join("report"));
    let mut command = plain("strace");
    command.args(["-f", "-e", "trace=write,writev", "-s", "8", "-o"]).arg(&trace);
    command.arg("-E").arg(format!("LD_PRELOAD={}", common::library().display()));
    command.arg(victim("stats_copies"));
    let ranges = [(65, 250), (250, 1000), (1000, 4000), (4000, 16_000), (16_000, 64_000)];
    for (first, last) in ranges.into_iter().chain([(64_000, 256_000), (256_000, 1_000_000)]) {
        let range = format!("{first}-{last}");
        command.args(["memcpy", &range, "150", "overlap", &range, "150"]);
    }
    command.env("ADMA_MIN_BYTES", "64").env("ADMA_CHANNELS", "1").env("ADMA_PROFILE", "1");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", &file);
    let done = finish(&mut command);
    if text(&done.stderr).contains("ptrace") {
        return skip(NAME, "this system does not let us trace");
    }
    assert!(done.status.success(), "{}", text(&done.stderr));
    let report = fs::read_to_string(&file).unwrap();
    check(&parsed(&report));
    assert!(report.len() > 20_000, "too short to tell: {}", report.len());
    let trace = fs::read_to_string(&trace).unwrap();
    let writes: Vec<&str> = trace
        .lines()
        .filter(|line| line.contains("write(") && !line.contains("write(1,"))
        .filter(|line| !line.contains("\"\\0")) // the zeros of a live file
        .collect();
    assert_eq!(writes.len(), 1, "{writes:?}");
}

#[test]
fn file_that_cannot_be_written_costs_one_line_and_nothing_else() {
    let folder = Folder::new();
    fs::create_dir(folder.join("folder")).unwrap();
    fs::write(folder.join("file"), "").unwrap();
    let files = [
        (folder.join("no/such/folder"), "No such file"),
        (folder.join("folder"), "Is a directory"),
        (folder.join("file/below"), "Not a directory"),
        (PathBuf::from("/proc/version"), ""), // not for root either
        (PathBuf::from("/dev/full"), "No space left"),
    ];
    for (file, reason) in files {
        for format in ["json", "text", "hlog"] {
            let mut command = fixed("stats_ends", "return");
            command.env("ADMA_STATS", format).env("ADMA_STATS_FILE", &file);
            let done = finish(&mut command);
            let err = text(&done.stderr);
            assert_eq!(done.status.code(), Some(7), "{file:?}: {err}");
            assert_eq!(err.lines().count(), 1, "{file:?}: {err}");
            assert!(err.starts_with("adma: ADMA_STATS_FILE: "), "{err}");
            assert!(err.contains(file.to_str().unwrap()) && err.contains(reason), "{err}");
            assert_eq!(text(&done.stdout), "");
        }
    }
}

#[test]
fn file_without_room_left_does_not_kill_the_program() {
    // The kernel sends SIGXFSZ for a write beyond RLIMIT_FSIZE.
    let folder = Folder::new();
    let mut command = fixed("stats_ends", "small-file-limit");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("report"));
    let done = finish(&mut command);
    let err = text(&done.stderr);
    assert_eq!((done.status.code(), done.status.signal()), (Some(7), None), "{err}");
    assert!(err.lines().count() == 1 && err.contains("ADMA_STATS_FILE"), "{err}");
}

#[test]
fn pipe_without_reader_does_not_hold_the_program_up() {
    let folder = Folder::new();
    let pipe = folder.join("pipe");
    succeed(plain("mkfifo").arg(&pipe));
    let mut command = fixed("stats_ends", "return");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", &pipe);
    let done = finish_within(&mut command, Duration::from_secs(10));
    assert_eq!(done.status.code(), Some(7));
    assert_eq!(text(&done.stderr).lines().count(), 1);
}

// ---- standard error ----------------------------------------------------------------------

#[test]
fn stderr_whose_reader_has_gone_does_not_kill_the_program() {
    // The program itself writes nothing and would never see SIGPIPE.
    for format in ["text", "json", "hlog"] {
        let script = "( sleep 0.1; \"$@\"; echo $? >&3 ) 2>&1 >/dev/null | :";
        let mut command = plain("sh");
        command.args(["-c", &format!("exec 3>&1; {script}"), "sh", "env"]);
        command.arg(format!("LD_PRELOAD={}", common::library().display()));
        command.arg(victim("stats_ends")).arg("return");
        command.env("ADMA_STATS", format).env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2");
        let (out, _) = succeed(&mut command);
        assert_eq!(out, "7\n", "{format}");
    }
}

#[test]
fn file_the_program_opened_as_its_stderr_holds_only_its_own_bytes() {
    let folder = Folder::new();
    let knobs: [&[(&str, &str)]; 4] = [
        &[("ADMA_STATS", "text,json")],
        &[("ADMA_PROFILE", "1")],
        &[("ADMA_STATS", "json"), ("ADMA_STATS_FILE", "/no/such/folder")],
        &[("ADMA_LOG", "debug")],
    ];
    for manner in ["own-stderr", "own-stderr-by-dup2", "own-stderr-by-freopen"] {
        for knobs in knobs {
            let own = folder.join("own");
            let mut command = fixed("stats_ends", manner);
            let done = finish(command.arg(&own).envs(knobs.iter().copied()));
            assert_eq!(done.status.code(), Some(7), "{manner} {knobs:?}");
            let held = fs::read_to_string(&own).unwrap();
            assert_eq!(held, "a line of the program\n", "{manner} {knobs:?}");
        }
    }
}

#[test]
fn closed_stderr_changes_nothing_of_the_program() {
    // The report still reaches the stderr it started with.
    let done = finish(fixed("stats_ends", "closed-stderr").env("ADMA_STATS", "text"));
    assert_eq!(done.status.code(), Some(7));
    assert!(text(&done.stderr).starts_with("adma: stats_ends"), "{}", text(&done.stderr));
    // Closed from the beginning, and then a file of the program's own gets its number.
    let folder = Folder::new();
    let own = folder.join("own");
    let mut command = preloaded("sh");
    command.args(["-c", "exec \"$@\" 2>&-", "sh"]).arg(victim("stats_ends"));
    command.arg("own-stderr").arg(&own);
    command.env("ADMA_STATS", "text").env("ADMA_MIN_BYTES", "64K").env("ADMA_NONSENSE", "1");
    assert_eq!(finish(&mut command).status.code(), Some(7));
    assert_eq!(fs::read_to_string(&own).unwrap(), "a line of the program\n");
}

// ---- how a process ends ------------------------------------------------------------------

/// Status and JSON reports of a process that ended in this manner.
fn ended(manner: &str) -> (std::process::ExitStatus, Vec<Value>) {
    let folder = Folder::new();
    let mut command = fixed("stats_ends", manner);
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("%p"));
    let done = finish_within(&mut command, Duration::from_secs(30));
    assert_eq!(text(&done.stderr), "", "{manner}");
    let read = |name: &String| parsed(&fs::read_to_string(folder.join(name)).unwrap());
    (done.status, folder.names().iter().map(read).collect())
}

#[test]
fn process_that_ends_by_exit_in_any_way_reports_every_copy() {
    let manners =
        [("return", 7, 1), ("exit", 7, 1), ("exit-in-thread", 7, 1), ("exit-in-handler", 7, 2)];
    for (manner, status, copies) in manners {
        let (ended, reports) = ended(manner);
        assert_eq!(ended.code(), Some(status), "{manner}");
        assert_eq!(reports.len(), 1, "{manner}");
        check(&reports[0]);
        let engine = &reports[0]["paths"]["engine"];
        let found = (number(&engine["calls"]), number(&engine["bytes"]));
        assert_eq!(found, (copies, copies * MIB), "{manner}");
    }
}

#[test]
fn process_whose_main_thread_has_left_reports_in_full() {
    let (ended, reports) = ended("last-thread");
    assert_eq!((ended.code(), reports.len()), (Some(0), 1));
    assert_eq!(reports[0]["paths"]["engine"]["calls"], 2);
    check(&reports[0]);
}

#[test]
fn process_that_exits_while_threads_copy_reports_and_ends() {
    for _ in 0..5 {
        let (ended, reports) = ended("exit-while-copying");
        assert_eq!((ended.code(), reports.len()), (Some(7), 1));
        let calls = |path: &str| number(&reports[0]["paths"][path]["calls"]);
        assert!(calls("engine") + calls("libc") > 0);
    }
}

#[test]
fn process_that_leaves_without_exit_handlers_reports_nevertheless() {
    for (manner, code, signal, copies) in [
        ("_exit", Some(7), None, 1),
        ("_Exit", Some(7), None, 1),
        ("_exit-in-handler", Some(7), None, 1),
        ("quick_exit", Some(7), None, 1),
        ("abort", None, Some(6), 1),
        ("abort-and-jump", Some(7), None, 2),
    ] {
        let (ended, reports) = ended(manner);
        assert_eq!((ended.code(), ended.signal()), (code, signal), "{manner}");
        assert_eq!(reports.len(), 1, "{manner}");
        check(&reports[0]);
        assert_eq!(reports[0]["paths"]["engine"]["calls"], copies, "{manner}");
    }
    let (killed, reports) = ended("kill");
    assert_eq!((killed.signal(), reports.len()), (Some(9), 0), "nothing can be done before that");
}

#[test]
fn program_whose_file_was_replaced_reports_under_its_name() {
    let folder = Folder::new();
    let (program, report) = (folder.join("program"), folder.join("report-%e"));
    fs::copy(victim("stats_ends"), &program).unwrap();
    let mut command = preloaded(&program);
    command.arg("replaced").env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "1");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", report);
    let done = finish(&mut command);
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(7), String::new()));
    let report = parsed(&fs::read_to_string(folder.join("report-program")).unwrap());
    assert_eq!(report["exe"].as_str(), program.to_str());
}

#[test]
fn threads_that_leave_at_once_write_one_report() {
    for _ in 0..5 {
        let (ended, reports) = ended("_exit-while-copying");
        assert_eq!((ended.code(), reports.len()), (Some(7), 1));
    }
}

#[test]
fn children_of_multiprocessing_report() {
    let test = "children_of_multiprocessing_report";
    if !common::found("python3") {
        return skip(test, "python3 is not installed");
    }
    let script = "import multiprocessing as m\n\
        def copy(_): return len(bytes(bytearray(8 << 20)))\n\
        if __name__ == '__main__':\n    \
            with m.get_context('fork').Pool(2) as p: p.map(copy, range(8), 1); p.close(); p.join()";
    let mut command = preloaded("python3");
    command.args(["-c", script]).env("ADMA_MIN_BYTES", "1M").env("ADMA_CHANNELS", "1");
    let reports = common::statistics(&mut command);
    let calls = |path: &str| -> u64 {
        reports.iter().map(|report| number(&report["paths"][path]["calls"])).sum()
    };
    assert!(calls("engine") + calls("libc") >= 8, "{reports:?}");
}

#[test]
fn daemon_reports_its_own_copies_to_the_file() {
    let folder = Folder::new();
    let mut command = fixed("stats_ends", "daemon");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("report"));
    let done = finish(&mut command);
    assert_eq!((done.status.code(), text(&done.stderr)), (Some(0), String::new()));
    // It goes on after the process that we have waited for.
    let report = (0..500).find_map(|_| {
        std::thread::sleep(Duration::from_millis(20));
        let text = fs::read_to_string(folder.join("report")).ok()?;
        text.ends_with('\n').then(|| parsed(&text))
    });
    let json = report.expect("the daemon has not reported");
    check(&json);
    assert_eq!(json["paths"]["engine"]["calls"], 3, "the first copy was the parent's");
}

#[test]
fn forked_children_report_their_own_copies_and_only_if_they_made_any() {
    let folder = Folder::new();
    let mut command = fixed("stats_forks", "2 0 3 0 1");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("%p"));
    let (out, err) = succeed(command.env("ADMA_VERIFY", "1"));
    assert_eq!(err, "");
    let mut expected = BTreeMap::new();
    for line in out.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let copies = words.get(2).map_or(5, |copies| copies.parse().unwrap());
        if copies > 0 {
            expected.insert(words[1].to_owned(), copies);
        }
    }
    assert_eq!(expected.len(), 4);
    let names: Vec<String> = expected.keys().cloned().collect();
    let mut found = folder.names();
    found.sort();
    assert_eq!(found, names);
    for (name, copies) in expected {
        let json = parsed(&fs::read_to_string(folder.join(&name)).unwrap());
        check(&json);
        assert_eq!(json["pid"].to_string(), name);
        let engine = &json["paths"]["engine"];
        assert_eq!((number(&engine["calls"]), number(&engine["bytes"])), (copies, copies * MIB));
        assert_eq!(json["verify"]["checked"], copies);
        assert_eq!(channel_bytes(&json), copies * MIB, "{json}");
    }
}

#[test]
fn forked_child_starts_its_profile_at_zero() {
    let folder = Folder::new();
    let mut command = fixed("stats_forks", "2");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("%p"));
    let (out, _) = succeed(command.env("ADMA_PROFILE", "1"));
    let child = out.lines().last().unwrap().split(' ').nth(1).unwrap();
    let json = parsed(&fs::read_to_string(folder.join(child)).unwrap());
    check(&json);
    assert_eq!(number(&json["profile"]["size"]["max"]), MIB);
    let bytes = number(&json["profile"]["functions"]["memcpy"]["bytes"]);
    assert!((2 * MIB..3 * MIB).contains(&bytes), "{json}");
}

#[test]
fn every_program_of_a_pipeline_reports_for_itself() {
    let folder = Folder::new();
    let mut command = preloaded("sh");
    command.args(["-c", "\"$0\" memcpy 100000 3; true | cat; exec \"$0\" memcpy 200000 4"]);
    command.arg(victim("stats_copies")).env("ADMA_MIN_BYTES", "64K").env("ADMA_CHANNELS", "2");
    command.env("ADMA_STATS", "json").env("ADMA_STATS_FILE", folder.join("%e.%p"));
    succeed(&mut command);
    let mut bytes: Vec<u64> = folder
        .names()
        .iter()
        .map(|name| {
            assert!(name.starts_with("stats_copies."), "{name}");
            let json = parsed(&fs::read_to_string(folder.join(name)).unwrap());
            check(&json);
            number(&json["paths"]["engine"]["bytes"])
        })
        .collect();
    bytes.sort_unstable();
    assert_eq!(bytes, [300_000, 800_000]);
}
