//! System calls made directly.
//!
//! libc's wrappers write errno, which lives in thread-local storage; a hook must not change
//! it and our workers have none. Everything here returns the kernel's answer as a value.

use core::arch::asm;
use core::ffi::{CStr, c_void};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicI32, AtomicU8, Ordering};

/// The kernel's answer: a value, or the negated errno.
pub type SysResult = isize;

/// # Safety
/// As the system call `number` demands of its arguments.
#[inline(always)]
pub unsafe fn syscall(number: i64, args: [usize; 6]) -> SysResult {
    let answer;
    // SAFETY: the kernel clobbers rax, rcx and r11 only; the rest is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

/// Proof that this thread is under no seccomp filter, to be used at once. Calls that hardly any
/// program makes take it, so that none is made without a look: a filter may kill for them.
#[derive(Clone, Copy, Debug)]
pub struct NoFilter(());

/// Proof that no seccomp filter has come since the process started, to be used at once. Calls take it
/// that every program makes at its start, so that the filter which was there then allows them: those
/// that stand in adma(7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoNewFilter(());

/// The seccomp mode the process started with.
#[unsafe(link_section = ".data")] // a page that start-up touches anyhow
static MODE_AT_START: AtomicI32 = AtomicI32::new(0);

impl NoFilter {
    pub fn look() -> Option<Self> {
        (!started_filtered() && seccomp_mode() == 0).then_some(Self(()))
    }

    /// Without a look, for messages: a program asks for those by name, and its filter has to allow
    /// what they need.
    pub fn assumed() -> Self {
        Self(())
    }
}

impl NoNewFilter {
    /// At start-up, before anything is copied.
    pub fn note_start() {
        MODE_AT_START.store(seccomp_mode(), Ordering::Relaxed);
    }

    pub fn look() -> Option<Self> {
        (seccomp_mode() == MODE_AT_START.load(Ordering::Relaxed)).then_some(Self(()))
    }
}

impl From<NoFilter> for NoNewFilter {
    fn from(_: NoFilter) -> Self {
        Self(())
    }
}

/// Whether there was a seccomp filter when the process started.
pub fn started_filtered() -> bool {
    MODE_AT_START.load(Ordering::Relaxed) != 0
}

/// The seccomp mode of this thread: 0 none, 2 filter; negative where unknown.
fn seccomp_mode() -> i32 {
    // SAFETY: PR_GET_SECCOMP takes no memory.
    unsafe { syscall(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) as i32 }
}

/// Time stamp counter: the unit of all learning, turned into nanoseconds only for reports.
#[inline(always)]
pub fn ticks() -> u64 {
    // SAFETY: every x86-64 has it; user space may read it unless prctl(PR_SET_TSC) forbids,
    // which also breaks glibc's own clock.
    unsafe { core::arch::x86_64::_rdtsc() }
}

pub fn nanoseconds() -> u64 {
    nanoseconds_of(libc::CLOCK_MONOTONIC)
}

/// By another of the system's clocks.
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

/// The same with a word in memory that processes share.
pub fn futex_wait_shared(word: *const u32, expected: u32, nanos: u64) -> SysResult {
    futex_sleep(word, expected, nanos, libc::FUTEX_WAIT)
}

fn futex_sleep(word: *const u32, expected: u32, nanos: u64, operation: i32) -> SysResult {
    let limit = libc::timespec {
        tv_sec: (nanos / 1_000_000_000) as i64,
        tv_nsec: (nanos % 1_000_000_000) as i64,
    };
    let limit = if nanos == 0 { 0 } else { &raw const limit as usize };
    let (word, operation, expected) = (word as usize, operation as usize, expected as usize);
    // SAFETY: the kernel only compares the word; `limit` is null or lives through the call.
    unsafe { syscall(libc::SYS_futex, [word, operation, expected, limit, 0, 0]) }
}

pub fn futex_wake(word: *const u32, count: u32) -> bool {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: waking reads no memory of ours.
    let answer =
        unsafe { syscall(libc::SYS_futex, [word as usize, operation, count as usize, 0, 0, 0]) };
    answer >= 0
}

/// Wakes every sleeper on a word that processes share.
pub fn futex_wake_shared(word: *const u32) {
    let (operation, everybody) = (libc::FUTEX_WAKE as usize, i32::MAX as usize);
    // SAFETY: waking reads no memory of ours.
    unsafe { syscall(libc::SYS_futex, [word as usize, operation, everybody, 0, 0, 0]) };
}

/// Sleeps for a while, or shorter when a signal comes. By a futex that nobody wakes: a filter
/// that allows anything allows that, and glibc has not called nanosleep for years.
pub fn sleep(nanos: u64) {
    let word = 0u32;
    futex_wait(&word, word, nanos.max(1));
}

/// Whether the C library knows of no second thread, which could install a signal handler at
/// any moment. False where it does not say.
pub fn has_one_thread() -> bool {
    let flag: *const AtomicU8;
    // SAFETY: reads what the loader has put there: an address, or null, for the symbol is
    // weak and glibc has it since 2.32.
    unsafe {
        asm!(".weak __libc_single_threaded",
            "mov {}, qword ptr [rip + __libc_single_threaded@GOTPCREL]",
            out(reg) flag, options(pure, readonly, nostack, preserves_flags));
    }
    // SAFETY: a byte of the C library's, for everybody to read.
    !flag.is_null() && unsafe { (*flag).load(Ordering::Relaxed) } != 0
}

/// Whether a thread of this process has ended, by its number: what it would hold cannot be locked. By
/// a futex, which every filter allows.
pub fn has_ended(tid: i32) -> bool {
    let mut lock = tid as u32; // as if that thread held it
    let operation = (libc::FUTEX_TRYLOCK_PI | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: a word of our own, of which no other thread knows.
    let answer =
        unsafe { syscall(libc::SYS_futex, [&raw mut lock as usize, operation, 0, 0, 0, 0]) };
    answer == -libc::ESRCH as isize
}

/// Whether the kernel still counts a thread of this process, by its number.
pub fn is_thread(tid: u32) -> bool {
    let mut mask = 0u64;
    // SAFETY: the kernel writes at most 8 bytes, or refuses because it would write more.
    let answer = unsafe {
        syscall(libc::SYS_sched_getaffinity, [tid as usize, 8, &raw mut mask as usize, 0, 0, 0])
    };
    answer != -libc::ESRCH as isize
}

pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
}

pub fn getpid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) as i32 }
}

pub fn gettid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) as i32 }
}

/// A value that the kernel has given the process when it started.
pub fn auxiliary(which: u64) -> Option<u64> {
    // SAFETY: reads what the kernel has left there; errno is this thread's.
    unsafe {
        let errno = libc::__errno_location();
        let before = core::mem::replace(&mut *errno, 0);
        let value = libc::getauxval(which);
        let found = core::mem::replace(&mut *errno, before) == 0;
        found.then_some(value)
    }
}

pub fn geteuid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_geteuid, [0; 6]) as i32 }
}

/// Whether the page at `page` is in memory; true where the kernel does not say.
pub fn is_resident(page: usize, _: NoFilter) -> bool {
    let mut answer = 1u8;
    // SAFETY: the kernel writes one byte for the one page.
    let done = unsafe { syscall(libc::SYS_mincore, [page, 1, &raw mut answer as usize, 0, 0, 0]) };
    done != 0 || answer & 1 == 1
}

/// How often this thread has lost its CPU to others; `None`: the kernel does not say.
pub fn preemptions(_: NoFilter) -> Option<u64> {
    let mut usage = core::mem::MaybeUninit::<libc::rusage>::uninit();
    let place = usage.as_mut_ptr() as usize;
    // SAFETY: the kernel fills `usage`, which is read only then.
    unsafe {
        let done = syscall(libc::SYS_getrusage, [libc::RUSAGE_THREAD as usize, place, 0, 0, 0, 0]);
        (done == 0).then(|| usage.assume_init_ref().ru_nivcsw as u64)
    }
}

/// Makes pages as if they were written, without changing what they hold. Linux has it since 5.14;
/// if it fails, copying will fault for them one by one, or fail, as without it.
pub fn make_pages(start: usize, len: usize, _: NoFilter) {
    let advice = libc::MADV_POPULATE_WRITE as usize;
    // SAFETY: changes no byte.
    unsafe { syscall(libc::SYS_madvise, [start, len, advice, 0, 0, 0]) };
}

/// Has pages of a range made huge ones when they are first touched.
pub fn request_huge_pages(start: usize, len: usize, _: NoFilter) {
    let advice = libc::MADV_HUGEPAGE as usize;
    // SAFETY: changes no byte.
    unsafe { syscall(libc::SYS_madvise, [start, len, advice, 0, 0, 0]) };
}

/// Whether this process was told to have no huge pages.
pub fn has_no_huge_pages(_: NoFilter) -> bool {
    // SAFETY: no memory.
    unsafe { syscall(libc::SYS_prctl, [libc::PR_GET_THP_DISABLE as usize, 0, 0, 0, 0, 0]) != 0 }
}

/// Tells the kernel where this thread's restartable sequence is. False: it refuses.
pub fn register_rseq(area: usize, size: usize, signature: u32, _: NoFilter) -> bool {
    // SAFETY: the kernel writes to the area as long as the thread lives, as the caller wants.
    unsafe { syscall(libc::SYS_rseq, [area, size, 0, signature as usize, 0, 0]) == 0 }
}

/// Tells the kernel that this process will call `interrupt_workers`. Takes milliseconds in a
/// process of several threads. False: it refuses.
pub fn expect_interruptions(_: NoFilter) -> bool {
    membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ) == 0
}

/// Has every thread of this process that is inside a restartable sequence leave it before it executes
/// another instruction. False: that is not possible.
pub fn interrupt_workers(_: NoFilter) -> bool {
    loop {
        match -membarrier(MEMBARRIER_PRIVATE_EXPEDITED_RSEQ) as i32 {
            0 => return true,
            libc::ENOMEM => yield_now(), // for a moment
            // The registration is lost after a restore from a checkpoint, for instance.
            _ => return false,
        }
    }
}

const MEMBARRIER_PRIVATE_EXPEDITED_RSEQ: usize = 1 << 7;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ: usize = 1 << 8;

fn membarrier(command: usize) -> SysResult {
    // SAFETY: no memory.
    unsafe { syscall(libc::SYS_membarrier, [command, 0, 0, 0, 0, 0]) }
}

/// `len` bytes of zeros, where the kernel chooses; `None`: there is no memory.
pub fn map(len: usize) -> Option<*mut c_void> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a fresh mapping touches no other.
    let at = unsafe { syscall(libc::SYS_mmap, [0, len, protection, flags, usize::MAX, 0]) };
    usize::try_from(at).ok().map(|at| at as *mut c_void)
}

/// # Safety
/// A mapping of `len` bytes that nobody uses any more.
pub unsafe fn unmap(at: *mut c_void, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { syscall(libc::SYS_munmap, [at as usize, len, 0, 0, 0, 0]) };
}

/// Maps a stack of `len` bytes, with a page below it that faults; answers its upper end.
pub fn map_stack(len: usize) -> Option<usize> {
    const GUARD: usize = 4096;
    let at = map(len + GUARD)?;
    // SAFETY: the lowest page of the fresh mapping, which nobody knows yet.
    unsafe { syscall(libc::SYS_mprotect, [at as usize, GUARD, 0, 0, 0, 0]) };
    Some(at as usize + GUARD + len)
}

/// A page of zeros that is all zeros again in the child of a fork, however that was made; or
/// null. It is never unmapped.
pub fn page_wiped_on_fork(_: NoFilter) -> *mut c_void {
    const SIZE: usize = 4096;
    let Some(page) = map(SIZE) else { return core::ptr::null_mut() };
    // SAFETY: advice about a fresh mapping, and perhaps its end.
    unsafe {
        let wipe = libc::MADV_WIPEONFORK as usize;
        if syscall(libc::SYS_madvise, [page as usize, SIZE, wipe, 0, 0, 0]) != 0 {
            unmap(page, SIZE);
            return core::ptr::null_mut();
        }
    }
    page
}

/// Ends the process, all threads of it, and nothing else.
pub fn exit_group(status: i32) -> ! {
    loop {
        // SAFETY: no memory.
        unsafe { syscall(libc::SYS_exit_group, [status as usize, 0, 0, 0, 0, 0]) };
    }
}

/// Calls a function on another stack, whose upper end is given.
///
/// # Safety
/// A stack that is large enough and that nobody uses.
pub unsafe fn call_on_stack(top: usize, function: extern "C" fn()) {
    // SAFETY: the stack pointer is kept in a register that the function keeps, and taken back.
    unsafe {
        asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) top & !15,
            function = in(reg) function,
            out("r12") _,
            clobber_abi("C"),
        );
    }
}

/// Opens a file to append to, made if need be; answers the descriptor. A pipe that nobody
/// reads is not waited for, but whoever reads one later may take its time. For reports only, which
/// the user has asked for, filter or not.
pub fn open_to_append(path: &CStr) -> SysResult {
    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
    let (at, name) = (libc::AT_FDCWD as usize, path.as_ptr() as usize);
    let at_once = (flags | libc::O_NONBLOCK) as usize;
    // SAFETY: `path` is terminated; the descriptor is ours.
    unsafe {
        let fd = syscall(libc::SYS_openat, [at, name, at_once, 0o666, 0, 0]);
        if fd >= 0 {
            let set = libc::F_SETFL as usize;
            syscall(libc::SYS_fcntl, [fd as usize, set, flags as usize, 0, 0, 0]);
        }
        fd
    }
}

/// Opens for reading; answers the descriptor. Not inherited over exec. Workers must not: the number
/// is one of the program's.
pub fn open(path: &CStr, _: NoNewFilter) -> SysResult {
    let (at, flags) = (libc::AT_FDCWD as usize, (libc::O_RDONLY | libc::O_CLOEXEC) as usize);
    // SAFETY: `path` is terminated.
    unsafe { syscall(libc::SYS_openat, [at, path.as_ptr() as usize, flags, 0, 0, 0]) }
}

pub fn close(fd: i32) {
    close_file(fd);
}

/// The same for a file that was written: 0, or what went wrong with that.
pub fn close_file(fd: i32) -> SysResult {
    // SAFETY: no memory; whose the number is is the caller's business.
    unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) }
}

/// The same file under the lowest free number from `lowest` up; not inherited over exec.
pub fn duplicate(fd: i32, lowest: i32) -> SysResult {
    let command = libc::F_DUPFD_CLOEXEC as usize;
    // SAFETY: no memory.
    unsafe { syscall(libc::SYS_fcntl, [fd as usize, command, lowest as usize, 0, 0, 0]) }
}

/// Whether a file is there and may be read: 0, or why not.
pub fn may_read(path: &CStr) -> SysResult {
    let (at, mode) = (libc::AT_FDCWD as usize, libc::R_OK as usize);
    // SAFETY: `path` is terminated.
    unsafe { syscall(libc::SYS_faccessat, [at, path.as_ptr() as usize, mode, 0, 0, 0]) }
}

/// Which device a descriptor stands for; `None`: it does not stand for one.
pub fn device_of(fd: i32) -> Option<u64> {
    let is_device = |stat: &libc::stat| stat.st_mode & libc::S_IFMT == libc::S_IFCHR;
    stat(fd, |stat| is_device(stat).then_some(stat.st_rdev))?
}

/// Which file a descriptor stands for: device and inode.
pub fn file_of(fd: i32) -> Option<(u64, u64)> {
    stat(fd, |stat| (stat.st_dev, stat.st_ino))
}

/// What `look` finds in fstat's answer, which is not moved: compilers do that with memcpy, which
/// is us.
pub fn stat<R>(fd: i32, look: impl FnOnce(&libc::stat) -> R) -> Option<R> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills it, and it is read only after it has.
    unsafe {
        let at = stat.as_mut_ptr() as usize;
        let answer = syscall(libc::SYS_fstat, [fd as usize, at, 0, 0, 0, 0]);
        (answer == 0).then(|| look(stat.assume_init_ref()))
    }
}

/// A descriptor that becomes readable by `raise_event`; neither blocks nor is inherited over
/// exec.
pub fn new_event() -> SysResult {
    let flags = (libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) as usize;
    // SAFETY: no memory.
    unsafe { syscall(libc::SYS_eventfd2, [0, flags, 0, 0, 0, 0]) }
}

/// Adds one to an event; when it is full it is readable already.
pub fn raise_event(fd: i32) {
    let one = 1u64;
    // SAFETY: reads 8 bytes of ours.
    unsafe { syscall(libc::SYS_write, [fd as usize, &raw const one as usize, 8, 0, 0, 0]) };
}

/// Maps one page of a file, to be read only; answers its address.
pub fn map_page(fd: i32, offset: usize) -> SysResult {
    let (protection, flags) = (libc::PROT_READ as usize, libc::MAP_SHARED as usize);
    // SAFETY: a fresh mapping, where the kernel chooses.
    unsafe { syscall(libc::SYS_mmap, [0, 4096, protection, flags, fd as usize, offset]) }
}

/// Reads a small file whole; `None` when it cannot be opened.
pub fn read_file<'a>(path: &CStr, buffer: &'a mut [u8], allowed: NoNewFilter) -> Option<&'a [u8]> {
    let fd = usize::try_from(open(path, allowed)).ok()?;
    let mut filled = 0;
    while filled < buffer.len() {
        let rest = &mut buffer[filled..];
        let (start, len) = (rest.as_mut_ptr() as usize, rest.len());
        // SAFETY: the kernel writes inside `rest`.
        let got = unsafe { syscall(libc::SYS_read, [fd, start, len, 0, 0, 0]) };
        if got <= 0 {
            break;
        }
        filled += got as usize;
    }
    close(fd as i32);
    Some(&buffer[..filled])
}

/// Counts the lines of a file.
pub fn count_lines(path: &CStr, allowed: NoNewFilter) -> Option<u32> {
    let fd = usize::try_from(open(path, allowed)).ok()?;
    let (mut room, mut lines) = (MaybeUninit::<[u8; 4096]>::uninit(), 0);
    loop {
        let start = room.as_mut_ptr() as usize;
        // SAFETY: the kernel writes inside `room`.
        let got = unsafe { syscall(libc::SYS_read, [fd, start, size_of_val(&room), 0, 0, 0]) };
        if got <= 0 {
            break;
        }
        // SAFETY: just filled so far.
        let filled = unsafe { core::slice::from_raw_parts(room.as_ptr().cast(), got as usize) };
        lines += filled.iter().filter(|&&byte: &&u8| byte == b'\n').count() as u32;
    }
    close(fd as i32);
    Some(lines)
}

/// Where a symbolic link leads.
pub fn read_link<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let (at, path) = (libc::AT_FDCWD as usize, path.as_ptr() as usize);
    let (start, len) = (buffer.as_mut_ptr() as usize, buffer.len());
    // SAFETY: `path` is terminated, and the kernel writes inside `buffer`.
    let answer = unsafe { syscall(libc::SYS_readlinkat, [at, path, start, len, 0, 0]) };
    buffer.get(..usize::try_from(answer).ok()?)
}
