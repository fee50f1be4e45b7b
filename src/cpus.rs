//! What the machine leaves us: CPUs by affinity and quota, and features of the CPU.

use crate::sys;
use core::arch::{asm, x86_64::__cpuid_count};
use core::ffi::CStr;
use core::num::NonZeroUsize;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use once_cell::race::OnceNonZeroUsize;
use parking_lot::Mutex;

#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Protection keys, switched on by the kernel.
    pub protection_keys: bool,
    pub umwait: bool,
    /// AVX2, and the kernel saves its registers.
    pub avx2: bool,
    /// AVX-512, and the kernel saves its registers.
    pub avx512: bool,
    /// `rep movsb` is the way to copy large blocks: an Intel CPU that says so. Others say so
    /// too, but are slow where source and destination are aligned differently; libc decides alike.
    pub good_movsb: bool,
}

/// Asked once: the cpuid instruction costs microseconds in a virtual machine.
pub fn features() -> Features {
    static BITS: OnceNonZeroUsize = OnceNonZeroUsize::new();
    const KNOWN: usize = 1;
    const KEYS: usize = 2;
    const UMWAIT: usize = 4;
    const AVX512: usize = 8;
    const AVX2: usize = 16;
    const MOVSB: usize = 32;
    let ask = || {
        let leaf = __cpuid_count(7, 0);
        let maker = __cpuid_count(0, 0);
        let intel = [maker.ebx, maker.edx, maker.ecx] == [0x756e_6547, 0x4965_6e69, 0x6c65_746e];
        let if_set = |register: u32, bit: u32, flag: usize| (register >> bit & 1) as usize * flag;
        let mut bits = KNOWN | if_set(leaf.ecx, 4, KEYS) | if_set(leaf.ecx, 5, UMWAIT);
        let saved = saved_registers();
        if saved & 0xe6 == 0xe6 {
            bits |= if_set(leaf.ebx, 16, AVX512);
        }
        if saved & 6 == 6 {
            bits |= if_set(leaf.ebx, 5, AVX2);
        }
        if intel {
            bits |= if_set(leaf.ebx, 9, MOVSB);
        }
        NonZeroUsize::new(bits).unwrap_or(NonZeroUsize::MIN)
    };
    let bits = BITS.get_or_init(ask).get();
    Features {
        protection_keys: bits & KEYS != 0,
        umwait: bits & UMWAIT != 0,
        avx2: bits & AVX2 != 0,
        avx512: bits & AVX512 != 0,
        good_movsb: bits & MOVSB != 0,
    }
}

/// Which registers the kernel saves, as XCR0 has it.
fn saved_registers() -> u32 {
    let has_xgetbv = __cpuid_count(1, 0).ecx >> 27 & 1 == 1;
    if !has_xgetbv {
        return 0;
    }
    let saved: u32;
    // SAFETY: the CPU has the instruction, and the kernel has switched it on.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") saved, out("edx") _,
            options(nomem, nostack, preserves_flags));
    }
    saved
}

/// The CPU this thread runs on; it may have moved when this returns.
pub fn current() -> u32 {
    // SAFETY: no arguments. The C library knows it without a system call, or nearly so.
    unsafe { libc::sched_getcpu() as u32 }
}

/// Bytes of the last level cache; 0 where the CPU does not say.
pub fn last_level_cache() -> usize {
    (0..8)
        .map(|index| __cpuid_count(4, index))
        .take_while(|cache| cache.eax & 0x1f != 0)
        .map(|cache| {
            let field = |value: u32, shift: u32, bits: u32| {
                ((value >> shift) & ((1 << bits) - 1)) as usize + 1
            };
            field(cache.ebx, 22, 10)
                * field(cache.ebx, 12, 10)
                * field(cache.ebx, 0, 12)
                * (cache.ecx as usize + 1)
        })
        .last()
        .unwrap_or(0)
}

/// Room for what the kernel answers. Not on the stack: the first large copy may be made on
/// a signal stack of two kilobytes. Never waited for, see `Limits::try_now`.
static ROOM: Mutex<Room> = Mutex::new(Room { mask: [0; 128], groups: [0; 4096], path: [0; 1024] });

struct Room {
    mask: [u64; 128], // 8192 CPUs, the most a kernel can be built for
    groups: [u8; 4096],
    path: [u8; 1024],
}

/// How many CPUs can work at once for this process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub affinity: usize,
    /// By the control groups; `None`: no limit, or unknown.
    pub quota: Option<f64>,
}

impl Limits {
    /// `None` when somebody else is just asking: the hook does not wait.
    pub fn try_now() -> Option<Self> {
        let mut room = ROOM.try_lock()?;
        let Room { mask, groups, path } = &mut *room;
        Some(Self { affinity: by_affinity(mask), quota: by_quota(groups, path) })
    }

    /// The same, and one CPU when somebody else is just asking.
    pub fn now() -> Self {
        Self::try_now().unwrap_or(Self { affinity: 1, quota: None })
    }

    pub fn cpus(&self) -> usize {
        let quota = self.quota.map_or(usize::MAX, |quota| quota as usize);
        self.affinity.min(quota).max(1)
    }
}

/// The CPUs of the process, for its workers.
static MASK: [AtomicU64; 128] = [const { AtomicU64::new(0) }; 128];

/// Frees a new worker from what its maker may be bound to: one CPU, or real-time scheduling.
/// A batch thread gets its share of a CPU but does not take it from who has woken it: where no
/// CPU is idle, starting a copy would else cost the time of a piece (`bench/run async`).
pub fn run_anywhere() {
    let (mask, size) = (MASK.as_ptr() as usize, size_of_val(&MASK));
    let parameters = 0i32; // struct sched_param: priority 0
    let (batch, none) = (libc::SCHED_BATCH as usize, &raw const parameters as usize);
    // SAFETY: both are readable; a refusal changes nothing.
    unsafe {
        sys::syscall(libc::SYS_sched_setaffinity, [0, size, mask, 0, 0, 0]);
        sys::syscall(libc::SYS_sched_setscheduler, [0, batch, none, 0, 0, 0]);
    }
}

/// In the child of a fork nobody else is asking any more.
pub fn forget_after_fork() {
    if ROOM.is_locked() {
        // SAFETY: whoever held it was a thread of the parent; this process has one thread.
        unsafe { ROOM.force_unlock() };
    }
}

/// CPUs this process may run on; 1 when the kernel does not say. Its main thread is asked:
/// the one that copies first may be pinned for reasons of its own.
fn by_affinity(mask: &mut [u64; 128]) -> usize {
    let (at, size) = (mask.as_mut_ptr() as usize, size_of_val(mask));
    let main = sys::getpid() as usize;
    // SAFETY: the kernel writes at most `size` bytes, and answers how many.
    let answer = unsafe { sys::syscall(libc::SYS_sched_getaffinity, [main, size, at, 0, 0, 0]) };
    let words = usize::try_from(answer).unwrap_or(0) / 8;
    for (shared, word) in MASK.iter().zip(mask.iter().take(words)) {
        shared.store(*word, Relaxed);
    }
    mask.iter().take(words).map(|word| word.count_ones() as usize).sum::<usize>().max(1)
}

/// The least that any control group of this process grants.
fn by_quota(groups: &mut [u8], path: &mut [u8]) -> Option<f64> {
    let groups = sys::read_file(c"/proc/self/cgroup", groups)?;
    let mut least: Option<f64> = None;
    for line in groups.split(|&byte| byte == b'\n') {
        let Some((mounts, mut group)) = cpu_group(line) else { continue };
        // Every group up to the root can set a limit. In a container the path may name
        // groups of the host that are not mounted here; those just cannot be read.
        loop {
            for quota in mounts.iter().filter_map(|mount| quota_at(mount, group, path)) {
                least = Some(least.map_or(quota, |least| least.min(quota)));
            }
            match memchr::memrchr(b'/', group) {
                Some(at) => group = &group[..at],
                None => break,
            }
        }
    }
    least
}

/// Where the cpu controller of a /proc/self/cgroup line is mounted, and its group.
fn cpu_group(line: &[u8]) -> Option<(&'static [&'static str], &[u8])> {
    let first = memchr::memchr(b':', line)?;
    let second = first + 1 + memchr::memchr(b':', &line[first + 1..])?;
    let (controllers, group) = (&line[first + 1..second], &line[second + 1..]);
    if controllers.is_empty() {
        return Some((&["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], group));
    }
    controllers
        .split(|&byte| byte == b',')
        .any(|name| name == b"cpu")
        .then_some((&["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"], group))
}

fn quota_at(mount: &str, group: &[u8], path: &mut [u8]) -> Option<f64> {
    let group = group.strip_suffix(b"/").unwrap_or(group);
    let mut read = |file: &str, buffer: &mut [u8; 64]| -> Option<usize> {
        let mut used = 0;
        for part in [mount.as_bytes(), group, file.as_bytes(), b"\0"] {
            path.get_mut(used..used + part.len())?.copy_from_slice(part);
            used += part.len();
        }
        let path = CStr::from_bytes_until_nul(path).ok()?;
        sys::read_file(path, buffer).map(<[u8]>::len)
    };
    let (mut quota, mut period) = ([0; 64], [0; 64]);
    if let Some(len) = read("/cpu.max", &mut quota) {
        return cpu_max(&quota[..len]);
    }
    let len = read("/cpu.cfs_quota_us", &mut quota)?;
    let period_len = read("/cpu.cfs_period_us", &mut period)?;
    ratio(number(&quota[..len])?, number(&period[..period_len])?)
}

/// "200000 100000" or "max 100000".
fn cpu_max(text: &[u8]) -> Option<f64> {
    let mut words = text.split(|byte| byte.is_ascii_whitespace());
    let quota = number(words.next()?)?;
    ratio(quota, number(words.next()?)?)
}

fn ratio(quota: u64, period: u64) -> Option<f64> {
    (period > 0).then(|| quota as f64 / period as f64)
}

/// Digits to the end of the line; "max" and "-1" mean no limit and are no number.
fn number(text: &[u8]) -> Option<u64> {
    core::str::from_utf8(text).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_group_of_both_versions_is_found() {
        assert_eq!(cpu_group(b"0::/user/a").unwrap().1, b"/user/a");
        assert_eq!(cpu_group(b"3:cpu,cpuacct:/x").unwrap().1, b"/x");
        assert!(cpu_group(b"3:cpuset:/x").is_none());
        assert!(cpu_group(b"nonsense").is_none());
        assert!(cpu_group(b"").is_none());
    }

    #[test]
    fn cpu_max_without_limit_is_none() {
        assert_eq!(cpu_max(b"max 100000\n"), None);
        assert_eq!(cpu_max(b"150000 100000\n"), Some(1.5));
        assert_eq!(cpu_max(b"150000 0\n"), None);
        assert_eq!(cpu_max(b""), None);
        assert_eq!(cpu_max(b"99999999999999999999 1"), None);
    }

    #[test]
    fn machine_has_a_cpu_and_a_cache() {
        let limits = Limits::now();
        assert!(limits.cpus() >= 1);
        assert!(limits.affinity >= limits.cpus());
        features();
        last_level_cache();
    }
}
