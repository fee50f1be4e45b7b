//! The beginning of a connection: greetings over the socket of two who have found each other
//! (`connect`, `accept`).
//!
//! Both sides say the same things in the same order, so neither has a role, but for who has the last
//! word. Each says three times what it knows by then:
//!
//! ```text
//! HELLO    who I am and what I ask of you; with it a region, one end of a doorbell socket, and the
//!          kernel helper's port to my posts if I have one; or nothing, if you have come to me from
//!          another user. The kernel says beside it who sent it
//! READY    I have mapped the region; whether you are my equal, where the page lies that you have
//!          asked for, and what the helper knows it by; and a number made up just now
//! VERDICT  whether you are reached there, and what I would do; and your number
//! ```
//!
//! All of it has one sender (`peer`).
//!
//! Of two regions and doorbell sockets those of the side with the greater nonce are used. Who has
//! sent no doorbell has not shown that it takes part itself, and is no equal. The
//! doorbell socket is nobody's but ours: closed when its process dies or executes another
//! program, whatever became of the socket the greetings went over. That one is left as it
//! was found and can be used for something else, or closed.
//!
//! Who has accepted a client says the first bytes of its HELLO at once, and the rest when that
//! greets. So a client knows whether it waits in the listener's queue, where everybody who accepts
//! can find it, or was taken out of there by somebody who may not look after it any more: a server
//! that got another connection, and polls its listener for the next. Then it comes again (`connect`).
//! With the last word of who has accepted it is connected, and comes no more: so that is said when
//! there is nothing left to hear, by who returns with the connection.

use super::across::{Across, Pinned};
use super::blocking::{CLOSERS, COPIERS, OURS, Pool, SEALERS, User};
use super::claims::Role;
use super::consent::{Agreed, Demand, Failed, Page, SIGN};
use super::engine::{self, Terms, Transport};
use super::lock::Lock;
use super::mappings::Mappings;
use super::os::{self, Beside, Credentials, Fd, Foreign, Result, SwitchedOn};
use super::peer::{self, Peer};
use super::region::{self, MappedRegion};
use super::settings::{Engines, Settings};
use crate::os::sys;
use alloc::boxed::Box;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::future::poll_fn;
use core::mem::offset_of;
use core::pin::Pin;
use core::sync::atomic::AtomicBool;
use core::task::{Context, Poll, Waker};

const MAGIC: u64 = u64::from_le_bytes(*b"adma-ipc");
const VERSION: u32 = 13;

/// Plain numbers without gaps, so any bytes are one and one is bytes. 0: no, or not known yet.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Greeting {
    magic: u64,
    version: u32,
    step: u32,
    nonce: u64,
    demand: Demand,
    /// READY: a number that nobody can know before. VERDICT: that of the other side.
    token: u64,
    /// What the helper knows the page by that was asked for.
    pin: u64,
    region: u32,
    /// Which place that page lies at.
    chosen: u32,
    /// I take you for my equal.
    equal: u32,
    /// You are reached: by calls, and by the helper.
    pull: u32,
    push: u32,
    helper: u32,
    /// Blocks may be shown.
    blocks: u32,
    /// I have workers for large messages.
    workers: u32,
}

/// By these the other side is known to be one that talks as we do.
const SAME: usize = offset_of!(Greeting, step);

const HELLO: u32 = 1;
const READY: u32 = 2;
const VERDICT: u32 = 3;

const _: () = assert!(size_of::<Greeting>() == 88 && SAME == 12);

impl Greeting {
    fn bytes(&mut self) -> &mut [u8; size_of::<Self>()] {
        // SAFETY: plain numbers without gaps.
        unsafe { &mut *core::ptr::from_mut(self).cast() }
    }
}

/// What the greetings have led to.
pub struct Established {
    pub settings: Settings,
    pub region: MappedRegion,
    /// Which of the region's sides we are.
    pub side: usize,
    /// The doorbell socket.
    pub socket: Fd,
    pub engine: Transport,
    /// The sign that we have agreed, to be kept while the connection lasts.
    _page: Page,
    /// Whether the other side may push, as a writer, and pull, as a reader; at first.
    pub others: [bool; 2],
    /// Which engine, and why, in one line.
    pub story: String,
}

/// Greetings under way. They go on whenever they are asked to and never wait, so that one thread
/// can look after many.
pub struct Handshake {
    end: u64,
    socket: i32,
    wants: Arc<Lock<Wants>>,
    steps: Pin<Box<dyn Future<Output = Result<Established>> + Send>>,
}

/// What greetings wait for.
struct Wants {
    /// A descriptor, and its events.
    event: (i32, i16),
    /// When something was heard or said last, a moment of `sys::nanoseconds`; 0: nothing was heard.
    moved: u64,
}

impl Handshake {
    /// Whoever is at the other end of a connected unix socket, which stays open meanwhile; we have
    /// `accepted` it, or not.
    pub fn new(socket: i32, settings: Settings, end: u64, accepted: bool) -> Self {
        let wants = Arc::new(Lock::new(Wants { event: (socket, libc::POLLIN), moved: 0 }));
        let user = os::user_of(socket);
        let talk = Talk { socket, user, wants: wants.clone(), peer: None, said: 0 };
        Self { end, socket, wants, steps: Box::pin(greet(talk, settings, accepted)) }
    }

    /// `None`: there is nothing to do until there are `events`.
    pub fn go_on(&mut self) -> Option<Result<Established>> {
        if let Err(errno) = os::look_for_heap() {
            return Some(Err(errno));
        }
        match self.steps.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending if self.milliseconds() == 0 => Some(Err(libc::ETIMEDOUT)),
            Poll::Pending => None,
        }
    }

    pub fn events(&self) -> (i32, i16) {
        self.wants.lock().event
    }

    /// When it went on last; 0: it has not begun.
    pub fn moved(&self) -> u64 {
        self.wants.lock().moved
    }

    /// How long the other side may still take.
    pub fn milliseconds(&self) -> i32 {
        self.end.saturating_sub(sys::nanoseconds()).div_ceil(1_000_000) as i32
    }

    /// Waits for the end. `None`: somebody was there and says nothing for so many nanoseconds.
    pub fn finish(&mut self, patience: u64) -> Option<Result<Established>> {
        loop {
            let done = self.go_on();
            let Wants { event, moved } = *self.wants.lock();
            let waits_for_other = moved != 0 && event.0 == self.socket;
            let silent = sys::nanoseconds().saturating_sub(moved);
            if done.is_some() || (waits_for_other && silent >= patience) {
                return done;
            }
            let left =
                if waits_for_other { (patience - silent).div_ceil(1_000_000) } else { u64::MAX };
            os::poll_few([event], left.min(self.milliseconds() as u64) as i32);
        }
    }
}

/// Whoever is at the other end of a connected unix socket, within the usual limit.
pub fn meet(socket: i32, settings: Settings) -> Result<Established> {
    let end = sys::nanoseconds() + settings.patience;
    let done = Handshake::new(socket, settings, end, false).finish(u64::MAX);
    done.unwrap_or(Err(libc::ETIMEDOUT))
}

async fn greet(mut talk: Talk, settings: Settings, accepted: bool) -> Result<Established> {
    let socket = talk.socket;
    if os::socket_option(socket, libc::SO_DOMAIN)? != libc::AF_UNIX {
        return Err(libc::EAFNOSUPPORT);
    }
    // Before anything is said: who has asked for it also tells.
    let _credentials = SwitchedOn::new(socket, libc::SO_PASSCRED)?;
    let processes = SwitchedOn::new(socket, os::SO_PASSPIDFD); // since Linux 6.5
    // The kernel would skip an urgent byte, and close what came with it in our call.
    let _urgent = SwitchedOn::new(socket, libc::SO_OOBINLINE);

    let (magic, version) = (MAGIC, VERSION);
    let mut mine = Greeting { magic, version, ..Greeting::default() };
    if accepted {
        talk.said = os::send(socket, &mine.bytes()[..SAME], &[]).unwrap_or(0);
        // One that says nothing costs nothing more.
        let is_there = || match os::poll_few([(socket, libc::POLLIN)], 0) {
            [0] => Err(libc::EAGAIN),
            _ => Ok(()),
        };
        talk.when_ready(socket, libc::POLLIN, is_there).await?;
    }
    // Nothing is made for it that has to be closed again.
    if CLOSERS.is_behind(talk.user) {
        return Err(libc::EMFILE);
    }
    let gives = peer::gets_descriptors(socket, accepted);
    let mine_given = match gives {
        true => {
            let memory = os::sealed_memory(c"adma", region::SIZE, os::SIZE_SEALS)?;
            let [mut bell, others] = os::unix_pair()?;
            bell.other_end = Some(talk.user);
            Some((memory, bell, others))
        }
        false => None,
    };
    let across = match settings.engines {
        Engines::Auto | Engines::Helper if gives => Across::new(settings.helper),
        _ => None,
    };
    let demand = Demand { seed: random(), word: random() };
    let (nonce, region) = (random(), region::SIZE as u32);
    mine = Greeting { nonce, region, demand, ..mine };
    let given = mine_given.iter().flat_map(|(memory, _, others)| [memory.raw(), others.raw()]);
    let fds: Vec<i32> = given.chain(across.iter().map(Across::port)).collect();
    let (theirs, mut beside) = talk.exchange(&mut mine, HELLO, &fds).await?;
    // What we have asked for, of all things, is asked of us by who has nobody to ask.
    if theirs.region != mine.region || theirs.nonce == nonce || theirs.demand == demand {
        return Err(libc::EPROTO);
    }
    let asked_of_me = theirs.demand.between(theirs.nonce, nonce);
    let asked_by_me = demand.between(nonce, theirs.nonce);
    if beside.cut && beside.fds.len() < 2 {
        return Err(libc::EMFILE);
    }
    let mut peer = talk.peer.take().ok_or(libc::EPROTO)?;
    let their_port = if beside.fds.len() == 3 { beside.fds.pop() } else { None };
    let across = across.zip(their_port).map(|(across, port)| across.with(port));
    let their_given = match <[Foreign; 2]>::try_from(beside.fds) {
        Ok([memory, bell]) => {
            let memory = memory.into_memory()?;
            MappedRegion::check(&memory)?;
            let mut bell = bell.into_socket()?;
            bell.other_end = Some(talk.user);
            peer.check_maker(&bell)?;
            Some((memory, bell))
        }
        Err(fds) if fds.is_empty() => None,
        Err(_) => return Err(libc::EPROTO),
    };
    let has_given = their_given.is_some();
    let (memory, mut doorbell, ours) = match (mine_given, their_given) {
        (Some((memory, bell, _)), _) if !has_given || nonce > theirs.nonce => (memory, bell, true),
        (_, Some((memory, bell))) => (memory, bell, false),
        _ => return Err(libc::EPROTO),
    };
    doorbell.other_end = Some(talk.user); // who is there has said something by now
    let region = MappedRegion::new(&memory)?;

    let (pid, equal) = (peer.pid(), has_given && peer.meet(socket, processes.is_err()));
    talk.peer = Some(peer);
    let yama = engine::yama_scope();
    let let_in = settings.ptracer && equal && yama == 1 && pid > 0 && os::let_trace(pid);
    let page = Page::lay(asked_of_me, equal).ok_or(libc::ENOMEM)?;
    let pinned = Pinned::new(across.as_ref(), &Role::BOTH, page.at, SIGN);
    let (chosen, pin, token) = (page.chosen, pinned.pin, random());
    mine = Greeting { equal: equal.into(), chosen, pin, token, ..mine };
    let (theirs, _) = talk.exchange(&mut mine, READY, &[]).await?;
    // Both have mapped it, and who has made it seals it. Who is not our equal can hold its lock for
    // as long as it likes, and a thread that waits for it cannot be killed: so nobody takes that of
    // a stranger's memory, and of our own not the caller, if there is any thread.
    let memory = Arc::new(memory);
    if equal {
        os::seal_for_good(&memory)?;
    } else if ours {
        let same = memory.clone();
        match talk.leave_to_thread(&SEALERS, move || os::seal_for_good(&same)).await {
            Some(sealed) => sealed?,
            None if SEALERS.is_behind(talk.user) => return Err(libc::EMFILE),
            None => os::seal_for_good(&memory)?,
        }
    }

    // Both or neither: one of them may see less of the other.
    let equal = equal && theirs.equal != 0;
    let agreed = Agreed::new(pid, asked_by_me, theirs.chosen).filter(|_| equal && pid > 0);
    let is_auto = settings.engines == Engines::Auto;
    let [pull, push] = match agreed.filter(|_| is_auto) {
        Some(agreed) => match talk.leave_to_thread(&COPIERS, move || agreed.probe()).await {
            // It says that it has agreed, and has not.
            Some([Err(Failed::Stranger), _]) => return Err(libc::EPROTO),
            Some(tried) => tried.map(|way| way.map_err(|why| why.to_string())),
            None => [(); 2].map(|()| Err("there is no thread to try it".to_string())),
        },
        None => {
            let why = match () {
                () if !is_auto => "not wanted (ADMA_IPC_ENGINE)",
                () if pid <= 0 => "the other process cannot be seen from this namespace",
                () if !equal => "the other process has not the same user and rights",
                () => "the other process does not let itself be reached",
            };
            [Err(why.to_string()), Err(why.to_string())]
        }
    };
    let helper = across.as_ref().is_some_and(|across| {
        theirs.pin != 0 && across.probe(theirs.pin, asked_by_me.word).is_ok()
    });
    let [may_pull, may_push] = [pull.is_ok(), push.is_ok()];
    let workers = (settings.workers)();
    // With two CPUs the other one has the other process on it, which copies as well.
    let shares = workers.is_some_and(|workers| workers.cpus > 2);
    mine = Greeting {
        pull: may_pull.into(),
        push: may_push.into(),
        helper: helper.into(),
        blocks: is_auto.into(),
        workers: shares.into(),
        token: theirs.token,
        ..mine
    };
    let (theirs, _) = match accepted {
        true => {
            let heard = talk.hear(&mut mine, VERDICT).await?;
            talk.say(&mut mine, VERDICT, &[]).await?;
            heard
        }
        false => talk.exchange(&mut mine, VERDICT, &[]).await?,
    };
    let peer = talk.peer.take().filter(|_| theirs.token == token).ok_or(libc::EPROTO)?;
    drop(pinned); // until here the other side may have looked at it
    // By now it is, on both sides; or its pages could be taken away.
    if !os::is_sealed_for_good(&memory) {
        return Err(libc::EPROTO);
    }
    region.find_pages()?;

    // Both or neither: what one posts the other must be able to fetch.
    let both = helper && theirs.helper != 0;
    let others = [theirs.push != 0 && equal, theirs.pull != 0 && equal];
    let all = may_pull && may_push && others == [true; 2];
    let mut story = story(both, [pull, push], others, yama, let_in);
    if settings.engines == Engines::Helper && !both {
        story += "; not both sides have the kernel helper";
    }
    let across = across.filter(|_| both).map(Across::proved);
    let blocks = is_auto && theirs.blocks != 0;
    if !blocks {
        os::refuse_descriptors(doorbell.raw());
    }
    if blocks && !all {
        story += "; one copy between buffers of adma_alloc";
    }
    // Who is there now has been there since before the token was made, and so has sent that. One
    // that has ended may have left small messages.
    let equal = equal && !peer.has_ended();
    let mappings = Mappings::new(blocks, equal, talk.user);
    let allowed = [may_push, may_pull].map(|may| AtomicBool::new(may && equal));
    let terms = Terms {
        equal,
        reader_alone: !equal && !both,
        // What the helper carries has other pieces.
        shares: !both && (shares || theirs.workers != 0),
    };
    Ok(Established {
        settings,
        region,
        side: usize::from(!ours),
        socket: doorbell,
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
    let ways = [push.is_ok(), pull.is_ok(), others[0], others[1]];
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
    if (!ways[1] || !ways[3]) && yama > 0 {
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
    /// Who is at its other end.
    user: User,
    wants: Arc<Lock<Wants>>,
    /// Who has sent all that came so far; none: nothing came.
    peer: Option<Peer>,
    /// So many bytes of the next greeting.
    said: usize,
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
                        self.wants.lock().event = (fd, events);
                        return Poll::Pending;
                    }
                    done => return Poll::Ready(done),
                }
            }
        })
        .await
    }

    /// Does what may last for ever, if the other side wants it to. `None`: nobody can do it.
    async fn leave_to_thread<T: Send + 'static>(
        &self,
        pool: &'static Pool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let [here, mut there] = os::unix_pair().ok()?;
        there.other_end = Some(OURS); // so that its end is seen also where a child has it
        let result = Arc::new(Lock::new(None));
        let answer = result.clone();
        let job = move || {
            *answer.lock() = Some(work());
            drop(there); // which is seen here
        };
        let taken = pool.take(self.user, Box::new(job));
        let look = || result.lock().take().ok_or(libc::EAGAIN);
        if taken { self.when_ready(here.raw(), libc::POLLIN, look).await.ok() } else { None }
    }

    /// Says what is known at this step, and hears it of the other side.
    async fn exchange(
        &mut self,
        mine: &mut Greeting,
        step: u32,
        fds: &[i32],
    ) -> Result<(Greeting, Beside)> {
        self.say(mine, step, fds).await?;
        self.hear(mine, step).await
    }

    async fn say(&mut self, mine: &mut Greeting, step: u32, fds: &[i32]) -> Result<()> {
        mine.step = step;
        let (bytes, mut sent) = (mine.bytes(), core::mem::take(&mut self.said));
        let mut fds = fds;
        while sent < bytes.len() {
            let send = || os::send(self.socket, &bytes[sent..], fds);
            sent += self.when_ready(self.socket, libc::POLLOUT, send).await?;
            fds = &[];
        }
        self.note_moved(false);
        Ok(())
    }

    async fn hear(&mut self, mine: &mut Greeting, step: u32) -> Result<(Greeting, Beside)> {
        let bytes = mine.bytes();
        let (mut theirs, mut beside, mut got) = (Greeting::default(), Beside::of(self.user), 0);
        let most_fds = if step == HELLO { os::MOST_FDS } else { 0 };
        // Exactly one of them: what comes after may be the program's own.
        while got < bytes.len() {
            let room = &mut theirs.bytes()[got..];
            let receive = || match CLOSERS.is_behind(self.user) {
                true => Err(libc::EMFILE),
                false => os::receive(self.socket, room, &mut beside),
            };
            got += match self.when_ready(self.socket, libc::POLLIN, receive).await? {
                0 => return Err(libc::ECONNRESET),
                _ if beside.fds.len() > most_fds => return Err(libc::EPROTO),
                count => count,
            };
            self.note_moved(true);
            self.note_sender(beside.sender, beside.process.take())?;
            let known = got.min(SAME);
            if theirs.bytes()[..known] != bytes[..known] {
                return Err(libc::EPROTO);
            }
        }
        if theirs.step == step { Ok((theirs, beside)) } else { Err(libc::EPROTO) }
    }

    fn note_moved(&self, heard: bool) {
        let mut wants = self.wants.lock();
        if heard || wants.moved != 0 {
            wants.moved = sys::nanoseconds();
        }
    }

    /// Everything comes from one process, or it is nobody's word.
    fn note_sender(&mut self, sender: Credentials, process: Option<Fd>) -> Result<()> {
        let Some(peer) = &self.peer else {
            self.user = sender.uid;
            self.peer = Some(Peer::new(sender, process));
            return Ok(());
        };
        peer.check_sender(sender, process.as_ref())
    }
}
