//! One connection: posting, copying, and who is told of it; in it ends: how it ends.
//!
//! Nothing here waits, but for closing; see `wait`.

mod ends;

pub use ends::other;

use super::across::Pinned;
use super::blocks::{self, BlockAddress};
use super::endpoint::{AfterPost, Buffer, Endpoint, Hint, NoRoom, Role};
use super::engine::{MessagePiece, Outcome};
use super::handshake::Established;
use super::kicks::{self, NEEDY};
use super::lock::{Held, Lock, Released};
use super::os;
use super::region::{Lane, Side};
use super::{MOST_EAGER, OFFLOAD};
use crate::os::sys;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// How long to spin, in ticks of some GHz: longer than a small answer takes, shorter than
/// what falling asleep and being woken costs twice. It is halved, down to the least, by
/// every long sleep, and doubled by a short one: on a busy machine the other may not be running.
pub const MOST_SPIN: u64 = 60_000;
pub const LEAST_SPIN: u64 = 2_000;

/// How long to sleep on the word before polling: death is noticed this late at most.
pub const WORD_NANOSECONDS: u64 = 2_000_000;

/// The bit of `Side::lost`.
fn lost(role: Role) -> u32 {
    1 << role as u32
}

pub struct Link {
    established: Established,
    /// Which process this belongs to; see `table`.
    pub owner: u64,
    /// What it is called there; 0: nothing yet.
    pub handle: AtomicU32,
    pub spin_ticks: AtomicU64,
    endpoints: [Lock<Endpoint>; 2],
    other: AtomicU32,
    pub closing: AtomicBool,
    /// Not everything can be done by either side alone: who waits must help with everything.
    pub must_help: AtomicBool,
    /// One of our sleepers polls, the others sleep on the doorbell's word.
    polling: AtomicBool,
    believed_at: AtomicU64,
    /// The other process was our equal, and is so no longer.
    changed: AtomicBool,
    /// How many, or nearly so.
    writes: AtomicU32,
}

/// There is no message.
pub struct Unposted {
    /// What to answer, a negated errno.
    pub error: isize,
    /// But who can wait tries again when this changes.
    pub until: Option<Hint>,
}

impl core::ops::Deref for Link {
    type Target = Established;

    fn deref(&self) -> &Established {
        &self.established
    }
}

impl Link {
    pub fn new(established: Established, owner: u64) -> Self {
        let Established { engine, others, .. } = &established;
        let all = engine.may(Role::Reader) && engine.may(Role::Writer) && *others == [true; 2];
        if !all {
            NEEDY.fetch_add(1, Ordering::Relaxed);
        }
        Self {
            owner,
            handle: AtomicU32::new(0),
            spin_ticks: AtomicU64::new(MOST_SPIN),
            endpoints: Role::BOTH.map(|role| Lock::new(Endpoint::new(role, engine.terms))),
            other: AtomicU32::new(other::ALIVE),
            closing: AtomicBool::new(false),
            must_help: AtomicBool::new(!all),
            polling: AtomicBool::new(false),
            believed_at: AtomicU64::new(sys::ticks()),
            changed: AtomicBool::new(false),
            writes: AtomicU32::new(0),
            established,
        }
    }

    pub fn endpoint(&self, role: Role) -> (&Lock<Endpoint>, &Lane) {
        // A lane is written by the side of its number.
        (&self.endpoints[role as usize], &self.region.lanes[self.side ^ role as usize])
    }

    pub fn mine(&self) -> &Side {
        &self.region.sides[self.side]
    }

    pub fn theirs(&self) -> &Side {
        &self.region.sides[1 - self.side]
    }

    /// What tells of the other's end: the socket, and its process where that is known.
    pub fn descriptors(&self) -> [(i32, i16); 2] {
        let process = self.engine.peer.process().unwrap_or(-1);
        [(self.socket.raw(), libc::POLLIN | libc::POLLRDHUP), (process, libc::POLLIN)]
    }

    /// Something has changed that the other side may wait for.
    #[inline]
    pub fn ring(&self) {
        if self.theirs().doorbell.0.answer() {
            os::send_byte(self.socket.raw());
        }
    }

    /// The same for what was changed under a lock, which was the fence.
    #[inline]
    pub fn ring_after(&self, _: Released) {
        if self.theirs().doorbell.0.answer_after_fence() {
            os::send_byte(self.socket.raw());
        }
    }

    /// The same for the threads of this process: whatever is done for a message that is not the
    /// caller's own, the thread that waits for it sleeps and hears nothing from the other side.
    /// Who takes the announcements away wakes everybody who has made one.
    pub fn ring_own(&self) {
        if self.mine().doorbell.0.answer() {
            kicks::kick_all();
        }
    }

    /// After a step: tells the other side, and the threads of this one if it concerns them.
    pub fn let_go(&self, mut endpoint: Held<'_, Endpoint>) {
        let others_wait = core::mem::take(&mut endpoint.others_wait);
        self.ring_after(endpoint.release());
        if others_wait {
            self.ring_own();
        }
    }

    /// Whether the other side may reach the buffers of our writes, or of our reads.
    pub fn other_may(&self, role: Role) -> bool {
        let role = role.other();
        self.others[role as usize] && self.theirs().lost.load(Ordering::Relaxed) & lost(role) == 0
    }

    // ---- posting -------------------------------------------------------------------------

    /// What small messages lie in is nobody's business.
    #[inline]
    fn buffer(&self, role: Role, addr: usize, len: usize, pin: u64) -> Buffer {
        let (in_block, block) = match len > MOST_EAGER {
            true => self.block(role, addr, len),
            false => (false, None),
        };
        Buffer { addr, len, pin, in_block, block }
    }

    /// Whether a buffer lies in a block, and which, if the other side has got that.
    #[cold]
    fn block(&self, role: Role, addr: usize, len: usize) -> (bool, Option<BlockAddress>) {
        let place = blocks::find(addr, len);
        // Who is not our equal copies only into what was lent to it, and gets nothing else to read.
        let shown = |place: &BlockAddress| {
            let (socket, to_write) = (self.socket.raw(), role == Role::Reader);
            self.engine.mappings.show(socket, place.serial, to_write, || self.look_for_end())
        };
        (place.is_some(), place.filter(shown))
    }

    /// Takes in what the other side has sent. Whoever polls the socket may have been meant by
    /// other bytes there, and looks again.
    pub fn take_in(&self) {
        self.drain();
        self.mine().doorbell.0.ring();
        kicks::kick_all();
    }

    /// Inlined, for it is most of what a short message costs.
    ///
    /// # Safety
    /// As `start`.
    #[inline(always)]
    pub unsafe fn post(
        &self,
        role: Role,
        addr: usize,
        len: usize,
        cookie: bool,
        pinned: &mut Pinned<'_>,
    ) -> Result<(Held<'_, Endpoint>, AfterPost), Unposted> {
        let gone = self.end_before(role);
        if role == Role::Writer && gone != other::ALIVE {
            return Err(Unposted { error: self.failure(role, gone), until: None });
        }
        let (endpoint, lane) = self.endpoint(role);
        let mut endpoint = endpoint.lock();
        let buffer = self.buffer(role, addr, len, pinned.pin);
        // SAFETY: the caller's promise.
        let posted = unsafe {
            match role {
                Role::Writer => {
                    endpoint.post_write(lane, buffer, || self.is_direct(&buffer), cookie)
                }
                Role::Reader => endpoint.post_read(lane, buffer, cookie),
            }
        };
        match posted {
            Ok(posted) => {
                pinned.pin = 0; // the message's now
                Ok((endpoint, posted))
            }
            Err(why) => Err(self.unposted(role, gone, why)),
        }
    }

    #[cold]
    fn unposted(&self, role: Role, gone: u32, why: NoRoom) -> Unposted {
        let (error, until) = match why {
            // The other side says that it is done with what we have not posted. Who closes gives up
            // posts that met nothing, and has said so before; so does who hears that we close. From
            // anybody else it is nonsense.
            NoRoom::Broken => (self.end_for(role).unwrap_or_else(|| self.broken()), None),
            NoRoom::Uncollected => (-libc::EAGAIN as isize, None),
            _ if self.closing.load(Ordering::Acquire) => (-libc::EBADF as isize, None),
            NoRoom::OtherIsBehind(_) if gone != other::ALIVE => (self.failure(role, gone), None),
            NoRoom::InUse(hint) | NoRoom::OtherIsBehind(hint) => {
                (-libc::EAGAIN as isize, Some(hint))
            }
        };
        Unposted { error, until }
    }

    /// Whether somebody can carry what lies in a buffer of ours: the other side can fetch what
    /// the helper knows, and what it has mapped.
    fn is_direct(&self, buffer: &Buffer) -> bool {
        self.engine.may(Role::Writer)
            || self.other_may(Role::Writer)
            || buffer.pin != 0
            || buffer.block.is_some()
    }

    /// Posts without waiting; the message's number, or a negated errno.
    ///
    /// # Safety
    /// The buffer stays as it is until the message is over; no Rust reference covers what is
    /// read into.
    pub unsafe fn start(&self, role: Role, addr: usize, len: usize) -> Result<u32, isize> {
        let mut pinned = self.pin(role, addr, len);
        // SAFETY: the caller's promise.
        let posted = unsafe { self.post(role, addr, len, true, &mut pinned) };
        let (endpoint, posted) = posted.map_err(|unposted| unposted.error)?;
        self.ring_after(endpoint.release());
        if self.must_help.load(Ordering::Relaxed) {
            kicks::kick();
        }
        match posted {
            AfterPost::Waits(number, _) => Ok(number),
            AfterPost::Over(_) => Err(-libc::EINVAL as isize), // not where there is a cookie
        }
    }

    /// Copies a piece that was claimed, with no lock held; see `carry`.
    pub fn copy(&self, role: Role, number: u32, piece: MessagePiece) {
        let outcome = if self.believe() {
            // SAFETY: `endpoint` has handed out a part of both posts.
            let outcome = unsafe { self.engine.copy(role, piece) };
            match outcome {
                Outcome::Whole | Outcome::Gone => outcome,
                // A process that ends can look like bad memory, or a closed port.
                _ if !self.look_for_end() => Outcome::Gone,
                _ => outcome,
            }
        } else {
            Outcome::Gone
        };
        if outcome == Outcome::Refused {
            self.engine.forget(role);
            // The other side has to know what we cannot do any more.
            self.mine().lost.fetch_or(lost(role), Ordering::Relaxed);
            self.note_needy();
        }
        if outcome == Outcome::Gone && self.end_of_other() != other::CHANGED {
            self.note_end(other::DIED);
        }
        self.finish(role, number, outcome);
    }

    pub fn finish(&self, role: Role, number: u32, outcome: Outcome) {
        let (endpoint, lane) = self.endpoint(role);
        let waited_for = endpoint.lock().copied(lane, number, outcome);
        if waited_for {
            self.ring();
        }
    }

    /// Whether messages need both sides.
    pub fn is_needy(&self) -> bool {
        if self.must_help.load(Ordering::Relaxed) {
            return true;
        }
        let lost = self.theirs().lost.load(Ordering::Relaxed) != 0;
        if lost {
            self.note_needy();
        }
        lost
    }

    fn note_needy(&self) {
        if !self.must_help.swap(true, Ordering::Relaxed) {
            NEEDY.fetch_add(1, Ordering::Relaxed);
        }
    }

    // ---- sleepers ------------------------------------------------------------------------

    /// Whether somebody who sleeps should hear of it: there is something under way that may
    /// not go on without us. Of what we write that turns out when the other side loses a right.
    pub fn wants_watching(&self) -> bool {
        let watched = if self.is_needy() { &self.endpoints[..] } else { &self.endpoints[..1] };
        let unfinished = |endpoint: Held<'_, Endpoint>| endpoint.has_unfinished();
        self.end_of_other() < other::CLOSED
            && watched.iter().any(|endpoint| endpoint.try_lock().is_none_or(unfinished))
    }

    /// Whether the bytes on the socket are for this thread from now on.
    pub fn take_polling(&self) -> bool {
        !self.polling.swap(true, Ordering::AcqRel)
    }

    /// Somebody else takes over, who has to look once more.
    pub fn leave_polling(&self) {
        self.polling.store(false, Ordering::Release);
        self.mine().doorbell.0.ring();
    }

    /// For who waits while the connection is closed: its socket has no more to tell.
    pub fn sleep_shortly(&self, seen: u64) {
        self.mine().doorbell.0.sleep(seen, WORD_NANOSECONDS);
        self.look_for_end();
    }

    /// Takes what has come over the socket; nothing more from who has sent what it must not.
    pub fn drain(&self) {
        if self.end_of_other() != other::BROKEN
            && self.engine.mappings.take_in(self.socket.raw()).is_err()
        {
            self.broken();
        }
    }

    // ---- buffers that the kernel helper knows, from post to end ---------------------------

    /// Makes a buffer known, if there is a helper and the message will be large enough.
    #[inline]
    pub fn pin(&self, role: Role, addr: usize, len: usize) -> Pinned<'_> {
        let large = len >= OFFLOAD && (role == Role::Reader || len > MOST_EAGER);
        // Who is not our equal does not copy into our buffers, by no means.
        let trusted = || role == Role::Writer || (self.engine.terms.equal && self.believe());
        let across = self.engine.across.as_ref();
        let across = across.filter(|across| large && across.is_on() && trusted());
        Pinned::new(across, &[role.other()], addr, len)
    }

    fn unpin(&self, pin: u64) {
        drop(Pinned { across: self.engine.across.as_ref(), pin });
    }

    /// Takes the result of a message that is over. Afterwards the buffer is the program's.
    #[inline]
    pub fn collected(&self, mut endpoint: Held<'_, Endpoint>, number: u32) -> isize {
        let (result, pin, on_trust) = endpoint.collect(number);
        self.let_go(endpoint);
        self.unpin(pin);
        match result > 0 && on_trust && !self.is_trusted() {
            true => self.failure(Role::Reader, other::CHANGED),
            false => result,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.must_help.load(Ordering::Relaxed) {
            NEEDY.fetch_sub(1, Ordering::Relaxed);
        }
        // A socket is known by its file, others that belong to the connection are not.
        if !self.socket.is_there() {
            self.established.engine.disown();
        }
    }
}
