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

/// Logs of two processes in one file, made of their JSON.
#[test]
fn hlog_of_two_processes_is_read_by_the_tool_of_hdrhistogram() {
    let folder = Folder::new();
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
        return skip("hlog_of_two_processes_is_read_by_the_tool_of_hdrhistogram", reason);
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
