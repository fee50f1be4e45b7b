//! Who has come to a listener and has not finished the handshake. They are looked after together,
//! by whoever accepts, so that one who says nothing keeps nobody else out. No lock is held while
//! one of them is: who goes on with a handshake takes it out meanwhile. When nobody accepts any
//! more, here, they come to the listener again (`connect`), where other processes find them, and
//! who polls it.

use super::blocking::CLOSERS;
use super::handshake::{Established, Handshake};
use super::lock::Lock;
use super::os::{self, Fd};
use super::settings::Settings;
use crate::os::sys;
use alloc::vec;
use alloc::vec::Vec;

/// So many of them, of all listeners; others stay in the listener's queue.
const MOST: usize = 128;

/// For so long, in nanoseconds, nobody has to make room for others.
const GRACE: u64 = 250_000_000;

/// For so long one that has just come, or said something, is likely to go on: the next stays in the
/// listener's queue, where everybody can find it.
const ATTENTION: u64 = 2_000_000;

/// So long, in milliseconds, who may let in nobody is held up before it is told so.
const BREATH: i32 = 10;

struct Incoming {
    /// Which file it is.
    listener: (u64, u64),
    since: u64,
    /// Goes before its socket does.
    handshake: Handshake,
    socket: Fd,
}

impl Incoming {
    fn is_gone(&self) -> bool {
        os::poll_few([(self.socket.raw(), 0)], 0)[0] & libc::POLLHUP != 0
    }
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
    let of_user = |user| backlog.iter().filter(move |one| one.socket.other_end == user).count();
    let key = |one: &&Incoming| (of_user(one.socket.other_end), core::cmp::Reverse(one.since));
    backlog.iter().max_by_key(key).map(|one| one.since)
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
    // Who was left over from another call, and has gone since, may have come again, and have been
    // accepted elsewhere.
    while take(|incoming| incoming.listener == file && incoming.is_gone()).is_some() {}
    loop {
        still()?;
        // Also those of listeners that nobody asks any more.
        while let Some(late) = take(|incoming| incoming.handshake.milliseconds() == 0) {
            if late.listener == file {
                return Err(libc::ETIMEDOUT);
            }
        }
        if CLOSERS.is_swamped() {
            // Whoever polls the listener asks again at once, as long as somebody waits there.
            os::poll_few([(-1, 0)], BREATH);
            return Err(libc::EMFILE);
        }
        let (mut events, mut limit) = (vec![os::poll_entry((listener, libc::POLLIN))], i32::MAX);
        let now = sys::nanoseconds();
        let backlog = BACKLOG.lock();
        for Incoming { handshake, since, .. } in backlog.iter().filter(|one| one.listener == file) {
            events.push(os::poll_entry(handshake.events()));
            limit = limit.min(handshake.milliseconds());
            // Who says its greetings byte by byte has it for no longer than a few honest ones.
            let moved = handshake.moved().clamp(*since, since + 4 * ATTENTION);
            if now < moved + ATTENTION {
                events[0].fd = -1;
                limit = limit.min((ATTENTION / 1_000_000) as i32);
            }
        }
        let full = backlog.len() >= MOST;
        let makes_room = oldest_of_greediest(&backlog).filter(|_| full);
        drop(backlog);
        let ripe_in = makes_room.map(|since| (since + GRACE).saturating_sub(sys::nanoseconds()));
        if let Some(nanos @ 1..) = ripe_in {
            events[0].fd = -1;
            limit = limit.min(nanos.div_ceil(1_000_000) as i32);
        }
        // With nobody else to look after it waits here, as accept(2) does.
        let alone = events.len() == 1 && !full;
        if !alone {
            os::poll_set(&mut events, limit)?;
        }
        // Everybody who has something to say is gone on with, and then the next comes in.
        for entry in events.iter().skip(1).filter(|entry| entry.revents != 0) {
            let is_it =
                |one: &Incoming| one.listener == file && one.handshake.events().0 == entry.fd;
            if let Some(done) = take(is_it).and_then(|incoming| go_on(incoming, listener)) {
                return done;
            }
        }
        if alone || events[0].revents != 0 {
            still()?;
            let (socket, since) = (os::accept(listener)?, sys::nanoseconds());
            let end = since + settings.patience;
            let handshake = Handshake::new(socket.raw(), settings, end, true);
            let incoming = Incoming { listener: file, since, handshake, socket };
            drop(makes_room.and_then(|since| take(|one| one.since == since)));
            if let Some(done) = go_on(incoming, listener) {
                return done;
            }
        }
    }
}

/// The answer, if that was its last step. One that is gone is not worth mentioning where there are
/// others: it may have come again.
fn go_on(mut incoming: Incoming, listener: i32) -> Option<os::Result<Established>> {
    let (done, file) = (incoming.handshake.go_on(), incoming.listener);
    let Some(done) = done else {
        BACKLOG.lock().push(incoming);
        return None;
    };
    let others = || {
        BACKLOG.lock().iter().any(|one| one.listener == file)
            || os::poll_few([(listener, libc::POLLIN)], 0) != [0]
    };
    (done.is_ok() || !incoming.is_gone() || !others()).then_some(done)
}

/// A listener was closed, which was this file.
pub fn forget(listener: Option<(u64, u64)>) {
    while take(|incoming| Some(incoming.listener) == listener).is_some() {}
}

/// In the child of a fork: they are the parent's.
pub fn forget_after_fork() {
    BACKLOG.renew();
}
