//! Long sleeps: until something happens on a connection that needs this process.
//!
//! There is no helper thread, so somebody who waits on one connection must also hear of the
//! others: a message that is streamed goes on only while both sides look after it, and what
//! one waits for may depend on it, around a ring of processes. Who sleeps long polls the
//! sockets of all connections that may need help. Each connection has one such sleeper at a
//! time, and the one who has it takes the byte that was sent; everybody else who waits on it
//! sleeps on its doorbell's word. Sleepers are kicked when a connection that needs help gets a
//! post, or loses its sleeper.

use super::doorbell::how;
use super::kicks::Kicks;
use super::link::Link;
use super::os;
use super::table::{self, Used};
use crate::os::sys;
use alloc::vec::Vec;

/// In nanoseconds. Wake-ups are not lost; should one be, it is a delay and not the end.
pub const MOST_SLEEP: u64 = 4_000_000_000;

/// The same for who hears only of its own connection, for want of memory or descriptors.
const BLIND_SLEEP: u64 = 10_000_000;

/// A sleep that is announced everywhere; look once more before it begins.
pub struct AnnouncedSleep<'a> {
    link: &'a Link,
    others: Vec<Used>,
    kicks: Option<Kicks>,
    most: u64,
}

impl<'a> AnnouncedSleep<'a> {
    /// None: another thread polls for this connection.
    pub fn new(link: &'a Link) -> Option<Self> {
        if !link.take_polling() {
            return None;
        }
        // Who posts after the look that follows kicks us.
        let (others, kicks, most) = (Vec::new(), Kicks::new(), MOST_SLEEP);
        let mut sees_all = kicks.is_some() || sys::has_one_thread();
        let mut watch = Self { link, others, kicks, most };
        for other in table::others(link).filter(|other| other.wants_watching()) {
            let room = watch.others.try_reserve(1).is_ok();
            if room && other.take_polling() {
                watch.others.push(other);
            }
            sees_all &= room;
        }
        if !sees_all {
            watch.most = BLIND_SLEEP;
        }
        for link in watch.links() {
            link.mine().doorbell.0.announce(how::BYTE);
        }
        Some(watch)
    }

    fn links(&self) -> impl Iterator<Item = &Link> {
        core::iter::once(self.link).chain(self.others.iter().map(|used| &**used))
    }

    /// Sleeps at most so long. Nobody sleeps longer than `MOST_SLEEP` without another look.
    pub fn sleep(self, nanos: u64) {
        let kicks = self.kicks.as_ref().map_or(-1, |kicks| kicks.raw());
        let [own, process] = self.link.descriptors();
        let mut few = [(kicks, libc::POLLIN), own, process].map(os::poll_entry);
        let settled = self.links().map(|link| link.engine.mappings.nanos_to_settle()).min();
        let nanos = nanos.min(self.most).min(settled.unwrap_or(u64::MAX));
        let (mut all, mut limit) = (Vec::new(), nanos.div_ceil(1_000_000) as i32);
        let set = match all.try_reserve(few.len() + 2 * self.others.len()) {
            Ok(()) => {
                let others = self.others.iter().flat_map(|other| other.descriptors());
                all.extend(few.into_iter().chain(others.map(os::poll_entry)));
                &mut all[..]
            }
            Err(_) => {
                limit = limit.min((BLIND_SLEEP / 1_000_000) as i32);
                &mut few[..]
            }
        };
        let _ = os::poll_set(set, limit);
        for (link, entries) in self.links().zip(set[1..].chunks_exact(2)) {
            let events = [entries[0].revents, entries[1].revents];
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
        self.links().for_each(Link::leave_polling);
    }
}
