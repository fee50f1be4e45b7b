//! What the project wants to reach, checked against the figures of this run.

use std::collections::BTreeMap;

pub type Figures = BTreeMap<String, f64>;

struct Target {
    text: &'static str,
    /// Fields between dots; `*` is any, `|` separates choices.
    keys: &'static str,
    bound: Bound,
}

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}
use Bound::{AtLeast, AtMost};

const TARGETS: &[Target] = &[
    Target {
        text: "1M..64M cold in a row, x libc",
        keys: "copy.cold.1M|2M|4M|8M|16M|32M|64M.row_libc",
        bound: AtLeast(1.7),
    },
    Target {
        text: "1M..64M cold in a row, x ceiling",
        keys: "copy.cold.1M|2M|4M|8M|16M|32M|64M.row_ceiling",
        bound: AtLeast(0.9),
    },
    Target {
        text: "256K cold in a row, x libc",
        keys: "copy.cold.256K.row_libc",
        bound: AtLeast(1.5),
    },
    Target {
        text: "1M..64M cold after pause, x libc",
        keys: "copy.cold.1M|2M|4M|8M|16M|32M|64M.pause_libc",
        bound: AtLeast(1.7),
    },
    Target { text: "any size in a row, x libc", keys: "copy.*.*.row_libc", bound: AtLeast(0.97) },
    Target {
        text: "any size after pause, x libc",
        keys: "copy.*.*.pause_libc",
        bound: AtLeast(0.97),
    },
    Target {
        text: "first ten copies, x steady",
        keys: "first.*.*.of_steady",
        bound: AtLeast(0.85),
    },
    Target {
        text: "short processes, x libc's time",
        keys: "first.short.prefork|prefork-8|turn|turn-1M|turn-8|exec-once.ratio",
        bound: AtMost(1.03),
    },
    Target {
        text: "first copy of 1M, us more than libc",
        keys: "first.short.first-1M.more_us",
        bound: AtMost(100.0),
    },
    Target { text: "after pauses, x in a row", keys: "pauses.*.*.of_row", bound: AtLeast(0.9) },
    Target { text: "into fresh memory, x libc", keys: "fresh.all.*.libc", bound: AtLeast(2.5) },
    Target { text: "the same with one CPU", keys: "fresh.one.*.libc", bound: AtLeast(1.2) },
    Target {
        text: "load from 4K, throughput, x libc",
        keys: "load.*.*.4K|8K|16K|32K|64K|128K|256K|512K|1M|2M|4M|8M|16M|32M|64M.throughput",
        bound: AtLeast(0.97),
    },
    Target {
        text: "load from 4K, median time, x libc",
        keys: "load.*.*.4K|8K|16K|32K|64K|128K|256K|512K|1M|2M|4M|8M|16M|32M|64M.time",
        bound: AtLeast(0.97),
    },
    // A call of 10 ns: the nanosecond that small copies may lose is a tenth of it.
    Target {
        text: "load 1K and 2K, x libc",
        keys: "load.*.*.1K|2K.time|throughput",
        bound: AtLeast(0.97),
    },
    Target {
        text: "adma_icopy of 1M, us",
        keys: "async.start.awake|asleep.us",
        bound: AtMost(3.0),
    },
    Target { text: "overlap of 4M", keys: "async.overlap.4M.part", bound: AtLeast(0.9) },
    Target {
        text: "128 outstanding, x adma_copy",
        keys: "async.window.*.blocking",
        bound: AtLeast(0.95),
    },
    Target { text: "numpy 64M, x libc", keys: "numpy.*.64M.ratio", bound: AtLeast(1.8) },
    Target { text: "numpy 4M, x libc", keys: "numpy.*.4M.ratio", bound: AtLeast(1.8) },
    Target {
        text: "reads from 256M, x libc",
        keys: "reads.read|readinto|np_load.256M|1024M.ratio",
        bound: AtLeast(1.7),
    },
    Target { text: "reads of 1M, x libc", keys: "reads.*.1M.ratio", bound: AtLeast(0.98) },
    Target { text: "reads, cold, x libc", keys: "reads.cold.*.ratio", bound: AtLeast(0.97) },
    Target {
        text: "numpy jobs, x best other knobs",
        keys: "programs.numpy-copyto|numpy-copy|numpy-mapped|numpy-roll|numpy-concatenate.of_best",
        bound: AtLeast(0.97),
    },
    Target { text: "any program, whole run", keys: "programs.*.whole", bound: AtLeast(0.97) },
    Target {
        text: "CPU time where nothing is won",
        keys: "programs.*.cpu_without_gain",
        bound: AtMost(1.15),
    },
    Target { text: "engine share, same job", keys: "programs.*.engine_spread", bound: AtMost(0.1) },
    Target {
        text: "small, more instructions",
        keys: "small.*.more_instructions",
        bound: AtMost(3.0),
    },
    Target { text: "small, more ns", keys: "small.*.more_ns", bound: AtMost(1.0) },
    Target { text: "messages 64K-64M, x best", keys: "ipc.*.best", bound: AtLeast(1.5) },
    // With sixteen CPUs; two copy half as fast.
    Target { text: "messages 16M and 64M, x best", keys: "ipc.16M|64M.best", bound: AtLeast(4.0) },
    Target { text: "messages 4M, x best", keys: "ipc.4M.best", bound: AtLeast(2.0) },
    Target { text: "messages 64K-64M, x MPI", keys: "ipc.*.mpi", bound: AtLeast(1.5) },
    Target { text: "the same, adma_alloc, x best", keys: "ipc.*.blocks", bound: AtLeast(1.5) },
    Target { text: "the same, adma_alloc, x MPI", keys: "ipc.*.blocks_mpi", bound: AtLeast(1.5) },
    Target { text: "messages to 4K, x futex", keys: "ipc.*.small", bound: AtMost(1.2) },
    Target { text: "start of true, x without", keys: "start.true.ratio", bound: AtMost(1.10) },
    Target { text: "the same, x empty library", keys: "start.true.to_empty", bound: AtMost(1.05) },
    Target { text: "threads before first copy", keys: "start.threads", bound: AtMost(0.0) },
    Target { text: "files before first copy", keys: "start.files", bound: AtMost(0.0) },
    Target { text: "resident before, KiB", keys: "start.resident_kib", bound: AtMost(1023.0) },
];

/// One line for each target: the worst figure that it speaks of.
pub struct Verdict {
    pub text: &'static str,
    pub wanted: String,
    /// The key and value of the worst figure; none when it was not measured.
    pub worst: Option<(String, f64)>,
    pub reached: bool,
}

/// Checks the targets of the benchmarks that were run.
pub fn check(figures: &Figures, ran: impl Fn(&str) -> bool) -> Vec<Verdict> {
    let spoken_of = |target: &&Target| target.keys.split('.').next().is_some_and(&ran);
    TARGETS.iter().filter(spoken_of).map(|target| target.check(figures)).collect()
}

impl Target {
    fn check(&self, figures: &Figures) -> Verdict {
        let named = figures.iter().filter(|(key, _)| matches(self.keys, key));
        let worst = match self.bound {
            AtLeast(_) => named.min_by(|a, b| a.1.total_cmp(b.1)),
            AtMost(_) => named.max_by(|a, b| a.1.total_cmp(b.1)),
        };
        let (wanted, reached) = match self.bound {
            AtLeast(bound) => (format!(">= {bound}"), worst.is_some_and(|w| *w.1 >= bound)),
            AtMost(bound) => (format!("<= {bound}"), worst.is_some_and(|w| *w.1 <= bound)),
        };
        let worst = worst.map(|(key, value)| (key.clone(), *value));
        Verdict { text: self.text, wanted, worst, reached }
    }
}

impl Verdict {
    pub fn verdict(&self) -> &'static str {
        match (&self.worst, self.reached) {
            (None, _) => "not measured",
            (_, true) => "reached",
            (_, false) => "MISSED",
        }
    }
}

fn matches(pattern: &str, key: &str) -> bool {
    let (pattern, key): (Vec<_>, Vec<_>) = (pattern.split('.').collect(), key.split('.').collect());
    let field = |(want, have): (&&str, &&str)| *want == "*" || want.split('|').any(|w| w == *have);
    pattern.len() == key.len() && pattern.iter().zip(&key).all(field)
}
