//! Targets of the project, checked against the figures of this run.

use crate::out::Figures;

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}
use Bound::{AtLeast, AtMost};

/// Targets: text, pattern of figures (fields between dots; `*` is any, `|` separates choices), and
/// bound.
#[rustfmt::skip]
const TARGETS: &[(&str, &str, Bound)] = &[
    ("1M..64M cold in a row, x libc", "copy.cold.1M|2M|4M|8M|16M|32M|64M.row_libc", AtLeast(1.7)),
    ("1M..64M cold in a row, x ceiling", "copy.cold.1M|2M|4M|8M|16M|32M|64M.row_ceiling", AtLeast(0.9)),
    ("256K cold in a row, x libc", "copy.cold.256K.row_libc", AtLeast(1.5)),
    ("1M..64M cold after pause, x libc", "copy.cold.1M|2M|4M|8M|16M|32M|64M.pause_libc", AtLeast(1.7)),
    ("any size in a row, x libc", "copy.*.*.row_libc", AtLeast(0.97)),
    ("any size after pause, x libc", "copy.*.*.pause_libc", AtLeast(0.97)),
    ("first ten copies, x steady", "first.*.*.of_steady", AtLeast(0.85)),
    ("processes that fork, x libc's time", "first.short.prefork|prefork-8|turn|turn-1M|turn-8.ratio", AtMost(1.03)),
    ("executed for one copy, x empty library", "first.short.exec-once.to_empty", AtMost(1.03)),
    ("first copy of 1M, us more than libc", "first.short.first-1M.more_us", AtMost(100.0)),
    ("into fresh memory, x libc", "fresh.all.*.libc", AtLeast(2.5)),
    ("into fresh memory, one CPU, x libc", "fresh.one.*.libc", AtLeast(1.2)),
    ("load from 4K, throughput, x libc", "load.*.*.4K|8K|16K|32K|64K|128K|256K|512K|1M|2M|4M|8M|16M|32M|64M.throughput", AtLeast(0.97)),
    ("load from 4K, median time, x libc", "load.*.*.4K|8K|16K|32K|64K|128K|256K|512K|1M|2M|4M|8M|16M|32M|64M.time", AtLeast(0.97)),
    ("load 1K and 2K, x libc", "load.*.*.1K|2K.time|throughput", AtLeast(0.97)),
    ("adma_icopy of 1M, us", "async.start.awake|asleep.us", AtMost(3.0)),
    ("overlap of 4M", "async.overlap.4M.part", AtLeast(0.9)),
    ("128 outstanding, x adma_copy", "async.window.*.blocking", AtLeast(0.95)),
    ("reads from 256M, x libc", "reads.read|readinto|np_load.256M|1024M.ratio", AtLeast(1.7)),
    ("reads of 1M, x libc", "reads.*.1M.ratio", AtLeast(0.98)),
    ("reads, cold, x libc", "reads.cold.*.ratio", AtLeast(0.97)),
    ("numpy jobs, x best other knobs", "programs.numpy-copyto|numpy-copy|numpy-mapped|numpy-roll|numpy-concatenate.of_best", AtLeast(0.97)),
    ("any program, whole run", "programs.*.whole", AtLeast(0.97)),
    ("CPU time where nothing is won", "programs.*.cpu_without_gain", AtMost(1.15)),
    ("engine share, same job", "programs.*.engine_spread", AtMost(0.1)),
    ("small, more ns", "small.*.more_ns", AtMost(1.0)),
    ("messages 64K-64M, x best", "ipc.*.best", AtLeast(1.5)),
    ("messages 16M and 64M, x best", "ipc.16M|64M.best", AtLeast(4.0)),
    ("messages 4M, x best", "ipc.4M.best", AtLeast(2.0)),
    ("messages by adma_alloc, x best", "ipc.*.blocks", AtLeast(1.5)),
    ("messages to 4K, x futex", "ipc.*.small", AtMost(1.2)),
    ("start of true, x no library", "start.true.ratio", AtMost(1.10)),
    ("start of true, x empty library", "start.true.to_empty", AtMost(1.05)),
];

/// Verdict about a target: the worst figure that it covers.
pub struct Verdict {
    pub text: &'static str,
    pub wanted: String,
    /// Key and value of the worst figure; `None` when it was not measured.
    pub worst: Option<(String, f64)>,
    pub verdict: &'static str,
}

/// Checks the targets of the benchmarks that were run.
pub fn check(figures: &Figures, ran: impl Fn(&str) -> bool) -> Vec<Verdict> {
    let chosen = TARGETS.iter().filter(|(_, keys, _)| keys.split('.').next().is_some_and(&ran));
    chosen.map(|(text, keys, bound)| verdict(text, keys, bound, figures)).collect()
}

fn verdict(text: &'static str, keys: &str, bound: &Bound, figures: &Figures) -> Verdict {
    let named = figures.iter().filter(|(key, _)| matches(keys, key));
    let named = named.map(|(key, figure)| (key.clone(), figure.value));
    let (wanted, worst, reached) = match bound {
        AtLeast(bound) => {
            let worst = named.min_by(|a, b| a.1.total_cmp(&b.1));
            (format!(">= {bound}"), worst.clone(), worst.is_some_and(|worst| worst.1 >= *bound))
        }
        AtMost(bound) => {
            let worst = named.max_by(|a, b| a.1.total_cmp(&b.1));
            (format!("<= {bound}"), worst.clone(), worst.is_some_and(|worst| worst.1 <= *bound))
        }
    };
    let verdict = match (&worst, reached) {
        (None, _) => "not measured",
        (_, true) => "reached",
        (_, false) => "MISSED",
    };
    Verdict { text, wanted, worst, verdict }
}

/// Returns whether a key has the fields of a pattern: `*` is any, `|` separates choices.
pub fn matches(pattern: &str, key: &str) -> bool {
    let (pattern, key): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), key.split('.').collect());
    let field = |(want, have): (&&str, &&str)| *want == "*" || want.split('|').any(|w| w == *have);
    pattern.len() == key.len() && pattern.iter().zip(&key).all(field)
}
