//! Clients that have come to a listener and are greeting.
//!
//! All of them are served together, by every thread that accepts, and in the background of
//! `adma_check` and `adma_arm`: a silent client does not block others. A client of another user is
//! closed at once, before anything of it is read. Nothing here blocks but `accept` itself.

use crate::ipc::os::{self, Fd};
use crate::ipc::settings::Settings;
use crate::ipc::setup::handshake::{self, Established, Handshake, side};
use crate::ipc::wake::background::{self, GREETING};
use crate::ipc::wake::events::Events;
use crate::ipc::wake::wakeups::{self, Wakeups};
use crate::os::lock::Lock;
use crate::os::sys;
use crate::os::text;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

/// Most clients that may be greeting, of all listeners; one more replaces the oldest.
const MOST: usize = 512;

/// Delay before -EMFILE is returned, so that a server that polls its listener does not spin.
const EMFILE_BACKOFF_MS: i32 = 10;

/// Device and inode of a listener.
type File = (u64, u64);

struct Incoming {
    listener: File,
    number: u32,
    /// Dropped before its socket is.
    handshake: Handshake,
    socket: Fd,
}

/// Clients by progress.
#[derive(Default)]
struct Backlog {
    greeting: Vec<Incoming>,
    ready: Vec<(File, Established)>,
    /// Listeners that event loops poll.
    polled: Vec<(File, Arc<Events>)>,
}

static BACKLOG: Lock<Backlog> =
    Lock::new(Backlog { greeting: Vec::new(), ready: Vec::new(), polled: Vec::new() });

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// Approximate count of clients that are greeting; not 0: threads look at the background set.
pub static GREETINGS: AtomicU32 = AtomicU32::new(0);

/// Removes a client from the list, to be dropped or continued without the lock.
fn take(which: impl FnMut(&Incoming) -> bool) -> Option<Incoming> {
    let mut backlog = BACKLOG.lock();
    let index = backlog.greeting.iter().position(which)?;
    let taken = backlog.greeting.remove(index);
    GREETINGS.store(backlog.greeting.len() as u32, Ordering::Relaxed);
    Some(taken)
}

fn take_ready(listener: File) -> Option<Established> {
    let mut backlog = BACKLOG.lock();
    let index = backlog.ready.iter().position(|ready| ready.0 == listener)?;
    Some(backlog.ready.remove(index).1)
}

/// Goes on with the greeting of this number, if it is still there.
pub fn go_on(number: u32) {
    if let Some(incoming) = take(|one| one.number == number) {
        advance(incoming);
    }
}

/// Continues a greeting as far as possible. A client that fails is dropped: its error is not the
/// listener's.
fn advance(mut incoming: Incoming) {
    let listener = incoming.listener;
    match incoming.handshake.go_on() {
        None => {
            let (fd, events) = incoming.handshake.events();
            let watched = background::watch(fd, events, GREETING | u64::from(incoming.number));
            if fd != incoming.socket.raw() {
                background::forget(incoming.socket.raw());
            }
            if watched.is_ok() {
                let mut backlog = BACKLOG.lock();
                backlog.greeting.push(incoming);
                GREETINGS.store(backlog.greeting.len() as u32, Ordering::Relaxed);
            }
        }
        Some(Ok(established)) => {
            let mut backlog = BACKLOG.lock();
            backlog.ready.push((listener, established));
            let polled = backlog.polled.iter().find(|polled| polled.0 == listener).cloned();
            drop(backlog);
            polled.iter().for_each(|(_, events)| events.ring());
            wakeups::wake_all(); // the thread that accepts may be another one
        }
        Some(Err(errno)) => {
            if crate::ipc::settings::settings().tell {
                text::say(format_args!("client refused: {} (errno {errno})", text::meaning(errno)));
            }
        }
    }
}

/// Drops clients that have not greeted in time; returns how long the others may still take.
fn drop_late() -> i32 {
    while take(|one| one.handshake.milliseconds() == 0).is_some() {}
    let backlog = BACKLOG.lock();
    let left = backlog.greeting.iter().map(|one| one.handshake.milliseconds());
    left.min().unwrap_or(i32::MAX)
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
    // Ordered by their last step: the first has been silent for longest.
    let full = BACKLOG.lock().greeting.len() >= MOST;
    drop(take(|_| full));
    advance(Incoming { listener: file, number, handshake, socket });
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

/// Arms the descriptor of a listener's events, begins to greet all clients in its queue, and returns
/// whether one can be accepted.
pub fn arm(listener: i32, settings: Settings) -> os::Result<bool> {
    let file = file_of(listener)?;
    events(listener)?.arm();
    drop_late();
    let has_client = || os::poll([(listener, libc::POLLIN)], 0).is_ok_and(|events| events != [0]);
    while has_client() && begin(listener, file, settings)? {}
    Ok(BACKLOG.lock().ready.iter().any(|ready| ready.0 == file))
}

/// Returns the next client that has greeted. Waits until `end`, a time of `sys::nanoseconds`;
/// `None`: as the listener's O_NONBLOCK says. `serve` serves the background set.
pub fn accept(
    listener: i32,
    settings: Settings,
    end: Option<u64>,
    serve: impl Fn(),
) -> os::Result<Established> {
    let file = file_of(listener)?;
    let waits = end.is_some() || !os::is_nonblocking(listener);
    let mut last = false;
    loop {
        check_file(listener, file)?;
        let mut limit = drop_late();
        // Before the look: a thread that ends a greeting after it wakes us.
        let wakeups = waits.then(Wakeups::new);
        serve(); // also what other threads have noted, and woken us for
        if let Some(ready) = take_ready(file) {
            return Ok(ready);
        }
        if last {
            return Err(if waits { libc::ETIMEDOUT } else { libc::EAGAIN });
        }
        if let Some(end) = end {
            let left = end.saturating_sub(sys::nanoseconds()).div_ceil(1_000_000);
            limit = limit.min(left.min(i32::MAX as u64) as i32);
        }
        if background::was_skipped() {
            limit = limit.min(1);
        }
        let (woken, limit) = wakeups.as_ref().map_or((-1, 0), |all| (all.raw(), all.limit(limit)));
        let set = [listener, background::raw()?, woken].map(|fd| (fd, libc::POLLIN));
        let [client, ..] = os::poll(set, limit)?;
        if client != 0 {
            check_file(listener, file)?;
            begin(listener, file, settings).inspect_err(|errno| {
                if let libc::EMFILE | libc::ENFILE = *errno {
                    let _ = os::poll([(-1, 0)], EMFILE_BACKOFF_MS);
                }
            })?;
        } else {
            last = !waits || end.is_some_and(|end| sys::nanoseconds() >= end);
        }
    }
}

/// Returns the descriptor that an event loop polls for a listener.
pub fn events(listener: i32) -> os::Result<Arc<Events>> {
    let file = file_of(listener)?;
    let known = |backlog: &Backlog| backlog.polled.iter().find(|one| one.0 == file).cloned();
    if let Some((_, events)) = known(&BACKLOG.lock()) {
        return Ok(events);
    }
    let events = Events::new([(listener, libc::POLLIN), (background::raw()?, libc::POLLIN)])?;
    let mut backlog = BACKLOG.lock();
    backlog.polled.push((file, Arc::new(events)));
    known(&backlog).map(|(_, events)| events).ok_or(libc::ENOMEM)
}

/// Forgets a listener that was closed, and its clients.
pub fn forget(listener: Option<File>) {
    while take(|incoming| Some(incoming.listener) == listener).is_some() {}
    let mut backlog = BACKLOG.lock();
    backlog.polled.retain(|polled| Some(polled.0) != listener);
    let (gone, ready) = core::mem::take(&mut backlog.ready)
        .into_iter()
        .partition::<Vec<_>, _>(|ready| Some(ready.0) == listener);
    backlog.ready = ready;
    drop(backlog);
    drop(gone);
}

/// Forgets the parent's clients in the child of a fork.
pub fn forget_after_fork() {
    BACKLOG.renew();
}
