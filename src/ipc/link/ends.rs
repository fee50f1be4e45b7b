//! The ends of a connection: the peer's, however it comes, and our own.

use super::Link;
use crate::ipc::copy::Proven;
use crate::ipc::memory::region::closed;
use crate::ipc::messages::Role;
use crate::ipc::os;
use crate::ipc::wake::doorbell::how;
use crate::os::sys;
use core::sync::atomic::Ordering;

/// Ticks for which a check of the peer's life and of our own rights is valid: a few milliseconds.
/// Every copy checks for itself that the peer has executed no other program.
const BELIEVED_TICKS: u64 = 10_000_000;

/// States of the peer.
pub mod other {
    pub const ALIVE: u32 = 0;
    /// The peer closes; pieces that it has begun may still be copied.
    pub const CLOSING: u32 = 1;
    /// A side has changed its rights, so the proofs do not hold; pieces may still be copied.
    pub const CHANGED: u32 = 2;
    /// The peer has closed.
    pub const CLOSED: u32 = 3;
    pub const DIED: u32 = 4;
    /// The peer has broken the protocol.
    pub const BROKEN: u32 = 5;
}

impl Link {
    /// Notes the peer's end if polling `descriptors` has reported one. True: it is alive.
    pub fn note_events(&self, events: [i16; 2]) -> bool {
        // POLLRDHUP: we shut our end down only when we close, the peer never does.
        let half = if self.closing.load(Ordering::Acquire) { 0 } else { libc::POLLRDHUP };
        let hung_up = events[0] & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL | half) != 0;
        let dead = events[1] & libc::POLLIN != 0;
        if !hung_up && !dead {
            return true;
        }
        let closed = self.theirs().closed.0.load(Ordering::Acquire);
        // Two sides that close have both stopped reading, which looks like an end; but the peer may
        // be in the middle of a piece.
        if !dead && closed == closed::BEGUN && self.closing.load(Ordering::Acquire) {
            return true;
        }
        let orderly = closed & (closed::BEGUN | closed::DONE) != 0;
        self.note_end(if orderly && !self.has_changed() { other::CLOSED } else { other::DIED });
        false
    }

    pub fn look_for_end(&self) -> bool {
        self.believed_at.store(sys::ticks(), Ordering::Relaxed);
        let look = || {
            let events = os::poll(self.descriptors(), 0).unwrap_or_default();
            self.note_events(events);
            events[1] & libc::POLLIN == 0
        };
        // A process that has ended by now has nothing to read.
        if look()
            && let Some(proven) = self.proven()
            && !self.is_as_proven(proven)
            && look()
        {
            self.note_changed();
        }
        self.is_there()
    }

    /// Returns whether this process still lets itself be reached (one that has become not dumpable
    /// gives a peer nothing more), and both still have their user.
    fn is_as_proven(&self, proven: &Proven) -> bool {
        let uid = self.peer.uid;
        os::is_dumpable() && sys::geteuid() as u32 == uid && proven.has_user(uid)
    }

    /// Ends the connection for both sides: the proofs do not hold any more.
    #[cold]
    fn note_changed(&self) {
        // Not if it closes: the peer knows that then.
        let closed = &self.mine().closed.0;
        let _ = closed.compare_exchange(0, closed::CHANGED, Ordering::AcqRel, Ordering::Relaxed);
        self.changed.store(true, Ordering::Release);
        self.note_end(other::CHANGED);
        self.ring();
    }

    fn is_there(&self) -> bool {
        self.other.load(Ordering::Relaxed) < other::CHANGED
    }

    /// Returns whether the counts that the peer reports can be trusted.
    pub fn is_trusted(&self) -> bool {
        self.believe();
        !self.has_changed()
    }

    fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Acquire) || self.other.load(Ordering::Relaxed) == other::CHANGED
    }

    /// Checks the peer's life and our own rights, at most every few milliseconds.
    pub fn believe(&self) -> bool {
        let since = sys::ticks().wrapping_sub(self.believed_at.load(Ordering::Relaxed));
        if since > BELIEVED_TICKS {
            return self.look_for_end();
        }
        self.is_there()
    }

    pub(super) fn note_end(&self, end: u32) {
        if self.other.fetch_max(end, Ordering::AcqRel) < end {
            // The kernel does not notify all threads.
            self.ring_own();
        }
    }

    /// Returns the peer's end before a message is posted: an eager write would not notice by
    /// itself. Checked before every large message and by every 16th write, because the clock costs
    /// more than the rest. Messages that the peer has written before its end can still be read.
    #[inline]
    pub fn end_before(&self, role: Role, is_large: bool) -> u32 {
        let mut look = is_large;
        if role == Role::Writer {
            let writes = self.writes.load(Ordering::Relaxed).wrapping_add(1);
            self.writes.store(writes, Ordering::Relaxed);
            look |= writes % 16 == 1;
        }
        if look {
            self.believe();
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
            closed::CHANGED => other::CHANGED,
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

    /// Returns the error of a message if either side has ended.
    pub fn end_for(&self) -> Option<isize> {
        let gone = self.end_of_other();
        let over = gone != other::ALIVE || self.closing.load(Ordering::Acquire);
        over.then(|| self.failure(gone))
    }

    /// Returns the error of a message that will not be transferred. Our own closing comes first: the
    /// peer may have closed because of it.
    pub fn failure(&self, gone: u32) -> isize {
        let errno = match gone {
            _ if self.closing.load(Ordering::Acquire) => libc::EBADF,
            other::CLOSING | other::CLOSED => libc::EPIPE,
            other::BROKEN => libc::EPROTO,
            _ => libc::ECONNRESET,
        };
        -errno as isize
    }

    // ---- our own

    /// Returns whether this side closes, and shows that to the peer, before a message is
    /// given up for it, which would look cancelled otherwise.
    pub fn shows_closing(&self) -> bool {
        let closing = self.closing.load(Ordering::Acquire);
        if closing {
            let (closed, unread) = (&self.mine().closed.0, Ordering::Relaxed);
            let _ = closed.compare_exchange(0, closed::BEGUN, Ordering::AcqRel, unread);
        }
        closing
    }

    /// Begins to close: no piece of ours is claimed any more, and threads that wait here return.
    pub fn begin_close(&self) {
        self.closing.store(true, Ordering::Release);
        self.mine().closed.0.store(closed::BEGUN, Ordering::Release);
        for role in Role::BOTH {
            let (endpoint, lane) = self.endpoint(role);
            let mut endpoint = endpoint.lock();
            for number in endpoint.under_way() {
                endpoint.cancel(lane, number);
            }
        }
        if self.socket.is_there() {
            self.ring();
        }
        self.leave_service(); // the socket is readable from now on
        os::shut_down(&self.socket, libc::SHUT_RD);
        self.mine().doorbell.0.ring();
    }

    /// Waits until the peer has finished the pieces it has begun in our buffers: short, unless that
    /// process is stopped. False: it took too long.
    pub fn end_close(&self, limit: u64) -> bool {
        for role in Role::BOTH {
            let (endpoint, lane) = self.endpoint(role);
            loop {
                let seen = self.mine().doorbell.0.announce(how::WORD);
                let alone = self.end_of_other() >= other::CLOSED;
                let mut endpoint = endpoint.lock();
                let left = endpoint
                    .under_way()
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
