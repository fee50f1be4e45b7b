//! The beginning of a connection: greetings over the socket of two processes of one user that have
//! found each other (`connect`, `accept`).
//!
//! One side is the host: it has accepted, or has the greater nonce. It makes the region and the
//! doorbell socket. The other is the guest. All greetings have one format:
//!
//! ```text
//! HELLO  both         nonce; the kernel adds the sender's credentials
//! PAGE   both         address of my page, which holds your nonce and my secret (`proof`)
//! PROOF  guest        your secret, if I could read it
//! PROOF  host         your secret, if I have heard mine and could read yours; with it region,
//!                     doorbell socket and, between proven sides, the kernel helper's port
//! DONE   guest, host  whether both proofs are good, and whether the helper works; the guest's port
//! ```
//!
//! A side that has no descriptor or memory left says NO_ROOM instead of its next step.
//!
//! So before a side has heard its secret it takes no descriptor and reads no memory of the other
//! side, with two exceptions for the guest, which has chosen to connect: it reads the host's page, by
//! a helper thread and within its limit; and it takes region and doorbell socket from a host that
//! could not prove itself, looks at them by calls that cannot block, and has a helper thread close
//! them if they are something else.
//!
//! The doorbell socket is the library's own and is closed when its process ends or executes another
//! program, whatever becomes of the socket the greetings went over. That one is left as it was.

use crate::ipc::claims::Role;
use crate::ipc::copy::across::{Across, Pinned};
use crate::ipc::copy::proof::{Claimed, Failed, Page, Reached, SIGN, Secret};
use crate::ipc::copy::{Proven, Terms};
use crate::ipc::memory::blocks::PeerBlocks;
use crate::ipc::memory::region::{self, MappedRegion};
use crate::ipc::os::blocking;
use crate::ipc::os::{self, Beside, Credentials, Fd, ProcFolder, Result, SwitchedOn};
use crate::ipc::settings::{Engines, Settings};
use crate::os::brief_file;
use crate::os::lock::Lock;
use crate::os::sys;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::future::poll_fn;
use core::pin::Pin;
use core::sync::atomic::AtomicBool;
use core::task::{Context, Poll, Waker};

const MAGIC: u64 = u64::from_le_bytes(*b"adma-ipc");
const VERSION: u32 = 15;

/// Plain numbers without gaps, so any bytes are one and one is bytes. 0: no, or not known yet.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Greeting {
    magic: u64,
    version: u32,
    step: u32,
    nonce: u64,
    page: u64,
    secret: Secret,
    /// Export of the page by the kernel helper, for a trial.
    pin: u64,
    region: u32,
    side: u32,
    flags: u32,
    reserved: u32,
}

const HELLO: u32 = 1;
const PAGE: u32 = 2;
const PROOF: u32 = 3;
const DONE: u32 = 4;
const NO_ROOM: u32 = 5;

mod flag {
    /// Both proofs are good as far as I can tell.
    pub const PROVEN: u32 = 1;
    /// I copy by calls and use blocks, where the proofs are good.
    pub const CALLS: u32 = 4;
    /// I have workers for large messages.
    pub const WORKERS: u32 = 8;
    /// The kernel helper has copied to and from your page.
    pub const HELPER: u32 = 16;
}

const _: () = assert!(size_of::<Greeting>() == 72);

impl Greeting {
    fn bytes(&mut self) -> &mut [u8; size_of::<Self>()] {
        // SAFETY: plain numbers without gaps.
        unsafe { &mut *core::ptr::from_mut(self).cast() }
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    fn add(&mut self, flag: u32, wanted: bool) {
        self.flags |= if wanted { flag } else { 0 };
    }
}

/// Sides that a process can be.
pub mod side {
    pub const EITHER: u32 = 0;
    /// This side has called `connect`.
    pub const GUEST: u32 = 1;
    /// This side has called `accept`.
    pub const HOST: u32 = 2;
}

/// Result of the greetings.
pub struct Established {
    pub settings: Settings,
    pub region: MappedRegion,
    /// Index of our side in the region.
    pub side: usize,
    /// The doorbell socket.
    pub socket: Fd,
    pub peer: Credentials,
    /// A pidfd; `None` where the kernel gives none, or the process cannot be seen from here.
    pub process: Option<Arc<Fd>>,
    /// `None`: no block, no address, no count is believed, and messages go through the region.
    pub proven: Option<Box<Proven>>,
    /// Engine of the connection, and why, in one line.
    pub story: String,
}

/// Returns -EACCES for a socket whose other end was made by another user. Nothing is read from it.
pub fn check_user(socket: i32) -> Result<()> {
    match is_own_user(os::peer_credentials(socket)?.uid) {
        true => Ok(()),
        false => Err(libc::EACCES),
    }
}

/// The kernel's default for users without a number.
const OVERFLOW_UID: u32 = 65534;

/// Returns whether a user is ours; never for the one that stands for all unmapped users.
fn is_own_user(uid: u32) -> bool {
    let first_words = |path: &CStr| {
        let (mut room, allowed) = ([0; 64], sys::NoFilter::assumed());
        let text = core::str::from_utf8(brief_file::read(path, &mut room, allowed.into())?).ok()?;
        let mut words = text.split_whitespace().map_while(|word| word.parse::<u32>().ok());
        Some([words.next(), words.next(), words.next()])
    };
    let stands_for_many = || {
        let all_have_numbers =
            first_words(c"/proc/self/uid_map") == Some([Some(0), Some(0), Some(u32::MAX)]);
        let nameless = first_words(c"/proc/sys/kernel/overflowuid").and_then(|words| words[0]);
        !all_have_numbers && nameless.unwrap_or(OVERFLOW_UID) == uid
    };
    uid == sys::geteuid() as u32 && !stands_for_many()
}

/// Greetings under way. `go_on` never waits, so one thread can look after many.
pub struct Handshake {
    socket: i32,
    end: u64,
    wants: Arc<Lock<(i32, i16)>>,
    steps: Pin<Box<dyn Future<Output = Result<Established>> + Send>>,
}

impl Handshake {
    /// Greets the other end of a connected unix socket, which stays open meanwhile, until `end`.
    pub fn new(socket: i32, settings: Settings, end: u64, side: u32) -> Self {
        let wants = Arc::new(Lock::new((socket, libc::POLLIN)));
        let talk = Talk { socket, wants: wants.clone(), heard: false };
        Self { socket, end, wants, steps: Box::pin(greet(talk, settings, side)) }
    }

    /// Goes on as far as possible. `None`: there is nothing to do until there are `events`.
    pub fn go_on(&mut self) -> Option<Result<Established>> {
        if let Err(errno) = os::check_heap() {
            return Some(Err(errno));
        }
        match self.steps.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM))) => {
                let mut last = Greeting { magic: MAGIC, version: VERSION, ..Greeting::default() };
                last.step = NO_ROOM;
                let _ = os::send(self.socket, last.bytes(), &[]); // it closes in any case
                Some(Err(errno))
            }
            Poll::Ready(done) => Some(done),
            Poll::Pending if self.milliseconds() == 0 => Some(Err(libc::ETIMEDOUT)),
            Poll::Pending => None,
        }
    }

    /// Returns the descriptor and the events that it waits for.
    pub fn events(&self) -> (i32, i16) {
        *self.wants.lock()
    }

    /// Returns how long the other side may still take.
    pub fn milliseconds(&self) -> i32 {
        let left = self.end.saturating_sub(sys::nanoseconds()).div_ceil(1_000_000);
        left.min(i32::MAX as u64) as i32
    }

    /// Waits for the end.
    pub fn finish(mut self) -> Result<Established> {
        loop {
            if let Some(done) = self.go_on() {
                return done;
            }
            let _ = os::poll([self.events()], self.milliseconds());
        }
    }
}

async fn greet(mut talk: Talk, settings: Settings, wanted: u32) -> Result<Established> {
    let socket = talk.socket;
    // Before anything is said: the kernel then adds credentials to what we send and receive.
    let _credentials = SwitchedOn::new(socket, libc::SO_PASSCRED)?;
    // The kernel would skip an urgent byte, and close what came with it in our call.
    let _urgent = SwitchedOn::new(socket, libc::SO_OOBINLINE);

    let (nonce, region_size) = (os::random()?, region::SIZE as u32);
    let mut mine = Greeting { magic: MAGIC, version: VERSION, nonce, ..Greeting::default() };
    (mine.region, mine.side) = (region_size, wanted);
    let heard = match talk.say(&mut mine, HELLO, &[]).await {
        // The peer may have closed before we spoke; what it has said tells more.
        Ok(()) | Err(libc::EPIPE) => talk.hear(HELLO, 0).await,
        Err(errno) => Err(errno),
    };
    let (theirs, beside) = heard.map_err(|errno| match (wanted, errno) {
        // A host greets at once; one that closes instead does not take us for its user.
        (side::GUEST, libc::ECONNRESET | libc::EPIPE) if !talk.heard => libc::EACCES,
        _ => errno,
    })?;
    // Our own nonce: a reflection of what we have said.
    if theirs.region != region_size || theirs.nonce == nonce {
        return Err(libc::EPROTO);
    }
    let peer = beside.sender.ok_or(libc::EPROTO)?;
    if !is_own_user(peer.uid) {
        return Err(libc::EACCES);
    }
    let is_host = match (wanted, theirs.side) {
        (side::GUEST, side::GUEST) | (side::HOST, side::HOST) => return Err(libc::EPROTO),
        (side::HOST, _) | (_, side::GUEST) => true,
        (side::GUEST, _) | (_, side::HOST) => false,
        _ => nonce > theirs.nonce,
    };
    // A client's socket that another process speaks over may be held by a third one.
    let is_direct = wanted != side::HOST
        || os::peer_credentials(socket).is_ok_and(|maker| maker.pid == peer.pid);

    let yama = os::yama_scope();
    let let_in = settings.ptracer && yama == 1 && peer.pid > 0 && os::let_trace(peer.pid);
    let wants_proof = settings.engines != Engines::SharedMemory && is_direct;
    let page = if wants_proof { Page::new(theirs.nonce) } else { None };
    mine.page = page.as_ref().map_or(0, |page| page.at as u64);
    talk.say(&mut mine, PAGE, &[]).await?;
    let (theirs, _) = talk.hear(PAGE, 0).await?;
    let claimed = Claimed::new(peer.pid, theirs.page, nonce).filter(|_| page.is_some());
    let why_not = match () {
        () if settings.engines == Engines::SharedMemory => "not wanted (ADMA_IPC_ENGINE)",
        () if peer.pid <= 0 => "the other process cannot be seen from this namespace",
        () if page.is_none() => "this process does not let itself be reached",
        () => "the other process does not let itself be reached",
    };
    let may_not_reach_us = || Err("the other process may not reach this one".to_string());
    let has_read =
        |theirs: &Greeting| page.as_ref().is_some_and(|page| page.is_proven_by(theirs.secret));
    let workers = (settings.workers)();
    mine.add(flag::CALLS, settings.engines == Engines::Auto);
    // With two CPUs the other one has the other process on it, which copies as well.
    mine.add(flag::WORKERS, workers.is_some_and(|workers| workers.cpus > 2));
    let mut across = match settings.engines {
        Engines::SharedMemory => None,
        Engines::Auto | Engines::Helper => Across::new(settings.helper),
    };
    let process = if peer.pid > 0 { os::watch_process(peer.pid).ok().map(Arc::new) } else { None };
    let folder = claimed.and_then(|_| ProcFolder::new(peer.pid, process.clone()));
    // A /proc of another pid namespace tells of another process.
    let folder = folder.filter(|folder| folder.owner() == Some(peer.uid));

    // The host reads nothing of a guest that has not read its page.
    let guest_proven = is_host && has_read(&talk.hear(PROOF, 0).await?.0);
    let mut reached = match claimed {
        None => Err(why_not.to_string()),
        Some(_) if is_host && !guest_proven => may_not_reach_us(),
        Some(claimed) => talk.reach(claimed).await,
    };
    mine.secret = reached.as_ref().map_or([0; 2], |(_, secret)| *secret);
    let (region, mut bell, mut theirs, port, proven);
    if is_host {
        let both = guest_proven && reached.is_ok();
        let memory = os::sealed_memory(c"adma", region::SIZE)?;
        let [ours, others] = os::unix_pair()?;
        (region, bell) = (MappedRegion::new(&memory)?, ours);
        region.find_pages()?;
        across = across.filter(|_| both);
        let pinned = exported(across.as_ref(), page.as_ref());
        mine.pin = pinned.pin;
        mine.add(flag::PROVEN, both);
        let mut fds: Vec<i32> = [memory.raw(), others.raw()].into();
        if let Some(across) = &across {
            os::take_descriptors(socket, true);
            fds.push(across.port());
        }
        talk.say(&mut mine, PROOF, &fds).await?;
        let mut beside;
        (theirs, beside) = talk.hear(DONE, 1).await?;
        proven = both && theirs.has(flag::PROVEN);
        port = beside.fds.pop();
    } else {
        talk.say(&mut mine, PROOF, &[]).await?;
        let mut beside;
        (theirs, beside) = talk.hear(PROOF, 3).await?;
        if beside.cut && beside.fds.len() < 2 {
            return Err(libc::EMFILE);
        }
        proven = reached.is_ok() && has_read(&theirs) && theirs.has(flag::PROVEN);
        mine.add(flag::PROVEN, proven);
        port = if beside.fds.len() == 3 { beside.fds.pop() } else { None };
        let [socket, memory] = [beside.fds.pop(), beside.fds.pop()];
        let memory = memory.ok_or(libc::EPROTO)?.into_memory()?;
        bell = socket.ok_or(libc::EPROTO)?.into_socket()?;
        region = MappedRegion::new(&memory)?;
        region.find_pages()?;
    }
    bell.shut_on_drop = true;
    if reached.is_ok() && !proven {
        reached = may_not_reach_us();
    }
    let port = port.filter(|_| proven).and_then(|port| port.trusted().ok());
    across = across.zip(port).map(|(across, port)| across.with(port));
    let works = helper_works(across.as_ref(), theirs.pin, &reached);
    mine.add(flag::HELPER, works);
    if is_host {
        talk.say(&mut mine, DONE, &[]).await?;
    } else {
        let pinned = exported(across.as_ref(), page.as_ref());
        mine.pin = pinned.pin;
        let fds: Vec<i32> = across.iter().map(Across::port).collect();
        talk.say(&mut mine, DONE, &fds).await?;
        theirs.flags |= talk.hear(DONE, 0).await?.0.flags;
    }
    across = across.filter(|_| works && theirs.has(flag::HELPER));

    let [calls, peer_calls] = [&mine, &theirs].map(|side| proven && side.has(flag::CALLS));
    let helper = across.is_some();
    let mut story = story(helper, [calls, peer_calls], reached.as_ref().err(), yama, let_in);
    if settings.engines == Engines::Helper && !helper {
        story += "; not both sides have the kernel helper";
    }
    // Messages that the helper carries are cut differently.
    let shares = !helper && (mine.has(flag::WORKERS) || theirs.has(flag::WORKERS));
    let proven = reached.ok().zip(page).map(|((reached, _), page)| {
        Box::new(Proven {
            _page: page,
            reached,
            folder,
            terms: Terms { shares },
            calls: AtomicBool::new(calls),
            peer_calls,
            across,
            blocks: (calls && peer_calls).then(PeerBlocks::default),
            workers,
        })
    });
    let side = usize::from(!is_host);
    Ok(Established { settings, region, side, socket: bell, peer, process, proven, story })
}

/// Exports our page for a trial of the kernel helper.
fn exported<'a>(across: Option<&'a Across>, page: Option<&Page>) -> Pinned<'a> {
    match page {
        Some(page) => Pinned::new(across, &Role::BOTH, page.at, SIGN),
        None => Pinned::NONE,
    }
}

fn helper_works(across: Option<&Across>, pin: u64, reached: &ReachResult) -> bool {
    let tried = across.zip(reached.as_ref().ok()).filter(|_| pin != 0);
    tried.is_some_and(|(across, (reached, _))| across.probe(pin, reached).is_ok())
}

/// Page and secret of the peer, or why they cannot be reached.
type ReachResult = core::result::Result<(Reached, Secret), String>;

/// Returns the line that tells how messages will be copied. `calls`: our side and the peer's.
fn story(
    helper: bool,
    calls: [bool; 2],
    refused: Option<&String>,
    yama: u8,
    let_in: bool,
) -> String {
    let mut text = if helper { "helper, one copy by the engine; else " } else { "" }.to_string();
    text += match calls {
        [true, true] => "process_vm, one copy, both processes copy",
        [false, false] => "shared memory, two copies",
        _ => "process_vm, one copy, one process copies",
    };
    if let Some(why) = refused {
        text += &format!("; process_vm: {why}");
    }
    if refused.is_some() && yama > 0 {
        text += &format!("; Yama is at {yama}");
        if yama == 1 && !let_in {
            text += ", ADMA_IPC_PTRACER=1 on both sides would let them";
        }
    }
    text
}

/// One side of a conversation.
struct Talk {
    socket: i32,
    wants: Arc<Lock<(i32, i16)>>,
    /// Set when something has come.
    heard: bool,
}

impl Talk {
    /// Tries until the descriptor is ready.
    async fn when_ready<T>(
        &self,
        fd: i32,
        events: i16,
        mut attempt: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        poll_fn(|_| {
            loop {
                match attempt() {
                    Err(libc::EINTR) => {}
                    Err(libc::EAGAIN) => {
                        *self.wants.lock() = (fd, events);
                        return Poll::Pending;
                    }
                    done => return Poll::Ready(done),
                }
            }
        })
        .await
    }

    /// Reads the other side's page and writes its mark, by a helper thread: its memory may block.
    async fn reach(&self, claimed: Claimed) -> ReachResult {
        let work = move || {
            let (reached, secret) = claimed.read()?;
            reached.probe(Role::Writer)?;
            Ok((reached, secret))
        };
        match self.leave_to_thread(work).await {
            Some(tried) => tried.map_err(|why: Failed| why.to_string()),
            None => Err("there is no thread to try it".to_string()),
        }
    }

    /// Does what may block without limit. `None`: there is no thread or descriptor for it.
    async fn leave_to_thread<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let [here, mut there] = os::unix_pair().ok()?;
        there.shut_on_drop = true; // seen also where a child has a copy
        let result = Arc::new(Lock::new(None));
        let answer = result.clone();
        let taken = blocking::run(move || {
            *answer.lock() = Some(work());
            drop(there); // makes `here` readable
        });
        let look = || result.lock().take().ok_or(libc::EAGAIN);
        if taken { self.when_ready(here.raw(), libc::POLLIN, look).await.ok() } else { None }
    }

    async fn say(&mut self, mine: &mut Greeting, step: u32, fds: &[i32]) -> Result<()> {
        mine.step = step;
        let (bytes, mut sent, mut fds) = (mine.bytes(), 0, fds);
        while sent < bytes.len() {
            let send = || os::send(self.socket, &bytes[sent..], fds);
            sent += self.when_ready(self.socket, libc::POLLOUT, send).await?;
            fds = &[];
        }
        Ok(())
    }

    /// Receives exactly one greeting: what comes after may be the program's own.
    async fn hear(&mut self, step: u32, most_fds: usize) -> Result<(Greeting, Beside)> {
        let (mut theirs, mut beside, mut got) = (Greeting::default(), Beside::default(), 0);
        let mut known = Greeting { magic: MAGIC, version: VERSION, ..Greeting::default() };
        while got < size_of::<Greeting>() {
            let room = &mut theirs.bytes()[got..];
            let receive = || os::receive(self.socket, room, &mut beside);
            got += match self.when_ready(self.socket, libc::POLLIN, receive).await? {
                0 => return Err(libc::ECONNRESET),
                _ if beside.fds.len() > most_fds => return Err(libc::EPROTO),
                count => count,
            };
            self.heard = true;
            // A prefix that differs is another protocol: nothing more is waited for.
            let same = got.min(core::mem::offset_of!(Greeting, step));
            if theirs.bytes()[..same] != known.bytes()[..same] {
                return Err(libc::EPROTO);
            }
        }
        match theirs.step {
            NO_ROOM => Err(libc::ENOBUFS),
            said if said == step => Ok((theirs, beside)),
            _ => Err(libc::EPROTO),
        }
    }
}
