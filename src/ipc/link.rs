//! One connection: posting, copying, and waking; `ends`: how it ends.
//!
//! Nothing here waits, except closing; see `wait`.

mod ends;

pub use ends::other;

use crate::ipc::MOST_EAGER;
use crate::ipc::OFFLOAD;
use crate::ipc::copy::across::Pinned;
use crate::ipc::copy::{MessagePiece, Outcome, Proven};
use crate::ipc::memory::blocks::{self, BlockAddress};
use crate::ipc::memory::region::{Lane, Side};
use crate::ipc::messages::{AfterPost, Buffer, Endpoint, Hint, NoRoom, Role};
use crate::ipc::os;
use crate::ipc::setup::handshake::Established;
use crate::ipc::wake::background::{self, CONNECTION};
use crate::ipc::wake::doorbell::how;
use crate::ipc::wake::events::Events;
use crate::ipc::wake::wakeups::{self, NEEDY};
use crate::os::lock::{Held, Lock, Release, Released};
use crate::os::sys;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use once_cell::race::OnceBox;

/// Bounds of the time to spin, in ticks: longer than a small answer takes, shorter than two sleeps
/// and wake-ups cost. Halved by every long sleep, down to the least, and doubled by a short one: on
/// a busy machine the peer may not be running.
pub const MOST_SPIN: u64 = 60_000;
pub const LEAST_SPIN: u64 = 2_000;

/// Time to sleep on the word before polling: the peer's death is noticed this late at most.
pub const WORD_NANOSECONDS: u64 = 2_000_000;

pub struct Link {
    established: Established,
    /// Process that this belongs to (`handles`).
    pub owner: u64,
    /// Handle in the table; 0: none yet.
    pub handle: AtomicU32,
    pub spin_ticks: AtomicU64,
    endpoints: [Lock<Endpoint>; 2],
    other: AtomicU32,
    pub closing: AtomicBool,
    /// Set if a side cannot copy by calls (a needy connection): every thread that waits helps.
    pub must_help: AtomicBool,
    /// Set while one of our sleepers polls; the others sleep on the doorbell's word.
    polling: AtomicBool,
    believed_at: AtomicU64,
    /// Set if this process was proven and has changed its rights since.
    changed: AtomicBool,
    /// Approximate count of writes; every 16th checks that the peer is alive.
    writes: AtomicU32,
    /// Descriptor for event loops; made by the first `adma_event_fd`.
    events: OnceBox<Events>,
}

/// Answer to a read whose message is longer and stays; -EMSGSIZE for the program.
pub const STAYS: isize = -0x1_0000 - libc::EMSGSIZE as isize;

/// Failure to post a message.
pub struct Unposted {
    /// A negated errno, or `STAYS`.
    pub error: isize,
    /// Word whose change lets a caller that can wait try again.
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
        let proven = established.proven.as_ref();
        let terms = proven.map(|proven| proven.terms);
        let needy = !proven.is_some_and(|proven| proven.may_call() && proven.peer_calls);
        if needy {
            NEEDY.fetch_add(1, Ordering::Relaxed);
        }
        Self {
            owner,
            handle: AtomicU32::new(0),
            spin_ticks: AtomicU64::new(MOST_SPIN),
            endpoints: Role::BOTH.map(|role| Lock::new(Endpoint::new(role, terms))),
            other: AtomicU32::new(other::ALIVE),
            closing: AtomicBool::new(false),
            must_help: AtomicBool::new(needy),
            polling: AtomicBool::new(false),
            believed_at: AtomicU64::new(sys::ticks()),
            changed: AtomicBool::new(false),
            writes: AtomicU32::new(0),
            events: OnceBox::new(),
            established,
        }
    }

    /// Sets the handle; from then on other threads find the connection.
    pub fn enter(&self, handle: u32) {
        self.handle.store(handle, Ordering::Release);
        if self.must_help.load(Ordering::Relaxed) {
            self.watch_in_background();
        }
    }

    /// Returns what identifies it in the background set.
    pub fn key(&self) -> u64 {
        CONNECTION | u64::from(self.handle.load(Ordering::Acquire))
    }

    /// Has all threads that wait, check or arm serve this connection when its peer rings.
    fn watch_in_background(&self) {
        // Without a descriptor for that, only threads in calls for this connection look after it.
        let _ = background::watch(self.socket.raw(), libc::POLLIN | libc::POLLRDHUP, self.key());
        self.mine().doorbell.0.announce(how::BYTE);
    }

    /// Leaves messages that no thread waits for to threads that wait on other connections.
    pub fn note_in_background(&self) {
        // Asks: a writer whose chunks all had room has not looked at what the peer has lost.
        if self.is_needy() {
            background::note(self.key());
            wakeups::wake_if_needed();
        }
    }

    pub fn proven(&self) -> Option<&Proven> {
        self.established.proven.as_deref()
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

    /// Returns what tells of the peer's end: the socket and its pidfd, or -1.
    pub fn descriptors(&self) -> [(i32, i16); 2] {
        let process = self.process.as_ref().map_or(-1, os::Fd::raw);
        [(self.socket.raw(), libc::POLLIN | libc::POLLRDHUP), (process, libc::POLLIN)]
    }

    /// Tells the peer of a change.
    #[inline]
    pub fn ring(&self) {
        if self.theirs().doorbell.0.answer() {
            os::send_byte(self.socket.raw());
        }
    }

    /// Like `ring`, for a change under a lock, whose release was the fence.
    #[inline]
    pub fn ring_after(&self, _: Released) {
        if self.theirs().doorbell.0.answer_after_fence() {
            os::send_byte(self.socket.raw());
        }
    }

    /// Tells threads of this process of a change in a message that is not the caller's own: its
    /// waiter sleeps and hears nothing of it from the peer.
    pub fn ring_own(&self) {
        if self.mine().doorbell.0.answer_own() {
            wakeups::wake_all();
        }
        self.ring_events();
    }

    /// Tells an event loop of this process; after a full fence.
    fn ring_events(&self) {
        if let Some(events) = self.events.get() {
            events.ring();
        }
    }

    /// Tells the peer of a step, and threads of this process if it concerns them.
    pub fn let_go(&self, mut endpoint: Held<'_, Endpoint>) {
        let others_wait = core::mem::take(&mut endpoint.others_wait);
        self.ring_after(endpoint.release());
        if others_wait {
            self.ring_own();
        }
    }

    /// Returns whether the peer may reach our buffers by calls.
    pub fn peer_calls(&self) -> bool {
        self.proven().is_some_and(|proven| proven.peer_calls)
            && self.theirs().lost.load(Ordering::Relaxed) == 0
    }

    // ---- posting -------------------------------------------------------------------------

    /// Returns the place of a large buffer in a block that the peer may map.
    #[cold]
    fn block(&self, addr: usize, len: usize) -> Option<BlockAddress> {
        self.proven()?.blocks.as_ref()?;
        blocks::find(addr, len)
    }

    /// Posts a message. Inlined: it is most of what a short message costs.
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
        let is_large = len > MOST_EAGER;
        let gone = self.end_before(role, is_large);
        // A large read would let the peer write memory of ours.
        if gone != other::ALIVE && (role == Role::Writer || is_large && gone == other::CHANGED) {
            return Err(Unposted { error: self.failure(gone), until: None });
        }
        let (endpoint, lane) = self.endpoint(role);
        let mut endpoint = endpoint.lock();
        let block = if is_large { self.block(addr, len) } else { None };
        let buffer = Buffer { addr, len, pin: pinned.pin, block };
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
                pinned.pin = 0; // owned by the message from now on
                Ok((endpoint, posted))
            }
            Err(why) => Err(self.unposted(gone, why)),
        }
    }

    #[cold]
    fn unposted(&self, gone: u32, why: NoRoom) -> Unposted {
        let (error, until) = match why {
            // The peer is done with what we have not posted. A side that closes gives up posts that met
            // nothing, and has said so before; otherwise it breaks the protocol.
            NoRoom::Broken => (self.end_for().unwrap_or_else(|| self.broken()), None),
            NoRoom::Uncollected => (-libc::EAGAIN as isize, None),
            NoRoom::TooLong => (STAYS, None),
            _ if self.closing.load(Ordering::Acquire) => (-libc::EBADF as isize, None),
            NoRoom::OtherIsBehind(_) if gone != other::ALIVE => (self.failure(gone), None),
            NoRoom::InUse(hint) | NoRoom::OtherIsBehind(hint) => {
                (-libc::EAGAIN as isize, Some(hint))
            }
        };
        Unposted { error, until }
    }

    /// Returns whether a buffer of ours can be copied from directly: the peer can fetch what the
    /// helper exports, and what it has mapped.
    fn is_direct(&self, buffer: &Buffer) -> bool {
        self.proven().is_some_and(|proven| {
            proven.may_call() || self.peer_calls() || buffer.pin != 0 || buffer.block.is_some()
        })
    }

    /// Posts without waiting; returns the message's number, or a negated errno.
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
        self.note_in_background();
        match posted {
            AfterPost::Waits(number, _) => Ok(number),
            AfterPost::Over(_) => Err(-libc::EINVAL as isize), // not where there is a cookie
        }
    }

    /// Copies a claimed piece, with no lock held.
    pub fn copy(&self, proven: &Proven, role: Role, number: u32, piece: MessagePiece) {
        let outcome = match self.believe() {
            // SAFETY: `messages` has handed out a part of both posts.
            true => unsafe { proven.copy(role, piece) },
            false => Outcome::Gone,
        };
        let outcome = match outcome {
            // A process that ends can look like bad memory, or a closed port.
            Outcome::Fault | Outcome::Refused if !self.look_for_end() => Outcome::Gone,
            outcome => outcome,
        };
        if outcome == Outcome::Refused {
            proven.calls.store(false, Ordering::Relaxed);
            // The peer has to know what we cannot do any more.
            self.mine().lost.store(1, Ordering::Relaxed);
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

    /// Returns whether a side cannot copy by calls, so that messages need both.
    pub fn is_needy(&self) -> bool {
        if self.must_help.load(Ordering::Relaxed) {
            return true;
        }
        let lost = self.theirs().lost.load(Ordering::Relaxed) != 0;
        lost.then(|| self.note_needy()).is_some()
    }

    fn note_needy(&self) {
        if !self.must_help.swap(true, Ordering::Relaxed) {
            NEEDY.fetch_add(1, Ordering::Relaxed);
            self.watch_in_background();
            self.note_in_background(); // sleepers did not poll it
        }
    }

    // ---- sleepers ------------------------------------------------------------------------

    /// Makes this thread the one that polls the socket; false: another thread does.
    pub fn take_polling(&self) -> bool {
        !self.polling.swap(true, Ordering::AcqRel)
    }

    /// Lets another thread poll, which looks once more.
    pub fn leave_polling(&self) {
        self.polling.store(false, Ordering::Release);
        self.mine().doorbell.0.ring();
        if self.must_help.load(Ordering::Relaxed) {
            self.mine().doorbell.0.announce(how::BYTE); // for the background
        }
    }

    /// Sleeps while the connection is closed, when its socket reports nothing any more.
    pub fn sleep_shortly(&self, seen: u64) {
        self.mine().doorbell.0.sleep(seen, WORD_NANOSECONDS);
        self.look_for_end();
    }

    /// Empties the socket, unless the peer has broken the protocol.
    pub fn drain(&self) {
        if self.take_packets() {
            self.ring_events(); // they may have been meant for that
        }
    }

    /// Returns whether there were packets, or a broken protocol.
    fn take_packets(&self) -> bool {
        if self.end_of_other() == other::BROKEN {
            return false;
        }
        os::drain(self.socket.raw()).unwrap_or_else(|_| {
            self.broken();
            true
        })
    }

    // ---- event loops ----------------------------------------------------------------------

    /// Returns the descriptors for an event loop.
    pub fn events(&self) -> os::Result<&Events> {
        self.events.get_or_try_init(|| Events::new(self.descriptors()).map(Box::new))
    }

    /// Arms the descriptor; returns whether there is something to look at first.
    pub fn arm(&self) -> os::Result<bool> {
        let events = self.events()?;
        self.note_events(os::poll(self.descriptors(), 0).unwrap_or_default());
        if self.take_packets() {
            wakeups::wake_all(); // they may have been meant for a thread that polls the socket
        }
        let has_changed = events.arm();
        self.mine().doorbell.0.announce(how::BYTE);
        while self.help(true) {}
        if has_changed || self.end_of_other() != other::ALIVE {
            return Ok(true);
        }
        let news = |role: Role| {
            let (endpoint, lane) = self.endpoint(role);
            let mut endpoint = endpoint.lock();
            (role == Role::Reader && endpoint.next_len(lane).is_some())
                || endpoint.has_news(lane, self.proven())
        };
        Ok(Role::BOTH.into_iter().any(news))
    }

    /// Returns the length of the next message that no read was posted for, or a negated errno.
    pub fn next_len(&self) -> isize {
        let gone = self.end_before(Role::Reader, false);
        let (endpoint, lane) = self.endpoint(Role::Reader);
        let next = endpoint.lock().next_len(lane);
        match next.map(isize::try_from) {
            Some(len) => len.unwrap_or_else(|_| self.broken()),
            None if gone != other::ALIVE => self.failure(gone),
            None => match self.believe() {
                true => -libc::EAGAIN as isize,
                false => self.failure(self.end_of_other()),
            },
        }
    }

    // ---- buffers that the kernel helper has exported, from post to end --------------------

    /// Exports a buffer, if there is a helper and the message will be large enough.
    #[inline]
    pub fn pin(&self, role: Role, addr: usize, len: usize) -> Pinned<'_> {
        if len < OFFLOAD || (role == Role::Writer && len <= MOST_EAGER) {
            return Pinned::NONE;
        }
        let across = self.proven().and_then(|proven| proven.across.as_ref());
        let across = across.filter(|across| across.is_on() && self.believe());
        Pinned::new(across, &[role.other()], addr, len)
    }

    pub fn unpin(&self, pin: u64) {
        let across = self.proven().and_then(|proven| proven.across.as_ref());
        drop(Pinned { across, pin });
    }

    /// Takes the result of a message that is over. The buffer is the program's then.
    #[inline]
    pub fn collected(&self, mut endpoint: Held<'_, Endpoint>, number: u32) -> isize {
        let (result, pin, on_trust) = endpoint.collect(number);
        self.let_go(endpoint);
        self.unpin(pin);
        match result > 0 && on_trust && !self.is_trusted() {
            true => self.failure(other::CHANGED),
            false => result,
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if self.must_help.load(Ordering::Relaxed) {
            NEEDY.fetch_sub(1, Ordering::Relaxed);
            background::forget(self.socket.raw());
        }
    }
}
