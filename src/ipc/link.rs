//! One connection: posting, copying, and waking; `ends`: how it ends.
//!
//! Nothing here waits, except closing; see `wait`.

mod ends;

pub use ends::other;

use crate::ipc::OFFLOAD;
use crate::ipc::copy::across::Pinned;
use crate::ipc::copy::proof::Failed;
use crate::ipc::copy::{MessagePiece, Proven};
use crate::ipc::memory::blocks::{self, BlockAddress};
use crate::ipc::memory::region::{EAGER_ROOM, Lane, Side};
use crate::ipc::messages::{AfterPost, Buffer, Endpoint, Hint, NoRoom, Role};
use crate::ipc::os;
use crate::ipc::setup::handshake::Established;
use crate::ipc::wake::doorbell::how;
use crate::ipc::wake::events::Events;
use crate::ipc::wake::service::{self, CONNECTION};
use crate::os::lock::{Held, Lock, Release, Released};
use crate::os::sync::full_fence;
use crate::os::sys;
use alloc::boxed::Box;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use once_cell::race::OnceBox;

/// Bounds of the time to spin, in ticks: longer than a small answer takes, shorter than two sleeps
/// and wake-ups cost. Halved by every long sleep, down to the least, and doubled by a short one: on
/// a busy machine the peer may not be running.
pub const MOST_SPIN: u64 = 60_000;
pub const LEAST_SPIN: u64 = 2_000;

/// Longest sleep on the word where no service thread notices the peer's end.
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
        let most_eager = established.settings.most_eager.min(EAGER_ROOM / 2);
        Self {
            owner,
            handle: AtomicU32::new(0),
            spin_ticks: AtomicU64::new(MOST_SPIN),
            endpoints: Role::BOTH.map(|role| Lock::new(Endpoint::new(role, terms, most_eager))),
            other: AtomicU32::new(other::ALIVE),
            closing: AtomicBool::new(false),
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
        service::join(); // before it is in the set, which goes with the last member
        self.join_service();
    }

    /// Returns what identifies it to the service thread.
    pub fn key(&self) -> u64 {
        CONNECTION | u64::from(self.handle.load(Ordering::Acquire))
    }

    /// Has the service thread hear of the peer's rings and of its end.
    pub fn join_service(&self) {
        for (fd, events) in self.descriptors() {
            // Without memory or a pidfd for that, only calls for this connection look after it.
            let _ = service::watch(fd, events, self.key());
        }
        if self.needs_service() {
            self.mine().doorbell.0.announce(how::BYTE);
        }
    }

    /// Takes it from the service thread: its sockets report the end for ever.
    pub fn leave_service(&self) {
        self.descriptors().iter().for_each(|(fd, _)| service::forget(*fd));
    }

    /// Leaves a message that no thread waits for to the service thread, after it was posted, or its wait
    /// has ended.
    pub fn leave_to_service(&self, role: Role, number: u32) {
        self.mine().doorbell.0.announce(how::BYTE); // before the look
        let (endpoint, lane) = self.endpoint(role);
        let is_due = endpoint.lock().is_due(lane, number);
        if is_due || !service::runs() {
            service::call(self.key());
        }
    }

    /// Spares the peer a byte for the service thread, if that has nothing to do: a thread waits for the
    /// only message under way.
    pub fn take_from_service(&self) {
        let bell = &self.mine().doorbell.0;
        if bell.wants_byte() && !self.needs_service() {
            bell.withdraw(how::BYTE);
            full_fence();
            // Another thread may have posted between the two.
            if self.needs_service() {
                bell.announce(how::BYTE);
            }
        }
    }

    /// Returns whether the service thread has to hear of the peer's next step.
    pub fn needs_service(&self) -> bool {
        self.armed_events().is_some()
            || self.endpoints.iter().any(|endpoint| endpoint.lock().needs_service())
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

    /// Returns the descriptors that report the peer's end: the socket and its pidfd, or -1.
    pub fn descriptors(&self) -> [(i32, i16); 2] {
        let process = self.process.as_ref().map_or(-1, |process| process.raw());
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
        self.mine().doorbell.0.answer_own();
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
        let is_large = len > self.settings.most_eager;
        let gone = self.end_before(role, is_large);
        // A large read would let the peer write memory of ours.
        if gone != other::ALIVE && (role == Role::Writer || is_large && gone == other::CHANGED) {
            return Err(Unposted { error: self.failure(gone), until: None });
        }
        let (endpoint, lane) = self.endpoint(role);
        let mut endpoint = endpoint.lock();
        let block = if is_large { self.block(addr, len) } else { None };
        let buffer = Buffer { addr, len, pin: pinned.pin, block };
        // SAFETY: the caller keeps the buffer until the message is over, as `start` wants it.
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
            NoRoom::NoMemory => (-libc::ENOMEM as isize, None),
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
        // SAFETY: the caller keeps the buffer until the message is over.
        let posted = unsafe { self.post(role, addr, len, true, &mut pinned) };
        let (endpoint, posted) = posted.map_err(|unposted| unposted.error)?;
        self.ring_after(endpoint.release());
        match posted {
            AfterPost::Waits(number, _) => {
                self.leave_to_service(role, number);
                Ok(number)
            }
            AfterPost::Over(_) => Err(-libc::EINVAL as isize), // not where there is a cookie
        }
    }

    /// Copies a claimed piece, with no lock held.
    pub fn copy(&self, proven: &Proven, role: Role, number: u32, piece: MessagePiece) {
        let copied = match self.believe() {
            // SAFETY: `messages` has handed out a part of both posts.
            true => unsafe { proven.copy(role, piece) },
            false => Err(Failed::Gone),
        };
        let copied = match copied {
            // A process that ends can look like bad memory, or a closed port.
            Err(Failed::Fault | Failed::System(_)) if !self.look_for_end() => Err(Failed::Gone),
            copied => copied,
        };
        let is_refused = matches!(copied, Err(Failed::System(_)));
        if is_refused {
            proven.calls.store(false, Ordering::Relaxed);
            // The peer has to know what we cannot do any more.
            self.mine().lost.store(1, Ordering::Relaxed);
        }
        if copied == Err(Failed::Gone) && self.end_of_other() != other::CHANGED {
            self.note_end(other::DIED);
        }
        self.finish(role, number, copied);
        if is_refused {
            service::call(self.key()); // other messages are refused as well
        }
    }

    pub fn finish(&self, role: Role, number: u32, copied: Result<(), Failed>) {
        let (endpoint, lane) = self.endpoint(role);
        let waited_for = endpoint.lock().note_end_of_piece(lane, number, copied);
        if waited_for {
            self.ring();
        }
    }

    /// Sleeps while the connection is closed, when its socket reports nothing any more.
    pub fn sleep_shortly(&self, seen: u64) {
        self.mine().doorbell.0.sleep(seen, WORD_NANOSECONDS);
        self.look_for_end();
    }

    /// Empties the socket, unless the peer has broken the protocol.
    pub fn drain(&self) {
        if self.end_of_other() != other::BROKEN && os::drain(self.socket.raw()).is_err() {
            self.broken();
        }
    }

    // ---- event loops ----------------------------------------------------------------------

    /// Returns the descriptor for an event loop. An error: there is no thread to ring it, or no descriptor.
    pub fn events(&self) -> os::Result<&Events> {
        if !service::start() {
            return Err(libc::EAGAIN);
        }
        self.events.get_or_try_init(|| Events::new().map(Box::new))
    }

    /// Returns the descriptor if the program waits for it.
    pub fn armed_events(&self) -> Option<&Events> {
        self.events.get().filter(|events| events.is_armed())
    }

    /// Arms the descriptor; returns whether there is something to look at first.
    pub fn arm(&self) -> os::Result<bool> {
        let has_changed = self.events()?.arm();
        self.mine().doorbell.0.announce(how::BYTE); // before the look
        self.believe();
        Ok(has_changed || self.has_news())
    }

    /// Returns whether an event loop should look at this connection.
    pub fn has_news(&self) -> bool {
        let news = |role: Role| {
            let (endpoint, lane) = self.endpoint(role);
            let mut endpoint = endpoint.lock();
            (role == Role::Reader && endpoint.next_len(lane).is_some()) || endpoint.has_news(lane)
        };
        self.end_of_other() != other::ALIVE || Role::BOTH.into_iter().any(news)
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
        if len < OFFLOAD || (role == Role::Writer && len <= self.settings.most_eager) {
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
        if self.handle.load(Ordering::Acquire) != 0 {
            self.leave_service();
            service::leave();
        }
    }
}
