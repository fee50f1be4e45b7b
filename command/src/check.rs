//! `adma check`: what this machine offers.
//!
//! The library itself reports about copies, at the start-up of a process that is our own
//! executable, executed again. Facts about the system are added here.

use crate::say::{self, FAILED, fail};
use crate::{engine, library, moments};
use adma_shared::units::Bytes;
use rustix::process::{Resource, getrlimit};
use serde_json::{Map, Value};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Says what this machine offers: CPUs, the kernel helper, channels, what a copy
/// gains by them, and what the system allows. Settings in the environment count,
/// see --knobs. Or plays moments under the library, such as a signal, a jump, a
/// fork, a filter or a limit during a copy, and compares their ends: ten seconds.
#[derive(clap::Parser, Debug)]
#[command(name = "check", verbatim_doc_comment)]
pub struct CheckOptions {
    /// for programs
    #[arg(long)]
    json: bool,
    /// copy engines here, drivers, and what to type next
    #[arg(long, conflicts_with = "json")]
    engine: bool,
    /// play moments that could break programs, or one (WORD)
    #[arg(long, value_name = "WORD", num_args = 0..=1, require_equals = true,
          default_missing_value = "", conflicts_with_all = ["json", "engine"])]
    moments: Option<String>,
}

pub fn command(json: bool) -> i32 {
    let (text, status) = of_library();
    if status != 0 {
        say::out(format_args!("{text}"));
        return status;
    }
    let rows = of_system();
    if json {
        say::out(format_args!("{}\n", Value::Object(as_json(&text, &rows))));
    } else {
        let rows: String =
            rows.iter().map(|(name, value)| format!("  {name:<12}{value}\n")).collect();
        say::out(format_args!("{text}{rows}"));
    }
    0
}

impl CheckOptions {
    pub fn command(self) -> i32 {
        if self.engine {
            say::out(format_args!("{}", engine::describe(Path::new("/"))));
            return 0;
        }
        if let Some(word) = self.moments {
            return moments::command(&word);
        }
        crate::options::check_environment();
        command(self.json)
    }
}

/// Returns the report of the library, and its exit status.
fn of_library() -> (String, i32) {
    if std::env::var_os("ADMA_CHECK").is_some_and(|value| value == "1") {
        fail(FAILED, "the library could not be loaded");
    }
    let mut again = Command::new(library::myself());
    again.arg0("adma").arg("check").env("ADMA_CHECK", "1").stderr(Stdio::inherit());
    again.env("LD_PRELOAD", library::preloadable(library::find()));
    match again.output() {
        Ok(Output { status, stdout, .. }) => {
            (String::from_utf8_lossy(&stdout).into_owned(), status.code().unwrap_or(FAILED))
        }
        Err(error) => fail(FAILED, format_args!("cannot start again: {error}")),
    }
}

/// Returns what the system allows, as names and values.
fn of_system() -> Vec<(&'static str, String)> {
    let word = |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).ok();
    let kernel = word("/proc/sys/kernel/osrelease").unwrap_or("not known".to_owned());
    let nodes = fs::read_dir("/sys/devices/system/node").map_or(1, |entries| {
        let is_node =
            |name: &str| name.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
        entries.flatten().filter(|entry| entry.file_name().to_str().is_some_and(is_node)).count()
    });
    let plural = if nodes == 1 { "" } else { "s" };
    let huge = word("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = huge.split(['[', ']']).nth(1).unwrap_or("not known");
    let reserved = word("/proc/sys/vm/nr_hugepages").unwrap_or("0".to_owned());
    let unlimited = || "unlimited".to_owned();
    let limit = |which| getrlimit(which).current;
    let threads = limit(Resource::Nproc).map_or_else(unlimited, |number| number.to_string());
    let pinned = limit(Resource::Memlock).map_or_else(unlimited, |n| Bytes(n).to_string());
    vec![
        ("kernel", kernel),
        ("NUMA", format!("{nodes} node{plural}")),
        ("huge pages", format!("transparent: {chosen}; {reserved} reserved")),
        ("limits", format!("{threads} threads (RLIMIT_NPROC), {pinned} pinned (RLIMIT_MEMLOCK)")),
    ]
}

/// Returns a key for each line, its name in lower case; continuation lines are part of the value.
fn as_json(text: &str, rows: &[(&str, String)]) -> Map<String, Value> {
    let mut all: Vec<(String, String)> = Vec::new();
    for line in text.lines().skip(1) {
        let (name, value) = line.split_at(line.len().min(14));
        match (name.trim(), all.last_mut()) {
            ("", Some(last)) => last.1 += &format!(" {}", value.trim()),
            (name, _) => all.push((name.to_owned(), value.trim().to_owned())),
        }
    }
    all.extend(rows.iter().map(|(name, value)| (name.to_string(), value.clone())));
    let key = |name: &str| name.to_lowercase().replace('/', "").replace(' ', "_");
    let mut map: Map<String, Value> =
        all.iter().map(|(name, value)| (key(name), value.as_str().into())).collect();
    let ratio = |(_, value): &(String, String)| {
        value.split(" x libc").next()?.rsplit(' ').next()?.parse::<f64>().ok()
    };
    let gain = all.iter().find(|(name, _)| name == "gain").and_then(ratio);
    map.insert("gain_ratio".to_owned(), gain.map_or(Value::Null, Value::from));
    map.insert("version".to_owned(), env!("CARGO_PKG_VERSION").into());
    map
}
