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
use crate::ipc::copy::proof::{Claimed, Page, SIGN};
use crate::ipc::copy::{Proven, Terms};
use crate::ipc::memory::blocks::PeerBlocks;
use crate::ipc::memory::region::{self, MappedRegion};
use crate::ipc::os::{self, Credentials, Fd, ProcFolder, Received, Result, SwitchedOn};
use crate::ipc::settings::{Engines, Settings, Workers};
use crate::ipc::setup::talk::{
    DONE, Greeting, HELLO, NO_ROOM, PAGE, PROOF, ReachResult, Talk, flag,
};
use crate::os::brief_file;
use crate::os::lock::Lock;
use crate::os::sys;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ffi::CStr;
use core::pin::Pin;
use core::sync::atomic::AtomicBool;
use core::task::{Context, Poll, Waker};
use zerocopy::IntoBytes;

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
    os::peer_credentials(socket).and_then(|maker| check_uid(maker.uid))
}

/// The kernel's default for users without a number.
const OVERFLOW_UID: u32 = 65534;

/// Returns -EACCES for a user that is not ours, or that stands for all unmapped users.
fn check_uid(uid: u32) -> Result<()> {
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
    let is_ours = uid == sys::geteuid() as u32 && !stands_for_many();
    is_ours.then_some(()).ok_or(libc::EACCES)
}

/// Greetings under way. `advance` never waits, so one thread can look after many.
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

    /// Takes the greetings as far as possible. `None`: there is nothing to do until there are `events`.
    pub fn advance(&mut self) -> Option<Result<Established>> {
        if let Err(errno) = os::check_heap() {
            return Some(Err(errno));
        }
        match self.steps.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(errno @ (libc::EMFILE | libc::ENFILE | libc::ENOMEM))) => {
                let mut last = Greeting::new();
                last.step = NO_ROOM;
                let _ = os::send(self.socket, last.as_bytes(), &[]); // it closes in any case
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
        os::milliseconds_until(self.end)
    }

    /// Waits for the end.
    pub fn finish(mut self) -> Result<Established> {
        loop {
            if let Some(done) = self.advance() {
                return done;
            }
            let _ = os::poll([self.events()], self.milliseconds());
        }
    }
}

/// The greetings, from the first to the last: how two sides become a connection.
async fn greet(talk: Talk, settings: Settings, wanted: u32) -> Result<Established> {
    // Before anything is said: the kernel then adds credentials to what we send and receive.
    let _credentials = SwitchedOn::new(talk.socket, libc::SO_PASSCRED)?;
    // The kernel would skip an urgent byte, and close what came with it in our call.
    let _urgent = SwitchedOn::new(talk.socket, libc::SO_OOBINLINE);

    let mut us = Greeter::new(talk, settings, wanted)?;
    let met = us.exchange_hellos().await?;
    let peer = met.peer;
    let yama = os::yama_scope();
    let let_in = settings.ptracer && yama == 1 && peer.pid > 0 && os::let_trace(peer.pid);
    let claimed = us.exchange_pages(&met).await?;
    let workers = us.offer_means();
    let process = if peer.pid > 0 { os::watch_process(peer.pid).ok().map(Arc::new) } else { None };
    let folder = claimed.and_then(|_| ProcFolder::new(peer.pid, process.clone()));
    // In a /proc of another pid namespace the number is another process's.
    let folder = folder.filter(|folder| folder.owner() == Some(peer.uid));

    let mut reached = us.reach(claimed, &met).await?;
    let Shared { region, mut bell, port, mut theirs, proven } = match met.is_host {
        true => us.share(reached.is_ok()).await?,
        false => us.take_shared(reached.is_ok()).await?,
    };
    bell.shut_on_drop = true;
    if reached.is_ok() && !proven {
        reached = may_not_reach_us();
    }
    let port = port.filter(|_| proven).and_then(|port| port.trusted().ok());
    us.across = us.across.zip(port).map(|(across, port)| across.with(port));
    let works = helper_works(us.across.as_ref(), theirs.pin, &reached);
    us.end(met.is_host, works, &mut theirs).await?;

    let Greeter { mine, page, across, .. } = us;
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
    let side = usize::from(!met.is_host);
    Ok(Established { settings, region, side, socket: bell, peer, process, proven, story })
}

/// Our side of the greetings; each step is a method, in their order.
struct Greeter {
    talk: Talk,
    settings: Settings,
    mine: Greeting,
    /// The page that the other side may prove itself by.
    page: Option<Page>,
    across: Option<Across>,
}

/// Facts from both hellos.
struct Met {
    peer: Credentials,
    /// The other side's.
    nonce: u64,
    is_host: bool,
    /// Clear if the other process may speak over a socket that a third one holds.
    is_direct: bool,
}

/// What both processes have from now on.
struct Shared {
    region: MappedRegion,
    bell: Fd,
    /// The other side's port of the kernel helper.
    port: Option<Received>,
    theirs: Greeting,
    /// Set if each side has read the other's secret.
    proven: bool,
}

impl Greeter {
    fn new(talk: Talk, settings: Settings, wanted: u32) -> Result<Self> {
        let mut mine = Greeting::new();
        mine.nonce = os::random()?;
        (mine.region, mine.side) = (region::SIZE as u32, wanted);
        Ok(Self { talk, settings, mine, page: None, across: None })
    }

    /// HELLO: learns who the other side is, and which side is the host.
    async fn exchange_hellos(&mut self) -> Result<Met> {
        let (wanted, nonce) = (self.mine.side, self.mine.nonce);
        let heard = match self.talk.say(&mut self.mine, HELLO, &[]).await {
            // The peer may have closed before we spoke; its last words give the reason.
            Ok(()) | Err(libc::EPIPE) => self.talk.hear(HELLO, 0).await,
            Err(errno) => Err(errno),
        };
        let (theirs, beside) = heard.map_err(|errno| match (wanted, errno) {
            // A host greets at once; one that closes instead does not take us for its user.
            (side::GUEST, libc::ECONNRESET | libc::EPIPE) if !self.talk.heard => libc::EACCES,
            _ => errno,
        })?;
        // Our own nonce: a reflection of what we have said.
        if theirs.region != self.mine.region || theirs.nonce == nonce {
            return Err(libc::EPROTO);
        }
        let peer = beside.sender.ok_or(libc::EPROTO)?;
        check_uid(peer.uid)?;
        let is_host = match (wanted, theirs.side) {
            (side::GUEST, side::GUEST) | (side::HOST, side::HOST) => return Err(libc::EPROTO),
            (side::HOST, _) | (_, side::GUEST) => true,
            (side::GUEST, _) | (_, side::HOST) => false,
            _ => nonce > theirs.nonce,
        };
        let is_makers =
            || os::peer_credentials(self.talk.socket).is_ok_and(|maker| maker.pid == peer.pid);
        let is_direct = wanted != side::HOST || is_makers();
        Ok(Met { peer, nonce: theirs.nonce, is_host, is_direct })
    }

    /// PAGE: shows a page, and returns the one that the other side claims to have.
    async fn exchange_pages(&mut self, met: &Met) -> Result<Option<Claimed>> {
        let wants_proof = self.settings.engines != Engines::SharedMemory && met.is_direct;
        self.page = if wants_proof { Page::new(met.nonce) } else { None };
        self.mine.page = self.page.as_ref().map_or(0, |page| page.at as u64);
        self.talk.say(&mut self.mine, PAGE, &[]).await?;
        let (theirs, _) = self.talk.hear(PAGE, 0).await?;
        let claimed = Claimed::new(met.peer.pid, theirs.page, self.mine.nonce);
        Ok(claimed.filter(|_| self.page.is_some()))
    }

    /// Notes how this side can copy, for the next greetings.
    fn offer_means(&mut self) -> Option<Workers> {
        let (settings, workers) = (self.settings, (self.settings.workers)());
        self.mine.add(flag::CALLS, settings.engines == Engines::Auto);
        // With two CPUs the other one has the other process on it, which copies as well.
        self.mine.add(flag::WORKERS, workers.is_some_and(|workers| workers.cpus > 2));
        self.across = match settings.engines {
            Engines::SharedMemory => None,
            Engines::Auto | Engines::Helper => Across::new(settings.helper),
        };
        workers
    }

    fn is_read_by(&self, theirs: &Greeting) -> bool {
        self.page.as_ref().is_some_and(|page| page.is_proven_by(theirs.secret))
    }

    /// The guest's PROOF, if we are the host; then reads the other side's page.
    async fn reach(&mut self, claimed: Option<Claimed>, met: &Met) -> Result<ReachResult> {
        let why_not = match () {
            () if self.settings.engines == Engines::SharedMemory => "not wanted (ADMA_IPC_ENGINE)",
            () if met.peer.pid <= 0 => "the other process cannot be seen from this namespace",
            () if self.page.is_none() => "this process does not let itself be reached",
            () => "the other process does not let itself be reached",
        };
        let mut may = true;
        if met.is_host {
            // The host reads nothing of a guest that has not read its page.
            let (theirs, _) = self.talk.hear(PROOF, 0).await?;
            may = self.is_read_by(&theirs);
        }
        let reached = match claimed {
            None => Err(why_not.to_string()),
            Some(_) if !may => may_not_reach_us(),
            Some(claimed) => self.talk.reach(claimed).await,
        };
        self.mine.secret = reached.as_ref().map_or([0; 2], |(_, secret)| *secret);
        Ok(reached)
    }

    /// The host's PROOF, with what both will share, and the guest's DONE. `both`: both have read the
    /// other's secret.
    async fn share(&mut self, both: bool) -> Result<Shared> {
        let memory = os::sealed_memory(c"adma", region::SIZE)?;
        let [bell, others] = os::unix_pair()?;
        let region = MappedRegion::new(&memory)?;
        self.across = self.across.take().filter(|_| both);
        let pinned = exported(self.across.as_ref(), self.page.as_ref());
        self.mine.pin = pinned.pin;
        self.mine.add(flag::PROVEN, both);
        let mut fds: Vec<i32> = [memory.raw(), others.raw()].into();
        if let Some(across) = &self.across {
            os::take_descriptors(self.talk.socket, true);
            fds.push(across.port());
        }
        self.talk.say(&mut self.mine, PROOF, &fds).await?;
        let (theirs, mut beside) = self.talk.hear(DONE, 1).await?;
        let proven = both && theirs.has(flag::PROVEN);
        Ok(Shared { region, bell, port: beside.fds.pop(), theirs, proven })
    }

    /// The guest's PROOF, and the host's, with what both will share. `reached`: we have read the host's
    /// secret.
    async fn take_shared(&mut self, reached: bool) -> Result<Shared> {
        self.talk.say(&mut self.mine, PROOF, &[]).await?;
        let (theirs, mut beside) = self.talk.hear(PROOF, 3).await?;
        if beside.cut && beside.fds.len() < 2 {
            return Err(libc::EMFILE);
        }
        let proven = reached && self.is_read_by(&theirs) && theirs.has(flag::PROVEN);
        self.mine.add(flag::PROVEN, proven);
        let port = if beside.fds.len() == 3 { beside.fds.pop() } else { None };
        let [socket, memory] = [beside.fds.pop(), beside.fds.pop()];
        let memory = memory.ok_or(libc::EPROTO)?.into_memory()?;
        let bell = socket.ok_or(libc::EPROTO)?.into_socket()?;
        let region = MappedRegion::new(&memory)?;
        Ok(Shared { region, bell, port, theirs, proven })
    }

    /// DONE of both sides. `works`: the kernel helper has reached the other side's page. It is used if
    /// it works for both.
    async fn end(&mut self, is_host: bool, works: bool, theirs: &mut Greeting) -> Result<()> {
        self.mine.add(flag::HELPER, works);
        if is_host {
            self.talk.say(&mut self.mine, DONE, &[]).await?;
        } else {
            let pinned = exported(self.across.as_ref(), self.page.as_ref());
            self.mine.pin = pinned.pin;
            let fds: Vec<i32> = self.across.iter().map(Across::port).collect();
            self.talk.say(&mut self.mine, DONE, &fds).await?;
            theirs.flags |= self.talk.hear(DONE, 0).await?.0.flags;
        }
        self.across = self.across.take().filter(|_| works && theirs.has(flag::HELPER));
        Ok(())
    }
}

fn may_not_reach_us() -> ReachResult {
    Err("the other process may not reach this one".to_string())
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

/// Returns the line for the log on how messages will be copied. `calls`: our side and the peer's.
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
