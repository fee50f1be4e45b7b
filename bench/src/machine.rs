//! What the figures were measured on, and whether it had rest.

use crate::team;
use std::ffi::CStr;
use std::fs;

/// Name and value, for the head of the output, the JSON and the Markdown.
pub fn describe() -> Vec<(&'static str, String)> {
    let caches = caches();
    let caches: Vec<String> = caches.iter().map(|c| format!("{} {}", c.0, mib(c.1))).collect();
    let mut lines = vec![
        ("cpu", cpu_model()),
        ("cpus", team::cpu_count().to_string()),
        ("caches", caches.join(", ")),
        ("memory", format!("{} MiB free", available_memory() >> 20)),
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("glibc", glibc()),
        ("huge pages", selected(&read("/sys/kernel/mm/transparent_hugepage/enabled"))),
        ("load", read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")),
    ];
    let knobs: Vec<String> = std::env::vars()
        .filter(|(name, _)| name.starts_with("ADMA_"))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    if !knobs.is_empty() {
        lines.push(("knobs", knobs.join(" ")));
    }
    lines
}

/// Bytes of the data cache of this level.
pub fn cache(level: usize) -> Option<usize> {
    caches().into_iter().find(|cache| cache.0 == format!("L{level}")).map(|cache| cache.1)
}

/// The largest cache, or 32 MiB when the machine does not say.
pub fn last_level_cache() -> usize {
    caches().into_iter().map(|cache| cache.1).max().unwrap_or(32 << 20)
}

pub fn available_memory() -> usize {
    let text = read("/proc/meminfo");
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(1)).and_then(|n| n.parse().ok());
    kib.unwrap_or(1usize << 20) << 10
}

/// CPU time since boot in ticks: all of it, not idle, and stolen by the host.
#[derive(Clone, Copy)]
pub struct Ticks {
    all: f64,
    busy: f64,
    stolen: f64,
}

impl Ticks {
    pub fn now() -> Self {
        let text = read("/proc/stat");
        let line = text.lines().next().unwrap_or("");
        let ticks: Vec<f64> = line.split_whitespace().skip(1).flat_map(str::parse).collect();
        let tick = |index: usize| ticks.get(index).copied().unwrap_or(0.0);
        let all = (0..8).map(tick).sum();
        Ticks { all, busy: all - tick(3) - tick(4), stolen: tick(7) }
    }

    /// Part of the CPU time since then that was used, and stolen.
    pub fn since(&self, then: Ticks) -> (f64, f64) {
        let all = (self.all - then.all).max(1.0);
        ((self.busy - then.busy) / all, (self.stolen - then.stolen) / all)
    }
}

fn cpu_model() -> String {
    let text = read("/proc/cpuinfo");
    let line = text.lines().find(|line| line.starts_with("model name"));
    line.and_then(|line| line.split(": ").nth(1)).unwrap_or("unknown").to_string()
}

/// The data caches that CPU 0 sees: "L1", 49152.
fn caches() -> Vec<(String, usize)> {
    (0..8)
        .filter_map(|index| {
            let folder = format!("/sys/devices/system/cpu/cpu0/cache/index{index}");
            let field = |name: &str| fs::read_to_string(format!("{folder}/{name}")).ok();
            if field("type")?.trim() == "Instruction" {
                return None;
            }
            let kib: usize = field("size")?.trim().strip_suffix('K')?.parse().ok()?;
            Some((format!("L{}", field("level")?.trim()), kib << 10))
        })
        .collect()
}

/// For each thing that two CPUs may share, a pair that shares it and nothing closer.
pub fn pairs_by_level() -> Vec<(String, [usize; 2])> {
    let cpus = team::cpu_numbers();
    let Some(&first) = cpus.iter().min() else { return Vec::new() };
    let mut levels: Vec<(String, [usize; 2])> = Vec::new();
    for &other in cpus.iter().filter(|cpu| **cpu != first) {
        let level = shared_level(first, other);
        if levels.iter().all(|(known, _)| *known != level) {
            levels.push((level, [first, other]));
        }
    }
    levels
}

fn shared_level(one: usize, other: usize) -> String {
    let file = |cpu: usize, name: &str| read(&format!("/sys/devices/system/cpu/cpu{cpu}/{name}"));
    let same = |name: &str| !file(one, name).is_empty() && file(one, name) == file(other, name);
    if same("topology/thread_siblings_list") {
        return "one-core".into();
    }
    let caches = (0..8).map(|index| format!("cache/index{index}/"));
    let mut shared = caches.filter(|cache| same(&format!("{cache}shared_cpu_list")));
    match shared.next() {
        Some(cache) => format!("one-L{}", file(one, &format!("{cache}level"))),
        None if same("topology/physical_package_id") => "one-package".into(),
        None => "two-packages".into(),
    }
}

fn mib(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes >> 10) } else { format!("{} MiB", bytes >> 20) }
}

fn glibc() -> String {
    // SAFETY: a string that lives as long as libc.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    version.to_string_lossy().into_owned()
}

/// "always [madvise] never" -> "madvise".
fn selected(choices: &str) -> String {
    choices.split(['[', ']']).nth(1).unwrap_or("unknown").to_string()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}
