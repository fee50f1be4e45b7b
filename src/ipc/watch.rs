//! Long sleeps: until something happens on a connection that needs this process.
//!
//! There is no helper thread, so somebody who waits on one connection must also hear of the
//! others: a message that is streamed goes on only while both sides look after it, and what
//! one waits for may depend on it, around a ring of processes. Who sleeps long polls the
//! sockets of all connections that may need help. Each connection has one such sleeper at a
//! time, and the one who has it takes the byte that was sent; everybody else who waits on it
//! sleeps on its word `local`. Sleepers are kicked when a connection that needs help gets a
//! post, or loses its sleeper.

use super::blocking;
use super::doorbell::how;
use super::endpoint::{MessagePiece, Role};
use super::engine::Outcome;
use super::link::Link;
use super::lock::Lock;
use super::os::{self, Fd};
use super::table::{self, Used};
use crate::os::sync::full_fence;
use crate::os::sys;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

fn has_needy_others(link: &Link) -> bool {
    NEEDY.load(Ordering::Relaxed) > u32::from(link.must_help.load(Ordering::Relaxed))
}

/// Does something for any connection but this one. True: something was done.
pub fn help_others(link: &Link, limited: bool) -> bool {
    has_needy_others(link) && table::others(link).any(|other| other.help(limited))
}

pub fn others_need_help(link: &Link) -> bool {
    has_needy_others(link) && table::others(link).any(|other| other.wants_watching())
}

/// Connections that go on only with our help, or nearly so many: a child made without fork
/// handlers has its parent's, until it has a connection of its own.
static NEEDY: AtomicU32 = AtomicU32::new(0);

/// Where sleepers are kicked, and how many there are.
static SLEEPERS: Lock<Vec<i32>> = Lock::new(Vec::new());
static ASLEEP: AtomicU32 = AtomicU32::new(0);

/// In a process that has no connections yet: what is here is its parent's.
pub fn forget_sleepers() {
    NEEDY.store(0, Ordering::Relaxed);
    ASLEEP.store(0, Ordering::Relaxed);
    SLEEPERS.renew();
}

pub fn note_needy() {
    NEEDY.fetch_add(1, Ordering::Relaxed);
}

pub fn forget_needy() {
    NEEDY.fetch_sub(1, Ordering::Relaxed);
}

/// Wakes who sleeps long: a connection that needs help has a new post, or one sleeper less.
pub fn kick() {
    if NEEDY.load(Ordering::Relaxed) != 0 {
        kick_all();
    }
}

/// Wakes who sleeps long, and has not been told by the other side: something has been done for
/// it here.
pub fn kick_all() {
    full_fence();
    if ASLEEP.load(Ordering::Relaxed) != 0 {
        SLEEPERS.lock().iter().for_each(|&socket| os::send_byte(socket));
    }
}

/// While this lives, a kick makes the first of the pair readable. Sockets, for a byte that is sent
/// to a number which the program has given to a file of its own is refused.
struct Kicks([Fd; 2]);

impl Kicks {
    /// None where there is nobody to kick.
    fn new() -> Option<Self> {
        if sys::has_one_thread() {
            return None;
        }
        let pair = os::unix_pair().ok()?;
        let mut sleepers = SLEEPERS.lock();
        sleepers.push(pair[1].raw());
        ASLEEP.store(sleepers.len() as u32, Ordering::Relaxed);
        drop(sleepers);
        full_fence();
        Some(Self(pair))
    }
}

impl Drop for Kicks {
    fn drop(&mut self) {
        let mut sleepers = SLEEPERS.lock();
        sleepers.retain(|&socket| socket != self.0[1].raw());
        ASLEEP.store(sleepers.len() as u32, Ordering::Relaxed);
    }
}

impl Link {
    /// Copies a piece that was claimed, with no lock held. Who is `limited` does nothing that may
    /// take longer than copying.
    pub fn copy_or_defer(&self, role: Role, number: u32, piece: MessagePiece, limited: bool) {
        if !limited || !self.engine.may_hang(role.way(), piece.theirs) {
            return self.copy_with_workers(role, number, piece);
        }
        let handle = self.handle.load(Ordering::Acquire) as i32;
        let taken = table::find_any(handle).is_ok_and(|link| {
            blocking::COPIERS.take(Box::new(move || {
                link.copy(role, number, piece);
                link.ring_own();
            }))
        });
        if !taken {
            self.finish(role, number, Outcome::NotThisTime);
        }
    }
}

/// In nanoseconds. Wake-ups are not lost; should one be, it is a delay and not the end.
pub const MOST_SLEEP: u64 = 4_000_000_000;

/// A sleep that is announced everywhere; look once more before it begins.
pub struct AnnouncedSleep<'a> {
    link: &'a Link,
    /// Whether its socket is ours to poll.
    mine: bool,
    seen: u32,
    others: Vec<Used>,
    kicks: Option<Kicks>,
}

impl<'a> AnnouncedSleep<'a> {
    pub fn new(link: &'a Link) -> Self {
        let seen = link.local.load(Ordering::Acquire);
        let mine = link.take_polling();
        let mut watch = Self { link, mine, seen, others: Vec::new(), kicks: None };
        if mine {
            // Who posts after the look that follows kicks us.
            watch.kicks = Kicks::new();
            let wanting = table::others(link).filter(|other| other.wants_watching());
            watch.others.extend(wanting.filter(|other| other.take_polling()));
        }
        for link in watch.links() {
            link.mine().doorbell.0.announce(how::BYTE);
        }
        watch
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        core::iter::once(self.link).chain(self.others.iter().map(|used| &**used))
    }

    /// Sleeps at most so long. Nobody sleeps longer than `MOST_SLEEP` without another look.
    pub fn sleep(self, nanos: u64) {
        if !self.mine {
            // Another thread polls for us.
            sys::futex_wait(self.link.local.as_ptr(), self.seen, nanos);
            return;
        }
        let kicks = self.kicks.as_ref().map(|kicks| (kicks.0[0].raw(), libc::POLLIN));
        let fds = self.links().flat_map(Link::descriptors).chain(kicks);
        let events = os::poll(fds, nanos.div_ceil(1_000_000) as i32);
        for (link, events) in self.links().zip(events.chunks_exact(2)) {
            link.note_events(events);
            if events[0] != 0 {
                link.drain();
                // The other side may have lost a right, and woken us for that.
                link.is_needy();
            }
        }
    }
}

impl Drop for AnnouncedSleep<'_> {
    fn drop(&mut self) {
        if self.mine {
            self.link.leave_polling();
        }
        self.others.iter().for_each(|other| other.leave_polling());
    }
}
