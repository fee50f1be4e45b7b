//! The beginning of a connection: finding each other, and greetings over the socket.
//!
//! Both sides say the same things in the same order, so neither has a role:
//!
//! ```text
//! Hello    who I am, what I would offer; with it a region, one end of a doorbell socket, and the
//!          kernel helper's port to my posts if I have one
//! Here     nothing; the kernel says beside it which process sent it
//! Ready    whether you are my equal, where the page lies that you have asked for, and what the
//!          helper knows one by
//! Verdict  whether you are reached there
//! ```
//!
//! Of the two regions and doorbell sockets those of the side with the greater nonce are used. The
//! doorbell socket is nobody's but ours: closed when its process dies or executes another
//! program, whatever became of the socket the greetings went over. That one is left as it
//! was found and can be used for something else, or closed.

use super::across::{Across, Pinned};
use super::consent::{Agreed, Demand, Page, Sign};
use super::engine::{self, Terms, Transport};
use super::hidden::Hidden;
use super::mappings::Mappings;
use super::os::{self, Beside, Fd, Foreign, Result, Way};
use super::peer::Peer;
use super::region::{self, MappedRegion};
use super::settings::{Engines, Settings};
use crate::os::sys;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use core::future::poll_fn;
use core::pin::Pin;
use core::sync::atomic::{AtomicBool, AtomicI16, Ordering};
use core::task::{Context, Poll, Waker};

const MAGIC: u64 = u64::from_le_bytes(*b"adma-ipc");
const VERSION: u32 = 8;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Hello {
    magic: u64,
    version: u32,
    region: u32,
    nonce: u64,
    demand: Demand,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Note {
    step: u32,
    /// Not 0: I take you for my equal.
    equal: u32,
    /// Which place the page lies at; 0: there is none.
    chosen: u32,
    /// 0: not allowed.
    pull: u32,
    push: u32,
    helper: u32,
    /// Not 0: blocks may be shown.
    blocks: u32,
    /// Not 0: I have workers for large messages.
    workers: u32,
    /// What the helper knows such words by.
    pin: u64,
}

const HERE: u32 = 1;
const READY: u32 = 2;
const VERDICT: u32 = 3;

/// Messages: plain numbers without gaps, so any bytes are one and one is bytes.
trait Plain: Copy + Default {
    /// How many descriptors may come with it.
    const FDS: usize;
}
impl Plain for Hello {
    const FDS: usize = os::MOST_FDS;
}
impl Plain for Note {
    const FDS: usize = 0;
}
const _: () = assert!(size_of::<Hello>() == 40 && size_of::<Note>() == 40);

fn bytes_of<T: Plain>(message: &mut T) -> &mut [u8] {
    // SAFETY: `Plain`.
    unsafe { core::slice::from_raw_parts_mut(core::ptr::from_mut(message).cast(), size_of::<T>()) }
}

/// What the greetings have led to.
pub struct Established {
    pub settings: Settings,
    pub region: MappedRegion,
    /// Which of the region's sides we are.
    pub side: usize,
    /// The doorbell socket; hidden until somebody else looks after it.
    pub socket: Fd,
    pub hidden: Hidden,
    pub engine: Transport,
    /// The sign that we have agreed, to be kept while the connection lasts.
    _page: Option<Page>,
    /// Whether the other side may pull, and push; at first.
    pub others: [bool; 2],
    /// Which engine, and why, in one line.
    pub story: String,
}

/// Who comes second must not take a socket for left over that the first one is just making. They
/// take turns for that; whoever holds the folder for other reasons is not waited for long.
pub fn listen(path: &[u8]) -> Result<Fd> {
    const TURN: u64 = 1_000_000_000;
    let address = os::unix_address(path)?;
    let socket = os::unix_socket()?;
    let named = path[0] != b'@';
    let _turn = named.then(|| os::lock_folder(path, sys::nanoseconds() + TURN));
    match os::bind(&socket, &address) {
        Err(libc::EADDRINUSE) if named && is_left_over(&address) => {
            os::remove_file(&address);
            os::bind(&socket, &address)?;
        }
        answer => answer?,
    }
    os::listen(&socket)?;
    Ok(socket)
}

/// Whether this is a socket file that has nobody behind it. Connecting to any other file is
/// refused, too, and that one is not ours to remove.
fn is_left_over(address: &os::UnixAddress) -> bool {
    if !os::is_socket_file(address) {
        return false;
    }
    // Who has no time for us is there.
    let at_once = sys::nanoseconds();
    let connected = os::unix_socket().and_then(|socket| os::connect(&socket, address, at_once));
    connected == Err(libc::ECONNREFUSED)
}

pub fn connect(path: &[u8], patience: u64) -> Result<Fd> {
    let address = os::unix_address(path)?;
    let socket = os::unix_socket()?;
    os::connect(&socket, &address, sys::nanoseconds() + patience)?;
    Ok(socket)
}

/// Asks the kernel to say who sends; restores what was set before.
struct Credentials {
    socket: i32,
    before: [Option<i32>; 2],
}

/// The second since Linux 6.5.
const ASKED_FOR: [i32; 2] = [libc::SO_PASSCRED, os::SO_PASSPIDFD];

impl Credentials {
    fn ask_for(socket: i32) -> Result<Self> {
        let before = ASKED_FOR.map(|option| os::socket_option(socket, option).ok());
        let asked = Self { socket, before };
        os::set_socket_option(socket, ASKED_FOR[0], 1)?;
        let _ = os::set_socket_option(socket, ASKED_FOR[1], 1);
        Ok(asked)
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        for (option, before) in ASKED_FOR.into_iter().zip(self.before) {
            if let Some(before) = before {
                let _ = os::set_socket_option(self.socket, option, before);
            }
        }
    }
}

/// Greetings under way. They go on whenever they are asked to and never wait, so that one thread
/// can look after many.
pub struct Handshake {
    socket: i32,
    end: u64,
    wants: Arc<AtomicI16>,
    steps: Pin<Box<dyn Future<Output = Result<Established>> + Send>>,
}

impl Handshake {
    /// Whoever is at the other end of a connected unix socket, which stays open meanwhile.
    pub fn new(socket: i32, settings: Settings) -> Self {
        let end = sys::nanoseconds() + settings.patience;
        let wants = Arc::new(AtomicI16::new(0));
        let talk = Talk { socket, wants: wants.clone() };
        Self { socket, end, wants, steps: Box::pin(greet(talk, settings)) }
    }

    /// `None`: there is nothing to do until the socket is ready for `events`.
    pub fn go_on(&mut self) -> Option<Result<Established>> {
        match self.steps.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending if sys::nanoseconds() >= self.end => Some(Err(libc::ETIMEDOUT)),
            Poll::Pending => None,
        }
    }

    pub fn events(&self) -> (i32, i16) {
        (self.socket, self.wants.load(Ordering::Relaxed))
    }

    /// How long the other side may still take, in milliseconds.
    pub fn milliseconds(&self) -> i32 {
        (self.end.saturating_sub(sys::nanoseconds()) / 1_000_000 + 1) as i32
    }
}

/// The same, waiting for the end.
pub fn meet(socket: i32, settings: Settings) -> Result<Established> {
    let mut greeting = Handshake::new(socket, settings);
    loop {
        if let Some(done) = greeting.go_on() {
            return done;
        }
        os::poll([greeting.events()], greeting.milliseconds());
    }
}

async fn greet(talk: Talk, settings: Settings) -> Result<Established> {
    let socket = talk.socket;
    if os::socket_option(socket, libc::SO_DOMAIN)? != libc::AF_UNIX {
        return Err(libc::EAFNOSUPPORT);
    }
    let _credentials = Credentials::ask_for(socket)?;

    let memory = os::sealed_memory(c"adma", region::SIZE, os::SIZE_SEALS)?;
    let [doorbell, others_doorbell] = os::unix_pair()?;
    let mut hidden = Hidden::default();
    hidden.add(&doorbell);
    hidden.add(&others_doorbell);
    let demand = Demand { seed: random(), word: random() };
    let mine = Hello {
        magic: MAGIC,
        version: VERSION,
        region: region::SIZE as u32,
        nonce: random(),
        demand,
    };
    let across = match settings.engines {
        Engines::Auto | Engines::Helper => Across::new(settings.helper),
        Engines::SharedMemory => None,
    };
    let mut fds = vec![memory.raw(), others_doorbell.raw()];
    fds.extend(across.iter().flat_map(Across::descriptors));
    let (theirs, mut beside) = talk.exchange(mine, &fds).await?;
    if theirs.magic != MAGIC || theirs.version != VERSION || theirs.region != mine.region {
        return Err(libc::EPROTO);
    }
    if beside.cut && beside.fds.len() < 2 {
        return Err(libc::EMFILE);
    }
    let their_port = if beside.fds.len() == 3 { beside.fds.pop() } else { None };
    let Ok([their_memory, their_doorbell]) = <[Foreign; 2]>::try_from(beside.fds) else {
        return Err(libc::EPROTO);
    };
    let their_memory = their_memory.into_memory()?;
    MappedRegion::check(&their_memory)?;
    let their_doorbell = their_doorbell.into_socket()?;
    hidden.add(&their_doorbell);
    let mut across = across.zip(their_port).map(|(across, port)| across.with(port));
    if theirs.nonce == mine.nonce {
        return Err(libc::EPROTO);
    }
    let ours = mine.nonce > theirs.nonce;
    let mut kept = Hidden::default();
    kept.add(if ours { &doorbell } else { &their_doorbell });
    drop(hidden);
    let (memory, doorbell) = if ours { (memory, doorbell) } else { (their_memory, their_doorbell) };
    let region = MappedRegion::new(&memory)?;
    drop(others_doorbell);

    let (_, beside) = talk.exchange_notes(Note { step: HERE, ..Note::default() }).await?;
    // The other side has it mapped, too.
    region.fix(&memory)?;
    let pid = beside.pid;
    let mut peer = Peer::new(pid, beside.process);
    let equal = peer.meet().is_some();
    let yama = engine::yama_scope();
    let let_in = settings.ptracer && equal && yama == 1 && pid > 0 && os::let_trace(pid);

    let page = if equal { Page::lay(theirs.demand) } else { None };
    let sign = Box::new(Sign { word: theirs.demand.word, mark: 0 });
    let (at, len) = (&raw const *sign as usize, size_of::<Sign>());
    let pinned = Pinned::new(across.as_ref(), &[Way::Pull, Way::Push], at, len);
    let chosen = page.as_ref().map_or(0, |page| page.chosen);
    let ready =
        Note { step: READY, equal: equal.into(), chosen, pin: pinned.pin, ..Note::default() };
    let (note, _) = talk.exchange_notes(ready).await?;
    // Both or neither: one of them may see less of the other.
    let equal = equal && note.equal != 0;
    let agreed = Agreed::new(pid, demand, note.chosen).filter(|_| equal && pid > 0);
    let refused = |why: &str| [Err(why.to_string()), Err(why.to_string())];
    let [pull, push] = match (settings.engines, agreed) {
        (Engines::Helper | Engines::SharedMemory, _) => refused("not wanted (ADMA_IPC_ENGINE)"),
        _ if pid <= 0 => refused("the other process cannot be seen from this namespace"),
        _ if !equal => refused("the other process has not the same user and rights"),
        (_, None) => refused("the other process does not let itself be reached"),
        (_, Some(agreed)) => agreed.probe().map(|tried| tried.map_err(|why| why.to_string())),
    };
    let helper = across
        .as_ref()
        .is_some_and(|across| note.pin != 0 && across.probe(note.pin, demand.word).is_ok());
    let [may_pull, may_push] = [pull.is_ok(), push.is_ok()];
    let wants_blocks = settings.engines == Engines::Auto;
    let workers = (settings.workers)();
    // With two CPUs the other one has the other process on it, which copies as well.
    let shares = workers.is_some_and(|workers| workers.cpus > 2);
    let verdict = Note {
        step: VERDICT,
        pull: may_pull.into(),
        push: may_push.into(),
        helper: helper.into(),
        blocks: wants_blocks.into(),
        workers: shares.into(),
        ..Note::default()
    };
    let (note, _) = talk.exchange_notes(verdict).await?;
    // Until here the other side may have looked at it.
    drop(pinned);
    drop(sign);

    // Both or neither: what one posts the other must be able to fetch.
    let both = helper && note.helper != 0;
    let others = [note.pull != 0 && equal, note.push != 0 && equal];
    let all = may_pull && may_push && others == [true; 2];
    let mut story = story(both, [pull, push], others, yama, let_in);
    if settings.engines == Engines::Helper && !both {
        story += "; not both sides have the kernel helper";
    }
    across = across.filter(|_| both).map(Across::proved);
    let mappings = Mappings::new(wants_blocks && note.blocks != 0, equal);
    if wants_blocks && note.blocks != 0 && !all {
        story += "; one copy between buffers of adma_alloc";
    }
    let allowed = [may_pull, may_push].map(AtomicBool::new);
    let terms = Terms {
        equal,
        reader_alone: !equal && !both,
        // What the helper carries has other pieces.
        shares: !both && (shares || note.workers != 0),
    };
    Ok(Established {
        settings,
        region,
        side: usize::from(!ours),
        socket: doorbell,
        hidden: kept,
        engine: Transport { peer, agreed, terms, allowed, across, mappings, workers },
        _page: page,
        others,
        story,
    })
}

fn story(
    helper: bool,
    [pull, push]: [core::result::Result<(), String>; 2],
    others: [bool; 2],
    yama: u8,
    let_in: bool,
) -> String {
    let ways = [pull.is_ok(), push.is_ok(), others[0], others[1]];
    let mut text = if helper { "helper, one copy by the engine; else " } else { "" }.to_string();
    text += match ways.iter().filter(|&&way| way).count() {
        4 => "process_vm, one copy, both processes copy",
        0 => "shared memory, two copies",
        _ => "process_vm, one copy, not every way is allowed",
    };
    text += &match (pull, push) {
        (Ok(()), Ok(())) => String::new(),
        (Err(why), Err(other)) if why == other => format!("; process_vm: {why}"),
        (Err(why), _) => format!("; process_vm_readv: {why}"),
        (Ok(()), Err(why)) => format!("; process_vm_writev: {why}"),
    };
    if ways[2..] == [false, false] {
        text += "; the other side may not copy either";
    }
    if (!ways[0] || !ways[2]) && yama > 0 {
        text += &format!("; Yama is at {yama}");
        if yama == 1 && !let_in {
            text += ", ADMA_IPC_PTRACER=1 on both sides would let them";
        }
    }
    text
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

/// One side of a conversation.
struct Talk {
    socket: i32,
    wants: Arc<AtomicI16>,
}

impl Talk {
    /// Tries until the socket is ready.
    async fn when_ready<T>(
        &self,
        events: i16,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        poll_fn(|_| {
            loop {
                match attempt() {
                    Err(libc::EINTR) => {}
                    Err(libc::EAGAIN) => {
                        self.wants.store(events, Ordering::Relaxed);
                        return Poll::Pending;
                    }
                    done => return Poll::Ready(done),
                }
            }
        })
        .await
    }

    /// Says something and hears the same kind of thing.
    async fn exchange<T: Plain>(&self, mut message: T, fds: &[i32]) -> Result<(T, Beside)> {
        let bytes = bytes_of(&mut message);
        let (mut sent, mut fds) = (0, fds);
        while sent < bytes.len() {
            let send = || os::send(self.socket, &bytes[sent..], fds);
            sent += self.when_ready(libc::POLLOUT, send).await?;
            fds = &[];
        }
        self.hear().await
    }

    async fn exchange_notes(&self, note: Note) -> Result<(Note, Beside)> {
        let (theirs, beside) = self.exchange(note, &[]).await?;
        if theirs.step == note.step { Ok((theirs, beside)) } else { Err(libc::EPROTO) }
    }

    /// Takes exactly one message: what comes after may be the program's own.
    async fn hear<T: Plain>(&self) -> Result<(T, Beside)> {
        let (mut message, mut beside) = (T::default(), Beside::default());
        let bytes = bytes_of(&mut message);
        let mut got = 0;
        while got < bytes.len() {
            let receive = || os::receive(self.socket, &mut bytes[got..], &mut beside);
            match self.when_ready(libc::POLLIN, receive).await? {
                0 => return Err(libc::ECONNRESET),
                _ if beside.fds.len() > T::FDS => return Err(libc::EPROTO),
                count => got += count,
            }
        }
        Ok((message, beside))
    }
}
