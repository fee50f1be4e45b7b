//! The system calls of a connection. Answers are values; errno is never touched.

use super::blocking::CLOSERS;
use crate::os::sys::{self, nanoseconds, syscall};
use crate::plan::PAGE;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ffi::{CStr, c_void};
use core::mem::{ManuallyDrop, MaybeUninit, offset_of};

/// The negated errno, or a value.
pub type Result<T> = core::result::Result<T, i32>;

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

/// A descriptor of ours: closed with its owner.
#[derive(Debug)]
pub struct Fd(i32);

impl Fd {
    pub fn raw(&self) -> i32 {
        self.0
    }

    /// A number that is ours from now on.
    pub fn owned(fd: i32) -> Self {
        Self(fd)
    }

    /// From now on the number is somebody else's business.
    pub fn into_raw(self) -> i32 {
        ManuallyDrop::new(self).0
    }
}

impl Drop for Fd {
    fn drop(&mut self) {
        sys::close(self.0);
    }
}

/// Never one of the first three: a program that has closed its standard streams may go on
/// writing to them.
fn fd(answer: Result<usize>) -> Result<Fd> {
    let first = Fd(answer? as i32);
    if first.0 > libc::STDERR_FILENO {
        return Ok(first);
    }
    match sys::duplicate(first.0, libc::STDERR_FILENO + 1) {
        fd @ 0.. => Ok(Fd(fd as i32)),
        errno => Err(-errno as i32),
    }
}

/// A descriptor that somebody else has sent: it may stand for anything, also for a file whose
/// maker answers no question, not even that it is closed. So nothing is done with it before it is
/// known to be what it must be.
#[derive(Debug)]
pub struct Foreign {
    fd: i32,
    known: bool,
}

impl Foreign {
    fn into_fd(self) -> Result<Fd> {
        fd(Ok(ManuallyDrop::new(self).fd as usize))
    }

    /// One end of a connected pair, as `unix_pair` makes it.
    pub fn into_socket(self) -> Result<Fd> {
        let option = |option| socket_option(self.fd, option);
        let right = option(libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
            && option(libc::SO_TYPE) == Ok(libc::SOCK_STREAM)
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
        self.known = true;
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        let Self { fd, known } = *self;
        if known || socket_option(fd, libc::SO_DOMAIN).is_ok() || seals(fd).is_ok() {
            sys::close(fd);
        } else {
            // It stays open where too many threads wait for such files already.
            CLOSERS.take(Box::new(move || sys::close(fd)));
        }
    }
}

// ---- memory ------------------------------------------------------------------------------

/// Nobody can make it smaller or larger.
pub const SIZE_SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;

/// Nor map it anew to write, nor take pages away; nor change any of this. Who has it mapped keeps
/// that.
const FINAL_SEALS: i32 = SIZE_SEALS | libc::F_SEAL_FUTURE_WRITE | libc::F_SEAL_SEAL;

/// Since Linux 6.3; a system may demand it.
const MFD_NOEXEC_SEAL: u32 = 8;

/// Fresh memory for two processes, all zeros, under a name for /proc.
pub fn sealed_memory(name: &CStr, size: usize, seals: i32) -> Result<Fd> {
    // Asked for more than RLIMIT_FSIZE, the kernel sends SIGXFSZ as well.
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: 0 };
    let (what, at) = (libc::RLIMIT_FSIZE as usize, &raw mut limit as usize);
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the kernel fills the limits, or leaves them alone; a terminated name; the other
    // calls take no memory.
    unsafe {
        let _ = call(libc::SYS_prlimit64, [0, what, 0, at]);
        if size > limit.rlim_cur as usize {
            return Err(libc::EFBIG);
        }
        let create =
            |flags| fd(call(libc::SYS_memfd_create, [name.as_ptr() as usize, flags as usize]));
        let memory = match create(flags | MFD_NOEXEC_SEAL) {
            Err(libc::EINVAL) => create(flags)?,
            memory => memory?,
        };
        call(libc::SYS_ftruncate, [memory.raw() as usize, size])?;
        add_seals(&memory, seals)?;
        Ok(memory)
    }
}

fn add_seals(memory: &Fd, seals: i32) -> Result<usize> {
    let (number, command) = (memory.raw() as usize, libc::F_ADD_SEALS as usize);
    // SAFETY: no memory of ours.
    unsafe { call(libc::SYS_fcntl, [number, command, seals as usize]) }
}

/// The seals of memory, and nothing is asked of what is not: a file may be such that it never
/// answers. An error: it is something else.
fn seals(fd: i32) -> Result<i32> {
    // SAFETY: no memory of ours.
    unsafe { call(libc::SYS_fcntl, [fd as usize, libc::F_GET_SEALS as usize]) }
        .map(|seals| seals as i32)
}

/// When both have mapped it: from now on its pages stay where they are. The other side may have
/// been faster, and nothing is added then.
pub fn seal_for_good(memory: &Fd) -> Result<()> {
    let added = add_seals(memory, FINAL_SEALS);
    match seals(memory.raw())? & FINAL_SEALS {
        FINAL_SEALS => Ok(()),
        _ => Err(added.err().unwrap_or(libc::EPROTO)),
    }
}

pub fn is_sealed_for_good(memory: &Fd) -> bool {
    seals(memory.raw()).is_ok_and(|seals| seals & FINAL_SEALS == FINAL_SEALS)
}

/// What a process gets a block for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// It is our equal.
    Everything,
    Read,
    /// It is not our equal, and may write it all the same.
    Lent,
}

/// Before it is sent: nobody is to change its seals, and who is not our equal is to be sure that
/// its pages stay. Who borrows it maps it first, and then seals it.
pub fn seal_block(memory: &Fd, share: Share) -> Result<()> {
    let is_sealed = seals(memory.raw())? & FINAL_SEALS & !SIZE_SEALS != 0;
    match share {
        Share::Read => seal_for_good(memory),
        Share::Lent if is_sealed => Err(libc::EBUSY),
        Share::Everything if !is_sealed => add_seals(memory, libc::F_SEAL_SEAL).map(drop),
        _ => Ok(()),
    }
}

/// Finds all pages of a mapping now; later nobody is killed for want of one. Kernels before 5.14
/// do not know how, and have to find them one by one.
///
/// # Safety
/// Mapped, to be written, with at least this size.
pub unsafe fn find_pages(at: usize, size: usize) -> Result<()> {
    loop {
        // SAFETY: the caller's promise; nothing is changed.
        match unsafe { call(libc::SYS_madvise, [at, size, libc::MADV_POPULATE_WRITE as usize]) } {
            Err(libc::EINTR | libc::EAGAIN) => {}
            Ok(_) | Err(libc::EINVAL) => return Ok(()),
            Err(_) => return Err(libc::ENOMEM),
        }
    }
}

/// What there is to know of memory that somebody else has made.
pub struct Sealed {
    pub size: usize,
    /// All its pages are there, or were just now.
    pub whole: bool,
    /// And stay; it can be mapped only to read.
    pub fixed: bool,
}

/// Memory that somebody else made as `sealed_memory` makes it. From any other its maker could
/// cut pages off, and we would die of SIGBUS; also from such of huge pages, of which there may be
/// none left.
pub fn sealed_memory_of_others(memory: &Fd) -> Option<Sealed> {
    let seals = seals(memory.raw()).ok().filter(|seals| seals & SIZE_SEALS == SIZE_SEALS)?;
    let mut system = MaybeUninit::<libc::statfs>::uninit();
    let (fd, at) = (memory.raw() as usize, system.as_mut_ptr() as usize);
    // SAFETY: the kernel fills `system`, which is read only after it has.
    let kind = unsafe { call(libc::SYS_fstatfs, [fd, at]).map(|_| system.assume_init().f_type) };
    let stat = stat(memory.raw(), c"".as_ptr()).filter(|_| kind == Ok(libc::TMPFS_MAGIC))?;
    let whole = stat.st_blocks >= stat.st_size / 512;
    let fixed = seals & FINAL_SEALS == FINAL_SEALS;
    Some(Sealed { size: stat.st_size as usize, whole, fixed })
}

/// Finds all its pages now: nobody will be killed later for want of one.
///
/// In steps: until Linux 6.12 a signal that comes meanwhile is the end of it, and what was
/// found is given back.
pub fn fill_with_pages(memory: &Fd, size: usize) -> Result<()> {
    const STEP: usize = 256 << 10;
    let mut from = 0;
    while from < size {
        let range = [memory.raw() as usize, 0, from, STEP.min(size - from)];
        // SAFETY: no memory of ours.
        match unsafe { call(libc::SYS_fallocate, range) } {
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
            Ok(_) => from += STEP,
        }
    }
    Ok(())
}

/// Gives the pages back of memory that is mapped to be written, whoever else has it mapped; it
/// reads as zeros from then on. It needs no descriptor: that may not be ours any more.
///
/// # Safety
/// Mapped with this size, and nobody wants what is there.
pub unsafe fn take_pages_away(at: *mut c_void, size: usize) {
    // SAFETY: the caller's promise. Pages that are locked would stay.
    unsafe {
        let _ = call(libc::SYS_munlock, [at as usize, size]);
        let _ = call(libc::SYS_madvise, [at as usize, size, libc::MADV_REMOVE as usize]);
    }
}

/// Maps memory where the kernel chooses; a child of a fork gets it, too.
pub fn map_inherited(memory: &Fd, size: usize, writable: bool) -> Result<*mut c_void> {
    let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
    let (flags, number) = (libc::MAP_SHARED as usize, memory.raw() as usize);
    // SAFETY: a fresh mapping.
    unsafe { call(libc::SYS_mmap, [0, size, protection as usize, flags, number]) }
        .map(|at| at as *mut c_void)
}

/// The same, but a child of a fork does not get it.
pub fn map_shared(memory: &Fd, size: usize, writable: bool) -> Result<*mut c_void> {
    let at = map_inherited(memory, size, writable)?;
    // SAFETY: advice about a mapping of ours.
    let _ = unsafe { call(libc::SYS_madvise, [at as usize, size, libc::MADV_DONTFORK as usize]) };
    Ok(at)
}

// ---- another process ---------------------------------------------------------------------

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Out of the other process.
    Pull,
    /// Into it.
    Push,
}

/// Copies between two ranges of our memory and two of another process's, in order; answers the
/// bytes copied. All of them are in the memory that the process has at one moment, and it is at
/// that moment that the kernel asks whether we may.
///
/// # Safety
/// For a pull no Rust reference covers `ours`; a push changes `theirs` in that process.
pub unsafe fn copy_across(
    way: Way,
    pid: i32,
    ours: [(usize, usize); 2],
    theirs: [(usize, usize); 2],
) -> Result<usize> {
    let range = |(at, len)| libc::iovec { iov_base: at as *mut c_void, iov_len: len };
    let (ours, theirs) = (ours.map(range), theirs.map(range));
    let number = match way {
        Way::Pull => libc::SYS_process_vm_readv,
        Way::Push => libc::SYS_process_vm_writev,
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

/// A fresh page at this place, if that is free. A child of a fork does not get it.
pub fn map_page_at(at: usize) -> Result<()> {
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
    }
    Ok(())
}

/// Opens a file of /proc, for `read_again`, or a folder, for `lock_folder`.
pub fn open(path: &CStr, flags: i32) -> Result<Fd> {
    let flags = (flags | libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    let at = libc::AT_FDCWD as usize;
    // SAFETY: a terminated path.
    fd(unsafe { call(libc::SYS_openat, [at, path.as_ptr() as usize, flags]) })
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

// ---- sockets -----------------------------------------------------------------------------

const STREAM: usize = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC) as usize;

pub fn unix_socket() -> Result<Fd> {
    // SAFETY: no memory.
    fd(unsafe { call(libc::SYS_socket, [libc::AF_UNIX as usize, STREAM]) })
}

pub fn unix_pair() -> Result<[Fd; 2]> {
    let mut pair = [0i32; 2];
    let at = &raw mut pair as usize;
    // SAFETY: the kernel fills both numbers.
    unsafe { call(libc::SYS_socketpair, [libc::AF_UNIX as usize, STREAM, 0, at]) }?;
    let [one, two] = pair.map(|number| fd(Ok(number as usize)));
    Ok([one?, two?])
}

/// An address of a unix socket and its length.
pub type UnixAddress = (libc::sockaddr_un, usize);

/// `@name` is in the abstract namespace.
pub fn unix_address(path: &[u8]) -> Result<UnixAddress> {
    let mut address = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    let room = &mut address.sun_path;
    if path.is_empty() {
        return Err(libc::ENOENT);
    }
    if path.len() >= room.len() {
        return Err(libc::ENAMETOOLONG);
    }
    for (to, from) in room.iter_mut().zip(path) {
        *to = *from as libc::c_char;
    }
    let abstractly = path[0] == b'@';
    if abstractly {
        room[0] = 0;
    }
    let len = offset_of!(libc::sockaddr_un, sun_path) + path.len() + usize::from(!abstractly);
    Ok((address, len))
}

pub fn bind(socket: &Fd, address: &UnixAddress) -> Result<()> {
    let (at, fd) = (&raw const address.0 as usize, socket.raw() as usize);
    // SAFETY: the kernel reads the address.
    unsafe { call(libc::SYS_bind, [fd, at, address.1]) }.map(drop)
}

/// Connects; a listener that accepts nobody is waited for until `end`, a moment of
/// `sys::nanoseconds`.
pub fn connect(socket: &Fd, address: &UnixAddress, end: u64) -> Result<()> {
    let (at, fd) = (&raw const address.0 as usize, socket.raw() as usize);
    loop {
        // At least a microsecond, for 0 would be without end.
        let micros = (end.saturating_sub(nanoseconds()) / 1000).max(1) as i64;
        let limit = libc::timeval { tv_sec: micros / 1_000_000, tv_usec: micros % 1_000_000 };
        set_socket_option(socket.raw(), libc::SO_SNDTIMEO, limit)?;
        // SAFETY: the kernel reads the address.
        match unsafe { call(libc::SYS_connect, [fd, at, address.1]) } {
            Ok(_) => return Ok(()),
            Err(libc::EAGAIN) => return Err(libc::ETIMEDOUT),
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

pub fn listen(socket: &Fd) -> Result<()> {
    // SAFETY: no memory.
    unsafe { call(libc::SYS_listen, [socket.raw() as usize, 128]) }.map(drop)
}

pub fn accept(listener: i32) -> Result<Fd> {
    // SAFETY: no address is asked for.
    fd(unsafe { call(libc::SYS_accept4, [listener as usize, 0, 0, libc::SOCK_CLOEXEC as usize]) })
}

/// Whether a path leads to a socket, and not by a link.
pub fn is_socket_file(address: &UnixAddress) -> bool {
    let stat = stat(libc::AT_FDCWD, address.0.sun_path.as_ptr());
    stat.is_some_and(|stat| stat.st_mode & libc::S_IFMT == libc::S_IFSOCK)
}

/// Taking turns with others who listen in the folder of a path; ends with its owner. `None`: it
/// was not to be had until `end`, or there is no such folder.
pub fn lock_folder(path: &[u8], end: u64) -> Option<Fd> {
    let mut folder = [0u8; 108];
    match path.iter().rposition(|&byte| byte == b'/') {
        None => folder[0] = b'.',
        Some(0) => folder[0] = b'/',
        Some(len) => folder.get_mut(..len)?.copy_from_slice(path.get(..len)?),
    }
    let folder = open(CStr::from_bytes_until_nul(&folder).ok()?, libc::O_DIRECTORY).ok()?;
    let operation = (libc::LOCK_EX | libc::LOCK_NB) as usize;
    loop {
        // SAFETY: no memory.
        match unsafe { call(libc::SYS_flock, [folder.raw() as usize, operation]) } {
            Ok(_) => return Some(folder),
            Err(libc::EWOULDBLOCK | libc::EINTR) if nanoseconds() < end => {
                poll([(-1, 0)], 1);
            }
            Err(_) => return None,
        }
    }
}

pub fn remove_file(address: &UnixAddress) {
    let (at, path) = (libc::AT_FDCWD as usize, &raw const address.0.sun_path as usize);
    // SAFETY: a terminated path: `unix_address` leaves room for the zero.
    let _ = unsafe { call(libc::SYS_unlinkat, [at, path, 0]) };
}

/// An option of a socket that is a number.
pub fn socket_option(fd: i32, option: i32) -> Result<i32> {
    let (mut value, mut len) = (0i32, size_of::<i32>() as u32);
    let (at, room) = (&raw mut value as usize, &raw mut len as usize);
    let (level, option) = (libc::SOL_SOCKET as usize, option as usize);
    // SAFETY: the kernel writes at most `len` bytes.
    unsafe { call(libc::SYS_getsockopt, [fd as usize, level, option, at, room]) }?;
    Ok(value)
}

pub fn set_socket_option<T>(fd: i32, option: i32, value: T) -> Result<()> {
    let (at, len) = (&raw const value as usize, size_of::<T>());
    let (level, option) = (libc::SOL_SOCKET as usize, option as usize);
    // SAFETY: the kernel reads the value.
    unsafe { call(libc::SYS_setsockopt, [fd as usize, level, option, at, len]) }.map(drop)
}

/// Whether a descriptor is a listening unix socket.
pub fn is_listener(fd: i32) -> bool {
    socket_option(fd, libc::SO_ACCEPTCONN) == Ok(1)
        && socket_option(fd, libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
}

/// Nothing is sent or received any more. To stop `SHUT_RD` only: from then on polling this end
/// returns at once, and the other end hears nothing of it.
pub fn shut_down(socket: i32, how: i32) {
    // SAFETY: no memory.
    let _ = unsafe { call(libc::SYS_shutdown, [socket as usize, how as usize]) };
}

/// What the kernel says of a descriptor's file, or of a path's where that is not empty, and not by
/// a link.
fn stat(fd: i32, path: *const libc::c_char) -> Option<libc::stat> {
    let mut stat = MaybeUninit::<libc::stat>::uninit();
    let flags = (libc::AT_EMPTY_PATH | libc::AT_SYMLINK_NOFOLLOW) as usize;
    let (fd, path, at) = (fd as usize, path as usize, stat.as_mut_ptr() as usize);
    // SAFETY: a terminated path; the kernel fills `stat`, which is read only after it has.
    unsafe { call(libc::SYS_newfstatat, [fd, path, at, flags]).ok().map(|_| stat.assume_init()) }
}

/// What is sent to wake somebody.
pub const WAKE: u8 = 1;

/// One byte that wakes somebody. A full socket is as good: its reader has something to read.
pub fn send_byte(socket: i32) {
    let _ = send(socket, &[WAKE], &[]);
}

/// What descriptors have to say, each about its events; -1 has nothing. Nothing where the system
/// refuses, or a signal comes: the caller comes back at once.
pub fn poll(fds: impl IntoIterator<Item = (i32, i16)>, limit_ms: i32) -> Vec<i16> {
    let entry = |(fd, events)| libc::pollfd { fd, events, revents: 0 };
    let mut set: Vec<libc::pollfd> = fds.into_iter().map(entry).collect();
    let (at, len) = (set.as_mut_ptr() as usize, set.len());
    // SAFETY: the kernel writes the answers.
    let refused = unsafe { call(libc::SYS_poll, [at, len, limit_ms as usize]) }.is_err();
    set.iter().map(|entry| if refused { 0 } else { entry.revents }).collect()
}

/// The most descriptors that come with one message.
pub const MOST_FDS: usize = 3;

/// Room for so many, a set of credentials and a process, aligned as the kernel wants it; what it
/// has no room for the kernel lets go.
#[repr(C, align(8))]
struct CmsgBuffer([u8; 88]);

/// Points to what must outlive it.
fn header(piece: &libc::iovec) -> libc::msghdr {
    // SAFETY: all zeros is a valid message header.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = core::ptr::from_ref(piece).cast_mut();
    message.msg_iovlen = 1;
    message
}

/// Sends `bytes`, with descriptors.
pub fn send(socket: i32, bytes: &[u8], fds: &[i32]) -> Result<usize> {
    let mut control = CmsgBuffer([0; 88]);
    let piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = header(&piece);
    if !fds.is_empty() {
        let payload = size_of_val(fds) as u32;
        // SAFETY: the header and so many numbers fit into `control`, for nobody sends more
        // than three.
        unsafe {
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(payload) as usize;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(payload) as usize;
            for (index, fd) in fds.iter().enumerate() {
                libc::CMSG_DATA(header).cast::<i32>().add(index).write_unaligned(*fd);
            }
        }
    }
    let flags = (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT) as usize;
    // SAFETY: the message points to what lives here.
    unsafe { call(libc::SYS_sendmsg, [socket as usize, &raw const message as usize, flags]) }
}

/// Ask for `Beside::process`; and how that comes.
pub const SO_PASSPIDFD: i32 = 76;
const SCM_PIDFD: i32 = 4;

/// What came with a message beside its bytes.
#[derive(Default)]
pub struct Beside {
    pub fds: Vec<Foreign>,
    /// There were more of them than found a number, or room, here.
    pub cut: bool,
    /// The process that sent it, by the kernel's word; 0: unknown, or not to be seen from here.
    pub pid: i32,
    /// The same as a descriptor, since Linux 6.5.
    pub process: Option<Fd>,
}

/// Receives at most `bytes`; answers how many. 0: the other end is closed.
pub fn receive(socket: i32, bytes: &mut [u8], beside: &mut Beside) -> Result<usize> {
    let mut control = CmsgBuffer([0; 88]);
    let piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = header(&piece);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    let flags = (libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) as usize;
    // SAFETY: the message points to what lives here; the kernel keeps to the lengths.
    let got =
        unsafe { call(libc::SYS_recvmsg, [socket as usize, &raw mut message as usize, flags]) }?;
    beside.cut |= message.msg_flags & libc::MSG_CTRUNC != 0;
    // SAFETY: the kernel has filled `control` up to the length it says.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            let data = libc::CMSG_DATA(header);
            let payload = (*header).cmsg_len - libc::CMSG_LEN(0) as usize;
            match ((*header).cmsg_level, (*header).cmsg_type) {
                (libc::SOL_SOCKET, libc::SCM_RIGHTS) => {
                    for index in 0..payload / size_of::<i32>() {
                        let fd = data.cast::<i32>().add(index).read_unaligned();
                        beside.fds.push(Foreign { fd, known: false });
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if payload >= 12 => {
                    beside.pid = data.cast::<libc::ucred>().read_unaligned().pid;
                }
                (libc::SOL_SOCKET, SCM_PIDFD) if payload >= 4 => {
                    // Negative: why there is none.
                    let number = usize::try_from(data.cast::<i32>().read_unaligned());
                    beside.process = fd(number.map_err(|_| libc::ESRCH)).ok();
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok(got)
}
