//! The ends of a connection: of the other process, however that comes, and our own.

use super::Link;
use crate::ipc::doorbell::how;
use crate::ipc::endpoint::Role;
use crate::ipc::os;
use crate::ipc::region::closed;
use crate::os::sys;
use core::sync::atomic::Ordering;

/// How long the other is believed to be there, and our equal, without another look, in ticks: a
/// few milliseconds. That it is the same program is looked at by every call.
const BELIEVED_TICKS: u64 = 10_000_000;

/// What is known of the other side.
pub mod other {
    pub const ALIVE: u32 = 0;
    /// It has said that it closes; what it has begun it may still finish.
    pub const CLOSING: u32 = 1;
    /// The two are no equals any more; what it has begun it may still finish.
    pub const CHANGED: u32 = 2;
    /// It has closed.
    pub const CLOSED: u32 = 3;
    pub const DIED: u32 = 4;
    /// It writes nonsense into the region.
    pub const BROKEN: u32 = 5;
}

impl Link {
    /// What polling its descriptors has told: notes the end of the other side. True: it is there.
    pub fn note_events(&self, events: [i16; 2]) -> bool {
        // Nothing more comes: the other side does that to no connection, and we only when we close.
        let half = if self.closing.load(Ordering::Acquire) { 0 } else { libc::POLLRDHUP };
        let hung_up = events[0] & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL | half) != 0;
        let dead = events[1] & libc::POLLIN != 0;
        if !hung_up && !dead {
            return true;
        }
        let closed = self.theirs().closed.0.load(Ordering::Acquire);
        // Two sides that close have both stopped reading, which looks like an end. It is none:
        // the other may be in the middle of a piece.
        if !dead && closed == closed::BEGUN && self.closing.load(Ordering::Acquire) {
            return true;
        }
        let orderly = closed & (closed::BEGUN | closed::DONE) != 0;
        self.note_end(if orderly && !self.has_changed() { other::CLOSED } else { other::DIED });
        false
    }

    pub(super) fn look_for_end(&self) -> bool {
        self.believed_at.store(sys::ticks(), Ordering::Relaxed);
        let look = || {
            let events = os::poll_few(self.descriptors(), 0);
            self.note_events(events);
            events[1] & libc::POLLIN == 0
        };
        // Also of one that has hung up. Of one that has ended by now there is nothing to be read.
        if look() && !self.engine.peer.is_as_it_was() && look() {
            self.note_changed();
        }
        self.is_there()
    }

    /// What was agreed is no longer so, and there is no other agreement: it ends, for both.
    #[cold]
    fn note_changed(&self) {
        // Not if it closes: then that is known.
        let closed = &self.mine().closed.0;
        let _ = closed.compare_exchange(0, closed::UNEQUAL, Ordering::AcqRel, Ordering::Relaxed);
        self.changed.store(true, Ordering::Release);
        self.note_end(other::CHANGED);
        self.ring();
    }

    fn is_there(&self) -> bool {
        self.other.load(Ordering::Relaxed) < other::CHANGED
    }

    /// Whether what the other process says that it has done can be believed: no longer if it is
    /// our equal no longer, whatever becomes of it then.
    pub fn is_trusted(&self) -> bool {
        self.believe();
        !self.has_changed()
    }

    fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire) || self.other.load(Ordering::Relaxed) == other::CHANGED
    }

    /// Looks for the other's end, and at its rights, but not more often than every few
    /// milliseconds.
    pub fn believe(&self) -> bool {
        let since = sys::ticks().wrapping_sub(self.believed_at.load(Ordering::Relaxed));
        if since > BELIEVED_TICKS {
            return self.look_for_end();
        }
        self.is_there()
    }

    pub(super) fn note_end(&self, end: u32) {
        if self.other.fetch_max(end, Ordering::AcqRel) < end {
            // Not everybody hears of it from the kernel.
            self.ring_own();
        }
    }

    /// Before a message is posted: an eager write would not notice an end by itself. Looked
    /// for now and then, because looking at the clock costs more than the rest of it. What
    /// the other has written before its end can still be read.
    #[inline]
    pub fn end_before(&self, role: Role) -> u32 {
        if role == Role::Writer {
            let writes = self.writes.load(Ordering::Relaxed).wrapping_add(1);
            self.writes.store(writes, Ordering::Relaxed);
            if writes % 16 == 1 {
                self.believe();
            }
        }
        self.end_of_other()
    }

    #[inline]
    pub fn end_of_other(&self) -> u32 {
        let known = self.other.load(Ordering::Acquire);
        if known != other::ALIVE {
            return known;
        }
        let end = match self.theirs().closed.0.load(Ordering::Acquire) {
            0 => return known,
            closed::UNEQUAL => other::CHANGED,
            _ => other::CLOSING,
        };
        self.note_end(end);
        end
    }

    #[cold]
    pub fn broken(&self) -> isize {
        self.note_end(other::BROKEN);
        -libc::EPROTO as isize
    }

    /// What a message gets if either side has come to its end.
    pub fn end_for(&self, role: Role) -> Option<isize> {
        let gone = self.end_of_other();
        let over = gone != other::ALIVE || self.closing.load(Ordering::Acquire);
        over.then(|| self.failure(role, gone))
    }

    /// What a message gets that will not be transferred. That we close ourselves comes first:
    /// the other side may have closed because of it.
    pub fn failure(&self, role: Role, gone: u32) -> isize {
        match (gone, role) {
            _ if self.closing.load(Ordering::Acquire) => -libc::EBADF as isize,
            (other::CLOSING | other::CLOSED, Role::Reader) => 0,
            (other::CLOSING | other::CLOSED, Role::Writer) => -libc::EPIPE as isize,
            (other::BROKEN, _) => -libc::EPROTO as isize,
            _ => -libc::ECONNRESET as isize,
        }
    }

    // ---- our own

    /// Begins to close: nobody claims a piece of ours any more, and who waits here returns.
    pub fn begin_close(&self) {
        self.closing.store(true, Ordering::Release);
        self.mine().closed.0.store(closed::BEGUN, Ordering::Release);
        for role in Role::BOTH {
            let (endpoint, lane) = self.endpoint(role);
            let mut endpoint = endpoint.lock();
            for number in endpoint.unfinished() {
                endpoint.cancel(lane, number);
            }
        }
        if self.socket.is_there() {
            self.ring();
        }
        os::shut_down(&self.socket, libc::SHUT_RD);
        self.mine().doorbell.0.ring();
    }

    /// Waits until the other side has let go of our buffers. Only then may the program have
    /// them back; pieces are small, so this is short, unless that process is stopped. False:
    /// it took too long.
    pub fn end_close(&self, limit: u64) -> bool {
        for role in Role::BOTH {
            let (endpoint, lane) = self.endpoint(role);
            loop {
                let seen = self.mine().doorbell.0.announce(how::WORD);
                let alone = self.end_of_other() >= other::CLOSED;
                let mut endpoint = endpoint.lock();
                let left = endpoint
                    .unfinished()
                    .filter(|&number| !endpoint.abandon(lane, number, alone, 0))
                    .count();
                drop(endpoint);
                if left == 0 {
                    break;
                }
                if sys::nanoseconds() > limit {
                    return false;
                }
                self.sleep_shortly(seen);
            }
        }
        for endpoint in &self.endpoints {
            endpoint.lock().take_pins().for_each(|pin| self.unpin(pin));
        }
        self.mine().closed.0.store(closed::DONE, Ordering::Release);
        os::shut_down(&self.socket, libc::SHUT_RDWR);
        true
    }
}
