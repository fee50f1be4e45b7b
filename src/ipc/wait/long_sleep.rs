//! Long sleeps: until something happens on a connection that needs this process.
//!
//! No thread serves connections, so a thread that waits on one also hears of the others: a streamed
//! message goes on only while both sides look after it, and what one side waits for may depend on
//! it, around a ring of processes. A thread that sleeps long polls its own socket and the background
//! set. Each connection has one such sleeper at a time; other threads that wait on it sleep on its
//! doorbell's word. Sleepers are woken when threads of this process have changed something.

use crate::ipc::link::Link;
use crate::ipc::os;
use crate::ipc::wait::steps;
use crate::ipc::wake::background;
use crate::ipc::wake::doorbell::how;
use crate::ipc::wake::wakeups::Wakeups;

/// Longest sleep in nanoseconds: a lost wake-up is a delay, not a hang.
pub const MOST_SLEEP: u64 = 4_000_000_000;

/// An announced sleep; look once more before it begins.
pub struct AnnouncedSleep<'a> {
    link: &'a Link,
    wakeups: Wakeups,
}

impl<'a> AnnouncedSleep<'a> {
    /// Announces a sleep. `None`: another thread polls for this connection.
    pub fn new(link: &'a Link) -> Option<Self> {
        if !link.take_polling() {
            return None;
        }
        // From here on, a thread that posts wakes us.
        let wakeups = Wakeups::new();
        link.mine().doorbell.0.announce(how::BYTE);
        Some(Self { link, wakeups })
    }

    /// Sleeps at most `nanos`.
    pub fn sleep(self, nanos: u64) {
        let others = steps::has_background(self.link).then(background::raw);
        let others = others.and_then(Result::ok).unwrap_or(-1);
        let [own, process] = self.link.descriptors();
        let set = [own, process, (self.wakeups.raw(), libc::POLLIN), (others, libc::POLLIN)];
        let limit = self.wakeups.limit(nanos.div_ceil(1_000_000) as i32);
        let [own, process, _, others] = os::poll(set, limit).unwrap_or_default();
        self.link.note_events([own, process]);
        if own != 0 {
            self.link.drain();
            // The peer may have told of messages that no thread waits for, or of a lost right.
            self.link.note_in_background();
        }
        if others != 0 {
            steps::serve_background(false);
        }
    }
}

impl Drop for AnnouncedSleep<'_> {
    fn drop(&mut self) {
        self.link.leave_polling();
    }
}
