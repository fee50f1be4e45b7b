//! System calls of a connection: descriptors and other processes; `memory`: files that two processes
//! map; `sockets`. Functions return values or an errno and never touch the variable errno.

pub mod blocking;
mod memory;
mod sockets;

pub use memory::*;
pub use sockets::*;

use crate::ipc::claims::Role;
use crate::os::mapped::{Mapped, Zeroed};
use crate::os::sys::{self, syscall};
use crate::plan::PAGE;
use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// A value, or an errno.
pub type Result<T> = core::result::Result<T, i32>;

/// Fails early where the heap is exhausted: small allocations that follow have no way to report it.
pub fn check_heap() -> Result<()> {
    let mut some = Vec::<u8>::new();
    let found = some.try_reserve_exact(64 << 10);
    core::hint::black_box(some.as_ptr()); // keeps the compiler from removing the allocation
    found.map_err(|_| libc::ENOMEM)
}

/// Makes a system call with `N` arguments.
///
/// # Safety
/// What the call does to memory.
unsafe fn call<const N: usize>(number: i64, arguments: [usize; N]) -> Result<usize> {
    let mut all = [0; 6];
    all[..N].copy_from_slice(&arguments);
    // SAFETY: the caller's promise.
    let answer = unsafe { syscall(number, all) };
    if answer < 0 { Err(-answer as i32) } else { Ok(answer as usize) }
}

/// Marks of our open descriptors, by number; 0: none. The child of a fork closes them, because an
/// inherited socket would hide its parent's end from the peer. Two numbers 65536 apart share a
/// place; the earlier one is then not closed.
struct Descriptors([AtomicU64; 1 << 16]);

// SAFETY: atomic numbers.
unsafe impl Zeroed for Descriptors {}

impl Descriptors {
    fn place(&self, number: i32) -> &AtomicU64 {
        &self.0[number as usize % self.0.len()]
    }
}

#[unsafe(link_section = ".data")] // a page that start-up touches anyhow, and every fork reads
static OPEN: Mapped<Descriptors> = Mapped::new();

/// One more than the highest number that was ever in `OPEN`.
static USED: AtomicUsize = AtomicUsize::new(0);

/// A mark: the descriptor number above, below it a hash of device and inode, and the socket bit.
const FILE_BITS: u32 = 40;
const SOCKET: u64 = 1 << (FILE_BITS - 1);

/// Returns the mark of the file behind a number; 0: it is closed. Sockets have distinct marks;
/// anonymous inodes (pidfd, epoll, eventfd) all share one.
fn mark_of(number: i32) -> u64 {
    let mark = |stat: &libc::stat| {
        let file = (stat.st_ino ^ stat.st_dev << 32) & (SOCKET - 1);
        let socket = if stat.st_mode & libc::S_IFMT == libc::S_IFSOCK { SOCKET } else { 0 };
        (number as u64) << FILE_BITS | socket | file
    };
    sys::stat(number, mark).unwrap_or(0)
}

/// Whether this process, or the one that forked it, ever had a descriptor for messages.
pub fn was_used() -> bool {
    OPEN.get().is_some()
}

/// Closes our descriptors in the child of a fork.
pub fn close_after_fork() {
    let Some(Descriptors(open)) = OPEN.get() else { return };
    let open = &open[..open.len().min(USED.load(Ordering::Acquire))];
    let number = |mark: u64| (mark >> FILE_BITS) as i32;
    let is_there = |mark: u64| mark_of(number(mark)) == mark;
    // A program that closes all descriptors and opens its own has closed our sockets, too; then
    // marks that are not unique prove nothing.
    let found = open.iter().map(|place| place.load(Ordering::Acquire));
    let untouched = found.filter(|mark| mark & SOCKET != 0).all(is_there);
    for mark in open.iter().map(|place| place.swap(0, Ordering::AcqRel)) {
        if mark != 0 && (untouched || mark & SOCKET != 0) && is_there(mark) {
            sys::close(number(mark));
        }
    }
}

/// A descriptor that we own: closed on drop, unless the program has closed the number and reused it,
/// as daemons do that close all descriptors.
pub struct Fd {
    number: i32,
    mark: u64,
    /// Shuts the socket down on drop, so that the peer sees the end although a child holds a copy.
    pub shut_on_drop: bool,
}

impl Fd {
    /// Takes ownership of a number.
    pub fn owned(number: i32) -> Self {
        let mark = mark_of(number);
        if let Some(open) = OPEN.get_or_map() {
            USED.fetch_max(number as usize + 1, Ordering::AcqRel);
            open.place(number).store(mark, Ordering::Release);
        }
        Self { number, mark, shut_on_drop: false }
    }

    pub fn raw(&self) -> i32 {
        self.number
    }

    /// Returns descriptor number and file in one word; never 0.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// Returns whether the number still stands for our file.
    pub fn is_there(&self) -> bool {
        mark_of(self.number) == self.mark
    }

    /// Gives the number to the program.
    pub fn into_raw(self) -> i32 {
        self.leave_place();
        ManuallyDrop::new(self).number
    }

    /// Forgets a number that the program has closed and may have reused.
    pub fn disown(&mut self) {
        self.leave_place();
        self.number = -1;
    }

    /// Compares the mark first, because another `Fd` may have the number by now.
    fn leave_place(&self) {
        if let Some(open) = OPEN.get() {
            let (mark, failure) = (self.mark, Ordering::Relaxed);
            let _ = open.place(self.number).compare_exchange(mark, 0, Ordering::AcqRel, failure);
        }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        if self.is_there() {
            if self.shut_on_drop {
                shut_down(self, libc::SHUT_RDWR);
            }
            sys::close(self.number);
        }
        self.leave_place();
    }
}

/// Takes ownership of a fresh descriptor; never of 0, 1 or 2, because a program that has closed its
/// standard streams may still write to them.
fn fd(answer: Result<usize>) -> Result<Fd> {
    let first = Fd::owned(answer? as i32);
    if first.number > libc::STDERR_FILENO {
        return Ok(first);
    }
    match sys::duplicate(first.number, libc::STDERR_FILENO + 1) {
        number @ 0.. => Ok(Fd::owned(number as i32)),
        errno => Err(-errno as i32),
    }
}

/// A descriptor that a peer has sent and that may be any file. Even closing it can block (FUSE,
/// SO_LINGER), so a helper thread does that unless the type is known.
pub struct Received(i32);

impl Received {
    /// Accepts one end of a connected pair, as `unix_pair` makes it.
    pub fn into_socket(self) -> Result<Fd> {
        let option = |option| socket_option(self.0, option);
        let right = option(libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
            && option(libc::SO_TYPE) == Ok(libc::SOCK_SEQPACKET)
            && option(libc::SO_ACCEPTCONN) == Ok(0);
        if right { self.trusted() } else { Err(libc::EPROTO) }
    }

    /// Accepts a memfd, as `sealed_memory` makes it.
    pub fn into_memory(self) -> Result<Fd> {
        if seals(self.0).is_ok() { self.trusted() } else { Err(libc::EPROTO) }
    }

    /// Accepts any file; for a peer whose files may be closed here.
    pub fn trusted(self) -> Result<Fd> {
        fd(Ok(ManuallyDrop::new(self).0 as usize))
    }
}

impl Drop for Received {
    fn drop(&mut self) {
        let number = self.0;
        match seals(number) {
            Ok(_) => sys::close(number),
            // Without a thread it stays open.
            Err(_) => _ = blocking::run(move || sys::close(number)),
        }
    }
}

/// Copies between two ranges of our memory and two of another process's, in order; returns the bytes
/// copied. The kernel checks the right (PTRACE_MODE_ATTACH) and looks up the address space once for
/// the whole call. A reader pulls, a writer pushes.
///
/// # Safety
/// For a pull no Rust reference covers `ours`; a push changes `theirs` in that process.
pub unsafe fn copy_across(
    role: Role,
    pid: i32,
    ours: [(usize, usize); 2],
    theirs: [(usize, usize); 2],
) -> Result<usize> {
    let range = |(at, len)| libc::iovec { iov_base: at as *mut c_void, iov_len: len };
    let (ours, theirs) = (ours.map(range), theirs.map(range));
    let number = match role {
        Role::Reader => libc::SYS_process_vm_readv,
        Role::Writer => libc::SYS_process_vm_writev,
    };
    let (ours, theirs) = (ours.as_ptr() as usize, theirs.as_ptr() as usize);
    // SAFETY: the kernel checks all ranges; the rest is the caller's promise.
    unsafe { call(number, [pid as usize, ours, 2, theirs, 2]) }
}

/// Returns whether this process can be traced by others of its user.
pub fn is_dumpable() -> bool {
    // SAFETY: no memory.
    unsafe { call(libc::SYS_prctl, [libc::PR_GET_DUMPABLE as usize]) == Ok(1) }
}

/// Maps a fresh page at `at` if that is free; a child of a fork does not get it.
pub fn map_page_at(at: usize) -> Result<usize> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as usize;
    // SAFETY: replaces nothing; a kernel that does not know the flag chooses another place, which
    // is given back.
    unsafe {
        let got = call(libc::SYS_mmap, [at, PAGE, protection, flags, usize::MAX])?;
        let kept = call(libc::SYS_madvise, [got, PAGE, libc::MADV_DONTFORK as usize]);
        if got != at || kept.is_err() {
            sys::unmap(got as *mut c_void, PAGE);
            return Err(libc::EEXIST);
        }
        Ok(got)
    }
}

/// Returns 64 bits from getrandom(2). An error: there are none, and nothing may depend on a guess.
pub fn random() -> Result<u64> {
    let mut word = 0u64;
    let (at, len) = (&raw mut word as usize, size_of::<u64>());
    // SAFETY: the kernel writes 8 bytes.
    match unsafe { call(libc::SYS_getrandom, [at, len, 0]) }? {
        8 => Ok(word),
        _ => Err(libc::EAGAIN),
    }
}

/// Opens a directory or, with O_PATH, the name of a file.
pub fn open(path: &CStr, flags: i32) -> Result<Fd> {
    open_at(libc::AT_FDCWD, path, flags)
}

fn open_at(folder: i32, path: &CStr, flags: i32) -> Result<Fd> {
    let flags = (flags | libc::O_CLOEXEC) as usize;
    // SAFETY: a terminated path.
    fd(unsafe { call(libc::SYS_openat, [folder as usize, path.as_ptr() as usize, flags]) })
}

/// Opens a file that another process has open, for reading and writing; `file` is a `Fd::mark` of
/// that process and `folder` its folder in /proc. The kernel demands PTRACE_MODE_READ. Another file
/// under the number is not opened: that could block, or change it.
pub fn open_of_process(folder: &Fd, file: u64) -> Result<Fd> {
    let path = |text: String| CString::new(text).map_err(|_| libc::EINVAL);
    let name = path(format!("fd/{}", file >> FILE_BITS))?;
    let found = open_at(folder.raw(), &name, libc::O_PATH)?;
    if (found.mark ^ file) << (64 - FILE_BITS) != 0 {
        return Err(libc::ESTALE);
    }
    open(&path(format!("/proc/self/fd/{}", found.number))?, libc::O_RDWR)
}

/// Returns a pidfd, which becomes readable when the process ends.
pub fn watch_process(pid: i32) -> Result<Fd> {
    // SAFETY: no memory.
    fd(unsafe { call(libc::SYS_pidfd_open, [pid as usize]) })
}

/// Opens the folder of a process in /proc; it stands for this process and no later one.
pub fn proc_folder(pid: i32) -> Option<Fd> {
    let path = CString::new(format!("/proc/{pid}")).ok()?;
    open(&path, libc::O_PATH | libc::O_DIRECTORY).ok()
}

/// Returns the user that owns a file; of a folder in /proc the effective user of its process.
pub fn owner_of(file: &Fd) -> Option<u32> {
    sys::stat(file.raw(), |stat| stat.st_uid)
}

/// Lets one process trace us in spite of Yama. There is only one such process at a time.
pub fn let_trace(pid: i32) -> bool {
    // SAFETY: no memory.
    unsafe { call(libc::SYS_prctl, [libc::PR_SET_PTRACER as usize, pid as usize]).is_ok() }
}

/// Returns Yama's ptrace_scope; 0 where there is none.
pub fn yama_scope() -> u8 {
    let mut room = [0; 8];
    let (path, allowed) = (c"/proc/sys/kernel/yama/ptrace_scope", sys::NoFilter::assumed());
    let text = sys::read_file(path, &mut room, allowed.into());
    text.and_then(|text| text.first()).map_or(0, |digit| digit.wrapping_sub(b'0'))
}

/// Empties an eventfd.
pub fn drain_event(fd: i32) {
    let mut count = 0u64;
    let (at, len) = (&raw mut count as usize, size_of::<u64>());
    // SAFETY: the kernel writes 8 bytes; it does not block (EFD_NONBLOCK).
    let _ = unsafe { call(libc::SYS_read, [fd as usize, at, len]) };
}

/// A set of descriptors that can be polled as one.
pub struct Epoll(Fd);

impl Epoll {
    pub fn new() -> Result<Self> {
        // SAFETY: no memory.
        fd(unsafe { call(libc::SYS_epoll_create1, [libc::EPOLL_CLOEXEC as usize]) }).map(Self)
    }

    pub fn raw(&self) -> i32 {
        self.0.raw()
    }

    pub fn disown(&mut self) {
        self.0.disown();
    }

    /// Adds a descriptor, or changes what is reported of it; `key` comes back with its events.
    pub fn watch(&self, fd: i32, events: i16, key: u64) -> Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: key };
        let at = &raw mut event as usize;
        let control = |operation: i32| {
            let arguments = [self.raw() as usize, operation as usize, fd as usize, at];
            // SAFETY: the kernel reads the event.
            unsafe { call(libc::SYS_epoll_ctl, arguments) }.map(drop)
        };
        match control(libc::EPOLL_CTL_ADD) {
            Err(libc::EEXIST) => control(libc::EPOLL_CTL_MOD),
            added => added,
        }
    }

    pub fn forget(&self, fd: i32) {
        let arguments = [self.raw() as usize, libc::EPOLL_CTL_DEL as usize, fd as usize, 0];
        // SAFETY: no memory.
        let _ = unsafe { call(libc::SYS_epoll_ctl, arguments) };
    }

    /// Returns the keys of some descriptors that are ready now.
    pub fn ready<const N: usize>(&self, keys: &mut [u64; N]) -> usize {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; N];
        let at = events.as_mut_ptr() as usize;
        // SAFETY: the kernel fills at most `N` events.
        let got = unsafe { call(libc::SYS_epoll_wait, [self.raw() as usize, at, N, 0]) };
        let got = got.unwrap_or(0).min(N);
        for (key, event) in keys.iter_mut().zip(&events[..got]) {
            *key = event.u64;
        }
        got
    }
}
