//! The HDR log: read by the tool of HdrHistogram itself.

use super::*;

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
