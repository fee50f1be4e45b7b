//! System calls made directly.
//!
//! libc's wrappers write errno, which lives in thread-local storage. A hook must not change errno, and our
//! workers have no such storage. The functions here return the kernel's result as a value.

use crate::os::arch;
use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

/// Result of a system call: a value, or the negated errno.
pub type SysResult = isize;

/// # Safety
/// The arguments, six at most, are as the system call `number` demands.
#[inline(always)]
pub unsafe fn syscall<const N: usize>(number: i64, args: [usize; N]) -> SysResult {
    let argument = |at: usize| if at < N { args[at] } else { 0 };
    // SAFETY: the arguments are as the system call demands, by the caller's promise.
    unsafe { arch::system_call!(number, argument) }
}

/// Makes the system call of this name; arguments are integers or pointers.
macro_rules! syscall_by_name {
    ($name:ident $(, $argument:expr)* $(,)?) => {
        $crate::os::sys::syscall(libc::$name, [$($argument as usize),*])
    };
}
pub(crate) use syscall_by_name as syscall;

/// Proof that this thread is under no seccomp filter, to be used at once. Functions that make rare system
/// calls take it, so that none is made without a check: a filter may kill for such a call.
#[derive(Clone, Copy, Debug)]
pub struct NoFilter(());

/// Proof that no seccomp filter was installed since the process started, to be used at once. Taken by
/// functions whose system calls every program makes at its start and adma(7) lists, because the filter in
/// force at that time allows them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoNewFilter(());

/// The seccomp mode the process started with.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow
static MODE_AT_START: AtomicI32 = AtomicI32::new(0);

impl NoFilter {
    pub fn look() -> Option<Self> {
        if started_filtered() {
            return None;
        }
        NoNewFilter::look().map(|_| Self(()))
    }

    /// Skips the check, for messages: a program asks for those by name, so its filter has to allow
    /// what they need.
    pub fn assumed() -> Self {
        Self(())
    }
}

impl NoNewFilter {
    /// Notes the seccomp mode at start-up, before anything is copied.
    pub fn note_start() {
        MODE_AT_START.store(seccomp_mode(), Ordering::Relaxed);
    }

    pub fn look() -> Option<Self> {
        let is_same = || seccomp_mode() == MODE_AT_START.load(Ordering::Relaxed);
        let has_installed = INSTALLED_FILTERS.load(Ordering::Relaxed) != 0;
        (!has_installed && is_same()).then_some(Self(()))
    }
}

impl From<NoFilter> for NoNewFilter {
    fn from(_: NoFilter) -> Self {
        Self(())
    }
}

/// Number of filters that threads of this process have installed, or are installing.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow
static INSTALLED_FILTERS: AtomicU32 = AtomicU32::new(0);

/// A filter that is being installed, for one thread or all.
pub struct InstallingFilter(());

impl InstallingFilter {
    pub fn new() -> Self {
        INSTALLED_FILTERS.fetch_add(1, Ordering::SeqCst);
        Self(())
    }

    /// Notes that the filter is installed, which cannot be undone.
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for InstallingFilter {
    fn drop(&mut self) {
        INSTALLED_FILTERS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns whether there was a seccomp filter when the process started.
pub fn started_filtered() -> bool {
    MODE_AT_START.load(Ordering::Relaxed) != 0
}

/// Returns the seccomp mode of this thread: 0 none, 2 filter; negative where unknown.
fn seccomp_mode() -> i32 {
    // SAFETY: the call accesses no memory of ours.
    unsafe { syscall!(SYS_prctl, libc::PR_GET_SECCOMP) as i32 }
}

/// Set if programs may read `thread_register`.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow
static CAN_READ_THREAD: AtomicBool = AtomicBool::new(false);

/// Notes at start-up whether `thread_register` can be read.
pub fn look_at_thread_register() {
    CAN_READ_THREAD.store(arch::can_read_thread_register(), Ordering::Relaxed);
}

/// Returns the base of the thread's storage, an address that differs between threads, without its lowest 6
/// bits; `None`: it cannot be read. A thread made by a bare clone may have the value of its maker, and a new
/// thread may get that of a thread that has just ended. The address is not read from, because nothing may be
/// mapped there.
pub fn thread_register() -> Option<u64> {
    if !CAN_READ_THREAD.load(Ordering::Relaxed) {
        return None;
    }
    // SAFETY: `CAN_READ_THREAD` is set: the kernel lets programs read this register.
    Some(unsafe { arch::thread_register() } >> 6) // threads are at least a cache line apart
}

/// Number of slots that threads are spread over.
pub const THREAD_SLOTS: usize = 64;

/// Returns a thread's slot, by a hash of `thread_register`: threads may share one.
pub fn slot_of(thread: u64) -> usize {
    (thread.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - THREAD_SLOTS.ilog2())) as usize
}

/// The CPU's counter: the unit of all learning, in nanoseconds only for reports.
pub use arch::ticks;

pub fn nanoseconds() -> u64 {
    nanoseconds_of(libc::CLOCK_MONOTONIC)
}

/// Returns the time by any of the system's clocks.
pub fn nanoseconds_of(clock: libc::clockid_t) -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable. The vDSO answers; errno changes only for a bad clock.
    unsafe { libc::clock_gettime(clock, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Sleeps while `*word` is `expected`, at most `nanos` (0: without end).
pub fn futex_wait(word: *const u32, expected: u32, nanos: u64) -> SysResult {
    futex_sleep(word, expected, nanos, libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG)
}

/// Like `futex_wait`, for a word in memory that processes share.
pub fn futex_wait_shared(word: *const u32, expected: u32, nanos: u64) -> SysResult {
    futex_sleep(word, expected, nanos, libc::FUTEX_WAIT)
}

fn futex_sleep(word: *const u32, expected: u32, nanos: u64, operation: i32) -> SysResult {
    let (tv_sec, tv_nsec) = ((nanos / 1_000_000_000) as i64, (nanos % 1_000_000_000) as i64);
    let limit = libc::timespec { tv_sec, tv_nsec };
    let limit = if nanos == 0 { core::ptr::null() } else { &raw const limit };
    // SAFETY: the kernel only compares the word; `limit` is null or lives through the call.
    unsafe { syscall!(SYS_futex, word, operation, expected, limit) }
}

/// Wakes up to `count` sleepers; false where the system refuses.
pub fn futex_wake(word: *const u32, count: u32) -> bool {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: waking reads no memory of ours.
    unsafe { syscall!(SYS_futex, word, operation, count) >= 0 }
}

/// Wakes every sleeper on a word that processes share.
pub fn futex_wake_shared(word: *const u32) {
    // SAFETY: waking reads no memory of ours.
    unsafe { syscall!(SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
}

/// Polls; for ever if the limit is negative. Not every architecture has a poll without a mask.
///
/// # Safety
/// `set` is an array of `count` libc::pollfd.
pub unsafe fn poll(set: usize, count: usize, limit_ms: i32) -> SysResult {
    let ms = i64::from(limit_ms);
    let limit = libc::timespec { tv_sec: ms / 1000, tv_nsec: ms % 1000 * 1_000_000 };
    let limit = if ms < 0 { core::ptr::null() } else { &raw const limit };
    // SAFETY: the kernel writes the answers into the set; `limit` is null or lives through the call.
    unsafe { syscall!(SYS_ppoll, set, count, limit, 0) }
}

/// Sleeps for `nanos`, or less if a signal arrives. Waits on a futex that is never woken: every filter allows
/// futexes, but perhaps not nanosleep, which glibc has not called for years.
pub fn sleep(nanos: u64) {
    let word = 0u32;
    futex_wait(&word, word, nanos.max(1));
}

/// Returns whether a thread of this process has ended, by its number. Tries to lock a PI futex that
/// names it as the owner; every filter allows futexes.
pub fn has_ended(tid: i32) -> bool {
    let mut lock = tid as u32; // as if that thread held it
    let operation = libc::FUTEX_TRYLOCK_PI | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel accesses `lock` only, a local word that no other thread knows.
    unsafe { syscall!(SYS_futex, &raw mut lock, operation) == -libc::ESRCH as isize }
}

/// Returns whether the kernel still counts a thread of this process, by its number.
pub fn is_thread(tid: u32) -> bool {
    let mut mask = 0u64;
    // SAFETY: the kernel writes at most 8 bytes, or refuses because it would write more.
    unsafe { syscall!(SYS_sched_getaffinity, tid, 8, &raw mut mask) != -libc::ESRCH as isize }
}

pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { syscall!(SYS_sched_yield) };
}

pub fn getpid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(SYS_getpid) as i32 }
}

pub fn gettid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(SYS_gettid) as i32 }
}

pub fn geteuid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall!(SYS_geteuid) as i32 }
}

/// Returns an entry of the auxiliary vector, which the kernel has set at the start of the process.
pub fn auxiliary(which: u64) -> Option<u64> {
    // SAFETY: the C library reads the vector, which lives as long as the process; errno is this thread's own.
    unsafe {
        let errno = libc::__errno_location();
        let before = core::mem::replace(&mut *errno, 0);
        let value = libc::getauxval(which);
        let found = core::mem::replace(&mut *errno, before) == 0;
        found.then_some(value)
    }
}

/// Returns whether the page at `page` is in memory, true where the kernel does not report it; `None`: a
/// seccomp filter may forbid the call.
pub fn is_resident(page: usize) -> Option<bool> {
    NoFilter::look()?;
    let mut answer = 1u8;
    // SAFETY: the kernel writes one byte for the one page.
    let done = unsafe { syscall!(SYS_mincore, page, 1, &raw mut answer) };
    Some(done != 0 || answer & 1 == 1)
}

/// Returns how often this thread has lost its CPU to others; `None`: the kernel does not report it.
pub fn preemptions(_: NoFilter) -> Option<u64> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel fills `usage`, which is read only after success.
    unsafe {
        let done = syscall!(SYS_getrusage, libc::RUSAGE_THREAD, usage.as_mut_ptr());
        (done == 0).then(|| usage.assume_init_ref().ru_nivcsw as u64)
    }
}

/// Populates pages for writing without changing their contents (Linux 5.14). If it fails, the copy
/// takes the page faults one by one.
pub fn make_pages(start: usize, len: usize, _: NoFilter) {
    // SAFETY: populating pages changes no byte.
    unsafe { syscall!(SYS_madvise, start, len, libc::MADV_POPULATE_WRITE) };
}

/// Registers this thread's restartable sequence. Returns false if the kernel refuses.
pub fn register_rseq(area: usize, size: usize, signature: u32, _: NoFilter) -> bool {
    // SAFETY: the kernel writes to the area as long as the thread lives, as the caller wants.
    unsafe { syscall!(SYS_rseq, area, size, 0, signature) == 0 }
}

/// Registers this process for `interrupt_workers`. Takes milliseconds in a process of several threads. False:
/// the kernel refuses.
pub fn expect_interruptions(_: NoFilter) -> bool {
    const REGISTER_PRIVATE_EXPEDITED_RSEQ: usize = 1 << 8;
    // SAFETY: the call accesses no memory of ours.
    unsafe { syscall!(SYS_membarrier, REGISTER_PRIVATE_EXPEDITED_RSEQ) == 0 }
}

/// Aborts the restartable sequence of every thread of this process that is inside one. False: the kernel
/// refuses.
pub fn interrupt_workers(_: NoFilter) -> bool {
    const PRIVATE_EXPEDITED_RSEQ: usize = 1 << 7;
    loop {
        // SAFETY: the call accesses no memory of ours.
        match -unsafe { syscall!(SYS_membarrier, PRIVATE_EXPEDITED_RSEQ) } as i32 {
            0 => return true,
            libc::ENOMEM => yield_now(), // for a moment
            // The registration is lost after a restore from a checkpoint, for instance.
            _ => return false,
        }
    }
}

/// Maps `len` bytes of zeros, where the kernel chooses; `None`: there is no memory.
pub fn map(len: usize) -> Option<*mut c_void> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping touches no other.
    let at = unsafe { syscall!(SYS_mmap, 0, len, protection, flags, usize::MAX) };
    usize::try_from(at).ok().map(|at| at as *mut c_void)
}

/// # Safety
/// `at` is a mapping of `len` bytes that is not used any more.
pub unsafe fn unmap(at: *mut c_void, len: usize) {
    // SAFETY: the caller passes a mapping of `len` bytes that is not used any more.
    unsafe { syscall!(SYS_munmap, at, len) };
}

/// Maps a stack of `len` bytes, with a guard page below; returns its upper end.
pub fn map_stack(len: usize) -> Option<usize> {
    const GUARD: usize = 4096;
    let at = map(len + GUARD)?;
    // SAFETY: the lowest page of the fresh mapping, which is not used yet.
    unsafe { syscall!(SYS_mprotect, at, GUARD, libc::PROT_NONE) };
    Some(at as usize + GUARD + len)
}

/// Maps a page that the kernel zeroes in the child of every kind of fork; or returns null. It is
/// never unmapped.
pub fn page_wiped_on_fork(_: NoFilter) -> *mut c_void {
    const SIZE: usize = 4096;
    let Some(page) = map(SIZE) else { return core::ptr::null_mut() };
    // SAFETY: `page` was just mapped, and no other thread uses it: it is advised, and unmapped if that fails.
    unsafe {
        if syscall!(SYS_madvise, page, SIZE, libc::MADV_WIPEONFORK) == 0 {
            return page;
        }
        unmap(page, SIZE);
    }
    core::ptr::null_mut()
}

/// Maps one page of a file, to be read only; returns its address.
pub fn map_page(fd: i32, offset: usize) -> SysResult {
    // SAFETY: a fresh mapping, where the kernel chooses.
    unsafe { syscall!(SYS_mmap, 0, 4096, libc::PROT_READ, libc::MAP_SHARED, fd, offset) }
}

/// Ends the process with all its threads, and runs no handler.
pub fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: the call accesses no memory of ours.
        unsafe { syscall!(SYS_exit_group, status) };
    }
}

/// Opens a file to append to, made if need be; returns the descriptor. Does not wait for a reader
/// of a pipe, though writing may wait for a slow one. Only for reports, which the user has asked
/// for, filter or not.
pub fn open_to_append(path: &CStr) -> SysResult {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    let at_once = flags | libc::O_NONBLOCK;
    // SAFETY: `path` is terminated; the descriptor is ours.
    unsafe {
        let fd = syscall!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), at_once, 0o666);
        if fd >= 0 {
            syscall!(SYS_fcntl, fd, libc::F_SETFL, flags);
        }
        fd
    }
}

/// Opens for reading; returns the descriptor. Not inherited over exec. Not for workers: the number
/// would be taken from the program.
pub fn open(path: &CStr, _: NoNewFilter) -> SysResult {
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    // SAFETY: `path` is terminated.
    unsafe { syscall!(SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags) }
}

/// Closes a descriptor. Returns 0, or the negated errno of a write that failed late.
pub fn close(fd: i32) -> SysResult {
    // SAFETY: the call accesses no memory of ours; the caller passes a descriptor that it may close.
    unsafe { syscall!(SYS_close, fd) }
}

/// Duplicates a descriptor to the lowest free number from `lowest` up; not inherited over exec.
pub fn duplicate(fd: i32, lowest: i32) -> SysResult {
    // SAFETY: the call accesses no memory of ours.
    unsafe { syscall!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, lowest) }
}

/// Lowest number of descriptors that we keep open, out of the way of programs that expect to get the lowest
/// free number.
pub const LEAST_KEPT: i32 = 500;

/// Moves a descriptor that was just opened to `LEAST_KEPT` or above.
pub fn move_up(low: i32) -> SysResult {
    let high = duplicate(low, LEAST_KEPT);
    close(low);
    high
}

/// Checks that a file exists and may be read. Returns 0 or the negated errno.
pub fn may_read(path: &CStr) -> SysResult {
    // SAFETY: `path` is terminated.
    unsafe { syscall!(SYS_faccessat, libc::AT_FDCWD, path.as_ptr(), libc::R_OK) }
}

/// Returns which device a descriptor stands for; `None`: it does not stand for one.
pub fn device_of(fd: i32) -> Option<u64> {
    let is_device = |stat: &libc::stat| stat.st_mode & libc::S_IFMT == libc::S_IFCHR;
    stat(fd, |stat| is_device(stat).then_some(stat.st_rdev))?
}

/// Returns which file a descriptor stands for: device and inode.
pub fn file_of(fd: i32) -> Option<(u64, u64)> {
    stat(fd, |stat| (stat.st_dev, stat.st_ino))
}

/// Calls `look` with the result of fstat, which is not returned by value: compilers move it by
/// memcpy, that is, by us.
pub fn stat<R>(fd: i32, look: impl FnOnce(&libc::stat) -> R) -> Option<R> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills the structure, which is read only after success.
    unsafe {
        let answer = syscall!(SYS_fstat, fd, stat.as_mut_ptr());
        (answer == 0).then(|| look(stat.assume_init_ref()))
    }
}

/// Returns whether a descriptor stands for a file or folder that is in memory only (tmpfs, memfd);
/// `None`: the system does not report it.
pub fn is_in_memory(fd: i32) -> Option<bool> {
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the kernel fills the structure, which is read only after success.
    unsafe {
        let answer = syscall!(SYS_fstatfs, fd, system.as_mut_ptr());
        (answer == 0).then(|| system.assume_init_ref().f_type == libc::TMPFS_MAGIC)
    }
}

/// Makes a descriptor that `raise_event` makes readable. It neither blocks nor is inherited over exec.
pub fn new_event() -> SysResult {
    // SAFETY: the call accesses no memory of ours.
    unsafe { syscall!(SYS_eventfd2, 0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) }
}

/// Adds one to an event; if the counter is full, the event is readable already.
pub fn raise_event(fd: i32) {
    let one = 1u64;
    // SAFETY: reads 8 bytes of ours.
    unsafe { syscall!(SYS_write, fd, &raw const one, 8) };
}

/// Reads where a symbolic link leads.
pub fn read_link<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let (start, len) = (buffer.as_mut_ptr(), buffer.len());
    // SAFETY: `path` is terminated, and the kernel writes inside `buffer`.
    let answer = unsafe { syscall!(SYS_readlinkat, libc::AT_FDCWD, path.as_ptr(), start, len) };
    buffer.get(..usize::try_from(answer).ok()?)
}

/// Returns word `number`, from 1, of /proc/PID/stat. The second is a name in parentheses that may contain
/// spaces and parentheses.
pub fn word_of_stat(stat: &[u8], number: usize) -> Option<i64> {
    let rest = stat.get(stat.iter().rposition(|&byte| byte == b')')? + 1..)?;
    let word = rest.split(|&byte| byte == b' ').nth(number - 2)?;
    core::str::from_utf8(word).ok()?.trim().parse().ok()
}
