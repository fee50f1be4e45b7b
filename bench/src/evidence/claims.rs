//! Table of claims: statements of the papers, and our figure for each.

use crate::out::Figures;
use crate::targets::matches;
use adma_shared::knobs;

/// Selection of our number among the figures.
pub enum Ours {
    /// The first of these that was measured.
    Figure(&'static [&'static str]),
    /// One figure over another.
    Over(&'static str, &'static str),
    /// The lowest figure of a pattern.
    Lowest(&'static str),
    /// The smallest size in KiB from which, with so many CPUs, all cold copies gain a twentieth.
    GainsFrom(&'static str),
    /// There is none, and the description says why.
    WhyNot,
}
use Ours::{Figure, GainsFrom, Lowest, Over, WhyNot};

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
#[rustfmt::skip]
pub const CLAIMS: &[Claim] = &[
    claim((ADCE, "3.4"), "offsets that differ by 2 KiB double the transfers of 4 MiB, 2000 instead of 1000", Some(2.0), "transfers, offset / aligned", Over("pins.transfers.offset_2K", "pins.transfers.aligned"), "bench/run pins"),
    claim((ADCE, "4b"), "crossover by size and number of channels: the engine is ahead from 16 KiB up", Some(16.0), "2 CPUs: KiB from which cold copies gain 5 %", GainsFrom("2"), "bench/run scaling"),
    claim((ADCE, "4b"), "crossover, the most channels", Some(16.0), "16 CPUs: KiB from which cold copies gain 5 %", GainsFrom("16"), "bench/run scaling"),
    claim((ADCE, "4-6"), "series by channels, 1 to 4", None, "2 CPUs over 1, 16 MiB cold", Over("scaling.cpus.2.16M.shim", "scaling.cpus.1.16M.shim"), "bench/run scaling"),
    claim((ADCE, "4-6"), "series by channels: 4", None, "4 CPUs over 1, 16 MiB cold", Over("scaling.cpus.4.16M.shim", "scaling.cpus.1.16M.shim"), "bench/run scaling"),
    claim((ADCE, "4-6"), "series by channels: more than the paper had", None, "16 CPUs over 1, 16 MiB cold", Over("scaling.cpus.16.16M.shim", "scaling.cpus.1.16M.shim"), "bench/run scaling"),
    claim((ADCE, "4a-c"), "small copies: libc is faster, and they stay with it", None, "1 KiB hot, x libc", Figure(&["small.1K.libc"]), "bench/run small"),
    claim((ADCE, "4a-c"), "4 MiB hot", None, "x libc", Figure(&["copy.hot.4M.row_libc"]), "bench/run copy"),
    claim((ADCE, "4a-c"), "4 MiB cold: half of libc's latency with 4 channels", Some(2.0), "x libc", Figure(&["copy.cold.4M.row_libc"]), "bench/run copy"),
    claim((ADCE, "5"), "window of 128 copies: 2912 MB/s with 4 channels, libc 1443", Some(2.02), "4 MiB, x libc", Figure(&["async.window.4M.libc"]), "bench/run async"),
    claim((ADCE, "6a"), "overlap, hot: 0.92 with 1 channel, 0.87 with 4, libc 0", Some(0.92), "part hidden, 4 MiB", Figure(&["async.overlap_hot.4M.part"]), "bench/run async"),
    claim((ADCE, "6b"), "overlap, cold: much lower than hot", None, "part hidden, 4 MiB", Figure(&["async.overlap.4M.part"]), "bench/run async"),
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
    claim((OPEN_MX, "8"), "up to 3 x MPICH2, which copies twice, where no cache is shared", Some(3.0), "any memory, 16 MiB, x Open MPI by two copies", Over("mpi.us.2.none.pingpong.16M", "ipc.us.16M.adma"), "bench/run ipc mpi"),
    claim((OPEN_MX, "9"), "up to 3 x Open MPI of that time, which copies twice", Some(3.0), "adma_alloc, 16 MiB, x Open MPI by two copies", Over("mpi.us.2.none.pingpong.16M", "ipc.us.16M.adma_alloc"), "bench/run ipc mpi"),
    claim((OPEN_MX, "10"), "overlapped pinning: 10 % to 25 % more throughput", None, "part of a first 16 MiB copy's pages pinned while it is in flight", Figure(&["pins.overlapped.16M"]), "bench/run pins"),
    claim((OPEN_MX, "11"), "pinning overlapped against a pin cache", None, "ranges pinned again per 1000 pages, 128 MiB in turns", Figure(&["pins.again.128M"]), "bench/run pins"),
    claim((OPEN_MX, "12"), "alltoall of 2 ranks", None, "Open MPI, 4 MiB, with / without", Figure(&["mpi.2.cma.alltoall.4M.ratio"]), "bench/run mpi"),
    claim((OPEN_MX, "12"), "alltoall of 4 ranks", None, "Open MPI, 4 MiB, with / without", Figure(&["mpi.4.cma.alltoall.4M.ratio"]), "bench/run mpi"),
    claim((OPEN_MX, "12"), "alltoall of 8 ranks", None, "Open MPI, 4 MiB, with / without", Figure(&["mpi.8.cma.alltoall.4M.ratio"]), "bench/run mpi"),
    claim((OPEN_MX, "12"), "alltoall by MPICH", None, "2 ranks, 4 MiB, with / without", Figure(&["mpi.2.mpich.alltoall.4M.ratio"]), "bench/run mpi"),
    claim((OPEN_MX, "Table III"), "NAS IS 10 % faster", Some(1.10), "integer sort by alltoallv, 4 ranks, with / without", Figure(&["mpi.4.cma.sort.16M.ratio", "mpi.2.cma.sort.16M.ratio"]), "bench/run mpi"),
    claim((OPEN_MX, "Table III"), "NAS FT and SP", None, "no package has the NAS programs; FT communicates by alltoall, which has rows above, SP by messages between neighbours, which are not measured", WhyNot, "-"),
    claim((MINI, "3"), "75 % less memory for lookup tables", Some(0.75), "part saved, 64 GiB, nine in ten copies in 16 MiB", Figure(&["pins.memory.64_GiB_nine_in_ten_in_16_MiB"]), "bench/run pins"),
    claim((MINI, "4"), "latency and bandwidth of messages by miss ratio", None, "misses per 1000 pages, 128 MiB in turns", Figure(&["pins.64_GiB_128_MiB_again.16K.64.4"]), "bench/run pins"),
    claim((MINI, "5"), "best shape of the cache: 16K entries, lines of 64, 4 ways", None, "misses per 1000 pages, nine in ten copies in 16 MiB", Figure(&["pins.64_GiB_nine_in_ten_in_16_MiB.16K.64.4"]), "bench/run pins"),
    claim((MINI, "5"), "lines of 8 instead of 64 miss more", None, "misses, lines of 8 / 64, nine in ten copies in 16 MiB", Over("pins.64_GiB_nine_in_ten_in_16_MiB.16K.8.4", "pins.64_GiB_nine_in_ten_in_16_MiB.16K.64.4"), "bench/run pins"),
    claim((MINI, "7"), "at most 3 % slowdown of seven of eight programs", Some(0.97), "worst program, x plain", Lowest("programs.*.whole"), "bench/run programs"),
    claim((MINI, "2"), "one cache of two levels, shared by all processes", None, "decided against: a kept page is charged to the process that pinned it and let go by its notifier, so a shared table would be one more thing to evict under a lock of everybody's", WhyNot, "-"),
    claim((DAMNICK, "icopy"), "a copy between kernel and user space", None, "decided against: kernel code that wants one has dmaengine itself, and /dev/adma takes addresses of the calling process only", WhyNot, "-"),
    claim((DAMNICK, "1"), "the three phases of a receive inside of MPI", None, "an unmodified MPI returns from its receive when all has come: no phase is left for the program, so the phases are measured in a program of ours", WhyNot, "-"),
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
            GainsFrom(cpus) => gains_from(cpus, figures),
            WhyNot => None,
        }
    }

    /// Returns whether no machine influences our number: it is counted in a simulation, or in a guest.
    pub fn is_simulated(&self) -> bool {
        let is_counted = |key: &str| key.starts_with("pins.");
        match self.ours {
            Figure(keys) => keys.iter().all(|key| is_counted(key)),
            Over(one, other) => is_counted(one) && is_counted(other),
            Lowest(_) | GainsFrom(_) | WhyNot => false,
        }
    }

    pub fn is_measured(&self) -> bool {
        !self.is_simulated() && !matches!(self.ours, WhyNot)
    }

    /// Returns among how many figures our number is the lowest, if it is one of that kind.
    pub fn compared(&self, figures: &Figures) -> Option<usize> {
        let Lowest(pattern) = self.ours else { return None };
        let all = figures.keys().filter(|key| matches(pattern, key)).count();
        (all > 0).then_some(all)
    }
}

/// Returns the smallest size in KiB from which all copies by these CPUs gain a twentieth.
fn gains_from(cpus: &str, figures: &Figures) -> Option<f64> {
    let of = |key: String| figures.get(&key).map(|figure| figure.value);
    let gain = |key: &str| {
        let size = key.split('.').nth(3)?;
        let libc = of(format!("scaling.cpus.{cpus}.{size}.libc"))?;
        let adma = of(format!("scaling.cpus.{cpus}.{size}.shim"))?;
        Some((knobs::size(size)?, adma / libc))
    };
    let pattern = format!("scaling.cpus.{cpus}.*.shim");
    let all = figures.keys().filter(|key| matches(&pattern, key));
    let mut gains: Vec<(usize, f64)> = all.filter_map(|key| gain(key)).collect();
    gains.sort_by_key(|(size, _)| *size);
    let gaining = gains.iter().rev().take_while(|(_, gain)| *gain >= 1.05);
    gaining.last().map(|(size, _)| *size as f64 / 1024.0)
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
    ("first copy of a process, 1 MiB: time over libc's", "first.short.first-1M.ratio", true),
    ("first ten copies: lowest part of the later gain", "first.*.*.of_steady", false),
    ("hot copies right after cold ones: lowest x libc", "used.after_cold.copy.*", false),
    ("loops that write, copy or read: lowest x libc", "used.*.*.*", false),
    ("a process beside one that copies: time of its work, over beside libc's copies", "neighbours.*.time", true),
    ("a process beside one that copies: delay at p99, over beside libc's copies", "neighbours.*.late", true),
    ("messages of 64 KiB in any memory: x best other way", "ipc.64K.best", false),
    ("messages between Python processes: x best other way", "ipc-python.*.best", false),
    ("messages between Python processes: x iceoryx2, read where they lie", "ipc-python.*.in_place", false),
    ("messages of 64 to 256 bytes: time over a futex and a buffer", "ipc.64|256.small", true),
    ("Open MPI, ranks bound to cores: lowest x without", "mpi.*.cma_bound.*.*.ratio", false),
    ("programs: lowest whole run, x plain", "programs.*.whole", false),
    ("programs: lowest whole run, x plain, of those that copy with threads of their own", "programs.arrow-write|ray-put.whole", false),
    ("programs: most memory of one process at its peak, over plain", "programs.*.rss", true),
    ("programs: most memory of all processes at its peak (PSS), over plain", "programs.*.pss", true),
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

/// Returns whether a figure costs the user anything that its two digits show.
pub fn is_loss(pattern: &str, more_is_worse: bool, value: f64) -> bool {
    let nothing = if pattern.ends_with("_ns") { 0.0 } else { 1.0 };
    let lost = if more_is_worse { value - nothing } else { nothing - value };
    lost >= 0.005
}

/// Returns the fields of a key for which its pattern leaves a choice, as words.
pub fn varying(pattern: &str, key: &str) -> String {
    let fields = pattern.split('.').zip(key.split('.'));
    let open = fields.filter(|(wanted, _)| wanted.contains(['*', '|']));
    open.map(|(_, field)| field.replace('_', " ")).collect::<Vec<_>>().join(", ")
}

/// Figures that are ratios to libc or plain runs, and what they are; less than 1 is a loss.
const GAINS: &[(&str, &str)] = &[
    ("copy.*.*.row_libc|pause_libc", "one copy"),
    ("used.*.*.*", "a loop that uses what it copies"),
    ("load.*.*.*.time|throughput", "under load"),
    ("scaling.cpus|threads.*.*.gain", "scaling"),
    ("memset|memcmp.*.*.row_libc|pause_libc", "one call"),
    ("ipc.*.best|used|oneway", "messages"),
    ("ipc.binding.*", "messages, by binding"),
    ("ipc-python.*.best|in_place", "messages between Python processes"),
    ("mpi.*.*.*.*.ratio", "MPI"),
    ("programs.*.whole", "program"),
    ("small.*.libc", "small copy"),
    ("fresh.*.*.libc", "into fresh memory, CPUs"),
    ("reads.*.*.ratio", "reads"),
];

/// Returns every gain below this in words, lowest first, even if by chance.
pub fn below(bound: f64, figures: &Figures) -> Vec<(String, f64)> {
    let name = |key: &str| {
        let (pattern, what) = GAINS.iter().find(|(pattern, _)| matches(pattern, key))?;
        Some(format!("{what}: {}", varying(pattern, key)))
    };
    let low = figures.iter().filter(|(_, figure)| figure.value < bound);
    let mut low: Vec<_> =
        low.filter_map(|(key, figure)| Some((name(key)?, figure.value))).collect();
    low.sort_by(|a, b| a.1.total_cmp(&b.1));
    low
}
