//! The system calls of a connection: descriptors and other processes; in it memory that two
//! processes map, and sockets. Answers are values; errno is never touched.

mod memory;
mod sockets;

pub use memory::*;
pub use sockets::*;

use super::blocking::{CLOSERS, OURS, User};
use super::claims::Role;
use crate::os::mapped::{Mapped, Zeroed};
use crate::os::sys::{self, syscall};
use crate::plan::PAGE;
use alloc::{boxed::Box, vec::Vec};
use core::ffi::{CStr, c_void};
use core::mem::ManuallyDrop;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The negated errno, or a value.
pub type Result<T> = core::result::Result<T, i32>;

/// Looked for where something begins that takes little bits of memory here and there: in mid-way
/// there would be nobody to tell that there is none. Another thread may still be faster.
pub fn look_for_heap() -> Result<()> {
    let mut some = Vec::<u8>::new();
    let found = some.try_reserve_exact(64 << 10);
    core::hint::black_box(some.as_ptr()); // or the compiler would know that there is
    found.map_err(|_| libc::ENOMEM)
}

/// A system call with as many arguments as it has.
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

/// The marks of our descriptors; 0: none. A child of a fork closes them: there they would hide the
/// end of its parent from others. Of two whose numbers are so far apart that they have the same
/// place, the first is not looked after.
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

/// One more than the greatest number of ours so far.
static USED: AtomicUsize = AtomicUsize::new(0);

/// Of a mark so many bits tell the file from others, and that it is a socket; above them is the
/// number.
const FILE_BITS: u32 = 40;
const SOCKET: u64 = 1 << (FILE_BITS - 1);

/// What a number stands for now; 0: nothing. Of sockets no two have the same; of processes and ports
/// all may have.
fn mark_of(number: i32) -> u64 {
    let mark = |stat: &libc::stat| {
        let file = (stat.st_ino ^ stat.st_dev << 32) & (SOCKET - 1);
        let socket = if stat.st_mode & libc::S_IFMT == libc::S_IFSOCK { SOCKET } else { 0 };
        (number as u64) << FILE_BITS | socket | file
    };
    sys::stat(number, mark).unwrap_or(0)
}

/// In the child of a fork.
pub fn close_after_fork() {
    let Some(Descriptors(open)) = OPEN.get() else { return };
    let open = &open[..open.len().min(USED.load(Ordering::Acquire))];
    let number = |mark: u64| (mark >> FILE_BITS) as i32;
    let is_there = |mark: u64| mark_of(number(mark)) == mark;
    // Whoever closes what it finds, and opens files of its own, has closed our sockets as well.
    let found = open.iter().map(|place| place.load(Ordering::Acquire));
    let untouched = found.filter(|mark| mark & SOCKET != 0).all(is_there);
    for mark in open.iter().map(|place| place.swap(0, Ordering::AcqRel)) {
        if mark != 0 && (untouched || mark & SOCKET != 0) && is_there(mark) {
            sys::close(number(mark));
        }
    }
}

/// A descriptor of ours: closed with its owner, unless the program has closed it, as daemons close
/// all they find, and has opened a file of its own under the number.
pub struct Fd {
    number: i32,
    mark: u64,
    /// Of a socket who has its other end, and cannot hold up who closes it.
    pub other_end: Option<User>,
}

impl Fd {
    /// A number that is ours from now on.
    pub fn owned(number: i32) -> Self {
        let mark = mark_of(number);
        if let Some(open) = OPEN.get_or_map() {
            USED.fetch_max(number as usize + 1, Ordering::AcqRel);
            open.place(number).store(mark, Ordering::Release);
        }
        Self { number, mark, other_end: None }
    }

    pub fn raw(&self) -> i32 {
        self.number
    }

    /// Whether the number still stands for it.
    pub fn is_there(&self) -> bool {
        mark_of(self.number) == self.mark
    }

    /// From now on the number is somebody else's business.
    pub fn into_raw(self) -> i32 {
        self.leave_place();
        ManuallyDrop::new(self).number
    }

    /// The program has closed it, and may have a file of its own there that looks the same.
    pub fn disown(&mut self) {
        self.leave_place();
        self.number = -1;
    }

    /// Also of a number that is somebody else's by now: the mark tells.
    fn leave_place(&self) {
        if let Some(open) = OPEN.get() {
            let (mark, failure) = (self.mark, Ordering::Relaxed);
            let _ = open.place(self.number).compare_exchange(mark, 0, Ordering::AcqRel, failure);
        }
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        let is_there = self.is_there();
        if let Some(user) = self.other_end.filter(|_| is_there) {
            // Also if a child is forked now, which has it as well.
            shut_down(self, libc::SHUT_RDWR);
            // What is in it may be files that would be closed with it; they stay there while others
            // wait, and a child that closed them would have to wait itself.
            if !empty_for_good(self, user) {
                self.leave_place();
                return close_by_thread(self.number, user);
            }
        }
        if is_there {
            sys::close(self.number);
        }
        self.leave_place();
    }
}

/// Never one of the first three: a program that has closed its standard streams may go on
/// writing to them.
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

/// A descriptor that somebody else has sent: it may stand for anything, also for a file whose
/// maker answers no question, not even that it is closed. So nothing is done with it before it is
/// known to be what it must be.
pub struct Foreign {
    fd: i32,
    /// It was found to be right, and is ours.
    known: Option<Fd>,
    user: User,
}

impl Foreign {
    fn into_fd(self) -> Result<Fd> {
        fd(Ok(ManuallyDrop::new(self).fd as usize))
    }

    /// One end of a connected pair, as `unix_pair` makes it.
    pub fn into_socket(self) -> Result<Fd> {
        let option = |option| socket_option(self.fd, option);
        let right = option(libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
            && option(libc::SO_TYPE) == Ok(libc::SOCK_SEQPACKET)
            && option(libc::SO_ACCEPTCONN) == Ok(0);
        if right { self.into_fd() } else { Err(libc::EPROTO) }
    }

    /// Memory, as `sealed_memory` makes it.
    pub fn into_memory(self) -> Result<Fd> {
        if seals(self.fd).is_ok() { self.into_fd() } else { Err(libc::EPROTO) }
    }

    /// For the kernel, which looks itself what it is.
    pub fn raw(&self) -> i32 {
        self.fd
    }

    /// The kernel has found it to be right.
    pub fn note_known(&mut self) {
        self.known = Some(Fd::owned(self.fd));
    }

    pub fn disown(&mut self) {
        self.known.iter_mut().for_each(Fd::disown);
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        // Of all that can be sent only memory is known to be closed at once: a socket may linger,
        // or have got what does.
        if self.known.is_some() {
            // which closes it
        } else if seals(self.fd).is_ok() {
            sys::close(self.fd);
        } else {
            close_by_thread(self.fd, self.user);
        }
    }
}

/// Closes a listener. What those have sent who were not accepted is closed with it, and waited for
/// only so long.
pub fn close_listener(listener: i32, patience: u64) {
    if poll_few([(listener, libc::POLLIN)], 0) == [0] {
        return sys::close(listener);
    }
    if CLOSERS.within(OURS, patience, move || sys::close(listener)).is_none() {
        sys::close(listener); // nobody else can
    }
}

/// It stays open until there is a thread for it; see `CLOSERS.is_behind`.
fn close_by_thread(fd: i32, user: User) {
    let close = move || {
        do_not_linger(fd);
        sys::close(fd);
    };
    CLOSERS.queue(user, Box::new(close));
}

/// Copies between two ranges of our memory and two of another process's, in order; answers the
/// bytes copied. All of them are in the memory that the process has at one moment, and it is at
/// that moment that the kernel asks whether we may. A reader pulls, a writer pushes.
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

/// Whether this process lets others of its user trace it.
pub fn is_dumpable() -> bool {
    // SAFETY: no memory.
    unsafe { call(libc::SYS_prctl, [libc::PR_GET_DUMPABLE as usize]) == Ok(1) }
}

/// A fresh page at this place, if that is free; 0: anywhere. A child of a fork does not get it.
pub fn map_page_at(at: usize) -> Result<usize> {
    let protection = (libc::PROT_READ | libc::PROT_WRITE) as usize;
    let there = if at == 0 { 0 } else { libc::MAP_FIXED_NOREPLACE };
    let flags = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | there) as usize;
    // SAFETY: replaces nothing; a kernel that does not know the flag chooses another place, which
    // is given back.
    unsafe {
        let got = call(libc::SYS_mmap, [at, PAGE, protection, flags, usize::MAX])?;
        let kept = call(libc::SYS_madvise, [got, PAGE, libc::MADV_DONTFORK as usize]);
        if (at != 0 && got != at) || kept.is_err() {
            sys::unmap(got as *mut c_void, PAGE);
            return Err(libc::EEXIST);
        }
        Ok(got)
    }
}

/// Opens a folder, a file of /proc, or a file's name only; its path may begin in another folder.
pub fn open(folder: Option<&Fd>, path: &CStr, flags: i32) -> Result<Fd> {
    let folder = folder.map_or(libc::AT_FDCWD, Fd::raw);
    let flags = (flags | libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: a terminated path.
    fd(unsafe { call(libc::SYS_openat, [folder as usize, path.as_ptr() as usize, flags]) })
}

/// What is in a folder.
pub fn for_each_name(folder: &Fd, mut look: impl FnMut(&CStr)) {
    const NAME: usize = core::mem::offset_of!(libc::dirent64, d_name);
    const LEN: usize = core::mem::offset_of!(libc::dirent64, d_reclen);
    let mut room = [0u8; 1024];
    let (at, len) = (room.as_mut_ptr() as usize, room.len());
    loop {
        // SAFETY: the kernel writes inside `room`.
        let got = unsafe { call(libc::SYS_getdents64, [folder.raw() as usize, at, len]) };
        let Some(mut rest) = got.ok().and_then(|got| room.get(..got)) else { return };
        if rest.is_empty() {
            return;
        }
        while let [_, ..] = rest {
            let len = usize::from(u16::from_ne_bytes([rest[LEN], rest[LEN + 1]]));
            CStr::from_bytes_until_nul(&rest[NAME..len]).iter().for_each(|name| look(name));
            rest = &rest[len..];
        }
    }
}

/// Where a short link of a folder leads, and zeros.
pub fn link_in(folder: &Fd, path: &CStr) -> Option<[u8; 32]> {
    let mut room = [0; 32];
    let (at, len, path) = (room.as_mut_ptr() as usize, room.len(), path.as_ptr() as usize);
    // SAFETY: a terminated path, and the kernel writes inside `room`.
    let got = unsafe { call(libc::SYS_readlinkat, [folder.raw() as usize, path, at, len]) };
    got.is_ok().then_some(room)
}

/// What a file of /proc says now.
pub fn read_again<'a>(file: &Fd, room: &'a mut [u8]) -> Option<&'a [u8]> {
    let (at, len) = (room.as_mut_ptr() as usize, room.len());
    // SAFETY: the kernel writes inside `room`.
    let got = unsafe { call(libc::SYS_pread64, [file.raw() as usize, at, len]) };
    room.get(..got.ok()?)
}

/// A descriptor that becomes readable when the process ends.
pub fn watch_process(pid: i32) -> Result<Fd> {
    // SAFETY: no memory.
    fd(unsafe { call(libc::SYS_pidfd_open, [pid as usize]) })
}

/// Lets one process trace us in spite of Yama. There is only one such process at a time.
pub fn let_trace(pid: i32) -> bool {
    // SAFETY: no memory.
    unsafe { call(libc::SYS_prctl, [libc::PR_SET_PTRACER as usize, pid as usize]).is_ok() }
}
