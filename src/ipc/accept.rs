//! Who has come to a listener and has not finished the handshake. They are looked after together,
//! by whoever accepts, so that one who says nothing keeps nobody else out. No lock is held while
//! one of them is: who goes on with a handshake takes it out meanwhile.

use super::blocking::CLOSERS;
use super::handshake::{Established, Handshake};
use super::hidden::Hidden;
use super::lock::Lock;
use super::os;
use super::settings::Settings;
use crate::os::sys;
use alloc::vec;
use alloc::vec::Vec;

/// So many of them, of all listeners; others stay in the listener's queue.
const MOST: usize = 128;

/// For so long, in nanoseconds, nobody has to make room for others.
const GRACE: u64 = 250_000_000;

struct Incoming {
    /// Which file it is.
    listener: (u64, u64),
    user: u32,
    since: u64,
    /// Goes before its socket does.
    handshake: Handshake,
    _socket: Hidden,
}

static BACKLOG: Lock<Vec<Incoming>> = Lock::new(Vec::new());

/// Takes one out, to be dropped or gone on with while the lock is not held.
fn take(which: impl FnMut(&Incoming) -> bool) -> Option<Incoming> {
    let mut backlog = BACKLOG.lock();
    let index = backlog.iter().position(which)?;
    Some(backlog.remove(index))
}

/// The one who has to make room, since when: of the user who has most, the oldest.
fn oldest_of_greediest(backlog: &[Incoming]) -> Option<u64> {
    let of_user = |user| backlog.iter().filter(move |incoming| incoming.user == user).count();
    let key = |incoming: &&Incoming| (of_user(incoming.user), core::cmp::Reverse(incoming.since));
    backlog.iter().max_by_key(key).map(|incoming| incoming.since)
}

/// Waits for the next whose handshake is over, well or not.
pub fn accept(listener: i32, settings: Settings) -> os::Result<Established> {
    if !os::is_listener(listener) {
        return os::accept(listener).and(Err(libc::EINVAL)); // what accept says
    }
    let file = sys::file_of(listener).ok_or(libc::EBADF)?;
    // Another thread may close it, and the number become that of another file.
    let still = || match sys::file_of(listener) == Some(file) {
        true => Ok(()),
        false => {
            forget(Some(file));
            Err(libc::EBADF)
        }
    };
    loop {
        still()?;
        // Also those of listeners that nobody asks any more.
        while let Some(late) = take(|incoming| incoming.handshake.milliseconds() == 0) {
            if late.listener == file {
                return Err(libc::ETIMEDOUT);
            }
        }
        if CLOSERS.is_behind() {
            return Err(libc::EMFILE);
        }
        let (mut events, mut limit) = (vec![(listener, libc::POLLIN)], i32::MAX);
        let backlog = BACKLOG.lock();
        for Incoming { handshake, .. } in backlog.iter().filter(|one| one.listener == file) {
            events.push(handshake.events());
            limit = limit.min(handshake.milliseconds());
        }
        let full = backlog.len() >= MOST;
        let makes_room = oldest_of_greediest(&backlog).filter(|_| full);
        drop(backlog);
        let ripe_in = makes_room.map(|since| (since + GRACE).saturating_sub(sys::nanoseconds()));
        if let Some(nanos @ 1..) = ripe_in {
            events[0].0 = -1;
            limit = limit.min(nanos.div_ceil(1_000_000) as i32);
        }
        // With nobody else to look after it waits here, as accept(2) does.
        let alone = events.len() == 1 && !full;
        let said = if alone { vec![1] } else { os::poll_until_signal(&events, limit)? };
        let ready = events.iter().zip(&said).skip(1).filter(|(_, said)| **said != 0);
        for ((fd, _), _) in ready {
            let is_it = |one: &Incoming| one.listener == file && one.handshake.events().0 == *fd;
            let Some(mut incoming) = take(is_it) else { continue };
            if let Some(done) = incoming.handshake.go_on() {
                return done;
            }
            BACKLOG.lock().push(incoming);
        }
        if said[0] != 0 {
            still()?;
            let _socket = Hidden::new(os::accept(listener)?);
            let (user, since) = (
                os::maker_of(_socket.raw()).map_or(u32::MAX, |maker| maker.uid),
                sys::nanoseconds(),
            );
            let end = since + settings.patience;
            let handshake = Handshake::new(_socket.raw(), settings, end);
            let incoming = Incoming { listener: file, user, since, handshake, _socket };
            drop(makes_room.and_then(|since| take(|one| one.since == since)));
            BACKLOG.lock().push(incoming);
        }
    }
}

/// A listener was closed, which was this file.
pub fn forget(listener: Option<(u64, u64)>) {
    while take(|incoming| Some(incoming.listener) == listener).is_some() {}
}

/// In the child of a fork: they are the parent's.
pub fn forget_after_fork() {
    BACKLOG.renew();
}
