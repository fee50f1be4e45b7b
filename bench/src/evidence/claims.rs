//! Table of claims: statements of the papers, and our figure for each.

use crate::out::Figures;
use crate::targets::matches;

/// Selection of our number among the figures.
pub enum Ours {
    /// The first of these that was measured.
    Figure(&'static [&'static str]),
    /// One figure over another.
    Over(&'static str, &'static str),
    /// The lowest figure of a pattern.
    Lowest(&'static str),
}
use Ours::{Figure, Lowest, Over};

pub struct Claim {
    pub paper: &'static str,
    pub figure: &'static str,
    pub says: &'static str,
    /// Number of the paper, if it gives a comparable one.
    pub number: Option<f64>,
    pub ours: Ours,
    /// Description of our number.
    pub what: &'static str,
    pub command: &'static str,
}

const fn claim(
    (paper, figure): (&'static str, &'static str),
    says: &'static str,
    number: Option<f64>,
    what: &'static str,
    ours: Ours,
    command: &'static str,
) -> Claim {
    Claim { paper, figure, says, number, ours, what, command }
}

const ADCE: &str = "ADCE";
const OPEN_MX: &str = "Open-MX";
const MINI: &str = "miNI";
const DAMNICK: &str = "DAMNICK";
/// Prefix of rows for which only real I/OAT hardware would give a time.
pub const COUNTS: &str = "counts only: ";

#[rustfmt::skip]
pub const CLAIMS: &[Claim] = &[
    claim((ADCE, "3.4"), "offsets that differ by 2 KiB double the transfers of 4 MiB, 2000 instead of 1000", Some(2.0), "transfers, offset / aligned", Over("pins.transfers.offset_2K", "pins.transfers.aligned"), "bench/run pins"),
    claim((ADCE, "4a-c"), "small copies: libc is faster, and they stay with it", None, "1 KiB hot, x libc", Figure(&["small.1K.libc"]), "bench/run small"),
    claim((ADCE, "4a-c"), "4 MiB hot", None, "x libc", Figure(&["copy.hot.4M.row_libc"]), "bench/run copy"),
    claim((ADCE, "4a-c"), "4 MiB cold: half of libc's latency with 4 channels", Some(2.0), "x libc", Figure(&["copy.cold.4M.row_libc"]), "bench/run copy"),
    claim((ADCE, "5"), "window of 128 copies: 2912 MB/s with 4 channels, libc 1443", Some(2.02), "4 MiB, x libc", Figure(&["async.window.4M.libc"]), "bench/run async"),
    claim((ADCE, "6a"), "overlap, hot", None, "part hidden, 4 MiB", Figure(&["async.overlap_hot.4M.part"]), "bench/run async"),
    claim((ADCE, "6b"), "overlap, cold: 0.92 with 1 channel, 0.87 with 4, libc 0", Some(0.92), "part hidden, 4 MiB", Figure(&["async.overlap.4M.part"]), "bench/run async"),
    claim((ADCE, "7"), "62 % of a large copy can be overlapped (30 % is pinning)", Some(62.0), "work, % of 4 MiB", Figure(&["phases.split.4M.work"]), "bench/run phases"),
    claim((ADCE, "7"), "7 % of a large copy is its start", Some(7.0), "start, % of 4 MiB", Figure(&["phases.split.4M.start"]), "bench/run phases"),
    claim((ADCE, "7"), "the rest: completion", None, "wait, % of 4 MiB", Figure(&["phases.split.4M.wait"]), "bench/run phases"),
    claim((ADCE, "8"), "columns of a small buffer after a large copy by the CPU: +30 %", Some(1.30), "1 MiB after libc, x undisturbed", Figure(&["cache.1M.libc", "cache.512K.libc", "cache.256K.libc"]), "bench/run cache"),
    claim((ADCE, "8"), "columns after a copy by the engine: +0 %", Some(1.0), "1 MiB after the threads", Figure(&["cache.1M.threads", "cache.512K.threads", "cache.256K.threads"]), "bench/run cache"),
    claim((ADCE, "8"), "streaming stores alone (not in the paper)", None, "1 MiB after streaming", Figure(&["cache.1M.streaming", "cache.512K.streaming", "cache.256K.streaming"]), "bench/run cache"),
    claim((ADCE, "8"), "the engine is a graphics card: +0 %", Some(1.0), "1 MiB after the card", Figure(&["gpu.cache.1M.threads", "gpu.cache.512K.threads"]), "ADMA_BACKEND=gpu ADMA_GOAL=cpu bench/run cache"),
    claim((ADCE, "9a"), "messages of 4 MiB: 2954 us, kernel's CPU copy 5803", Some(1.96), "x best other way", Figure(&["ipc.4M.best"]), "bench/run ipc"),
    claim((ADCE, "9a"), "messages of 4 MiB: NIC loopback 14333 us", Some(4.85), "x local socket", Over("ipc.us.4M.socket", "ipc.us.4M.adma"), "bench/run ipc"),
    claim((ADCE, "9b"), "one-way bandwidth of messages", None, "4 MiB, x best other way", Figure(&["ipc.4M.oneway"]), "bench/run ipc"),
    claim((OPEN_MX, "6"), "PingPong beyond the cache: 2.1 GB/s, CPU copy 1.3", Some(1.62), "Open MPI, 16 MiB, with / without", Figure(&["mpi.2.cma.pingpong.16M.ratio", "mpi.2.cma.pingpong.4M.ratio"]), "bench/run mpi"),
    claim((OPEN_MX, "7"), "binding: a shared cache favours the CPU copy", None, "1 MiB, worst binding, x best other", Lowest("ipc.binding.*"), "bench/run ipc"),
    claim((OPEN_MX, "8"), "up to 3 x the two-copy MPIs where no cache is shared", Some(3.0), "any memory, 16 MiB, x Open MPI", Over("mpi.us.2.cma.pingpong.16M", "ipc.us.16M.adma"), "bench/run ipc mpi"),
    claim((OPEN_MX, "9"), "large messages against the MPIs", Some(3.0), "adma_alloc, 16 MiB, x Open MPI", Over("mpi.us.2.cma.pingpong.16M", "ipc.us.16M.adma_alloc"), "bench/run ipc mpi"),
    claim((OPEN_MX, "10"), "overlapped pinning: 10 % to 25 % more throughput", None, "counts only: part of a first 16 MiB copy's pages pinned while it is in flight", Figure(&["pins.overlapped.16M"]), "bench/run pins"),
    claim((OPEN_MX, "11"), "pinning overlapped against a pin cache", None, "counts only: ranges pinned again per 1000 pages, 128 MiB in turns", Figure(&["pins.again.128M"]), "bench/run pins"),
    claim((OPEN_MX, "12"), "alltoall of 2 ranks", None, "Open MPI, 4 MiB, with / without", Figure(&["mpi.2.cma.alltoall.4M.ratio"]), "bench/run mpi"),
    claim((OPEN_MX, "12"), "alltoall of 4 ranks", None, "Open MPI, 4 MiB, with / without", Figure(&["mpi.4.cma.alltoall.4M.ratio"]), "bench/run mpi"),
    claim((OPEN_MX, "12"), "alltoall of 8 ranks", None, "Open MPI, 4 MiB, with / without", Figure(&["mpi.8.cma.alltoall.4M.ratio"]), "bench/run mpi"),
    claim((OPEN_MX, "12"), "alltoall by MPICH", None, "2 ranks, 4 MiB, with / without", Figure(&["mpi.2.mpich.alltoall.4M.ratio"]), "bench/run mpi"),
    claim((OPEN_MX, "Table III"), "NAS IS 10 % faster", Some(1.10), "integer sort by alltoallv, 4 ranks, with / without", Figure(&["mpi.4.cma.sort.16M.ratio", "mpi.2.cma.sort.16M.ratio"]), "bench/run mpi"),
    claim((MINI, "3"), "75 % less memory for lookup tables", Some(0.75), "part saved, 64 GiB, nine in ten copies in 16 MiB", Figure(&["pins.memory.64_GiB_nine_in_ten_in_16_MiB"]), "bench/run pins"),
    claim((MINI, "4"), "cost of a lookup on the card", None, "counts only: misses per 1000 pages, 128 MiB in turns", Figure(&["pins.64_GiB_128_MiB_again.16K.64.4"]), "bench/run pins"),
    claim((MINI, "5"), "best shape of the cache: 16K entries, lines of 64, 4 ways", None, "misses per 1000 pages, nine in ten copies in 16 MiB", Figure(&["pins.64_GiB_nine_in_ten_in_16_MiB.16K.64.4"]), "bench/run pins"),
    claim((MINI, "5"), "lines of 8 instead of 64 miss more", None, "misses, lines of 8 / 64, nine in ten copies in 16 MiB", Over("pins.64_GiB_nine_in_ten_in_16_MiB.16K.8.4", "pins.64_GiB_nine_in_ten_in_16_MiB.16K.64.4"), "bench/run pins"),
    claim((MINI, "Table III"), "at most 3 % slowdown of programs", Some(0.97), "worst program, x plain", Lowest("programs.*.whole"), "bench/run programs"),
    claim((DAMNICK, "1"), "receive overhead, hot: -31 %", Some(0.31), "part saved, split, 1 MiB", Figure(&["phases.receive.hot.1M.split.saved"]), "bench/run phases"),
    claim((DAMNICK, "1"), "receive overhead, cold: -42 %", Some(0.42), "part saved, split, 1 MiB", Figure(&["phases.receive.cold.1M.split.saved"]), "bench/run phases"),
    claim((DAMNICK, "1"), "data-touching part, hot: -39 %", Some(0.39), "part saved, split, 1 MiB", Figure(&["phases.receive.hot.1M.split.saved_of_copy"]), "bench/run phases"),
    claim((DAMNICK, "1"), "data-touching part, cold: -50 %", Some(0.50), "part saved, split, 1 MiB", Figure(&["phases.receive.cold.1M.split.saved_of_copy"]), "bench/run phases"),
    claim((DAMNICK, "1"), "receive by threads, blocking, cold", None, "part saved, 1 MiB", Figure(&["phases.receive.cold.1M.threads.saved"]), "bench/run phases"),
    claim((DAMNICK, "1"), "the engine is a peripheral in loopback (graphics card), cold", Some(0.42), "part saved, split, 4 MiB", Figure(&["gpu.phases.receive.cold.4M.split.saved"]), "ADMA_BACKEND=gpu bench/run phases"),
    claim((DAMNICK, "loopback"), "bandwidth of a peripheral in loopback", None, "graphics card, 64 MiB hot, x libc", Figure(&["gpu.copy.hot.64M.row_libc"]), "ADMA_BACKEND=gpu bench/run copy"),
];

impl Claim {
    /// Returns our number; `None` where it was not measured.
    pub fn ours(&self, figures: &Figures) -> Option<f64> {
        let of = |key: &str| figures.get(key).map(|figure| figure.value);
        match self.ours {
            Figure(keys) => keys.iter().find_map(|key| of(key)),
            Over(one, other) => Some(of(one)? / of(other)?),
            Lowest(pattern) => {
                let all = figures.iter().filter(|(key, _)| matches(pattern, key));
                all.map(|(_, figure)| figure.value).min_by(f64::total_cmp)
            }
        }
    }

    /// Returns among how many figures our number is the lowest, if it is one of that kind.
    pub fn compared(&self, figures: &Figures) -> Option<usize> {
        let Lowest(pattern) = self.ours else { return None };
        let all = figures.keys().filter(|key| matches(pattern, key)).count();
        (all > 0).then_some(all)
    }
}

/// Costs and lacks of adma: text, pattern of figures, and whether more is worse.
#[rustfmt::skip]
pub const LOSSES: &[(&str, &str, bool)] = &[
    ("CPU time of a cold copy of 1 MiB, all threads, over libc's", "phases.cpu.1M.ratio", true),
    ("CPU time of a cold copy of 16 MiB, over libc's", "phases.cpu.16M.ratio", true),
    ("copies below 4 KiB, in cache: most nanoseconds more", "small.*.more_ns", true),
    ("copies below 4 KiB, in cache: lowest x libc", "small.*.libc", false),
    ("hot copies of 64 KiB: x libc", "copy.hot.64K.row_libc", false),
    ("hot copies of 256 KiB: x libc", "copy.hot.256K.row_libc", false),
    ("hot copies, destination read at once: lowest x libc", "copy.used.*.row_libc", false),
    ("copies of 256 KiB after a pause, workers asleep: x libc", "copy.cold.256K.pause_libc", false),
    ("all CPUs busy: lowest x libc, median time", "load.hogs.*.*.time", false),
    ("one busy process beside: lowest x libc, median time", "load.one-hog.*.*.time", false),
    ("a thread for each CPU copies: lowest x libc, throughput", "load.1x.*.*.throughput", false),
    ("four threads for each CPU copy: lowest x libc, throughput", "load.4x.*.*.throughput", false),
    ("start of the program true: time over that without a library", "start.true.ratio", true),
    ("start of the program true: time over that with an empty library", "start.true.to_empty", true),
    ("a process that forks and copies once: time over libc's", "first.short.prefork.ratio", true),
    ("a program executed for one copy: time over that with an empty library", "first.short.exec-once.to_empty", true),
    ("first ten copies: lowest part of the later gain", "first.*.*.of_steady", false),
    ("messages of 64 KiB in any memory: x best other way", "ipc.64K.best", false),
    ("messages of 64 to 256 bytes: time over a futex and a buffer", "ipc.64|256.small", true),
    ("programs: lowest whole run, x plain", "programs.*.whole", false),
    ("programs that gain nothing: most CPU time over plain", "programs.*.cpu_without_gain", true),
];

/// Returns the worst figure of a loss, with its key.
pub fn worst<'a>(
    pattern: &str,
    more_is_worse: bool,
    figures: &'a Figures,
) -> Option<(&'a str, f64)> {
    let all = figures.iter().filter(|(key, _)| matches(pattern, key));
    let all = all.map(|(key, figure)| (key.as_str(), figure.value));
    let sign = if more_is_worse { 1.0 } else { -1.0 };
    all.max_by(|a, b| (sign * a.1).total_cmp(&(sign * b.1)))
}

/// Figures that are ratios to libc or plain runs; less than 1 is a loss.
const GAINS: &[&str] = &[
    "copy.*.*.row_libc|pause_libc",
    "load.*.*.*.time|throughput",
    "scaling.cpus|threads.*.*.gain",
    "memset|memcmp.*.*.row_libc|pause_libc",
    "ipc.*.best|used|oneway",
    "ipc.binding.*",
    "mpi.*.*.*.*.ratio",
    "programs.*.whole",
    "small.*.libc",
    "fresh.*.*.libc",
    "reads.*.*.ratio",
];

/// Returns every gain below this, lowest first, even if by chance.
pub fn below(bound: f64, figures: &Figures) -> Vec<(&str, f64)> {
    let gain = |key: &str| GAINS.iter().any(|pattern| matches(pattern, key));
    let low = figures.iter().filter(|(key, figure)| figure.value < bound && gain(key));
    let mut low: Vec<_> = low.map(|(key, figure)| (key.as_str(), figure.value)).collect();
    low.sort_by(|a, b| a.1.total_cmp(&b.1));
    low
}
