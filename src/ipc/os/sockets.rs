//! Unix sockets, their options and messages with descriptors.

use super::{Fd, Received, Result, answer, call, fd, open};
use crate::os::sys::{self, nanoseconds, syscall};
use alloc::vec::Vec;
use core::ffi::CStr;
use core::mem::offset_of;

pub fn unix_socket() -> Result<Fd> {
    // SAFETY: takes numbers only; the kernel touches no memory of ours.
    fd(unsafe { call!(SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC) })
}

/// Makes a pair of SOCK_SEQPACKET sockets.
pub fn unix_pair() -> Result<[Fd; 2]> {
    let mut pair = [0i32; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: the kernel fills both numbers.
    unsafe { call!(SYS_socketpair, libc::AF_UNIX, kind, 0, &raw mut pair) }?;
    let [one, two] = pair.map(|number| fd(Ok(number as usize)));
    Ok([one?, two?])
}

/// An address of a unix socket and its length.
pub type UnixAddress = (libc::sockaddr_un, usize);

/// Converts a path; `@name` is in the abstract namespace.
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
    // SAFETY: the kernel reads the address.
    unsafe { call!(SYS_bind, socket.raw(), &raw const address.0, address.1) }.map(drop::<usize>)
}

/// Marks our end of a connection, so that closing it shuts it down for the peer.
fn connected(mut socket: Fd) -> Fd {
    socket.shut_on_drop = true;
    socket
}

/// Connects; waits for a place in the listener's queue until `end`, a time of `sys::nanoseconds`.
pub fn connect(address: &UnixAddress, end: u64) -> Result<Fd> {
    let socket = unix_socket()?;
    loop {
        // At least a microsecond, for 0 would be without end.
        let micros = (end.saturating_sub(nanoseconds()) / 1000).max(1) as i64;
        let limit = libc::timeval { tv_sec: micros / 1_000_000, tv_usec: micros % 1_000_000 };
        set_socket_option(socket.raw(), libc::SO_SNDTIMEO, limit)?;
        // SAFETY: the kernel reads the address.
        match unsafe { call!(SYS_connect, socket.raw(), &raw const address.0, address.1) } {
            Ok(_) => return Ok(connected(socket)),
            Err(libc::EAGAIN) => return Err(libc::ETIMEDOUT),
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}

/// Gives the file of a socket that is bound next mode 0600. (The umask belongs to the whole
/// process.)
pub fn make_private(socket: &Fd) -> Result<()> {
    // SAFETY: takes numbers only; the kernel touches no memory of ours.
    unsafe { call!(SYS_fchmod, socket.raw(), 0o600) }.map(drop::<usize>)
}

pub fn listen(socket: &Fd) -> Result<()> {
    // SAFETY: takes numbers only; the kernel touches no memory of ours.
    unsafe { call!(SYS_listen, socket.raw(), 128) }.map(drop::<usize>)
}

/// Accepts a client; like accept(2) it blocks unless the listener is O_NONBLOCK.
pub fn accept(listener: i32) -> Result<Fd> {
    // SAFETY: no address is asked for.
    fd(unsafe { call!(SYS_accept4, listener, 0, 0, libc::SOCK_CLOEXEC) }).map(connected)
}

/// Makes a listener readable, by a connection that is closed again: for a program that polls it. Nothing
/// happens where its queue is full, which is readable, or where its name has been given to another.
pub fn make_readable(listener: i32) {
    // SAFETY: all zeros is a valid address.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_un>() as u32;
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the kernel writes at most `len` bytes of the address, and reads them.
    unsafe {
        let named: Result<usize> = call!(SYS_getsockname, listener, &raw mut address, &raw mut len);
        if named.is_ok()
            && let Ok(socket) = fd(call!(SYS_socket, libc::AF_UNIX, kind))
        {
            let _: Result<usize> = call!(SYS_connect, socket.raw(), &raw const address, len);
        }
    }
}

/// Returns whether a descriptor is in non-blocking mode.
pub fn is_nonblocking(fd: i32) -> bool {
    // SAFETY: takes numbers only; the kernel touches no memory of ours.
    let flags = unsafe { syscall!(SYS_fcntl, fd, libc::F_GETFL) };
    flags >= 0 && flags as i32 & libc::O_NONBLOCK != 0
}

/// Returns whether a path is a socket, and not a link to one.
pub fn is_socket_file(address: &UnixAddress) -> bool {
    // SAFETY: terminated: `unix_address` leaves room for the zero.
    let path = unsafe { CStr::from_ptr(address.0.sun_path.as_ptr()) };
    let kind = |stat: &libc::stat| stat.st_mode & libc::S_IFMT;
    let file = open(path, libc::O_PATH | libc::O_NOFOLLOW);
    file.is_ok_and(|file| sys::stat(file.raw(), kind) == Some(libc::S_IFSOCK))
}

/// Locks the folder of a path against other listeners, until the result is dropped. `None`: the lock
/// was not free until `end`, or there is no such folder.
pub fn lock_folder(path: &[u8], end: u64) -> Option<Fd> {
    let mut folder = [0u8; 108];
    match path.iter().rposition(|&byte| byte == b'/') {
        None => folder[0] = b'.',
        Some(0) => folder[0] = b'/',
        Some(len) => folder.get_mut(..len)?.copy_from_slice(path.get(..len)?),
    }
    let folder = open(CStr::from_bytes_until_nul(&folder).ok()?, libc::O_DIRECTORY).ok()?;
    loop {
        // SAFETY: takes numbers only; the kernel touches no memory of ours.
        match unsafe { call!(SYS_flock, folder.raw(), libc::LOCK_EX | libc::LOCK_NB) } {
            Ok(_) => return Some(folder),
            Err(libc::EWOULDBLOCK | libc::EINTR) if nanoseconds() < end => {
                let _ = poll([(-1, 0)], 1);
            }
            Err(_) => return None,
        }
    }
}

pub fn remove_file(address: &UnixAddress) {
    // SAFETY: a terminated path: `unix_address` leaves room for the zero.
    unsafe { syscall!(SYS_unlinkat, libc::AT_FDCWD, &raw const address.0.sun_path, 0) };
}

/// Reads a socket option that is an array of numbers.
fn numbers_of<const N: usize>(fd: i32, option: i32) -> Result<[i32; N]> {
    let (mut value, mut len) = ([0i32; N], size_of::<[i32; N]>() as u32);
    let (at, room) = (&raw mut value, &raw mut len);
    // SAFETY: the kernel writes at most `len` bytes.
    unsafe { call!(SYS_getsockopt, fd, libc::SOL_SOCKET, option, at, room) }?;
    Ok(value)
}

/// Reads a socket option that is a number.
pub fn socket_option(fd: i32, option: i32) -> Result<i32> {
    numbers_of(fd, option).map(|[value]| value)
}

/// Process and user as the kernel reports them, in our namespaces; a process outside our pid
/// namespace is 0, an unmapped user 65534.
pub type Credentials = libc::ucred;

/// Returns SO_PEERCRED: the process that called `connect` or `listen`, or made the pair.
pub fn peer_credentials(socket: i32) -> Result<Credentials> {
    let [pid, uid, gid] = numbers_of(socket, libc::SO_PEERCRED)?;
    let known = uid != -1;
    known.then_some(Credentials { pid, uid: uid as u32, gid: gid as u32 }).ok_or(libc::ENOTCONN)
}

fn set_socket_option<T>(fd: i32, option: i32, value: T) -> Result<()> {
    let (at, len) = (&raw const value, size_of::<T>());
    // SAFETY: the kernel reads the value.
    unsafe { call!(SYS_setsockopt, fd, libc::SOL_SOCKET, option, at, len) }.map(drop::<usize>)
}

/// Socket option that is on while this lives.
pub struct SwitchedOn {
    socket: i32,
    option: i32,
    before: i32,
}

impl SwitchedOn {
    pub fn new(socket: i32, option: i32) -> Result<Self> {
        let before = socket_option(socket, option)?;
        set_socket_option(socket, option, 1)?;
        Ok(Self { socket, option, before })
    }
}

impl Drop for SwitchedOn {
    fn drop(&mut self) {
        let _ = set_socket_option(self.socket, self.option, self.before);
    }
}

/// Returns whether a descriptor is a listening unix socket.
pub fn is_listener(fd: i32) -> bool {
    socket_option(fd, libc::SO_ACCEPTCONN) == Ok(1)
        && socket_option(fd, libc::SO_DOMAIN) == Ok(libc::AF_UNIX)
}

/// Shuts a socket down; with `SHUT_RD`, polling this end returns at once from then on, unnoticed by
/// the peer. A file that the program has put under the number is left alone.
pub fn shut_down(socket: &Fd, how: i32) {
    if socket.is_there() {
        // SAFETY: takes numbers only; the kernel touches no memory of ours.
        unsafe { syscall!(SYS_shutdown, socket.raw(), how) };
    }
}

/// Allows or refuses descriptors sent to a socket (Linux 6.16). Clients inherit it from the
/// listener.
pub fn take_descriptors(socket: i32, take: bool) {
    const SO_PASSRIGHTS: i32 = 83;
    let _ = set_socket_option(socket, SO_PASSRIGHTS, i32::from(take));
}

/// Sends a wake-up byte. A full socket needs none: its reader has something to read.
pub fn send_byte(socket: i32) {
    let _ = send(socket, &[1], &[]);
}

/// Polls descriptors, each for its events; -1 is skipped. Returns the errno, including EINTR. Needs
/// no heap, which a program that waits may have used up.
pub fn poll<const N: usize>(fds: [(i32, i16); N], limit_ms: i32) -> Result<[i16; N]> {
    let mut set = fds.map(|(fd, events)| libc::pollfd { fd, events, revents: 0 });
    // SAFETY: the kernel writes the answers.
    answer(unsafe { sys::poll(set.as_mut_ptr() as usize, N, limit_ms) })?;
    Ok(set.map(|entry| entry.revents))
}

/// Room for as many descriptors as can be sent and a set of credentials, aligned for the kernel:
/// descriptors without room would be closed inside our call, which can block (SO_LINGER).
#[repr(C, align(8))]
struct CmsgBuffer([u8; CMSG_ROOM]);

const SCM_MAX_FD: u32 = 253;
// SAFETY: sums. The rest is for options that the program may have set: times, labels.
const CMSG_ROOM: usize =
    unsafe { libc::CMSG_SPACE(4 * SCM_MAX_FD) + libc::CMSG_SPACE(12) } as usize + 4096;

/// Returns a header that points to `piece`, which must outlive it.
fn header(piece: &libc::iovec) -> libc::msghdr {
    // SAFETY: all zeros is a valid message header.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    message.msg_iov = core::ptr::from_ref(piece).cast_mut();
    message.msg_iovlen = 1;
    message
}

/// Sends `bytes`, with descriptors.
pub fn send(socket: i32, bytes: &[u8], fds: &[i32]) -> Result<usize> {
    /// Ancillary data with room for three descriptors: no message has more.
    #[repr(C)]
    struct Rights(libc::cmsghdr, [i32; 4]);

    let piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut message = header(&piece);
    let cmsg_len = size_of::<libc::cmsghdr>() + size_of_val(fds);
    let (cmsg_level, cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
    let mut rights = Rights(libc::cmsghdr { cmsg_len, cmsg_level, cmsg_type }, [0; 4]);
    rights.1[..fds.len()].copy_from_slice(fds);
    if !fds.is_empty() {
        message.msg_control = (&raw mut rights).cast();
        message.msg_controllen = cmsg_len;
    }
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the message points to what lives here.
    unsafe { call!(SYS_sendmsg, socket, &raw const message, flags) }
}

/// Empties a doorbell socket, up to a limit where the peer sends without end. An error: a
/// descriptor has come, which the protocol does not allow.
pub fn drain(socket: i32) -> Result<()> {
    for _ in 0..1000 {
        let mut beside = Beside::default();
        match receive(socket, &mut [0; 8], &mut beside) {
            _ if !beside.fds.is_empty() => return Err(libc::EPROTO),
            Ok(1..) | Err(libc::EINTR) => {}
            Ok(0) | Err(_) => break,
        }
    }
    Ok(())
}

/// Ancillary data of a message.
#[derive(Default)]
pub struct Beside {
    pub fds: Vec<Received>,
    /// Set if some descriptors were lost for want of numbers (EMFILE).
    pub cut: bool,
    /// Sender of the bytes received last, where SO_PASSCRED is on.
    pub sender: Option<Credentials>,
}

/// Receives at most `bytes`; returns how many. 0: the other end is closed.
pub fn receive(socket: i32, bytes: &mut [u8], beside: &mut Beside) -> Result<usize> {
    let mut control = CmsgBuffer([0; CMSG_ROOM]);
    let piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = header(&piece);
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len();
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the message points to what lives here; the kernel keeps to the lengths.
    let got = unsafe { call!(SYS_recvmsg, socket, &raw mut message, flags) }?;
    beside.cut |= message.msg_flags & libc::MSG_CTRUNC != 0;
    beside.sender = None;
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
                        beside.fds.push(Received(fd));
                    }
                }
                (libc::SOL_SOCKET, libc::SCM_CREDENTIALS) if payload >= 12 => {
                    beside.sender = Some(data.cast::<Credentials>().read_unaligned());
                }
                _ => {}
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok(got)
}
