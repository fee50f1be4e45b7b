//! System calls made directly, and the words the entry code reads.
//!
//! libc's wrappers write errno, which lives in thread-local storage; a hook must not change
//! it and our workers have none. Everything here returns the kernel's answer as a value.

use crate::sync::Woken;
use core::arch::asm;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicPtr, AtomicUsize};
use std::fmt;

/// The kernel's answer: a value, or the negated errno.
pub type Answer = isize;

/// # Safety
/// As the system call `number` demands of its arguments.
#[inline(always)]
pub unsafe fn syscall(number: i64, args: [usize; 6]) -> Answer {
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
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is writable. The vDSO answers; errno changes only for a bad clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub fn futex_wait(word: *const u32, expected: u32, nanos: u64) -> Woken {
    let limit = libc::timespec {
        tv_sec: (nanos / 1_000_000_000) as i64,
        tv_nsec: (nanos % 1_000_000_000) as i64,
    };
    let limit = if nanos == 0 { 0 } else { &raw const limit as usize };
    let operation = (libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the kernel only compares the word; `limit` is null or lives through the call.
    let answer = unsafe {
        syscall(libc::SYS_futex, [word as usize, operation, expected as usize, limit, 0, 0])
    };
    match -answer as i32 {
        0 | libc::EAGAIN | libc::EINTR => Woken::LookAgain,
        libc::ETIMEDOUT => Woken::TimedOut,
        _ => Woken::Refused,
    }
}

pub fn futex_wake(word: *const u32, count: u32) -> bool {
    let operation = (libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: waking reads no memory of ours.
    let answer =
        unsafe { syscall(libc::SYS_futex, [word as usize, operation, count as usize, 0, 0, 0]) };
    answer >= 0
}

pub fn yield_now() {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_sched_yield, [0; 6]) };
}

pub fn getpid() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) as i32 }
}

/// The set of all 64 signals, the C library's own two included.
const EVERY_SIGNAL: u64 = !0;

/// While this lives, no signal handler runs in this thread, so nothing can jump out of a
/// copy that workers still carry on.
pub struct SignalsHeld(u64);

impl SignalsHeld {
    pub fn new() -> Option<Self> {
        let mut before = 0;
        (set_signal_mask(&EVERY_SIGNAL, &mut before) == 0).then_some(Self(before))
    }
}

impl Drop for SignalsHeld {
    fn drop(&mut self) {
        set_signal_mask(&self.0, core::ptr::null_mut());
    }
}

fn set_signal_mask(mask: &u64, before: *mut u64) -> Answer {
    // SAFETY: `mask` is readable, `before` null or writable, both of the kernel's 8 bytes.
    unsafe {
        syscall(
            libc::SYS_rt_sigprocmask,
            [libc::SIG_SETMASK as usize, &raw const *mask as usize, before as usize, 8, 0, 0],
        )
    }
}

/// Whether the program would notice a fault: it handles SIGSEGV or SIGBUS. `None`: the
/// kernel would not say.
pub fn handles_faults() -> Option<bool> {
    Some(has_handler(libc::SIGSEGV)? || has_handler(libc::SIGBUS)?)
}

fn has_handler(signal: i32) -> Option<bool> {
    // The kernel's struct sigaction: handler, flags, restorer, mask.
    let mut action = [0usize; 4];
    // SAFETY: a null new action only reads the old one, into 32 writable bytes.
    let answer = unsafe {
        syscall(libc::SYS_rt_sigaction, [signal as usize, 0, &raw mut action as usize, 8, 0, 0])
    };
    (answer == 0).then_some(action[0] > libc::SIG_IGN)
}

/// Copies within this process without ever faulting. Returns the bytes copied.
///
/// # Safety
/// No Rust reference covers `dst`.
pub unsafe fn copy_without_fault(pid: i32, dst: usize, src: usize, len: usize) -> usize {
    let local = libc::iovec { iov_base: dst as *mut c_void, iov_len: len };
    let remote = libc::iovec { iov_base: src as *mut c_void, iov_len: len };
    let (local, remote) = (&raw const local as usize, &raw const remote as usize);
    // SAFETY: the kernel checks both ranges and answers EFAULT or a short count.
    let answer =
        unsafe { syscall(libc::SYS_process_vm_readv, [pid as usize, local, 1, remote, 1, 0]) };
    answer.max(0) as usize
}

/// The seccomp mode of this thread: 0 none, 2 filter; negative where unknown.
pub fn seccomp_mode() -> Answer {
    // SAFETY: PR_GET_SECCOMP takes no memory.
    unsafe { syscall(libc::SYS_prctl, [libc::PR_GET_SECCOMP as usize, 0, 0, 0, 0, 0]) }
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

/// Text gathered on the stack and written by plain write(2): no allocation, no stdio lock.
/// Written in one piece where it fits, so that reports of several processes do not mix.
pub struct Writer {
    fd: i32,
    used: usize,
    failed: i32,
    buffer: [u8; 16384],
}

impl Writer {
    pub fn new(fd: i32) -> Self {
        Self { fd, used: 0, failed: 0, buffer: [0; 16384] }
    }

    pub fn flush(&mut self) {
        let mut sent = 0;
        while sent < self.used && self.failed == 0 {
            let rest = &self.buffer[sent..self.used];
            // SAFETY: `rest` is readable.
            let answer = unsafe {
                let (start, len) = (rest.as_ptr() as usize, rest.len());
                syscall(libc::SYS_write, [self.fd as usize, start, len, 0, 0, 0])
            };
            match answer {
                1.. => sent += answer as usize,
                0 => self.failed = libc::EIO,
                _ if -answer as i32 == libc::EINTR => {}
                _ => self.failed = -answer as i32,
            }
        }
        self.used = 0;
    }

    /// Flushes; the errno of the first write that failed, or 0.
    pub fn finish(mut self) -> i32 {
        self.flush();
        self.failed
    }
}

impl fmt::Write for Writer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut bytes = text.as_bytes();
        while !bytes.is_empty() {
            if self.used == self.buffer.len() {
                self.flush();
            }
            let take = bytes.len().min(self.buffer.len() - self.used);
            self.buffer[self.used..self.used + take].copy_from_slice(&bytes[..take]);
            self.used += take;
            bytes = &bytes[take..];
        }
        Ok(())
    }
}

/// One line on standard error. Never called inside the hook.
pub fn say(line: fmt::Arguments<'_>) {
    let mut out = Writer::new(libc::STDERR_FILENO);
    let _ = fmt::write(&mut out, format_args!("adma: {line}\n"));
    out.finish();
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
}

impl Op {
    pub const ALL: [Op; 9] = [
        Op::Memcpy,
        Op::Memmove,
        Op::Mempcpy,
        Op::Bcopy,
        Op::Wmemcpy,
        Op::Wmemmove,
        Op::MemcpyChk,
        Op::MemmoveChk,
        Op::MempcpyChk,
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
        }
    }

    /// Bytes per counted unit.
    pub const fn unit(self) -> usize {
        match self {
            Op::Wmemcpy | Op::Wmemmove => size_of::<libc::wchar_t>(),
            _ => 1,
        }
    }
}

/// What one exported function reads: below `min` units it jumps to `next`.
#[repr(C)]
pub struct Entry {
    pub min: AtomicUsize,
    pub next: AtomicPtr<c_void>,
}

/// A number larger than any copy: the entry always jumps to `next`.
pub const NEVER: usize = usize::MAX;
