//! One direction of a connection as one process sees it: its posts, and how they match the peer's.
//! `slots`: places for posts; `eager`: short ones; `progress`: what is done next; `cancel`: giving a
//! message up; `layout`: how messages are cut.
//!
//! Nothing here waits. The lock of an endpoint is held during every call.

mod cancel;
mod eager;
mod layout;
mod progress;
mod slots;

pub use cancel::Withdrawal;
pub use layout::{SHARED_FROM, SPREAD_BELOW};
pub use progress::Step;

use crate::backend::libc as original;
use crate::ipc::claims::{self, Broken, Cursors};
use crate::ipc::copy::{MessagePiece, Terms};
use crate::ipc::memory::blocks::BlockAddress;
use crate::ipc::memory::region::{self, Descriptor, Lane, SHORT, WINDOW, kind};
use crate::ipc::tally::{self, Means, Regime};
use crate::os::sync::{fetch, full_fence};
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use eager::{eager_count, take_eager};
use layout::Layout;

pub use crate::ipc::claims::Role;

/// Result of a post.
pub enum AfterPost {
    /// The message is over with this count, and nothing of it is remembered.
    Over(usize),
    /// The message has this number. For an unmatched read there is nothing to do until the hint changes,
    /// because the writer looks for it.
    Waits(u32, Option<Hint>),
}

/// Why a message was not posted.
#[derive(Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The cookie in this slot was not waited for.
    Uncollected,
    /// A thread is in a call for the message in this slot, and will release it.
    InUse(Hint),
    /// The peer is a window behind; wait for this word.
    OtherIsBehind(Hint),
    /// The message that matches a read is longer than its buffer.
    TooLong,
    /// There is no memory for the pages of its slot or of its bytes.
    NoMemory,
    Broken,
}

impl From<Broken> for NoRoom {
    fn from(_: Broken) -> Self {
        NoRoom::Broken
    }
}

/// Word of the region whose change makes another look worth while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    word: *const AtomicU32,
    seen: u32,
}

impl Hint {
    pub fn of(word: &AtomicU32) -> Self {
        Self { word, seen: word.load(Ordering::Relaxed) }
    }

    /// Prefetches the cache line beside that of the word.
    #[inline]
    pub fn fetch_beside(self) {
        fetch((self.word as usize).wrapping_add(region::LINE));
    }

    /// # Safety
    /// The region it points into is still mapped.
    #[inline]
    pub unsafe fn is_unchanged(self) -> bool {
        // SAFETY: the caller says that the region is mapped, and the word lies in it.
        unsafe { (*self.word).load(Ordering::Relaxed) == self.seen }
    }
}

/// Buffer of the program.
#[derive(Clone, Copy, Debug, Default)]
pub struct Buffer {
    pub addr: usize,
    pub len: usize,
    /// Number of its export by the kernel helper; 0: none.
    pub pin: u64,
    /// Block and offset of the buffer, if it lies in one.
    pub block: Option<BlockAddress>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Posted,
    Over,
}

/// A message that this process has posted, in its own memory.
#[derive(Clone, Copy, Debug, Default)]
struct OwnPost {
    number: u32,
    state: State,
    /// Set if the program has a cookie for it; and while a thread is in a call with that.
    cookie: bool,
    waited: bool,
    /// Set while that thread waits, and moves the message itself.
    attended: bool,
    matched: bool,
    /// Set if the message is longer than the buffer of its reader.
    too_long: bool,
    /// Set when it was given up; chunks of it may be left.
    cancelled: bool,
    /// Set when the program has withdrawn it, and the peer's part is still to come.
    withdrawn: bool,
    /// Unknown for a read until it is matched. Becomes `STREAMED` when rights are lost.
    kind: u32,
    ours: Buffer,
    /// The whole message; this and what follows is valid once matched.
    whole: MessagePiece,
    layout: Layout,
    claimed: usize,
    finished: usize,
    stream_at: usize,
    result: isize,
    /// Head of the eager room after this message.
    room_end: u64,
}

/// One direction of a connection, in memory that the peer does not see; `Lane` is what both see.
#[derive(Default)]
pub struct Endpoint {
    role: Role,
    /// Terms of the handshake; `None`: the peer is not proven, and messages are streamed.
    terms: Option<Terms>,
    /// Largest message that is written eagerly.
    most_eager: usize,
    /// Grows with the pages of the cells, up to the window, for which it has the capacity.
    requests: Vec<OwnPost>,
    /// First number for which there may be no slot yet, here or in the region (`prepare`).
    prepared: u32,
    /// End of the eager room's pages that were allocated.
    room_pages: usize,
    /// The number of the next post.
    next: u32,
    /// First number that is not over.
    done: u32,
    /// The peer's `done` as last seen.
    other_done: u32,
    room_head: u64,
    room_tail: u64,
    /// Chunks produced or consumed.
    chunks: u32,
    /// Set if the next change wakes threads of this process: one waits for a slot in use, or
    /// another thread has taken the last chunk of its message.
    pub others_wait: bool,
    /// Set if a post was refused for want of room, for which an event loop may wait.
    wants_room: bool,
    /// Withdrawn messages that still have a number.
    withdrawn: u32,
    /// The length of the last eager write; see `room_ahead`.
    last: usize,
}

impl Endpoint {
    pub fn new(role: Role, terms: Option<Terms>, most_eager: usize) -> Self {
        // Not touched before they are used; later there may be no heap.
        let requests = Vec::with_capacity(WINDOW);
        Self { role, terms, most_eager, requests, ..Self::default() }
    }

    /// Returns the slot of a message that was posted.
    fn own(&mut self, number: u32) -> &mut OwnPost {
        &mut self.requests[number as usize % WINDOW]
    }

    /// Like `own`, for a number that the program or the peer says. `None`: no message had it.
    fn any_own(&mut self, number: u32) -> Option<&mut OwnPost> {
        self.requests.get_mut(number as usize % WINDOW)
    }

    fn own_desc<'a>(&self, lane: &'a Lane, number: u32) -> &'a Descriptor {
        lane.desc(self.role, number)
    }

    fn other_desc<'a>(&self, lane: &'a Lane, number: u32) -> &'a Descriptor {
        lane.desc(self.role.other(), number)
    }

    /// Stores a post as the next message.
    fn remember(&mut self, ours: Buffer, kind: u32, cookie: bool) -> u32 {
        let (number, room_end) = (self.next, self.room_head);
        let own = self.own(number);
        (own.number, own.state, own.kind) = (number, State::Posted, kind);
        (own.cookie, own.waited, own.matched) = (cookie, false, false);
        own.attended = !cookie;
        (own.too_long, own.cancelled, own.withdrawn) = (false, false, false);
        (own.ours, own.room_end) = (ours, room_end);
        (own.claimed, own.finished, own.stream_at) = (0, 0, 0);
        self.next = number.wrapping_add(1);
        number
    }

    /// Posts a write. The caller rings. An eager one is over at once, unless there is a cookie, which
    /// learns the count later. `direct`: it can be copied from buffer to buffer.
    ///
    /// # Safety
    /// The buffer is readable until the message is over.
    #[inline(always)]
    pub unsafe fn post_write(
        &mut self,
        lane: &Lane,
        ours: Buffer,
        direct: impl FnOnce() -> bool,
        cookie: bool,
    ) -> Result<AfterPost, NoRoom> {
        self.check_room(lane)?;
        let (number, len) = (self.next, ours.len);
        let place = match len {
            _ if len <= SHORT => Some(0),
            _ if len <= self.most_eager => self.take_room(lane, len)?,
            _ => None,
        };
        let desc = self.own_desc(lane, number);
        let place = place.and_then(|place| Some((place, lane.eager(number, place, len)?)));
        let Some((place, to)) = place else {
            let kind = if direct() { kind::DIRECT } else { kind::STREAMED };
            self.remember(ours, kind, cookie);
            self.publish_buffer(desc, number, kind, ours);
            return Ok(AfterPost::Waits(number, None));
        };
        // SAFETY: the caller's buffer holds `len` bytes, for which the room was taken.
        unsafe { original::copy(to, ours.addr, len) };
        tally::note_copied(Means::SharedMemory, len);
        self.last = len;
        describe(desc, kind::EAGER, len, place);
        if len <= SHORT {
            desc.number.store(number.wrapping_add(1), Ordering::Release);
        } else {
            // A locked instruction waits until the bytes are written before it asks for the line.
            // Asked for earlier, the line would go back to the reader, which polls it. (Measured: 0.92 of the time of 1 KiB and 4 KiB.)
            desc.number.swap(number.wrapping_add(1), Ordering::AcqRel);
        }
        if cookie {
            return Ok(AfterPost::Waits(self.remember(ours, kind::EAGER, cookie), None));
        }
        // Before it is done: then the reader's slot may be reused.
        let count = eager_count(lane, number, len).unwrap_or(len);
        Ok(self.pass(lane, Role::Writer, count))
    }

    /// Posts a read; it is over at once if an eager message is there.
    ///
    /// # Safety
    /// The buffer is writable until the message is over, and no Rust reference covers it.
    #[inline(always)]
    pub unsafe fn post_read(
        &mut self,
        lane: &Lane,
        ours: Buffer,
        cookie: bool,
    ) -> Result<AfterPost, NoRoom> {
        self.check_room(lane)?;
        let number = self.next;
        let (own, theirs) = (self.own_desc(lane, number), self.other_desc(lane, number));
        if theirs.len.load(Ordering::Relaxed) > ours.len as u64
            && self.next_len(lane).is_some_and(|len| len > ours.len as u64)
        {
            return Err(NoRoom::TooLong);
        }
        // SAFETY: the caller's buffer is writable, and no reference covers it.
        if !cookie && let Some((count, _)) = unsafe { take_eager(lane, number, ours) }? {
            // Its writer learns the length from this.
            publish(own, number, 0, ours.len, 0);
            return Ok(self.pass(lane, Role::Reader, count));
        }
        self.remember(ours, 0, cookie);
        self.publish_buffer(own, number, 0, ours);
        // The writer looks for this after it has published, and we look for that next.
        full_fence();
        let hint = Hint::of(&theirs.number);
        // A bad post is found by the wait: only after that does no thread look at the buffer again.
        let matched = self.is_matched(lane, number).unwrap_or(false);
        Ok(AfterPost::Waits(number, (!matched).then_some(hint)))
    }

    /// Returns the length of the next message that no read was posted for.
    #[inline]
    pub fn next_len(&self, lane: &Lane) -> Option<u64> {
        let desc = lane.desc(Role::Writer, self.next);
        let there = desc.number.load(Ordering::Acquire) == self.next.wrapping_add(1);
        there.then(|| desc.len.load(Ordering::Relaxed))
    }

    /// Returns whether the peer has posted its part. Eager messages end with that.
    #[inline]
    fn is_matched(&mut self, lane: &Lane, number: u32) -> Result<bool, Broken> {
        let theirs = self.other_desc(lane, number).number.load(Ordering::Acquire);
        let matched = self.own(number).matched;
        if matched || theirs != number.wrapping_add(1) {
            return Ok(matched);
        }
        self.meet(lane, number).map(|()| true)
    }

    /// Matches a post with the peer's. Everything is checked before any of it is kept: another thread
    /// may come back to a post that was found bad.
    fn meet(&mut self, lane: &Lane, number: u32) -> Result<(), Broken> {
        let (role, terms, theirs) = (self.role, self.terms, self.other_desc(lane, number));
        let own = self.own(number);
        let len = usize::try_from(theirs.len.load(Ordering::Relaxed)).map_err(|_| Broken)?;
        let at = usize::try_from(theirs.at.load(Ordering::Relaxed)).map_err(|_| Broken)?;
        let (shown, mut count) = (own.ours.block.is_some(), own.ours.len.min(len));
        let kind = match role {
            Role::Writer => own.kind,
            Role::Reader => theirs.kind.load(Ordering::Relaxed),
        };
        let mut over = true;
        match (kind, role) {
            (kind::EAGER, Role::Reader) => {
                // SAFETY: `post_read` was promised that the buffer is writable until the message is
                // over.
                count = unsafe { take_eager(lane, number, own.ours) }?.ok_or(Broken)?.0;
            }
            // Written before it was read; the writer learns the count now.
            (kind::EAGER, Role::Writer) => {}
            // A peer without proof gets no addresses and sends none.
            (kind::DIRECT, _) if terms.is_none() => return Err(Broken),
            (kind::DIRECT | kind::STREAMED, _) => {
                at.checked_add(len).ok_or(Broken)?;
                let (pin, block) = (theirs.pin.load(Ordering::Relaxed), theirs.block());
                // Both sides know both posts, and cut alike.
                let blocks = shown && block.is_some();
                let source = if role == Role::Writer { own.ours.addr } else { at };
                own.layout = Layout::new(count, terms.unwrap_or_default(), blocks, source);
                own.whole = MessagePiece {
                    ours: own.ours.addr,
                    theirs: at,
                    len: count,
                    pin,
                    offset: 0,
                    block: block.filter(|_| shown),
                    message: count,
                };
                over = count == 0;
            }
            _ => return Err(Broken),
        }
        own.matched = true;
        own.kind = kind;
        own.too_long = role == Role::Reader && len > own.ours.len;
        if over {
            self.end(lane, number, count as isize);
        }
        Ok(())
    }

    /// Ends a message.
    #[inline]
    fn end(&mut self, lane: &Lane, number: u32, result: isize) {
        if tally::is_on() && result >= 0 {
            self.count(lane, number, result as usize);
        }
        let own = self.own(number);
        let cut = own.too_long && result >= 0;
        own.result = if cut { -libc::EMSGSIZE as isize } else { result };
        if core::mem::take(&mut own.withdrawn) {
            own.state = State::Free;
            self.withdrawn -= 1;
        } else {
            own.state = State::Over;
        }
        self.note_done(lane, self.role);
    }

    #[inline(always)]
    fn note_done(&mut self, lane: &Lane, role: Role) {
        let mut done = self.done;
        while done != self.next && self.own(done).state != State::Posted {
            done = done.wrapping_add(1);
        }
        self.done = done;
        lane.done[role as usize].0.store(done, Ordering::Release);
    }

    #[cold]
    fn count(&mut self, lane: &Lane, number: u32, bytes: usize) {
        let received = self.role == Role::Reader;
        let own = self.own(number);
        let regime = match claims::cursors(lane.claims(number), number) {
            _ if own.kind == kind::EAGER => Regime::Eager,
            _ if own.is_streamed() => Regime::Chunks,
            Cursors { front: 1.., back: 1.., .. } => Regime::TwoEnded,
            _ => Regime::OneCopy,
        };
        tally::note_message(received, regime, bytes);
    }

    /// Publishes a post with all ways to its buffer; its address is for a proven peer only.
    fn publish_buffer(&self, desc: &Descriptor, number: u32, kind: u32, buffer: Buffer) {
        let has_address = self.terms.is_some() && kind != kind::STREAMED;
        desc.pin.store(buffer.pin, Ordering::Relaxed);
        desc.set_block(buffer.block);
        publish(desc, number, kind, buffer.len, if has_address { buffer.addr } else { 0 });
    }

    /// Returns whether an event loop should look: a cookie that is over, or room that was missing.
    pub fn has_news(&mut self, lane: &Lane) -> bool {
        if self.wants_room && self.look_how_far(lane).is_ok() && !self.is_far_ahead() {
            self.wants_room = false;
            return true;
        }
        (0..self.requests.len()).any(|slot| {
            let OwnPost { number, cookie, waited, state, .. } = self.requests[slot];
            let is_open = cookie && !waited && state != State::Free;
            // Would `adma_check` end it?
            is_open && !matches!(self.look(lane, number), Ok(Step::Idle(_)))
        })
    }

    /// Returns the numbers of messages of which some may not be over, oldest first.
    pub fn under_way(&self) -> impl Iterator<Item = u32> + use<> {
        let (first, count) = (self.done, self.next.wrapping_sub(self.done));
        (0..count.min(WINDOW as u32)).map(move |offset| first.wrapping_add(offset))
    }

    /// Returns whether a message is under way that no thread waits for.
    pub fn is_unattended(&mut self, number: u32) -> bool {
        let own = self.own(number);
        own.number == number && own.state == State::Posted && (!own.attended || own.withdrawn)
    }

    /// Returns whether the service thread has to hear of the peer's next step.
    pub fn needs_service(&mut self) -> bool {
        self.under_way()
            .any(|number| self.is_unattended(number) && self.own(number).kind != kind::EAGER)
    }

    /// Returns whether there is something to do for a message that was just posted, or left.
    pub fn is_due(&mut self, lane: &Lane, number: u32) -> bool {
        self.is_unattended(number)
            && !self.is_over(lane, number)
            && self.is_matched(lane, number) != Ok(false)
    }

    /// Takes the result of a message that is over, and frees its slot. Also returns the buffer's
    /// export by the helper, to be revoked, and whether the count is only the peer's claim.
    pub fn collect(&mut self, number: u32) -> (isize, u64, bool) {
        let reads = self.role == Role::Reader;
        let own = self.own(number);
        own.state = State::Free;
        let on_trust = reads && own.kind == kind::DIRECT;
        (own.result, core::mem::take(&mut own.ours.pin), on_trust)
    }

    /// Takes the exports of all our buffers.
    pub fn take_pins(&mut self) -> impl Iterator<Item = u64> {
        self.requests.iter_mut().map(|own| core::mem::take(&mut own.ours.pin))
    }

    /// Begins a call with a cookie, for one thread at a time; `attends`: that thread waits, and moves the
    /// message. Returns the message's number, of which the cookie lacks the highest bit.
    pub fn begin_wait(&mut self, number: u32, attends: bool) -> Option<u32> {
        let own = self.of_cookie(number).filter(|own| !own.waited)?;
        (own.waited, own.attended) = (true, attends);
        Some(own.number)
    }

    fn of_cookie(&mut self, number: u32) -> Option<&mut OwnPost> {
        let own = self.any_own(number)?;
        let stands = own.cookie && own.number & NUMBER_BITS == number;
        (stands && own.state != State::Free).then_some(own)
    }

    /// Returns the bytes from the start of a cookie's message that are in place; `None`: no cookie. Of a
    /// message that is copied in pieces by both sides none are known before its end.
    pub fn copied_from_start(&mut self, lane: &Lane, number: u32) -> Option<usize> {
        let number = self.of_cookie(number)?.number;
        let over = self.is_over(lane, number);
        let own = self.own(number);
        let streamed = own.matched && own.is_streamed();
        Some(match over {
            true => own.result.max(0) as usize,
            false if streamed => own.stream_at,
            false => 0,
        })
    }

    pub fn end_wait(&mut self, number: u32) {
        let own = self.own(number);
        (own.waited, own.attended) = (false, false);
    }
}

/// The part of a message's number that fits into a cookie.
pub const NUMBER_BITS: u32 = 0x7fff_ffff;

fn describe(desc: &Descriptor, kind: u32, len: usize, at: usize) {
    desc.kind.store(kind, Ordering::Relaxed);
    desc.len.store(len as u64, Ordering::Relaxed);
    desc.at.store(at as u64, Ordering::Relaxed);
}

fn publish(desc: &Descriptor, number: u32, kind: u32, len: usize, at: usize) {
    describe(desc, kind, len, at);
    desc.number.store(number.wrapping_add(1), Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Endpoint {
        /// Sets the counters as if messages up to this number had passed.
        pub fn begin_at(&mut self, lane: &Lane, number: u32) {
            self.next = WINDOW as u32 - 1; // so that all slots are made
            self.prepare(lane).unwrap();
            (self.next, self.done, self.other_done) = (number, number, number);
            lane.done.iter().for_each(|done| done.0.store(number, Ordering::Release));
        }
    }
}
