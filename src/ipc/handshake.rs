//! The beginning of a connection: greetings over the socket of two processes of one user that have
//! found each other (`connect`, `accept`).
//!
//! One side is the host: it has accepted, or has the greater nonce. It makes the region and the
//! doorbell socket. The other is the guest. All greetings have one format:
//!
//! ```text
//! HELLO  both         nonce; the kernel says beside it who sent it
//! PAGE   both         address of my page, which holds your nonce and my secret (`proof`)
//! PROOF  guest        your secret, if I could read it
//! PROOF  host         your secret, if I have heard mine and could read yours; with it region,
//!                     doorbell socket and, between proven sides, the kernel helper's port
//! DONE   guest, host  whether both proofs are good, and whether the helper works; the guest's port
//! ```
//!
//! So before a side has heard its secret it takes no descriptor and reads no memory of the other
//! side, with two exceptions for the guest, which has chosen to connect: it reads the host's page, by
//! a helper thread and within its limit; and it takes region and doorbell socket from a host that
//! could not prove itself, looks at them by calls that cannot block, and has a helper thread close
//! them if they are something else.
//!
//! The doorbell socket is the library's own and is closed when its process ends or executes another
//! program, whatever becomes of the socket the greetings went over. That one is left as it was.

use super::across::{Across, Pinned};
use super::blocking;
use super::claims::Role;
use super::engine::{Proven, Terms, Trust};
use super::lock::Lock;
use super::os::{self, Beside, Credentials, Fd, Result, SwitchedOn};
use super::proof::{Claimed, Page, Reached, SIGN, Secret};
use super::region::{self, MappedRegion};
use super::settings::{Engines, Settings};
use crate::os::sys;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};

const MAGIC: u64 = u64::from_le_bytes(*b"adma-ipc");
const VERSION: u32 = 14;

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

mod flag {
    /// Both proofs are good as far as I can tell.
    pub const PROVEN: u32 = 1;
    /// I may write your memory, too.
    pub const PUSH: u32 = 2;
    /// I use blocks.
    pub const BLOCKS: u32 = 4;
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
}

/// What a side wants to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GreetingSide {
    Either,
    /// It has called `connect`.
    Guest,
    /// It has called `accept`.
    Host,
}

/// What the greetings have led to.
pub struct Established {
    pub settings: Settings,
    pub region: MappedRegion,
    /// Which of the region's sides we are.
    pub side: usize,
    /// The doorbell socket.
    pub socket: Fd,
    pub peer: Credentials,
    /// A pidfd; `None` where the kernel gives none, or the process cannot be seen from here.
    pub process: Option<Fd>,
    /// Its folder in /proc, whose owner is its user.
    pub folder: Option<Fd>,
    pub trust: Trust,
    /// Which engine, and why, in one line.
    pub story: String,
}

impl Established {
    /// Forgets descriptors that the program has closed, and may have reused.
    pub fn disown(&mut self) {
        self.process.iter_mut().chain(&mut self.folder).for_each(Fd::disown);
        if let Trust::Proven(proven) = &mut self.trust {
            proven.disown();
        }
    }
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

/// Users without a number in our user namespace all look like one: that one is never ours.
fn is_own_user(uid: u32) -> bool {
    let first_words = |path: &CStr| {
        let (mut room, allowed) = ([0; 64], sys::NoFilter::assumed());
        let text = core::str::from_utf8(sys::read_file(path, &mut room, allowed.into())?).ok()?;
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
    end: u64,
    wants: Arc<Lock<(i32, i16)>>,
    steps: Pin<Box<dyn Future<Output = Result<Established>> + Send>>,
}

impl Handshake {
    /// Greets the other end of a connected unix socket, which stays open meanwhile, until `end`.
    pub fn new(socket: i32, settings: Settings, end: u64, side: GreetingSide) -> Self {
        let wants = Arc::new(Lock::new((socket, libc::POLLIN)));
        let talk = Talk { socket, wants: wants.clone(), heard: false };
        Self { end, wants, steps: Box::pin(greet(talk, settings, side)) }
    }

    /// Goes on as far as possible. `None`: there is nothing to do until there are `events`.
    pub fn go_on(&mut self) -> Option<Result<Established>> {
        if let Err(errno) = os::check_heap() {
            return Some(Err(errno));
        }
        match self.steps.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
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
            os::poll_few([self.events()], self.milliseconds());
        }
    }
}

async fn greet(mut talk: Talk, settings: Settings, wanted: GreetingSide) -> Result<Established> {
    let socket = talk.socket;
    // Before anything is said: the kernel then adds credentials to what we send and receive.
    let _credentials = SwitchedOn::new(socket, libc::SO_PASSCRED)?;
    // The kernel would skip an urgent byte, and close what came with it in our call.
    let _urgent = SwitchedOn::new(socket, libc::SO_OOBINLINE);

    let (nonce, region_size) = (os::random()?, region::SIZE as u32);
    let mut mine = Greeting { magic: MAGIC, version: VERSION, nonce, ..Greeting::default() };
    (mine.region, mine.side) = (region_size, wanted as u32);
    talk.say(&mut mine, HELLO, &[]).await?;
    let (theirs, beside) = talk.hear(HELLO, 0).await.map_err(|errno| match (wanted, errno) {
        // A host greets at once; one that closes instead does not take us for its user.
        (GreetingSide::Guest, libc::ECONNRESET | libc::EPIPE) if !talk.heard => libc::EACCES,
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
    let is_host = match (wanted as u32, theirs.side) {
        (mine, theirs) if mine == theirs && mine != GreetingSide::Either as u32 => {
            return Err(libc::EPROTO);
        }
        (mine, theirs)
            if mine == GreetingSide::Host as u32 || theirs == GreetingSide::Guest as u32 =>
        {
            true
        }
        (mine, theirs)
            if mine == GreetingSide::Guest as u32 || theirs == GreetingSide::Host as u32 =>
        {
            false
        }
        _ => nonce > theirs.nonce,
    };
    // A client's socket that another process speaks over may be held by a third one.
    let is_direct = wanted != GreetingSide::Host
        || os::peer_credentials(socket).is_ok_and(|maker| maker.pid == peer.pid);

    let yama = os::yama_scope();
    let let_in = settings.ptracer && yama == 1 && peer.pid > 0 && os::let_trace(peer.pid);
    let wants_proof = settings.engines != Engines::SharedMemory && is_direct;
    let page = if wants_proof { Page::new(theirs.nonce) } else { None };
    mine.page = page.as_ref().map_or(0, |page| page.at as u64);
    let (theirs, _) = talk.exchange(&mut mine, PAGE).await?;
    let claimed = Claimed::new(peer.pid, theirs.page, nonce).filter(|_| page.is_some());
    let why_not = match () {
        () if settings.engines == Engines::SharedMemory => "not wanted (ADMA_IPC_ENGINE)",
        () if peer.pid <= 0 => "the other process cannot be seen from this namespace",
        () if page.is_none() => "this process does not let itself be reached",
        () => "the other process does not let itself be reached",
    };
    let mut rights = Rights { pull: Err(why_not.to_string()), push: Err(why_not.to_string()) };
    let mut reached = None;
    let is_auto = settings.engines == Engines::Auto;
    let workers = (settings.workers)();
    // With two CPUs the other one has the other process on it, which copies as well.
    let shares = workers.is_some_and(|workers| workers.cpus > 2);
    mine.flags = if is_auto { flag::BLOCKS } else { 0 } | if shares { flag::WORKERS } else { 0 };
    let across = match settings.engines {
        Engines::SharedMemory => None,
        Engines::Auto | Engines::Helper => Across::new(settings.helper),
    };
    let process = if peer.pid > 0 { os::watch_process(peer.pid).ok() } else { None };
    let folder = if claimed.is_some() { os::proc_folder(peer.pid) } else { None };
    // A /proc of another pid namespace tells of another process.
    let folder = folder.filter(|folder| os::owner_of(folder) == Some(peer.uid));

    if is_host {
        let (theirs, _) = talk.hear(PROOF, 0).await?;
        let has_proven = page.as_ref().is_some_and(|page| page.is_proven_by(theirs.secret));
        if let Some(claimed) = claimed.filter(|_| has_proven) {
            (reached, mine.secret) = talk.read(claimed, &mut rights).await;
        } else if claimed.is_some() {
            rights.refuse("the other process may not reach this one");
        }
        let proven = reached.is_some() && has_proven;
        mine.flags |= proof_flags(proven, &rights);
        let memory = os::sealed_memory(c"adma", region::SIZE)?;
        let [mut bell, others] = os::unix_pair()?;
        bell.shut_on_drop = true;
        let region = MappedRegion::new(&memory)?;
        region.find_pages()?;
        let across = across.filter(|_| proven);
        let pinned = exported(across.as_ref(), page.as_ref());
        mine.pin = pinned.pin;
        let mut fds: Vec<i32> = [memory.raw(), others.raw()].into();
        if let Some(across) = &across {
            os::take_descriptors(socket, true);
            fds.push(across.port());
        }
        talk.say(&mut mine, PROOF, &fds).await?;
        drop(others);
        let (theirs_done, mut beside) = talk.hear(DONE, 1).await?;
        let proven = proven && theirs_done.has(flag::PROVEN);
        let port = beside.fds.pop().filter(|_| proven && beside.fds.is_empty());
        let port = port.and_then(|port| port.trusted().ok());
        drop(pinned);
        let mut across = across.zip(port).map(|(across, port)| across.with(port));
        let works = helper_works(across.as_ref(), theirs_done.pin, reached.as_ref());
        if works {
            mine.flags |= flag::HELPER;
        }
        talk.say(&mut mine, DONE, &[]).await?;
        across = across.filter(|_| works && theirs_done.has(flag::HELPER));
        let theirs = Greeting { flags: theirs.flags | theirs_done.flags, ..theirs_done };
        let greeted = Greeted { mine, theirs, across, rights, yama, let_in, workers };
        let proof = page.zip(reached).filter(|_| proven);
        let (trust, story) = greeted.trust(settings, proof);
        return Ok(Established {
            socket: bell,
            side: 0,
            settings,
            region,
            peer,
            process,
            folder,
            trust,
            story,
        });
    }

    if let Some(claimed) = claimed {
        (reached, mine.secret) = talk.read(claimed, &mut rights).await;
    }
    mine.flags |= proof_flags(false, &rights);
    talk.say(&mut mine, PROOF, &[]).await?;
    let (theirs, mut beside) = talk.hear(PROOF, 3).await?;
    if beside.cut && beside.fds.len() < 2 {
        return Err(libc::EMFILE);
    }
    let host_proven = page.as_ref().is_some_and(|page| page.is_proven_by(theirs.secret));
    let proven = reached.is_some() && host_proven && theirs.has(flag::PROVEN);
    if reached.is_some() && !proven {
        rights.refuse("the other process may not reach this one");
    }
    let port = if beside.fds.len() == 3 { beside.fds.pop() } else { None };
    let port = port.filter(|_| proven).and_then(|port| port.trusted().ok());
    let [bell, memory] = [beside.fds.pop(), beside.fds.pop()];
    let memory = memory.ok_or(libc::EPROTO)?.into_memory()?;
    let mut bell = bell.ok_or(libc::EPROTO)?.into_socket()?;
    bell.shut_on_drop = true;
    let region = MappedRegion::new(&memory)?;
    region.find_pages()?;
    let offered = port.is_some();
    let mut across = across.zip(port).map(|(across, port)| across.with(port));
    let pinned = exported(across.as_ref(), page.as_ref());
    mine.pin = pinned.pin;
    let works = helper_works(across.as_ref(), theirs.pin, reached.as_ref());
    mine.flags |= proof_flags(proven, &rights) | if works { flag::HELPER } else { 0 };
    let fds: Vec<i32> = across.iter().filter(|_| offered).map(Across::port).collect();
    talk.say(&mut mine, DONE, &fds).await?;
    let (theirs_done, _) = talk.hear(DONE, 0).await?;
    drop(pinned); // the host has tried it by now
    across = across.filter(|_| works && theirs_done.has(flag::HELPER));
    let theirs = Greeting { flags: theirs.flags | theirs_done.flags, ..theirs };
    let greeted = Greeted { mine, theirs, across, rights, yama, let_in, workers };
    let (trust, story) = greeted.trust(settings, page.zip(reached).filter(|_| proven));
    Ok(Established { socket: bell, side: 1, settings, region, peer, process, folder, trust, story })
}

fn proof_flags(proven: bool, rights: &Rights) -> u32 {
    let proven = if proven { flag::PROVEN } else { 0 };
    proven | if rights.push.is_ok() { flag::PUSH } else { 0 }
}

/// Exports our page for a trial of the kernel helper.
fn exported<'a>(across: Option<&'a Across>, page: Option<&Page>) -> Pinned<'a> {
    match page {
        Some(page) => Pinned::new(across, &Role::BOTH, page.at, SIGN),
        None => Pinned { across: None, pin: 0 },
    }
}

fn helper_works(across: Option<&Across>, pin: u64, reached: Option<&Reached>) -> bool {
    let tried = across.zip(reached).filter(|_| pin != 0);
    tried.is_some_and(|(across, reached)| across.probe(pin, reached).is_ok())
}

/// What we may do to the other side by calls, or why not.
struct Rights {
    pull: core::result::Result<(), String>,
    push: core::result::Result<(), String>,
}

impl Rights {
    fn refuse(&mut self, why: &str) {
        (self.pull, self.push) = (Err(why.to_string()), Err(why.to_string()));
    }
}

/// What both sides have said in the end.
struct Greeted {
    mine: Greeting,
    theirs: Greeting,
    across: Option<Across>,
    rights: Rights,
    yama: u8,
    let_in: bool,
    workers: Option<super::settings::Workers>,
}

impl Greeted {
    /// Returns how far the other side is trusted, and the line that tells of it.
    fn trust(self, settings: Settings, proof: Option<(Page, Reached)>) -> (Trust, String) {
        let Self { mine, theirs, across, rights, yama, let_in, workers } = self;
        let proven = proof.is_some();
        let both = |flag: u32| mine.has(flag) && theirs.has(flag);
        let by_calls = settings.engines == Engines::Auto && proven;
        let allowed = [rights.push.is_ok(), rights.pull.is_ok()].map(|may| may && by_calls);
        // A side that uses no blocks uses no calls either (ADMA_IPC_ENGINE=helper).
        let others_call = theirs.has(flag::BLOCKS) && proven;
        let others = [theirs.has(flag::PUSH) && others_call, others_call];
        let helper = across.is_some();
        let mut story = story(helper, allowed, others, rights, yama, let_in);
        if settings.engines == Engines::Helper && !helper {
            story += "; not both sides have the kernel helper";
        }
        let Some(proof) = proof else { return (Trust::Streamed, story) };
        // What the helper carries has other pieces.
        let shares = !helper && (mine.has(flag::WORKERS) || theirs.has(flag::WORKERS));
        let blocks = both(flag::BLOCKS);
        let proven = Proven::new(proof, allowed, others, Terms { shares }, blocks, across, workers);
        (Trust::Proven(Box::new(proven)), story)
    }
}

fn story(
    helper: bool,
    allowed: [bool; 2],
    others: [bool; 2],
    Rights { pull, push }: Rights,
    yama: u8,
    let_in: bool,
) -> String {
    let mut text = if helper { "helper, one copy by the engine; else " } else { "" }.to_string();
    text += match allowed.iter().chain(&others).filter(|&&way| way).count() {
        4 => "process_vm, one copy, both processes copy",
        0 => "shared memory, two copies",
        _ => "process_vm, one copy, not every way is allowed",
    };
    let failed = pull.is_err();
    text += &match (pull, push) {
        (Ok(()), Ok(())) => String::new(),
        (Err(why), Err(other)) if why == other => format!("; process_vm: {why}"),
        (Err(why), _) => format!("; process_vm_readv: {why}"),
        (Ok(()), Err(why)) => format!("; process_vm_writev: {why}"),
    };
    if failed && yama > 0 {
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
    /// Something has come.
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

    /// Reads the other side's page and tries to write it, by a helper thread: its memory may block.
    async fn read(&self, claimed: Claimed, rights: &mut Rights) -> (Option<Reached>, Secret) {
        let work = move || {
            let (reached, secret) = claimed.read()?;
            Ok((reached, secret, reached.probe(Role::Writer)))
        };
        match self.leave_to_thread(work).await {
            Some(Ok((reached, secret, push))) => {
                rights.pull = Ok(());
                rights.push = push.map_err(|why| why.to_string());
                (Some(reached), secret)
            }
            Some(Err(why)) => {
                let why: super::proof::Failed = why;
                rights.refuse(&why.to_string());
                (None, [0; 2])
            }
            None => {
                rights.refuse("there is no thread to try it");
                (None, [0; 2])
            }
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

    async fn exchange(&mut self, mine: &mut Greeting, step: u32) -> Result<(Greeting, Beside)> {
        self.say(mine, step, &[]).await?;
        self.hear(step, 0).await
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
        if theirs.step == step { Ok((theirs, beside)) } else { Err(libc::EPROTO) }
    }
}
