//! Description of the machine, and of other load on it.

use std::ffi::CStr;
use std::{fs, io};

/// Returns names and values, for the head of the output and for about.json.
pub fn describe() -> Vec<(&'static str, String)> {
    let mib = |bytes: usize| match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mib => format!("{mib} MiB"),
    };
    let caches: Vec<String> =
        caches().into_iter().map(|(level, size)| format!("{level} {}", mib(size))).collect();
    // SAFETY: a string that lives as long as libc.
    let glibc = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    // Format: "always [madvise] never".
    let huge_pages = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let mut lines = vec![
        ("cpu", cpu_model()),
        ("cpus", cpu_count().to_string()),
        ("caches", caches.join(", ")),
        ("memory", format!("{} MiB free", available_memory() >> 20)),
        ("kernel", read("/proc/sys/kernel/osrelease")),
        ("glibc", glibc.to_string_lossy().into_owned()),
        ("huge pages", huge_pages.split(['[', ']']).nth(1).unwrap_or("unknown").to_string()),
        ("load", read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")),
    ];
    let knobs: Vec<String> = std::env::vars()
        .filter(|(name, _)| name.starts_with("ADMA_"))
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    lines.extend((!knobs.is_empty()).then(|| ("knobs", knobs.join(" "))));
    lines
}

/// Returns the bytes of the data cache of this level.
pub fn cache(level: usize) -> Option<usize> {
    caches().into_iter().find(|cache| cache.0 == format!("L{level}")).map(|cache| cache.1)
}

/// Returns the largest cache, or 32 MiB when the machine does not report it.
pub fn last_level_cache() -> usize {
    caches().into_iter().map(|cache| cache.1).max().unwrap_or(32 << 20)
}

pub fn available_memory() -> usize {
    let text = read("/proc/meminfo");
    let kib = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB"));
    kib.and_then(|kib| kib.trim().parse().ok()).unwrap_or(1usize << 20) << 10
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

    /// Returns the parts of the CPU time since then that were used, and stolen.
    pub fn since(&self, then: Ticks) -> (f64, f64) {
        let all = (self.all - then.all).max(1.0);
        ((self.busy - then.busy) / all, (self.stolen - then.stolen) / all)
    }
}

fn cpu_model() -> String {
    let text = read("/proc/cpuinfo");
    let model = text.lines().find_map(|line| line.strip_prefix("model name\t: "));
    model.unwrap_or("unknown").to_string()
}

/// Returns the data caches that CPU 0 sees: "L1", 49152.
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

/// Returns the number of CPUs in the affinity mask, as the shim counts them.
pub fn cpu_count() -> usize {
    cpu_numbers().len()
}

/// Returns the CPUs in the affinity mask, one of each core first.
pub fn cpu_numbers() -> Vec<usize> {
    // SAFETY: plain numbers, for which zeros are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: the size is that of the set.
    unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) };
    // SAFETY: every number is inside the set.
    let allowed = |cpu: &usize| unsafe { libc::CPU_ISSET(*cpu, &set) };
    let mut cpus: Vec<usize> = (0..libc::CPU_SETSIZE as usize).filter(allowed).collect();
    cpus.sort_by_key(|cpu| (core_of(*cpu).is_some_and(|core| core != *cpu), *cpu));
    cpus
}

/// Returns the lowest CPU of the core that `cpu` belongs to.
fn core_of(cpu: usize) -> Option<usize> {
    let list = read(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
    list.split([',', '-']).next()?.parse().ok()
}

/// Binds a thread (0: the caller) to these CPUs. Async-signal-safe.
pub fn bind(tid: i32, cpus: &[usize]) -> io::Result<()> {
    // SAFETY: zeros are an empty set, to which each number is added; the kernel only reads it.
    let done = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        cpus.iter().for_each(|&cpu| libc::CPU_SET(cpu, &mut set));
        libc::sched_setaffinity(tid, size_of_val(&set), &set)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns, for each resource that two CPUs may share, a pair that shares it and nothing closer.
pub fn pairs_by_level() -> Vec<(String, [usize; 2])> {
    let cpus = cpu_numbers();
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

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_string()
}
