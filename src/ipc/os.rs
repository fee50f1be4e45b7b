//! System calls of a connection: descriptors and other processes; `memory`: files that two processes
//! map; `sockets`. Functions return values or an errno and never touch the variable errno.

pub mod blocking;
mod memory;
mod sockets;

pub use memory::*;
pub use sockets::*;

use crate::ipc::claims::Role;
use crate::os::brief_file;
use crate::os::lock::Lock;
use crate::os::mapped::Mapped;
use crate::os::sys::{self, syscall};
use crate::plan::PAGE;
use alloc::ffi::CString;
use alloc::format;
use alloc::string::String;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};
use core::mem::{ManuallyDrop, MaybeUninit};
use core::sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};
use zerocopy::FromZeros;

/// A value, or an errno.
pub type Result<T> = core::result::Result<T, i32>;

/// Fails early where the heap is exhausted: small allocations that follow have no way to report it.
pub fn check_heap() -> Result<()> {
    let mut some = Vec::<u8>::new();
    let found = some.try_reserve_exact(64 << 10);
    core::hint::black_box(some.as_ptr()); // keeps the compiler from removing the allocation
    found.map_err(|_| libc::ENOMEM)
}

/// Returns the milliseconds until a time of `sys::nanoseconds`, for `poll`; 0: it has come.
pub fn milliseconds_until(end: u64) -> i32 {
    let left = end.saturating_sub(sys::nanoseconds()).div_ceil(1_000_000);
    left.min(i32::MAX as u64) as i32
}

/// Makes the system call of this name, as `sys::syscall!` does; returns a value or an errno.
macro_rules! call {
    ($name:ident $(, $argument:expr)* $(,)?) => {
        crate::ipc::os::answer(crate::os::sys::syscall!($name $(, $argument)*))
    };
}
use call;

/// Returns a system call's value, or its errno.
fn answer(result: sys::SysResult) -> Result<usize> {
    match result {
        answer @ 0.. => Ok(answer as usize),
        errno => Err(-errno as i32),
    }
}

/// Marks of our open descriptors, by number; 0: none. The child of a fork closes them, because an
/// inherited socket would hide its parent's end from the peer. Two numbers 65536 apart share a
/// place; the earlier one is then not closed.
#[derive(FromZeros)]
struct Descriptors([AtomicU64; 1 << 16]);

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

fn number_of(mark: u64) -> i32 {
    (mark >> FILE_BITS) as i32
}

fn is_there(mark: u64) -> bool {
    mark != 0 && mark_of(number_of(mark)) == mark
}

/// Mark of a socket that is gone once the program has closed all descriptors and opened its own: then
/// marks that are not unique prove nothing. 0: none.
static WITNESS: AtomicU64 = AtomicU64::new(0);

/// Returns the mark of the witness, a new one where that was closed; 0: there is no descriptor for it.
fn witness() -> u64 {
    let known = WITNESS.load(Ordering::Acquire);
    if is_there(known) {
        return known;
    }
    // If two threads race, one socket stays open unused.
    let fresh = unix_socket().map_or(0, |socket| ManuallyDrop::new(socket).mark);
    WITNESS.store(fresh, Ordering::Release);
    fresh
}

/// Returns whether this process, or the one that forked it, ever had a descriptor for messages.
pub fn was_used() -> bool {
    OPEN.get().is_some()
}

/// Closes our descriptors in the child of a fork.
pub fn close_after_fork() {
    let Some(Descriptors(open)) = OPEN.get() else { return };
    let open = &open[..open.len().min(USED.load(Ordering::Acquire))];
    let untouched = is_there(WITNESS.swap(0, Ordering::AcqRel));
    for mark in open.iter().map(|place| place.swap(0, Ordering::AcqRel)) {
        if mark != 0 && (untouched || mark & SOCKET != 0) && is_there(mark) {
            sys::close(number_of(mark));
        }
    }
}

/// A descriptor that we own: closed on drop, unless the program has closed the number and reused it,
/// as daemons do that close all descriptors.
pub struct Fd {
    number: i32,
    mark: u64,
    /// Witness when it was made, of a descriptor that is no socket. 0: none.
    witness: u64,
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
        let witness = if mark & SOCKET == 0 { witness() } else { 0 };
        Self { number, mark, witness, shut_on_drop: false }
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
        is_there(self.mark) && (self.witness == 0 || is_there(self.witness))
    }

    /// Gives the number to the program.
    pub fn into_raw(self) -> i32 {
        self.leave_place();
        ManuallyDrop::new(self).number
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
        if self.shut_on_drop {
            shut_down(self, libc::SHUT_RDWR);
        }
        // Looked at once more: a thread that shutting down has woken may have closed all numbers.
        if self.is_there() {
            sys::close(self.number);
        }
        self.leave_place();
    }
}

/// Number of the service thread; 0: there is none.
pub static SERVICE_TID: AtomicI32 = AtomicI32::new(0);

/// Names the calling thread.
pub fn set_thread_name(name: &CStr) {
    // SAFETY: the kernel reads `name` up to its zero.
    unsafe { syscall!(SYS_prctl, libc::PR_SET_NAME, name.as_ptr()) };
}

/// Takes ownership of a fresh descriptor; never of 0, 1 or 2, because a program that has closed its
/// standard streams may still write to them. The service thread makes descriptors while the program
/// may expect the lowest free number, so it moves its own out of the way.
fn fd(number: Result<usize>) -> Result<Fd> {
    let first = Fd::owned(number? as i32);
    let service = SERVICE_TID.load(Ordering::Relaxed);
    let is_service = service != 0 && service == sys::gettid();
    if is_service && let number @ 0.. = sys::duplicate(first.number, sys::LEAST_KEPT) {
        return Ok(Fd::owned(number as i32));
    }
    if first.number > libc::STDERR_FILENO {
        return Ok(first); // also where the limit of descriptors is low
    }
    answer(sys::duplicate(first.number, libc::STDERR_FILENO + 1))
        .map(|number| Fd::owned(number as i32))
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
            Ok(_) => _ = sys::close(number),
            // Without a thread it stays open.
            Err(_) => _ = blocking::run(move || _ = sys::close(number)),
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
    // SAFETY: the kernel checks all ranges; who else may touch them, the caller has ensured.
    unsafe {
        match role {
            Role::Reader => call!(SYS_process_vm_readv, pid, ours.as_ptr(), 2, theirs.as_ptr(), 2),
            Role::Writer => call!(SYS_process_vm_writev, pid, ours.as_ptr(), 2, theirs.as_ptr(), 2),
        }
    }
}

/// Returns whether this process can be traced by others of its user.
pub fn is_dumpable() -> bool {
    // SAFETY: takes numbers only; the kernel touches no memory of ours.
    unsafe { call!(SYS_prctl, libc::PR_GET_DUMPABLE) == Ok(1) }
}

/// Maps a fresh page at `at` if that is free; a child of a fork does not get it.
pub fn map_page_at(at: usize) -> Result<usize> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: replaces nothing; a kernel that does not know the flag chooses another place, which
    // is given back.
    unsafe {
        let got = call!(SYS_mmap, at, PAGE, protection, flags, usize::MAX)?;
        let kept: Result<usize> = call!(SYS_madvise, got, PAGE, libc::MADV_DONTFORK);
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
    // SAFETY: the kernel writes 8 bytes.
    match unsafe { call!(SYS_getrandom, &raw mut word, size_of::<u64>(), 0) }? {
        8 => Ok(word),
        _ => Err(libc::EAGAIN),
    }
}

/// Opens a directory or, with O_PATH, the name of a file.
pub fn open(path: &CStr, flags: i32) -> Result<Fd> {
    open_at(libc::AT_FDCWD, path, flags)
}

fn open_at(folder: i32, path: &CStr, flags: i32) -> Result<Fd> {
    // SAFETY: the kernel reads `path` up to its zero.
    fd(unsafe { call!(SYS_openat, folder, path.as_ptr(), flags | libc::O_CLOEXEC) })
}

/// Returns a pidfd, which becomes readable when the process ends.
pub fn watch_process(pid: i32) -> Result<Fd> {
    // SAFETY: takes numbers only; the kernel touches no memory of ours.
    fd(unsafe { call!(SYS_pidfd_open, pid) })
}

/// Folder of another process in /proc.
pub struct ProcFolder {
    /// /proc, one descriptor for all processes; or the folder itself where there is no pidfd.
    base: Arc<Fd>,
    /// Name of the folder in `base`.
    name: CString,
    /// Pidfd; while it is not readable, the name is that of this process and no later one.
    process: Option<Arc<Fd>>,
}

/// /proc, kept open by the connections that need it: the program may change its root.
static PROC: Lock<Weak<Fd>> = Lock::new(Weak::new());

impl ProcFolder {
    pub fn new(pid: i32, process: Option<Arc<Fd>>) -> Option<Self> {
        let path = |text: String| CString::new(text).ok();
        let flags = libc::O_PATH | libc::O_DIRECTORY;
        if process.is_none() {
            let base = Arc::new(open(&path(format!("/proc/{pid}"))?, flags).ok()?);
            return Some(Self { base, name: c".".into(), process });
        }
        let mut proc = PROC.lock();
        let base = match proc.upgrade().filter(|proc| proc.is_there()) {
            Some(base) => base,
            None => Arc::new(open(c"/proc", flags).ok()?),
        };
        *proc = Arc::downgrade(&base);
        Some(Self { base, name: path(format!("{pid}"))?, process })
    }

    /// Returns the effective user of the process, or of a later one if it has ended. `None`: the
    /// system does not say.
    pub fn owner(&self) -> Option<u32> {
        let mut stat = MaybeUninit::<libc::stat>::uninit();
        let (name, at) = (self.name.as_ptr(), stat.as_mut_ptr());
        // SAFETY: a terminated name; the kernel fills `stat`, read only after it has.
        unsafe {
            let answer = syscall!(SYS_newfstatat, self.base.raw(), name, at, 0);
            (answer == 0).then(|| stat.assume_init_ref().st_uid)
        }
    }

    /// Opens a file that the process has open, for reading and writing; `file` is a `Fd::mark` of it.
    /// The kernel demands PTRACE_MODE_READ. Another file under the number is not opened: that could
    /// block, or change it.
    pub fn open(&self, file: u64) -> Result<Fd> {
        let path = |text: String| CString::new(text).map_err(|_| libc::EINVAL);
        let name = self.name.to_str().map_err(|_| libc::EINVAL)?;
        let name = path(format!("{name}/fd/{}", number_of(file)))?;
        let found = open_at(self.base.raw(), &name, libc::O_PATH)?;
        let process = self.process.as_ref().map_or(-1, |process| process.raw());
        let has_ended = poll([(process, libc::POLLIN)], 0) != Ok([0]);
        if has_ended || (found.mark ^ file) << (64 - FILE_BITS) != 0 {
            return Err(libc::ESTALE);
        }
        open(&path(format!("/proc/self/fd/{}", found.number))?, libc::O_RDWR)
    }
}

/// Forgets the parent's /proc in the child of a fork.
pub fn forget_proc() {
    PROC.renew();
}

/// Lets one process trace us in spite of Yama. There is only one such process at a time.
pub fn let_trace(pid: i32) -> bool {
    // SAFETY: takes numbers only; the kernel touches no memory of ours.
    unsafe { call!(SYS_prctl, libc::PR_SET_PTRACER, pid) == Ok(0) }
}

/// Returns Yama's ptrace_scope; 0 where there is none.
pub fn yama_scope() -> u8 {
    let mut room = [0; 8];
    let (path, allowed) = (c"/proc/sys/kernel/yama/ptrace_scope", sys::NoFilter::assumed());
    let text = brief_file::read(path, &mut room, allowed.into());
    text.and_then(|text| text.first()).map_or(0, |digit| digit.wrapping_sub(b'0'))
}

/// Makes an eventfd, which `sys::raise_event` makes readable.
pub fn new_event() -> Result<Fd> {
    fd(answer(sys::new_event()))
}

/// Empties an eventfd.
pub fn drain_event(event: &Fd) {
    let mut count = 0u64;
    // SAFETY: the kernel writes 8 bytes; it does not block (EFD_NONBLOCK).
    unsafe { syscall!(SYS_read, event.raw(), &raw mut count, size_of::<u64>()) };
}

/// A set of descriptors that can be polled as one.
pub struct Epoll(Fd);

impl core::ops::Deref for Epoll {
    type Target = Fd;

    fn deref(&self) -> &Fd {
        &self.0
    }
}

impl Epoll {
    pub fn new() -> Result<Self> {
        // SAFETY: takes numbers only; the kernel touches no memory of ours.
        fd(unsafe { call!(SYS_epoll_create1, libc::EPOLL_CLOEXEC) }).map(Self)
    }

    /// Adds a descriptor, or changes what is reported of it; `key` comes back with its events.
    pub fn watch(&self, fd: i32, events: i16, key: u64) -> Result<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: key };
        // SAFETY: the kernel reads the event.
        let mut control =
            |operation| unsafe { call!(SYS_epoll_ctl, self.raw(), operation, fd, &raw mut event) };
        match control(libc::EPOLL_CTL_ADD) {
            Err(libc::EEXIST) => control(libc::EPOLL_CTL_MOD),
            added => added,
        }
        .map(drop)
    }

    pub fn forget(&self, fd: i32) {
        // SAFETY: takes numbers only: to remove, the kernel reads no event.
        unsafe { syscall!(SYS_epoll_ctl, self.raw(), libc::EPOLL_CTL_DEL, fd, 0) };
    }

    /// Waits at most `limit_ms` and returns the keys of some descriptors that are ready.
    pub fn wait<const N: usize>(&self, keys: &mut [u64; N], limit_ms: i32) -> Result<usize> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; N];
        // SAFETY: the kernel fills at most `N` events; without a mask it changes none.
        let got =
            unsafe { syscall!(SYS_epoll_pwait, self.raw(), events.as_mut_ptr(), N, limit_ms, 0) };
        let got = answer(got)?.min(N);
        for (key, event) in keys.iter_mut().zip(&events[..got]) {
            *key = event.u64;
        }
        Ok(got)
    }
}
