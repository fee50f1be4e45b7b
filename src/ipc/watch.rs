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
use alloc::vec::Vec;

/// In nanoseconds. Wake-ups are not lost; should one be, it is a delay and not the end.
pub const MOST_SLEEP: u64 = 4_000_000_000;

/// A sleep that is announced everywhere; look once more before it begins.
pub struct AnnouncedSleep<'a> {
    link: &'a Link,
    others: Vec<Used>,
    kicks: Option<Kicks>,
}

impl<'a> AnnouncedSleep<'a> {
    /// None: another thread polls for this connection.
    pub fn new(link: &'a Link) -> Option<Self> {
        if !link.take_polling() {
            return None;
        }
        // Who posts after the look that follows kicks us.
        let mut watch = Self { link, others: Vec::new(), kicks: Kicks::new() };
        let wanting = table::others(link).filter(|other| other.wants_watching());
        watch.others.extend(wanting.filter(|other| other.take_polling()));
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
        let kicks = self.kicks.as_ref().map(|kicks| (kicks.raw(), libc::POLLIN));
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
        self.links().for_each(Link::leave_polling);
    }
}
