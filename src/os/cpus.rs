//! What the machine leaves us: CPUs by affinity and quota, and features of the CPU.

use crate::os::lock::TryLock;
use crate::os::sys::{self, NoFilter, NoNewFilter};
use core::arch::{asm, x86_64::__cpuid_count};
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::num::NonZeroUsize;
use once_cell::race::OnceNonZeroUsize;

#[derive(Clone, Copy, Debug)]
pub struct Features {
    /// Protection keys, switched on by the kernel.
    pub protection_keys: bool,
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
    const AVX512: usize = 4;
    const AVX2: usize = 8;
    const MOVSB: usize = 16;
    let ask = || {
        let leaf = __cpuid_count(7, 0);
        let maker = __cpuid_count(0, 0);
        let intel = [maker.ebx, maker.edx, maker.ecx] == [0x756e_6547, 0x4965_6e69, 0x6c65_746e];
        let if_set = |register: u32, bit: u32, flag: usize| (register >> bit & 1) as usize * flag;
        let mut bits = KNOWN | if_set(leaf.ecx, 4, KEYS);
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
static BUFFERS: TryLock<CpuBuffers> =
    TryLock::new(CpuBuffers { mask: NO_CPU, own: NO_CPU, groups: [0; 4096], path: [0; 1024] });

struct CpuBuffers {
    mask: Mask,
    own: Mask,
    groups: [u8; 4096],
    path: [u8; 1024],
}

type Mask = [u64; 128]; // 8192 CPUs, the most a kernel can be built for
const NO_CPU: Mask = [0; 128];

/// How many CPUs can work at once for this process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub affinity: usize,
    /// By the control groups; `None`: no limit, or unknown.
    pub quota: Option<f64>,
    /// Which CPUs, as a number that changes with them.
    pub which: u64,
}

impl Limits {
    /// `None` when somebody else is just asking: the hook does not wait.
    pub fn try_now(allowed: NoNewFilter) -> Option<Self> {
        let mut buffers = BUFFERS.try_take()?;
        let CpuBuffers { mask, groups, path, .. } = &mut *buffers;
        let (affinity, which) = by_affinity(mask);
        Some(Self { affinity, quota: by_quota(groups, path, allowed), which })
    }

    /// Like `try_now`, and one CPU when that is not known.
    pub fn now() -> Self {
        NoNewFilter::look().and_then(Self::try_now).unwrap_or(Self {
            affinity: 1,
            quota: None,
            which: 0,
        })
    }

    pub fn cpus(&self) -> usize {
        let quota = self.quota.map_or(usize::MAX, |quota| quota as usize);
        self.affinity.min(quota).max(1)
    }
}

/// Frees a new worker from what its maker may be bound to: one CPU, or real-time scheduling. A
/// batch thread gets its share of a CPU but does not take it from the thread that has woken it:
/// where no CPU is idle, starting a copy would else cost the time of a piece (`bench/run async`).
pub fn run_anywhere(_: NoFilter) {
    // Not cleared, for that is a call of memset: the kernel says how much it has filled.
    let mut mask = MaybeUninit::<Mask>::uninit();
    let size = affinity_of(sys::getpid(), mask.as_mut_ptr());
    let parameters = 0i32; // struct sched_param: priority 0
    let (batch, none) = (libc::SCHED_BATCH as usize, &raw const parameters as usize);
    // SAFETY: both are readable; a refusal changes nothing.
    unsafe {
        if size > 0 {
            sys::syscall(libc::SYS_sched_setaffinity, [0, size, mask.as_ptr() as usize, 0, 0, 0]);
        }
        sys::syscall(libc::SYS_sched_setscheduler, [0, batch, none, 0, 0, 0]);
    }
}

/// How the scheduler treats a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    pub policy: i32,
    nice: i32,
}

impl Class {
    /// Of a thread by its number, 0 for this one.
    fn of(tid: i32, _: NoFilter) -> Option<Self> {
        let (tid, one) = (tid as usize, libc::PRIO_PROCESS as usize);
        // SAFETY: no memory.
        let (policy, priority) = unsafe {
            (
                sys::syscall(libc::SYS_sched_getscheduler, [tid, 0, 0, 0, 0, 0]),
                sys::syscall(libc::SYS_getpriority, [one, tid, 0, 0, 0, 0]),
            )
        };
        if policy < 0 || priority < 0 {
            return None;
        }
        // The kernel answers 40 to 1 for -20 to 19.
        let policy = policy as i32 & !libc::SCHED_RESET_ON_FORK;
        Some(Self { policy, nice: 20 - priority as i32 })
    }

    /// From a file, with calls that the filter of the start allows.
    fn in_file(path: &CStr, allowed: NoNewFilter) -> Option<Self> {
        Self::try_in_file(path, allowed).flatten()
    }

    /// Like `in_file`; `None` when another thread is just asking, `Some(None)` when there is no such
    /// file.
    pub fn try_in_file(path: &CStr, allowed: NoNewFilter) -> Option<Option<Self>> {
        let mut buffers = BUFFERS.try_take()?;
        Some(sys::read_file(path, &mut buffers.groups, allowed).and_then(Self::in_stat))
    }

    /// The 19th and the 41st word of /proc/PID/stat; the second is a name that may hold
    /// anything, in parentheses.
    fn in_stat(stat: &[u8]) -> Option<Self> {
        let rest = &stat[stat.iter().rposition(|&byte| byte == b')')? + 1..];
        let mut words = rest.split(|&byte| byte == b' ').skip(1);
        let mut word = |skip: usize| -> Option<i32> {
            core::str::from_utf8(words.nth(skip)?).ok()?.trim().parse().ok()
        };
        let nice = word(16)?;
        Some(Self { policy: word(21)?, nice })
    }
}

/// Whether threads that this one makes serve others as well as those of the main thread would. A
/// nice value stays with them, and so does SCHED_IDLE, because it takes rights to leave it; a
/// SCHED_DEADLINE thread can make none. Under a filter they have to stay what they are born as.
pub fn may_make_workers() -> bool {
    let (no_filter, no_new_filter) = (NoFilter::look(), NoNewFilter::look());
    let filtered = no_filter.is_none();
    let classes = match (no_filter, no_new_filter) {
        (Some(allowed), _) => Class::of(0, allowed).zip(Class::of(sys::getpid(), allowed)),
        (_, Some(allowed)) => {
            let main = Class::in_file(c"/proc/self/stat", allowed);
            Class::in_file(c"/proc/thread-self/stat", allowed).zip(main)
        }
        (None, None) => return false, // no thread may be made
    };
    // What cannot be known is as usual.
    let suits = classes.is_none_or(|(own, main)| own.makes_as_good_as(main, filtered));
    suits && (!filtered || has_all_cpus())
}

impl Class {
    fn makes_as_good_as(self, main: Self, filtered: bool) -> bool {
        let kind = match self.policy {
            libc::SCHED_OTHER | libc::SCHED_BATCH => true,
            libc::SCHED_FIFO | libc::SCHED_RR => !filtered,
            libc::SCHED_IDLE => main.policy == libc::SCHED_IDLE,
            _ => false,
        };
        kind && self.nice <= main.nice
    }
}

/// Whether this thread may use every CPU that the main thread may use.
fn has_all_cpus() -> bool {
    let Some(mut buffers) = BUFFERS.try_take() else { return false };
    let CpuBuffers { mask, own, .. } = &mut *buffers;
    let size = affinity_of(sys::getpid(), mask);
    if size == 0 || affinity_of(0, own) != size {
        return false;
    }
    // Word by word: to compare them as a whole is a call of bcmp, that is, of us.
    mask.iter().zip(own.iter()).take(size / 8).all(|(main, own)| main == own)
}

/// In the child of a fork nobody else is asking any more.
pub fn forget_after_fork() {
    BUFFERS.forget_after_fork();
}

/// CPUs this process may run on, 1 when the kernel does not say; and which. Its main thread is asked:
/// the one that copies first may be pinned for reasons of its own.
fn by_affinity(mask: &mut Mask) -> (usize, u64) {
    let words = affinity_of(sys::getpid(), mask) / 8;
    let used = mask.iter().take(words);
    let count = used.clone().map(|word| word.count_ones() as usize).sum::<usize>();
    let which = used.fold(0u64, |sum, word| sum.rotate_left(7).wrapping_add(*word));
    (count.max(1), which)
}

/// The CPUs that a thread may use, 0 for this one; answers how many bytes the kernel has
/// filled, 0 when it does not say.
fn affinity_of(tid: i32, mask: *mut Mask) -> usize {
    let (tid, at, size) = (tid as usize, mask as usize, size_of::<Mask>());
    // SAFETY: the kernel writes at most `size` bytes, if it can, and answers how many.
    let answer = unsafe { sys::syscall(libc::SYS_sched_getaffinity, [tid, size, at, 0, 0, 0]) };
    usize::try_from(answer).unwrap_or(0)
}

/// The least that any control group of this process grants. The first large copy waits for this:
/// no file is opened that cannot tell anything.
fn by_quota(groups: &mut [u8], path: &mut [u8], allowed: NoNewFilter) -> Option<f64> {
    let groups = sys::read_file(c"/proc/self/cgroup", groups, allowed)?;
    let mut least: Option<f64> = None;
    for line in groups.split(|&byte| byte == b'\n') {
        let Some((version, group)) = cpu_group(line) else { continue };
        let mut group = group.strip_suffix(b"/").unwrap_or(group);
        // Every group up to the root can set a limit. In a container the path may name
        // groups of the host that are not mounted here; those just cannot be read.
        loop {
            let mut mounts = version.mounts().into_iter();
            if let Some(Some(quota)) =
                mounts.find_map(|mount| quota_at(version, mount, group, path, allowed))
            {
                least = Some(least.map_or(quota, |least| least.min(quota)));
            }
            match group.iter().rposition(|&byte| byte == b'/') {
                Some(at) => group = &group[..at],
                None => break,
            }
        }
    }
    least
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Where the cpu controller may be mounted; at one of them.
    fn mounts(self) -> [&'static str; 2] {
        match self {
            Version::One => ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"],
            Version::Two => ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
        }
    }
}

/// The cpu controller of a /proc/self/cgroup line, and its group.
fn cpu_group(line: &[u8]) -> Option<(Version, &[u8])> {
    let colon = |from: usize| Some(from + line[from..].iter().position(|&byte| byte == b':')?);
    let first = colon(0)?;
    let second = colon(first + 1)?;
    let (controllers, group) = (&line[first + 1..second], &line[second + 1..]);
    if controllers.is_empty() {
        return Some((Version::Two, group));
    }
    let is_cpu = controllers.split(|&byte| byte == b',').any(|name| name == b"cpu");
    is_cpu.then_some((Version::One, group))
}

/// `None`: there is no such group here. `Some(None)`: it has no limit.
fn quota_at(
    version: Version,
    mount: &str,
    group: &[u8],
    path: &mut [u8],
    allowed: NoNewFilter,
) -> Option<Option<f64>> {
    let mut read = |file: &str, buffer: &mut [u8; 64]| -> Option<usize> {
        let parts = [mount.as_bytes(), group, file.as_bytes(), b"\0"];
        for (at, &byte) in parts.into_iter().flatten().enumerate() {
            // Not by memcpy, that is, by us.
            // SAFETY: a byte of ours.
            unsafe { (&raw mut *path.get_mut(at)?).write_volatile(byte) };
        }
        let path = CStr::from_bytes_until_nul(path).ok()?;
        sys::read_file(path, buffer, allowed).map(<[u8]>::len)
    };
    let (mut quota, mut period) = ([0; 64], [0; 64]);
    if version == Version::Two {
        let len = read("/cpu.max", &mut quota)?;
        return Some(cpu_max(&quota[..len]));
    }
    let len = read("/cpu.cfs_quota_us", &mut quota)?;
    let Some(quota) = number(&quota[..len]) else { return Some(None) };
    let len = read("/cpu.cfs_period_us", &mut period)?;
    Some(number(&period[..len]).and_then(|period| ratio(quota, period)))
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
        let group = |line: &'static [u8]| cpu_group(line).unwrap();
        assert_eq!(group(b"0::/user/a"), (Version::Two, &b"/user/a"[..]));
        assert_eq!(group(b"3:cpu,cpuacct:/x"), (Version::One, &b"/x"[..]));
        assert!(cpu_group(b"3:cpuset:/x").is_none());
        assert!(cpu_group(b"nonsense").is_none());
        assert!(cpu_group(b"").is_none());
    }

    #[test]
    fn quota_of_a_group_that_is_not_there_is_not_known() {
        let allowed = NoNewFilter::look().unwrap();
        for version in [Version::One, Version::Two] {
            let mut path = [0; 256];
            let quota = quota_at(version, "/sys/fs/cgroup", b"/no/such/group", &mut path, allowed);
            assert_eq!(quota, None);
        }
        // A path that does not fit cannot be asked for either.
        let (mount, long) = ("/sys/fs/cgroup", [b'x'; 300]);
        assert_eq!(quota_at(Version::Two, mount, &long, &mut [0; 256], allowed), None);
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
    fn class_in_a_file_is_what_the_calls_say() {
        let line = b"7 (a ) b) S 1 2 3 0 -1 4 0 0 0 0 0 0 0 0 39 19 1 0 5 0 0 0 1 1 1 1 1 0 0 0 \
            0 0 0 0 17 1 0 5 0 0 0\n";
        assert_eq!(Class::in_stat(line), Some(Class { policy: 5, nice: 19 }));
        assert_eq!(Class::in_stat(b"7 (a) S 1"), None);
        assert_eq!(Class::in_stat(b""), None);
        let Some(allowed) = NoFilter::look() else { return };
        assert!(Class::of(0, allowed).is_some());
        for (path, tid) in [(c"/proc/thread-self/stat", 0), (c"/proc/self/stat", sys::getpid())] {
            assert_eq!(Class::in_file(path, allowed.into()), Class::of(tid, allowed));
        }
    }

    #[test]
    fn only_threads_that_are_no_worse_than_the_main_thread_make_workers() {
        let class = |policy, nice| Class { policy, nice };
        let main = class(libc::SCHED_OTHER, 0);
        for filtered in [false, true] {
            assert!(main.makes_as_good_as(main, filtered));
            assert!(class(libc::SCHED_BATCH, -3).makes_as_good_as(main, filtered));
            assert!(!class(libc::SCHED_OTHER, 1).makes_as_good_as(main, filtered));
            assert!(class(libc::SCHED_OTHER, 1).makes_as_good_as(class(0, 1), filtered));
            assert!(!class(libc::SCHED_IDLE, 0).makes_as_good_as(main, filtered));
            let idle = class(libc::SCHED_IDLE, 0);
            assert!(idle.makes_as_good_as(idle, filtered));
            assert!(!class(libc::SCHED_DEADLINE, 0).makes_as_good_as(main, filtered));
            assert_eq!(class(libc::SCHED_FIFO, 0).makes_as_good_as(main, filtered), !filtered);
        }
        assert!(may_make_workers());
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
