//! CPUs that this process may use, by affinity and quota, and features of the CPU.

use crate::os::lock::TryLock;
use crate::os::signal_mask::SignalsHeld;
use crate::os::sys::{self, NoFilter, NoNewFilter, syscall};
use crate::os::{arch, brief_file};
use bitflags::bitflags;
use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::num::NonZeroUsize;
use once_cell::race::OnceNonZeroUsize;

bitflags! {
    /// Features that the CPU has and the kernel has enabled.
    pub struct Features: usize {
        /// Always set: a value of zero means that the CPU was not asked yet.
        const KNOWN = 1;
        const PROTECTION_KEYS = 1 << 1;
        const AVX512 = 1 << 2;
        const AVX2 = 1 << 3;
        /// The CPU states that `rep movsb` is fast for large blocks; see `copy_loop` for whether it is
        /// fast however they are aligned.
        const ERMS = 1 << 4;
    }
}

/// Returns the features. Asks the CPU once: cpuid takes microseconds in a virtual machine.
pub fn features() -> Features {
    static BITS: OnceNonZeroUsize = OnceNonZeroUsize::new();
    let ask = || NonZeroUsize::new(arch::features().bits()).unwrap_or(NonZeroUsize::MIN);
    Features::from_bits_truncate(BITS.get_or_init(ask).get())
}

/// Returns the CPU that this thread runs on; the thread may have moved by the time this returns.
pub fn current() -> u32 {
    // SAFETY: takes no arguments. The C library usually needs no system call for it.
    unsafe { libc::sched_getcpu() as u32 }
}

/// Returns the bytes of the last-level cache; 1 if the CPU does not report it. Asks the CPU once: in a
/// virtual machine cpuid traps to the host.
pub fn last_level_cache() -> usize {
    static BYTES: OnceNonZeroUsize = OnceNonZeroUsize::new();
    BYTES.get_or_init(|| arch::last_level_cache().unwrap_or(NonZeroUsize::MIN)).get()
}

/// Buffers for masks and files that the kernel returns. Not on the stack: the first large copy may be made on
/// a signal stack of two kilobytes. No thread waits for them, see `Limits::try_now`.
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

/// Limits of the CPUs that can work at once for this process.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub affinity: usize,
    /// Quota of the control groups; `None`: no limit, or unknown.
    pub quota: Option<f64>,
    /// Hash of the set of CPUs, by which a change of the set is noticed.
    pub which: u64,
}

impl Limits {
    /// Reads the limits. `None` while another thread uses the buffers: the hook does not wait.
    pub fn try_now(allowed: NoNewFilter) -> Option<Self> {
        let held = SignalsHeld::all()?;
        let mut buffers = BUFFERS.try_take(&held)?;
        let CpuBuffers { mask, groups, path, .. } = &mut *buffers;
        let (affinity, which) = by_affinity(mask);
        Some(Self { affinity, quota: by_quota(groups, path, allowed), which })
    }

    /// Like `try_now`, but returns one CPU where the limits are not known.
    pub fn now() -> Self {
        let one = Self { affinity: 1, quota: None, which: 0 };
        NoNewFilter::look().and_then(Self::try_now).unwrap_or(one)
    }

    pub fn cpus(&self) -> usize {
        let quota = self.quota.map_or(usize::MAX, |quota| quota as usize);
        self.affinity.min(quota).max(1)
    }
}

/// Resets attributes that a new worker inherits, affinity and real-time scheduling; and gives it the nice
/// value of the main thread. SCHED_BATCH does not preempt the thread that has woken it: where no
/// CPU is idle, starting a copy would otherwise cost the time of a piece (`bench/run async`).
pub fn run_anywhere(allowed: NoFilter) {
    // Not cleared, which would be a call of memset: the kernel returns how many bytes it has filled, and no
    // others are used.
    let mut mask = MaybeUninit::<Mask>::uninit();
    let main = sys::getpid();
    let size = affinity_of(main, mask.as_mut_ptr());
    let parameters = 0i32; // struct sched_param: priority 0
    let (main_class, own) = (Class::of(main, allowed), Class::of(0, allowed));
    let is_idle = main_class.is_some_and(|class| class.policy == libc::SCHED_IDLE);
    let policy = if is_idle { libc::SCHED_IDLE } else { libc::SCHED_BATCH };
    let io = io_priority_of(main, allowed);
    // SAFETY: the kernel reads `parameters`, and the `size` bytes of `mask` that it has filled itself; a
    // refused call changes nothing.
    unsafe {
        if size > 0 {
            syscall!(SYS_sched_setaffinity, 0, size, mask.as_ptr());
        }
        syscall!(SYS_sched_setscheduler, 0, policy, &raw const parameters);
        if let Some((main, own)) = main_class.zip(own)
            && main.nice != own.nice
        {
            syscall!(SYS_setpriority, libc::PRIO_PROCESS, 0, main.nice);
        }
        if io != io_priority_of(0, allowed) {
            syscall!(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, io);
        }
    }
}

const IOPRIO_WHO_PROCESS: usize = 1;

/// Returns the I/O priority of a thread, 0 for this one; 0 where it has none of its own.
fn io_priority_of(tid: i32, _: NoFilter) -> u16 {
    // SAFETY: the call accesses no memory of ours.
    let answer = unsafe { syscall!(SYS_ioprio_get, IOPRIO_WHO_PROCESS, tid) };
    u16::try_from(answer).unwrap_or(0)
}

/// Returns the attributes that workers take over from the main thread, as one number: nice value, I/O
/// priority, and whether it is SCHED_IDLE. 0 if the kernel does not report it.
pub fn worker_class(allowed: NoFilter) -> u64 {
    let main = sys::getpid();
    Class::of(main, allowed).map_or(0, |class| {
        let is_idle = u64::from(class.policy == libc::SCHED_IDLE);
        let io = u64::from(io_priority_of(main, allowed));
        1 << 32 | is_idle << 24 | (class.nice as u8 as u64) << 16 | io
    })
}

/// Scheduling class of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Class {
    pub policy: i32,
    nice: i32,
}

impl Class {
    /// Reads the class of a thread by its number, 0 for this one.
    fn of(tid: i32, _: NoFilter) -> Option<Self> {
        // SAFETY: the call accesses no memory of ours.
        let (policy, priority) = unsafe {
            let priority = syscall!(SYS_getpriority, libc::PRIO_PROCESS, tid);
            (syscall!(SYS_sched_getscheduler, tid), priority)
        };
        if policy < 0 || priority < 0 {
            return None;
        }
        // The kernel returns 40 to 1 for nice values of -20 to 19.
        let policy = policy as i32 & !libc::SCHED_RESET_ON_FORK;
        Some(Self { policy, nice: 20 - priority as i32 })
    }

    /// Reads the class from a stat file, by calls that a filter in force since the start allows. `None` while
    /// another thread uses the buffers; `Some(None)` if the file cannot be read.
    pub fn in_file(path: &CStr, allowed: NoNewFilter) -> Option<Option<Self>> {
        let held = SignalsHeld::all()?;
        let mut buffers = BUFFERS.try_take(&held)?;
        Some(brief_file::read(path, &mut buffers.groups, allowed).and_then(Self::in_stat))
    }

    fn in_stat(stat: &[u8]) -> Option<Self> {
        let [nice, policy] = [19, 41].map(|number| sys::word_of_stat(stat, number));
        Some(Self { policy: policy? as i32, nice: nice? as i32 })
    }

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

/// Returns whether workers made by this thread would be scheduled no worse than those of the main thread.
/// They inherit its nice value and SCHED_IDLE, and improving either needs privileges; a SCHED_DEADLINE thread
/// can make none. Under a filter they keep every attribute that they inherit.
pub fn may_make_workers() -> bool {
    let (no_filter, no_new_filter) = (NoFilter::look(), NoNewFilter::look());
    let filtered = no_filter.is_none();
    let classes = match (no_filter, no_new_filter) {
        (Some(allowed), _) => Class::of(0, allowed).zip(Class::of(sys::getpid(), allowed)),
        (_, Some(allowed)) => {
            let read = |path| Class::in_file(path, allowed).flatten();
            read(c"/proc/thread-self/stat").zip(read(c"/proc/self/stat"))
        }
        (None, None) => return false, // no thread may be made
    };
    // A class that cannot be read is assumed to suit.
    let suits = classes.is_none_or(|(own, main)| own.makes_as_good_as(main, filtered));
    suits && (!filtered || has_all_cpus())
}

/// Returns whether this thread may use every CPU that the main thread may use.
fn has_all_cpus() -> bool {
    let Some(held) = SignalsHeld::all() else { return false };
    let Some(mut buffers) = BUFFERS.try_take(&held) else { return false };
    let CpuBuffers { mask, own, .. } = &mut *buffers;
    let size = affinity_of(sys::getpid(), mask);
    if size == 0 || affinity_of(0, own) != size {
        return false;
    }
    // Word by word: comparing them as a whole calls bcmp, that is, us.
    mask.iter().zip(own.iter()).take(size / 8).all(|(main, own)| main == own)
}

/// Releases the buffers in the child of a fork.
pub fn forget_after_fork() {
    BUFFERS.forget_after_fork();
}

/// Returns the number of CPUs this process may run on, 1 if the kernel does not report them, and a hash of
/// their set. Reads the mask of the main thread: the thread that copies first may be pinned.
fn by_affinity(mask: &mut Mask) -> (usize, u64) {
    let words = affinity_of(sys::getpid(), mask) / 8;
    let used = mask.iter().take(words);
    let count = used.clone().map(|word| word.count_ones() as usize).sum::<usize>();
    let which = used.fold(0u64, |sum, word| sum.rotate_left(7).wrapping_add(*word));
    (count.max(1), which)
}

/// Reads the affinity mask of a thread, 0 for this one. Returns how many bytes the kernel has
/// filled, 0 on failure.
fn affinity_of(tid: i32, mask: *mut Mask) -> usize {
    // SAFETY: every caller passes a `Mask` of its own, and the kernel writes at most the size of one.
    let answer = unsafe { syscall!(SYS_sched_getaffinity, tid, size_of::<Mask>(), mask) };
    usize::try_from(answer).unwrap_or(0)
}

/// Returns the smallest quota of all control groups of this process. The first large copy waits for
/// this, so no useless file is opened.
fn by_quota(groups: &mut [u8], path: &mut [u8], allowed: NoNewFilter) -> Option<f64> {
    let groups = brief_file::read(c"/proc/self/cgroup", groups, allowed)?;
    let mut least: Option<f64> = None;
    for line in groups.split(|&byte| byte == b'\n') {
        let Some((version, group)) = cpu_group(line) else { continue };
        let mut group = group.strip_suffix(b"/").unwrap_or(group);
        // Every group up to the root can set a limit. In a container the path may name groups of
        // the host that are not mounted here and cannot be read.
        loop {
            let mut mounts = version.mounts().into_iter();
            if let Some(Some(quota)) =
                mounts.find_map(|mount| quota_at(version, mount, group, path, allowed))
            {
                least = Some(least.map_or(quota, |least| least.min(quota)));
            }
            match group.iter().rposition(|&byte| byte == b'/').and_then(|at| group.get(..at)) {
                Some(above) => group = above,
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
    /// Returns the two places where the cpu controller may be mounted.
    fn mounts(self) -> [&'static str; 2] {
        match self {
            Version::One => ["/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"],
            Version::Two => ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"],
        }
    }

    /// Returns the files that hold quota and period, one behind the other; empty: none.
    fn files(self) -> [&'static str; 2] {
        match self {
            Version::One => ["/cpu.cfs_quota_us", "/cpu.cfs_period_us"],
            Version::Two => ["/cpu.max", ""],
        }
    }
}

/// Parses a line of /proc/self/cgroup: version of the cpu controller, and its group.
fn cpu_group(line: &[u8]) -> Option<(Version, &[u8])> {
    let mut fields = line.splitn(3, |&byte| byte == b':').skip(1);
    let (controllers, group) = (fields.next()?, fields.next()?);
    if controllers.is_empty() {
        return Some((Version::Two, group));
    }
    let is_cpu = controllers.split(|&byte| byte == b',').any(|name| name == b"cpu");
    is_cpu.then_some((Version::One, group))
}

/// Reads the quota of a group. `None`: there is no such group here. `Some(None)`: it has no limit.
fn quota_at(
    version: Version,
    mount: &str,
    group: &[u8],
    path: &mut [u8],
    allowed: NoNewFilter,
) -> Option<Option<f64>> {
    let (mut text, mut used) = ([0; 128], 0);
    for file in version.files().into_iter().filter(|file| !file.is_empty()) {
        let parts = [mount.as_bytes(), group, file.as_bytes(), b"\0"];
        for (at, &byte) in parts.into_iter().flatten().enumerate() {
            // Not by memcpy, that is, by us.
            // SAFETY: `get_mut` returned a reference to this byte.
            unsafe { (&raw mut *path.get_mut(at)?).write_volatile(byte) };
        }
        let path = CStr::from_bytes_until_nul(path).ok()?;
        used += brief_file::read(path, &mut text[used..], allowed)?.len();
    }
    Some(cpus_of(&text[..used]))
}

/// Parses quota and period, "200000 100000"; "max" and "-1" mean no limit.
fn cpus_of(text: &[u8]) -> Option<f64> {
    let mut words = core::str::from_utf8(text).ok()?.split_ascii_whitespace();
    let mut number = || words.next()?.parse::<u64>().ok();
    let (quota, period) = (number()?, number()?);
    (period > 0).then(|| quota as f64 / period as f64)
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
    fn quota_without_limit_is_none() {
        let rows: [(&[u8], _); 6] = [
            (b"max 100000\n", None),
            (b"-1\n100000\n", None),
            (b"150000 100000\n", Some(1.5)),
            (b"150000 0\n", None),
            (b"", None),
            (b"99999999999999999999 1", None),
        ];
        rows.into_iter().for_each(|(text, quota)| assert_eq!(cpus_of(text), quota));
    }

    #[test]
    fn scheduling_class_in_file_equals_that_of_system_calls() {
        let line = b"7 (a ) b) S 1 2 3 0 -1 4 0 0 0 0 0 0 0 0 39 19 1 0 5 0 0 0 1 1 1 1 1 0 0 0 \
            0 0 0 0 17 1 0 5 0 0 0\n";
        assert_eq!(Class::in_stat(line), Some(Class { policy: 5, nice: 19 }));
        assert_eq!(Class::in_stat(b"7 (a) S 1"), None);
        assert_eq!(Class::in_stat(b""), None);
        let Some(allowed) = NoFilter::look() else { return };
        assert!(Class::of(0, allowed).is_some());
        for (path, tid) in [(c"/proc/thread-self/stat", 0), (c"/proc/self/stat", sys::getpid())] {
            // `None` while another test uses the buffers.
            let read = || Class::in_file(path, allowed.into());
            let class = std::iter::repeat_with(read).find_map(|class| class);
            assert_eq!(class, Some(Class::of(tid, allowed)));
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
}
