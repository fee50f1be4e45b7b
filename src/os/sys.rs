//! System calls made directly, and the words the entry code reads.
//!
//! libc's wrappers write errno, which lives in thread-local storage; a hook must not change
//! it and our workers have none. Everything here returns the kernel's answer as a value.

use super::put_off;
use core::arch::asm;
use core::ffi::{CStr, c_void};
use core::fmt::{self, Write};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicUsize, Ordering};

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

/// Waits until somebody writes to the cache line at `line`, or a little: called in a loop.
/// `unchanged` is looked at again: it may have changed before it was watched.
///
/// # Safety
/// The CPU has umwait, and `line` can be read.
#[inline(always)]
pub unsafe fn watch(line: usize, unchanged: impl Fn() -> bool) {
    // SAFETY: the instructions only watch and wait, no longer than the kernel's limit.
    unsafe {
        asm!("umonitor {}", in(reg) line, options(nostack));
        if unchanged() {
            asm!("umwait ecx", in("ecx") 0, in("eax") u32::MAX, in("edx") u32::MAX,
                options(nostack));
        }
    }
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

/// Whether the kernel still counts a thread of this process, by its number.
pub fn is_thread(tid: u32) -> bool {
    let mut room = [0; 32];
    let mut path = Text::over(&mut room);
    let _ = write!(path, "/proc/self/task/{tid}\0"); // fits
    CStr::from_bytes_with_nul(path.as_bytes()).is_ok_and(|path| {
        let fd = open(path);
        if fd >= 0 {
            close(fd as i32);
        }
        fd >= 0
    })
}

pub fn geteuid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_geteuid, [0; 6]) as i32 }
}

/// All 64 signals, the C library's own two included.
const EVERY_SIGNAL: u64 = !0;

/// What a bad page raises.
const FAULTS: u64 = signal_set(libc::SIGSEGV) | signal_set(libc::SIGBUS);

/// While this lives, some signals do not come to this thread.
pub struct SignalsHeld {
    before: u64,
    /// It hears of bad pages meanwhile.
    but_faults: bool,
}

impl SignalsHeld {
    /// Holds all of them: no handler can jump out of a copy that workers still carry on.
    pub fn all() -> Option<Self> {
        Self::these(EVERY_SIGNAL, false)
    }

    /// The same while a copy is shared: our own handler must hear of bad pages, as far as the
    /// program itself would.
    pub fn all_but_faults() -> Option<Self> {
        Self::these(EVERY_SIGNAL & !FAULTS, true)
    }

    fn these(signals: u64, but_faults: bool) -> Option<Self> {
        let mut before = 0;
        let answer = signal_mask(libc::SIG_BLOCK, &signals, &mut before);
        // Made only then: its end sets a mask.
        (answer == 0).then(|| Self { before, but_faults })
    }

    fn release(&self) {
        signal_mask(libc::SIG_SETMASK, &self.before, core::ptr::null_mut());
    }

    /// What was put off comes together with what was held.
    #[cold]
    fn hold_what_was_put_off() {
        signal_mask(libc::SIG_BLOCK, &FAULTS, core::ptr::null_mut());
        put_off::send_again();
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        // Before the first handler runs, which may never come back here.
        if self.but_faults && put_off::is_any() {
            Self::hold_what_was_put_off();
        }
        self.release();
        // One may have come in between.
        if self.but_faults && put_off::is_any() {
            Self::hold_what_was_put_off();
            self.release();
        }
    }
}

/// While this lives, a worker hears of bad pages. At other times it blocks these two signals as
/// all others, so that one sent to the process is left to the program's threads.
pub struct FaultsHeard {
    before: u64,
}

impl FaultsHeard {
    pub fn now() -> Option<Self> {
        let mut before = 0;
        (signal_mask(libc::SIG_UNBLOCK, &FAULTS, &mut before) == 0).then(|| Self { before })
    }
}

impl Drop for FaultsHeard {
    fn drop(&mut self) {
        signal_mask(libc::SIG_SETMASK, &self.before, core::ptr::null_mut());
        if put_off::is_any() {
            put_off::send_again();
        }
    }
}

/// Blocks a signal for this thread.
pub fn block_signal(signal: i32) {
    change_signal_mask(libc::SIG_BLOCK, signal_set(signal));
}

/// As sigprocmask; answers the signals that were blocked before.
pub fn change_signal_mask(how: i32, signals: u64) -> u64 {
    let mut before = 0;
    signal_mask(how, &signals, &mut before);
    before
}

fn signal_mask(how: i32, mask: &u64, before: *mut u64) -> SysResult {
    // SAFETY: `mask` is readable, `before` null or writable, both of the kernel's 8 bytes.
    unsafe {
        let (mask, before) = (&raw const *mask as usize, before as usize);
        syscall(libc::SYS_rt_sigprocmask, [how as usize, mask, before, 8, 0, 0])
    }
}

/// Whether the page at `page` is in memory; true where the kernel does not say.
pub fn is_resident(page: usize) -> bool {
    let mut answer = 1u8;
    // SAFETY: the kernel writes one byte for the one page.
    let done = unsafe { syscall(libc::SYS_mincore, [page, 1, &raw mut answer as usize, 0, 0, 0]) };
    done != 0 || answer & 1 == 1
}

/// Makes pages as if they were written, without changing what they hold. Linux has it since
/// 5.14; a failure means that copying will fault for them, or fail, as ever.
pub fn make_pages(start: usize, len: usize) {
    let advice = libc::MADV_POPULATE_WRITE as usize;
    // SAFETY: changes no byte.
    unsafe { syscall(libc::SYS_madvise, [start, len, advice, 0, 0, 0]) };
}

/// Tells the kernel where this thread's restartable sequence is. False: not to be had.
pub fn register_rseq(area: usize, size: usize, signature: u32) -> bool {
    // SAFETY: the kernel writes to the area as long as the thread lives, as the caller wants.
    unsafe { syscall(libc::SYS_rseq, [area, size, 0, signature as usize, 0, 0]) == 0 }
}

/// Tells the kernel that this process will call `interrupt_workers`. Takes milliseconds in a
/// process of several threads. False: not to be had.
pub fn expect_interruptions() -> bool {
    membarrier(MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ) == 0
}

/// When this returns true, every thread of this process that was inside a restartable sequence
/// has left it, or will before it executes another instruction.
pub fn interrupt_workers() -> bool {
    membarrier(MEMBARRIER_PRIVATE_EXPEDITED_RSEQ) == 0
}

const MEMBARRIER_PRIVATE_EXPEDITED_RSEQ: usize = 1 << 7;
const MEMBARRIER_REGISTER_PRIVATE_EXPEDITED_RSEQ: usize = 1 << 8;

fn membarrier(command: usize) -> SysResult {
    // SAFETY: no memory.
    unsafe { syscall(libc::SYS_membarrier, [command, 0, 0, 0, 0, 0]) }
}

/// The seccomp mode of this thread: 0 none, 2 filter; negative where unknown.
pub fn seccomp_mode() -> SysResult {
    // SAFETY: PR_GET_SECCOMP takes no memory.
    unsafe { syscall(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) }
}

/// So many bytes of zeros, where the kernel chooses; `None`: there is no memory.
pub fn map(len: usize) -> Option<*mut c_void> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE) as usize;
    // SAFETY: a fresh mapping touches no other.
    let at = unsafe { syscall(libc::SYS_mmap, [0, len, protection, flags, usize::MAX, 0]) };
    usize::try_from(at).ok().map(|at| at as *mut c_void)
}

/// # Safety
/// A mapping of so many bytes that nobody uses any more.
pub unsafe fn unmap(at: *mut c_void, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { syscall(libc::SYS_munmap, [at as usize, len, 0, 0, 0, 0]) };
}

/// A stack of so many bytes, with a page below it that faults: its upper end.
pub fn map_stack(len: usize) -> Option<usize> {
    const GUARD: usize = 4096;
    let at = map(len + GUARD)?;
    // SAFETY: the lowest page of the fresh mapping, which nobody knows yet.
    unsafe { syscall(libc::SYS_mprotect, [at as usize, GUARD, 0, 0, 0, 0]) };
    Some(at as usize + GUARD + len)
}

/// A page of zeros that is all zeros again in the child of a fork, however that was made; or
/// null. It is never unmapped.
pub fn page_wiped_on_fork() -> *mut c_void {
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

/// Whether a signal has its default action, as far as the kernel knows.
pub fn has_default_action(signal: i32) -> bool {
    // The kernel's struct sigaction: handler, flags, restorer, mask.
    let mut action = [usize::MAX, 0, 0, 0];
    // SAFETY: a null new action only reads the old one, into 32 writable bytes.
    unsafe {
        let at = &raw mut action as usize;
        syscall(libc::SYS_rt_sigaction, [signal as usize, 0, at, 8, 0, 0]);
    }
    action[0] == libc::SIG_DFL
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
/// reads is not waited for, but whoever reads one later may take its time.
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

/// What an errno means, for the few that opening and writing a file give. libc's own words may
/// have to be translated, and that allocates.
pub fn meaning(errno: i32) -> &'static str {
    match errno {
        libc::EPERM => "Operation not permitted",
        libc::ENOENT => "No such file or directory",
        libc::EIO => "Input/output error",
        libc::ENXIO => "No such device or address",
        libc::EBADF => "Bad file descriptor",
        libc::ENOMEM => "Cannot allocate memory",
        libc::EACCES => "Permission denied",
        libc::EEXIST => "File exists",
        libc::ENODEV => "No such device",
        libc::ENOTDIR => "Not a directory",
        libc::EISDIR => "Is a directory",
        libc::EINVAL => "Invalid argument",
        libc::ENFILE => "Too many open files in system",
        libc::EMFILE => "Too many open files",
        libc::ENOTTY => "Inappropriate ioctl for device",
        libc::EFBIG => "File too large",
        libc::ENOSPC => "No space left on device",
        libc::EROFS => "Read-only file system",
        libc::EPIPE => "Broken pipe",
        libc::ENAMETOOLONG => "File name too long",
        libc::ENOSYS => "Function not implemented",
        libc::ELOOP => "Too many levels of symbolic links",
        libc::EDQUOT => "Disk quota exceeded",
        _ => "an error of the system",
    }
}

/// The bytes as text; what is no text becomes question marks, in place.
pub fn as_text(bytes: &mut [u8]) -> &str {
    while let Err(error) = core::str::from_utf8(bytes) {
        bytes[error.valid_up_to()] = b'?';
    }
    core::str::from_utf8(bytes).unwrap_or_default()
}

/// Opens for reading; answers the descriptor. Not inherited over exec.
pub fn open(path: &CStr) -> SysResult {
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
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills it, and it is read only after it has.
    unsafe {
        let at = stat.as_mut_ptr() as usize;
        if syscall(libc::SYS_fstat, [fd as usize, at, 0, 0, 0, 0]) != 0 {
            return None;
        }
        let stat = stat.assume_init_ref();
        (stat.st_mode & libc::S_IFMT == libc::S_IFCHR).then_some(stat.st_rdev)
    }
}

/// Which file a descriptor stands for: device and inode.
pub fn file_of(fd: i32) -> Option<(u64, u64)> {
    let mut stat = core::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: the kernel fills it, and it is read only after it has.
    unsafe {
        let at = stat.as_mut_ptr() as usize;
        if syscall(libc::SYS_fstat, [fd as usize, at, 0, 0, 0, 0]) != 0 {
            return None;
        }
        let stat = stat.assume_init_ref();
        Some((stat.st_dev, stat.st_ino))
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
pub fn read_file<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: `path` is terminated; the reads stay inside `buffer`; the descriptor is ours.
    unsafe {
        let at = libc::AT_FDCWD as usize;
        let fd = syscall(libc::SYS_openat, [at, path.as_ptr() as usize, flags, 0, 0, 0]);
        let fd = usize::try_from(fd).ok()?;
        let mut filled = 0;
        while filled < buffer.len() {
            let rest = &mut buffer[filled..];
            let got =
                syscall(libc::SYS_read, [fd, rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0]);
            if got <= 0 {
                break;
            }
            filled += got as usize;
        }
        syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        Some(&buffer[..filled])
    }
}

/// Where a symbolic link leads.
pub fn read_link<'a>(path: &CStr, buffer: &'a mut [u8]) -> Option<&'a [u8]> {
    let (at, path) = (libc::AT_FDCWD as usize, path.as_ptr() as usize);
    let (start, len) = (buffer.as_mut_ptr() as usize, buffer.len());
    // SAFETY: `path` is terminated, and the kernel writes inside `buffer`.
    let answer = unsafe { syscall(libc::SYS_readlinkat, [at, path, start, len, 0, 0]) };
    buffer.get(..usize::try_from(answer).ok()?)
}

/// A write of ours into a pipe without reader, or beyond RLIMIT_FSIZE, must not kill the
/// program: the signal it raises is held, and taken away before signals come again.
struct WriteSignals {
    held: Option<SignalsHeld>,
    pending_before: u64,
}

impl WriteSignals {
    fn hold() -> Self {
        let held = SignalsHeld::these(signal_set(libc::SIGPIPE) | signal_set(libc::SIGXFSZ), false);
        let mut pending_before = 0u64;
        // SAFETY: the kernel writes its 8 bytes.
        unsafe {
            let set = &raw mut pending_before as usize;
            syscall(libc::SYS_rt_sigpending, [set, 8, 0, 0, 0, 0]);
        }
        Self { held, pending_before }
    }

    /// Takes away what a write that failed with `errno` has raised.
    fn take_away(&self, errno: i32) {
        let set = match errno {
            libc::EPIPE => signal_set(libc::SIGPIPE),
            libc::EFBIG => signal_set(libc::SIGXFSZ),
            _ => return,
        };
        // One that was pending before is the program's.
        if self.held.is_some() && self.pending_before & set == 0 {
            let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: both live through the call.
            unsafe {
                let (set, now) = (&raw const set as usize, &raw const now as usize);
                syscall(libc::SYS_rt_sigtimedwait, [set, 0, now, 8, 0, 0]);
            }
        }
    }
}

/// The set of one signal, as the kernel has it.
pub const fn signal_set(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// Writes everything, in one piece where the file takes it, so that reports of several
/// processes do not mix. No stdio, whose locks the program may hold. Answers the errno of
/// the write that failed, or 0.
pub fn write_all(fd: i32, bytes: &[u8]) -> i32 {
    let signals = WriteSignals::hold();
    let (mut sent, mut failed) = (0, 0);
    while sent < bytes.len() && failed == 0 {
        let rest = &bytes[sent..];
        // SAFETY: `rest` is readable.
        let answer = unsafe {
            let (start, len) = (rest.as_ptr() as usize, rest.len());
            syscall(libc::SYS_write, [fd as usize, start, len, 0, 0, 0])
        };
        match answer {
            1.. => sent += answer as usize,
            0 => failed = libc::EIO,
            _ if -answer as i32 == libc::EINTR => {}
            _ => failed = -answer as i32,
        }
    }
    signals.take_away(failed);
    failed
}

/// One line on standard error; cut off where it is far too long.
pub fn say(line: fmt::Arguments<'_>) {
    say_to(libc::STDERR_FILENO, line);
}

/// The same to a descriptor that is known to be the standard error.
pub fn say_to(fd: i32, line: fmt::Arguments<'_>) {
    let mut room = [0; 512];
    let (body, end) = room.split_at_mut(508);
    let mut text = Text::over(body);
    let _ = write!(text, "adma: {line}"); // a `Text` takes what fits
    let used = text.used;
    let tail: &[u8] = if text.overflowed { b"...\n" } else { b"\n" };
    end[..tail.len()].copy_from_slice(tail);
    room.copy_within(508..508 + tail.len(), used);
    write_all(fd, &room[..used + tail.len()]);
}

/// Text in a given place, so that nothing is allocated: the program may exit inside its own
/// allocator. What does not fit is left out.
pub struct Text<'a> {
    bytes: &'a mut [u8],
    used: usize,
    pub overflowed: bool,
}

impl<'a> Text<'a> {
    pub fn over(bytes: &'a mut [u8]) -> Self {
        Self { bytes, used: 0, overflowed: false }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    pub fn into_text(self) -> &'a str {
        as_text(&mut self.bytes[..self.used])
    }

    pub fn push(&mut self, more: &[u8]) {
        let take = more.len().min(self.bytes.len() - self.used);
        self.bytes[self.used..self.used + take].copy_from_slice(&more[..take]);
        self.used += take;
        self.overflowed |= take < more.len();
    }
}

impl fmt::Write for Text<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// The functions we intercept, in the order of `ENTRIES`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Op {
    Memcpy,
    Memmove,
    Mempcpy,
    Bcopy,
    Wmemcpy,
    Wmemmove,
    MemcpyChk,
    MemmoveChk,
    MempcpyChk,
    ProcessVmReadv,
    ProcessVmWritev,
    Memset,
    MemsetChk,
    Bzero,
    Wmemset,
    Memcmp,
    Bcmp,
    Wmemcmp,
}

impl Op {
    pub const ALL: [Op; 18] = [
        Op::Memcpy,
        Op::Memmove,
        Op::Mempcpy,
        Op::Bcopy,
        Op::Wmemcpy,
        Op::Wmemmove,
        Op::MemcpyChk,
        Op::MemmoveChk,
        Op::MempcpyChk,
        Op::ProcessVmReadv,
        Op::ProcessVmWritev,
        Op::Memset,
        Op::MemsetChk,
        Op::Bzero,
        Op::Wmemset,
        Op::Memcmp,
        Op::Bcmp,
        Op::Wmemcmp,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            Op::Memcpy => "memcpy",
            Op::Memmove => "memmove",
            Op::Mempcpy => "mempcpy",
            Op::Bcopy => "bcopy",
            Op::Wmemcpy => "wmemcpy",
            Op::Wmemmove => "wmemmove",
            Op::MemcpyChk => "memcpy_chk",
            Op::MemmoveChk => "memmove_chk",
            Op::MempcpyChk => "mempcpy_chk",
            Op::ProcessVmReadv => "process_vm_readv",
            Op::ProcessVmWritev => "process_vm_writev",
            Op::Memset => "memset",
            Op::MemsetChk => "memset_chk",
            Op::Bzero => "bzero",
            Op::Wmemset => "wmemset",
            Op::Memcmp => "memcmp",
            Op::Bcmp => "bcmp",
            Op::Wmemcmp => "wmemcmp",
        }
    }

    /// Bytes per counted unit.
    pub const fn unit(self) -> usize {
        match self {
            Op::Wmemcpy | Op::Wmemmove | Op::Wmemset | Op::Wmemcmp => size_of::<libc::wchar_t>(),
            _ => 1,
        }
    }
}

/// What one exported function reads: below `min` units it jumps to `next`.
#[repr(C)]
pub struct EntryPoint {
    pub min: AtomicUsize,
    pub next: AtomicPtr<c_void>,
}

/// A number larger than any copy: the entry always jumps to `next`.
pub const NEVER: usize = usize::MAX;
