//! The beginning of a connection: finding each other, and greetings over the socket.
//!
//! Both sides say the same things in the same order, so neither has a role:
//!
//! ```text
//! Hello    who I am, what I would offer; with it a region, one end of a bell socket, and the
//!          kernel helper's door to my posts if I have one
//! Here     nothing; the kernel says beside it which process sent it
//! Ready    now you may try to reach my memory, and this is what the helper knows it by
//! Verdict  how that went
//! ```
//!
//! Of the two regions and bell sockets those of the side with the greater nonce are used. The
//! bell socket is nobody's but ours: closed when its process dies or executes another
//! program, whatever became of the socket the greetings went over. That one is left as it
//! was found and can be used for something else, or closed.

use super::across::{Lent, Offer};
use super::engine::{self, Engine, Target};
use super::os::{self, Beside, Fd, Result, Way};
use super::region::{self, Mapped};
use super::settings::{Engines, Settings};
use super::views::Views;
use crate::sys;
use core::fmt::Write;

const MAGIC: u64 = u64::from_le_bytes(*b"adma-ipc");
const VERSION: u32 = 4;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Hello {
    magic: u64,
    version: u32,
    region: u32,
    nonce: u64,
    secret: u64,
    target: u64,
    offload: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Note {
    step: u32,
    pull: i32,
    push: i32,
    helper: i32,
    post: u64,
}

const HERE: u32 = 1;
const READY: u32 = 2;
const VERDICT: u32 = 3;

/// Messages: plain numbers without gaps, so any bytes are one and one is bytes.
trait Plain: Copy + Default {}
impl Plain for Hello {}
impl Plain for Note {}
const _: () = assert!(size_of::<Hello>() == 48 && size_of::<Note>() == 24);

fn bytes_of<T: Plain>(message: &mut T) -> &mut [u8] {
    // SAFETY: `Plain`.
    unsafe { core::slice::from_raw_parts_mut(core::ptr::from_mut(message).cast(), size_of::<T>()) }
}

/// What the greetings have led to.
pub struct Met {
    pub region: Mapped,
    /// Which of the region's sides we are.
    pub side: usize,
    pub bell: Fd,
    pub engine: Engine,
    pub other_pulls: bool,
    pub other_pushes: bool,
    pub offload: usize,
    /// Which engine, and why, in one line.
    pub story: String,
}

pub fn listen(path: &[u8]) -> Result<Fd> {
    let address = os::unix_address(path)?;
    let socket = os::unix_socket()?;
    match os::bind(&socket, &address) {
        Err(libc::EADDRINUSE) if path[0] != b'@' && is_left_over(&address) => {
            os::remove_file(&address.0);
            os::bind(&socket, &address)?;
        }
        answer => answer?,
    }
    os::listen(&socket)?;
    Ok(socket)
}

/// Whether this is a socket file that has nobody behind it. Connecting to any other file is
/// refused, too, and that one is not ours to remove.
fn is_left_over(address: &(libc::sockaddr_un, usize)) -> bool {
    if !os::is_socket_file(&address.0) {
        return false;
    }
    // Who has no time for us is there.
    let at_once = sys::nanoseconds();
    let connected = os::unix_socket().and_then(|socket| os::connect(&socket, address, at_once));
    connected == Err(libc::ECONNREFUSED)
}

pub fn connect(path: &[u8], settings: &Settings) -> Result<Fd> {
    let address = os::unix_address(path)?;
    let socket = os::unix_socket()?;
    os::connect(&socket, &address, sys::nanoseconds() + settings.patience)?;
    Ok(socket)
}

/// Restores what was set for the greetings.
struct Credentials {
    socket: i32,
    before: i32,
}

impl Credentials {
    fn ask_for(socket: i32) -> Result<Self> {
        let before = os::socket_option(socket, libc::SO_PASSCRED)?;
        os::set_socket_option(socket, libc::SO_PASSCRED, 1)?;
        Ok(Self { socket, before })
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        let _ = os::set_socket_option(self.socket, libc::SO_PASSCRED, self.before);
    }
}

/// Greets whoever is at the other end of a connected unix socket.
pub fn meet(socket: i32, settings: &Settings) -> Result<Met> {
    if os::socket_option(socket, libc::SO_DOMAIN)? != libc::AF_UNIX {
        return Err(libc::EAFNOSUPPORT);
    }
    let end = sys::nanoseconds() + settings.patience;
    let _credentials = Credentials::ask_for(socket)?;

    let memory = os::sealed_memory(c"adma", region::SIZE)?;
    let [bell, others_bell] = os::unix_pair()?;
    let target = Box::new(Target { secret: random(), mark: 0 });
    let mine = Hello {
        magic: MAGIC,
        version: VERSION,
        region: region::SIZE as u32,
        nonce: random(),
        secret: target.secret,
        target: &raw const *target as u64,
        offload: settings.offload as u64,
    };
    let offer = match settings.engines {
        Engines::Auto | Engines::Helper => Offer::new(settings.helper),
        Engines::ProcessVm | Engines::SharedMemory => None,
    };
    let mut fds = vec![memory.raw(), others_bell.raw()];
    fds.extend(offer.as_ref().map(Offer::door));
    say(socket, mine, &fds, end)?;
    let (theirs, mut beside): (Hello, _) = hear(socket, end)?;
    if theirs.magic != MAGIC || theirs.version != VERSION || theirs.region != mine.region {
        return Err(libc::EPROTO);
    }
    if beside.cut && beside.fds.len() < 2 {
        return Err(libc::EMFILE);
    }
    let their_door = if beside.fds.len() == 3 { beside.fds.pop() } else { None };
    let across = offer.zip(their_door).map(|(offer, door)| offer.met(door));
    let Ok([their_memory, their_bell]) = <[Fd; 2]>::try_from(beside.fds) else {
        return Err(libc::EPROTO);
    };
    if theirs.nonce == mine.nonce {
        return Err(libc::EPROTO);
    }
    let ours = mine.nonce > theirs.nonce;
    let (memory, bell) = if ours { (memory, bell) } else { (their_memory, their_bell) };
    let region = Mapped::new(&memory)?;
    drop(others_bell);

    say(socket, Note { step: HERE, ..Note::default() }, &[], end)?;
    let (note, beside): (Note, _) = hear(socket, end)?;
    expect(note.step == HERE)?;
    let pid = beside.pid;
    // A block is mapped that its owner may take the pages from: touching it then finds new
    // ones out of our share of memory, or is fatal. Who could kill us may do that as well.
    let views = (beside.user == sys::getuid()).then(Views::default);
    let yama = engine::yama_scope();
    let let_in = settings.ptracer && yama == 1 && pid > 0 && os::let_trace(pid).is_ok();

    let (at, len) = (&raw const *target as usize, size_of::<Target>());
    let posted = Lent::new(across.as_ref(), &[Way::Pull, Way::Push], at, len);
    say(socket, Note { step: READY, post: posted.post, ..Note::default() }, &[], end)?;
    let (note, _): (Note, _) = hear(socket, end)?;
    expect(note.step == READY)?;
    let (pull, push) = match settings.engines {
        Engines::Auto | Engines::ProcessVm => engine::probe(pid, theirs.target, theirs.secret),
        Engines::Helper | Engines::SharedMemory => (Err(0), Err(0)),
    };
    let helper = match across.as_ref().filter(|_| note.post != 0) {
        Some(across) => engine::probe_across(across, note.post, theirs.secret),
        None => Err(0),
    };
    let errno =
        |result: Result<()>| result.err().map_or(0, |errno| if errno == 0 { -1 } else { errno });
    let [pull_errno, push_errno, helper_errno] = [pull, push, helper].map(errno);
    let verdict =
        Note { step: VERDICT, pull: pull_errno, push: push_errno, helper: helper_errno, post: 0 };
    say(socket, verdict, &[], end)?;
    let (note, _): (Note, _) = hear(socket, end)?;
    expect(note.step == VERDICT)?;
    // Until here the other side may have looked at it.
    drop(posted);
    drop(target);

    // Both or neither: what one posts the other must be able to fetch.
    let both = helper.is_ok() && note.helper == 0;
    let mut story = story(both, pid, pull, push, &note, yama, let_in);
    if settings.engines == Engines::Helper && !both {
        story += "; not both sides have the kernel helper";
    }
    let process = if pid > 0 { os::watch_process(pid).ok() } else { None };
    let across = across.filter(|_| both);
    let engine =
        Engine::new(pid, process, pull.is_ok(), push.is_ok(), across, views, (settings.carrier)());
    let met = Met {
        region,
        side: usize::from(!ours),
        bell,
        engine,
        other_pulls: note.pull == 0,
        other_pushes: note.push == 0,
        // Not 0, whatever the other side says: an empty message has one piece, too.
        offload: if ours { mine.offload } else { theirs.offload }.max(1) as usize,
        story,
    };
    Ok(met)
}

fn story(
    helper: bool,
    pid: i32,
    pull: Result<()>,
    push: Result<()>,
    other: &Note,
    yama: u8,
    let_in: bool,
) -> String {
    let mut text = String::new();
    if helper {
        text += "helper, one copy by the engine; else ";
    }
    let ways = [pull.is_ok(), push.is_ok(), other.pull == 0, other.push == 0];
    let _ = match ways.iter().filter(|&&way| way).count() {
        4 => write!(text, "process_vm, one copy, both processes copy"),
        0 => write!(text, "shared memory, two copies"),
        _ => write!(text, "process_vm, one copy, not every way is allowed"),
    };
    let ours = [("process_vm_readv", pull), ("process_vm_writev", push)];
    for (call, result) in ours {
        let _ = match result {
            Ok(()) => Ok(()),
            Err(0) => write!(text, "; {call} not wanted (ADMA_IPC_ENGINE)"),
            Err(libc::ESRCH) if pid <= 0 => {
                write!(text, "; {call}: the other process cannot be seen from this namespace")
            }
            Err(errno) => {
                write!(text, "; {call}: {}", std::io::Error::from_raw_os_error(errno))
            }
        };
    }
    if ways[2..] == [false, false] {
        text += "; the other side may not copy either";
    }
    if (!ways[0] || !ways[2]) && yama > 0 {
        let _ = write!(text, "; Yama is at {yama}");
        if yama == 1 && !let_in {
            text += ", ADMA_IPC_PTRACER=1 on both sides would let them";
        }
    }
    text
}

fn expect(right: bool) -> Result<()> {
    if right { Ok(()) } else { Err(libc::EPROTO) }
}

fn random() -> u64 {
    let mut word = 0u64;
    // SAFETY: the kernel writes 8 bytes. Should it refuse, the time has to do.
    let got = unsafe {
        sys::syscall(libc::SYS_getrandom, [&raw mut word as usize, size_of::<u64>(), 0, 0, 0, 0])
    };
    if got == size_of::<u64>() as isize {
        word
    } else {
        sys::ticks() ^ (&raw const word as u64) << 20
    }
}

fn milliseconds_until(end: u64) -> Result<i32> {
    let left = end.saturating_sub(sys::nanoseconds());
    if left == 0 { Err(libc::ETIMEDOUT) } else { Ok((left / 1_000_000 + 1) as i32) }
}

fn say<T: Plain>(socket: i32, mut message: T, fds: &[i32], end: u64) -> Result<()> {
    let bytes = bytes_of(&mut message);
    let (mut sent, mut fds) = (0, fds);
    while sent < bytes.len() {
        match os::send(socket, &bytes[sent..], fds) {
            Ok(count) => {
                sent += count;
                fds = &[];
            }
            Err(libc::EAGAIN) => {
                os::poll([socket, -1], libc::POLLOUT, milliseconds_until(end)?);
            }
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Takes exactly one message: what comes after may be the program's own.
fn hear<T: Plain>(socket: i32, end: u64) -> Result<(T, Beside)> {
    let (mut message, mut beside) = (T::default(), Beside::default());
    let bytes = bytes_of(&mut message);
    let mut got = 0;
    while got < bytes.len() {
        match os::receive(socket, &mut bytes[got..], &mut beside) {
            Ok(0) => return Err(libc::ECONNRESET),
            Ok(count) => got += count,
            Err(libc::EAGAIN) => {
                os::poll([socket, -1], libc::POLLIN, milliseconds_until(end)?);
            }
            Err(libc::EINTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok((message, beside))
}
