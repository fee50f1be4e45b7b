//! Clients that have come to a listener and are greeting.
//!
//! A call that accepts or arms takes clients out of the listener's queue, a bounded number of them, and
//! the service thread greets them all together: a silent client does not block others. A client of
//! another user is closed at once, before anything of it is read. Nothing here blocks but `accept`
//! itself.
//!
//! While as many clients greet as may, the others stay in the queue. The listener is then paused: neither
//! calls nor event loops poll it, or they would spin. Its bell rings when a greeting ends, and once a
//! second. If no client gets through in a whole second, those that have been silent for as long are
//! replaced by others. Both are counted in looks of the service thread: on a busy machine clients that
//! do not get a CPU are no more silent than that thread.

use crate::ipc::os::{self, Epoll, Fd};
use crate::ipc::settings::Settings;
use crate::ipc::setup::handshake::{self, Established, Handshake, side};
use crate::ipc::wake::service::{self, GREETING};
use crate::os::lock::Lock;
use crate::os::sys;
use crate::os::text;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

/// Most clients that may be greeting, of all listeners, unless one can be replaced.
const MOST: usize = 512;

/// Looks of the service thread without a step after which a greeting may be replaced by another
/// client's: between two of them is a second.
const SILENT_LOOKS: u32 = 2;

/// Most clients that one call which must not wait takes out of the queue.
const AT_ONCE: usize = 32;

/// Delay before a refusal is returned while the queue has clients, so that a server that polls its
/// listener does not spin.
const BACKOFF_MS: i32 = 10;

/// Longest sleep where the caller has to greet itself.
const ALONE_MS: i32 = 2;

/// Longest sleep before another look whether the program has closed the listener by close(2).
const LOOK_MS: i32 = 1000;

/// Device and inode of a listener.
type File = (u64, u64);

struct Incoming {
    listener: File,
    number: u32,
    /// Number of the last look before its last step.
    look: u32,
    /// Dropped before its socket is.
    handshake: Handshake,
    socket: Fd,
}

impl Incoming {
    /// Returns whether it has kept us waiting for so long that another may have its place. One that
    /// has spoken is not silent: then we are late.
    fn is_silent(&self, look: u32) -> bool {
        let is_late = || os::poll([self.handshake.events()], 0).is_ok_and(|events| events != [0]);
        look.wrapping_sub(self.look) >= SILENT_LOOKS && !is_late()
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        service::forget(self.socket.raw());
        service::leave();
        ring_paused();
    }
}

/// A listener that clients were taken from.
struct Listening {
    file: File,
    /// Its descriptor when it was last seen.
    number: i32,
    /// Clients that have greeted.
    ready: Vec<Established>,
    /// An eventfd, readable while there are such clients, or when a paused listener is to be looked at.
    bell: Arc<Fd>,
    /// For event loops: `bell`, and the listener unless it is paused.
    events: Option<Epoll>,
    /// Set if the last call that looked found no place for another greeting.
    paused: bool,
    /// Set if a call that must not wait has found no client, and the program may poll the listener
    /// itself.
    polled: bool,
}

#[derive(Default)]
struct Backlog {
    /// Ordered by their last step: the first has been silent for longest.
    greeting: Vec<Incoming>,
    listening: Vec<Listening>,
    /// Looks of the service thread so far.
    look: u32,
    /// Number of the last look before a client got through.
    through: u32,
}

impl Backlog {
    /// Returns whether no client has got through between the last two looks, nor since.
    fn is_stalled(&self) -> bool {
        self.look.wrapping_sub(self.through) >= SILENT_LOOKS
    }

    fn find(&mut self, file: File) -> Option<&mut Listening> {
        self.listening.iter_mut().find(|one| one.file == file)
    }
}

impl Listening {
    /// Takes the listener out of the set that event loops poll, or puts it back.
    fn pause(&mut self, paused: bool) {
        if let Some(events) = self.events.as_ref().filter(|_| paused != self.paused) {
            match paused {
                true => events.forget(self.number),
                // `event_fd` has added it before, so only memory can be refused: the bell still rings.
                false => _ = events.watch(self.number, libc::POLLIN, 0),
            }
        }
        self.paused = paused;
    }
}

static BACKLOG: Lock<Backlog> =
    Lock::new(Backlog { greeting: Vec::new(), listening: Vec::new(), look: 0, through: 0 });

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Removes a client from the list, to be dropped or continued without the lock.
fn take(which: impl FnMut(&Incoming) -> bool) -> Option<Incoming> {
    let mut backlog = BACKLOG.lock();
    let index = backlog.greeting.iter().position(which)?;
    Some(backlog.greeting.remove(index))
}

fn take_ready(file: File) -> Option<Established> {
    let mut backlog = BACKLOG.lock();
    let one = backlog.find(file).filter(|one| !one.ready.is_empty())?;
    let ready = one.ready.remove(0);
    if one.ready.is_empty() {
        os::drain_event(&one.bell);
    }
    Some(ready)
}

/// Returns whether another client of this listener may greet, and pauses the listener accordingly.
/// While no client gets through, one that has been silent for too long makes room.
fn has_room(file: File) -> bool {
    let mut backlog = BACKLOG.lock();
    let (is_full, look) = (backlog.greeting.len() >= MOST, backlog.look);
    let is_replaced = is_full && backlog.is_stalled() && backlog.greeting[0].is_silent(look);
    let replaced = is_replaced.then(|| backlog.greeting.remove(0));
    let has_room = !is_full || is_replaced;
    if let Some(one) = backlog.find(file) {
        if one.paused && one.ready.is_empty() {
            os::drain_event(&one.bell);
        }
        one.pause(!has_room);
    }
    drop(backlog);
    drop(replaced);
    has_room
}

/// Has calls and event loops look at paused listeners.
fn ring_paused() {
    for one in BACKLOG.lock().listening.iter().filter(|one| one.paused) {
        sys::raise_event(one.bell.raw());
    }
}

/// Takes the greeting of this number further, if it is still there.
pub fn advance(number: u32) {
    if let Some(incoming) = take(|one| one.number == number) {
        advance_greeting(incoming);
    }
}

/// Takes a greeting as far as possible. A client that fails is dropped: its error is not the
/// listener's.
fn advance_greeting(mut incoming: Incoming) {
    match incoming.handshake.advance() {
        None => keep(incoming),
        Some(Ok(established)) => hand_over(incoming.listener, established),
        Some(Err(errno)) => {
            let own = os::peer_credentials(incoming.socket.raw()).map(|peer| peer.pid);
            let is_token = errno == libc::ECONNRESET && own == Ok(sys::getpid());
            if crate::ipc::settings::settings().tell && !is_token {
                text::say(format_args!("client refused: {} (errno {errno})", text::meaning(errno)));
            }
        }
    }
}

/// Keeps a client until its descriptor is ready.
fn keep(mut incoming: Incoming) {
    let (fd, events) = incoming.handshake.events();
    let key = GREETING | u64::from(incoming.number);
    if fd != incoming.socket.raw() {
        service::forget(incoming.socket.raw());
    }
    // While it is ours: once in the list, another thread may drop it, and its descriptor be another
    // client's. Meanwhile the service thread finds nothing under this key and looks again.
    if service::watch(fd, events, key).is_ok() {
        let mut backlog = BACKLOG.lock();
        incoming.look = backlog.look;
        backlog.greeting.push(incoming);
    }
}

/// Gives a client that has greeted to the calls that accept, and wakes them.
fn hand_over(listener: File, established: Established) {
    let mut backlog = BACKLOG.lock();
    backlog.through = backlog.look;
    let Some(one) = backlog.find(listener) else { return };
    one.ready.push(established);
    sys::raise_event(one.bell.raw());
    let polled = (one.polled && one.events.is_none()).then_some(one.number);
    drop(backlog);
    if let Some(number) = polled.filter(|number| sys::file_of(*number) == Some(listener)) {
        os::make_readable(number);
    }
}

/// Drops clients that have not greeted in time, and listeners that the program has closed. Has paused
/// listeners looked at: clients may have been silent for long enough.
pub fn drop_late() {
    BACKLOG.lock().look += 1; // once a second
    ring_paused();
    while take(|one| one.handshake.milliseconds() == 0).is_some() {}
    let is_closed = |one: &&Listening| sys::file_of(one.number) != Some(one.file);
    let closed = || BACKLOG.lock().listening.iter().find(is_closed).map(|one| one.file);
    while let Some(file) = closed() {
        forget(Some(file));
    }
}

/// Joins all clients to a new set of the service thread.
pub fn join_all() {
    for one in &BACKLOG.lock().greeting {
        let (fd, events) = one.handshake.events();
        let _ = service::watch(fd, events, GREETING | u64::from(one.number));
    }
}

/// Takes a client out of the listener's queue and begins to greet. False: there is none, because
/// another thread or process was faster.
fn begin(listener: i32, file: File, settings: Settings) -> os::Result<bool> {
    let socket = match os::accept(listener) {
        Err(libc::EAGAIN | libc::EINTR | libc::ECONNABORTED) => return Ok(false),
        socket => socket?,
    };
    if handshake::check_user(socket.raw()).is_err() {
        return Ok(true); // closed
    }
    let end = sys::nanoseconds() + settings.patience;
    let handshake = Handshake::new(socket.raw(), settings, end, side::HOST);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    service::join();
    advance_greeting(Incoming { listener: file, number, look: 0, handshake, socket });
    Ok(true)
}

fn file_of(listener: i32) -> os::Result<File> {
    if !os::is_listener(listener) {
        return os::accept(listener).and(Err(libc::EINVAL)); // what accept says
    }
    sys::file_of(listener).ok_or(libc::EBADF)
}

/// Checks that the listener's number was not closed and reused by another thread.
fn check_file(listener: i32, file: File) -> os::Result<()> {
    if sys::file_of(listener) == Some(file) {
        return Ok(());
    }
    forget(Some(file));
    Err(libc::EBADF)
}

/// Returns the bell of a listener, which is remembered from now on.
fn bell_of(listener: i32, file: File) -> os::Result<Arc<Fd>> {
    let mut backlog = BACKLOG.lock();
    if let Some(one) = backlog.find(file) {
        one.number = listener;
        return Ok(one.bell.clone());
    }
    os::check_heap()?;
    let bell = Arc::new(os::new_event()?);
    backlog.listening.push(Listening {
        file,
        number: listener,
        ready: Vec::new(),
        bell: bell.clone(),
        events: None,
        paused: false,
        polled: false,
    });
    Ok(bell)
}

/// Begins to greet clients in a listener's queue, some of them, and returns whether one can be
/// accepted, or more are in the queue.
pub fn arm(listener: i32, settings: Settings) -> os::Result<bool> {
    event_fd(listener)?;
    let file = file_of(listener)?;
    let mut left = AT_ONCE;
    let has_client = || os::poll([(listener, libc::POLLIN)], 0).is_ok_and(|events| events != [0]);
    let is_more = || has_room(file) && has_client();
    while left > 0 && is_more() && begin(listener, file, settings)? {
        left -= 1;
    }
    let is_ready = BACKLOG.lock().find(file).is_some_and(|one| !one.ready.is_empty());
    Ok(is_ready || (left == 0 && is_more()))
}

/// Returns the next client that has greeted. Waits until `end`, a time of `sys::nanoseconds`;
/// `None`: as the listener's O_NONBLOCK says.
pub fn accept(listener: i32, settings: Settings, end: Option<u64>) -> os::Result<Established> {
    let file = file_of(listener)?;
    let waits = end.is_some() || !os::is_nonblocking(listener);
    let bell = bell_of(listener, file)?;
    let mut left = if waits { usize::MAX } else { AT_ONCE };
    // A program without an event descriptor polls the listener, which is readable.
    let is_readable = BACKLOG.lock().find(file).is_some_and(|one| one.events.is_none());
    let mut last = false;
    loop {
        check_file(listener, file)?;
        let mut limit_ms = if waits { LOOK_MS } else { 0 };
        if service::help_out() {
            limit_ms = limit_ms.min(ALONE_MS);
        }
        if let Some(ready) = take_ready(file) {
            return Ok(ready);
        }
        if last || left == 0 {
            break;
        }
        if let Some(end) = end {
            limit_ms = limit_ms.min(os::milliseconds_until(end));
            last = limit_ms == 0;
        }
        let queue = if has_room(file) { listener } else { -1 };
        if queue == -1 && !waits && is_readable {
            limit_ms = BACKOFF_MS;
        }
        let [client, _] = os::poll([queue, bell.raw()].map(|fd| (fd, libc::POLLIN)), limit_ms)?;
        if client != 0 {
            check_file(listener, file)?;
            left -= 1;
            begin(listener, file, settings).inspect_err(|errno| {
                if let libc::EMFILE | libc::ENFILE = *errno {
                    let _ = os::poll([(-1, 0)], BACKOFF_MS);
                }
            })?;
        } else {
            last |= !waits;
        }
    }
    if waits {
        return Err(libc::ETIMEDOUT);
    }
    let mut backlog = BACKLOG.lock();
    if let Some(one) = backlog.find(file) {
        one.polled = true;
        let is_missed = !one.ready.is_empty() && one.events.is_none();
        drop(backlog);
        if is_missed {
            os::make_readable(listener); // it became ready between the look and the mark
        }
    }
    Err(libc::EAGAIN)
}

/// Returns the descriptor that an event loop polls for a listener.
pub fn event_fd(listener: i32) -> os::Result<i32> {
    let file = file_of(listener)?;
    let bell = bell_of(listener, file)?;
    if !service::start() {
        return Err(libc::EAGAIN);
    }
    let mut backlog = BACKLOG.lock();
    let one = backlog.find(file).ok_or(libc::EBADF)?;
    if let Some(events) = &one.events {
        return Ok(events.raw());
    }
    let events = Epoll::new()?;
    for fd in [listener, bell.raw()] {
        events.watch(fd, libc::POLLIN, 0)?;
    }
    if one.paused {
        events.forget(listener);
    }
    Ok(one.events.insert(events).raw())
}

/// Forgets a listener that was closed, and its clients.
pub fn forget(listener: Option<File>) {
    while take(|incoming| Some(incoming.listener) == listener).is_some() {}
    let mut backlog = BACKLOG.lock();
    let index = backlog.listening.iter().position(|one| Some(one.file) == listener);
    let gone = index.map(|index| backlog.listening.swap_remove(index));
    drop(backlog);
    if let Some(gone) = gone {
        sys::raise_event(gone.bell.raw()); // threads that accept from it look whether it is there
    }
}

/// Forgets the parent's clients in the child of a fork.
pub fn forget_after_fork() {
    BACKLOG.renew();
}
