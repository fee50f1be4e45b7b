//! The reports: that every number is right, in every format, however the process ends, and
//! that a report that cannot be written never harms the program.

#[path = "../common/mod.rs"]
mod common;
mod ends;
mod files;
mod form;
mod hlog;
mod numbers;
mod profile;

use common::{
    copy_program, finish, fixed, number, only_report, plain, preloaded, scratch, skip, succeed,
    text, victim,
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
