//! One direction as one process sees it: what it has posted, and how that meets the other's
//! posts. What is done next is in `carry`; small messages that are not remembered at all are
//! in `short`.
//!
//! Nothing here waits. The lock of an endpoint is held during every call.

mod eager;
mod progress;

pub use eager::{PLACED_FROM, Placing, Short};
pub use progress::{MessagePiece, SHARED_FROM, Step};

use super::blocks::BlockAddress;
use super::claims::{self, Cursors, Edge};
use super::os::Way;
use super::region::{self, EAGER_ROOM, Lane, SHORT, WINDOW, kind};
use super::tally::{self, Direction, Means, Regime};
use crate::backend::libc as original;
use crate::os::sync::{fetch, full_fence};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};
use progress::Layout;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Writer,
    Reader,
}

impl Role {
    fn end(self) -> Edge {
        match self {
            Role::Writer => Edge::Back,
            Role::Reader => Edge::Front,
        }
    }

    pub fn way(self) -> Way {
        match self {
            Role::Writer => Way::Push,
            Role::Reader => Way::Pull,
        }
    }
}

/// The other process has written what it never should.
#[derive(Debug, PartialEq, Eq)]
pub struct Broken;

/// Why a message was not posted.
#[derive(Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The cookie that has this place was not waited for.
    Uncollected,
    /// A thread is in a call for the message that has this place, and will let it go.
    InUse,
    /// The other side has not come so far; look at this word.
    OtherIsBehind(Hint),
    Broken,
}

impl From<Broken> for NoRoom {
    fn from(_: Broken) -> Self {
        NoRoom::Broken
    }
}

/// A word whose change is worth another look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    word: *const AtomicU32,
    seen: u32,
}

impl Hint {
    fn of(word: &AtomicU32) -> Self {
        Self { word, seen: word.load(Ordering::Relaxed) }
    }

    /// Asks for the line beside that of the word.
    #[inline]
    pub fn fetch_beside(self) {
        fetch((self.word as usize).wrapping_add(region::LINE));
    }

    /// # Safety
    /// The region it points into is still mapped.
    #[inline]
    pub unsafe fn is_unchanged(self) -> bool {
        // SAFETY: the caller's promise.
        unsafe { (*self.word).load(Ordering::Relaxed) == self.seen }
    }
}

/// What the program hands us.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    pub addr: usize,
    pub len: usize,
    /// What the kernel helper knows it by; 0: it does not.
    pub pin: u64,
    /// It lies in a block.
    pub in_block: bool,
    /// The same, if the other side has that block.
    pub block: Option<BlockAddress>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Free,
    Posted,
    Over,
}

/// A post of our own, in our own memory.
#[derive(Clone, Copy, Debug, Default)]
struct OwnPost {
    number: u32,
    state: State,
    /// Somebody holds a cookie for it; and somebody waits with that.
    cookie: bool,
    waited: bool,
    matched: bool,
    streamed: bool,
    kind: u32,
    addr: usize,
    len: usize,
    /// What the kernel helper knows it by; 0: it does not.
    pin: u64,
    /// It lies in a block; and the other side has that.
    in_block: bool,
    shown: bool,
    /// From here on valid once it is matched.
    theirs: usize,
    their_pin: u64,
    /// Where theirs lies, if both lie in blocks.
    their_block: Option<BlockAddress>,
    count: usize,
    layout: Layout,
    claimed: usize,
    finished: usize,
    stream_at: usize,
    result: isize,
    /// How far the eager room was used after this message.
    room_end: u64,
}

pub struct Endpoint {
    role: Role,
    offload: usize,
    /// Workers copy, of either process.
    shares: bool,
    requests: Box<[OwnPost; WINDOW]>,
    /// The number of the next post.
    next: u32,
    /// All below are over.
    done: u32,
    /// As far as the other side was seen to be done.
    other_done: u32,
    room_head: u64,
    room_tail: u64,
    /// Chunks produced or consumed.
    chunks: u32,
    /// Their memory is there.
    has_chunks: bool,
    /// The next read, which its thread spins for: the other side sees it as a post, but
    /// nothing of it is remembered yet. Whoever wants to post makes a post of it first.
    announced: Option<Buffer>,
    /// Somebody waits for a place that a thread will let go.
    place_wanted: bool,
    /// A thread has taken the last chunk of a message that another one may wait for.
    neighbour_over: bool,
    /// The length of the last write that went the short way; see `room_ahead`.
    last: usize,
    pub placing: Placing,
}

impl Endpoint {
    pub fn new(role: Role, offload: usize, shares: bool) -> Self {
        Self {
            role,
            offload,
            shares,
            requests: Box::new([OwnPost::default(); WINDOW]),
            next: 0,
            done: 0,
            other_done: 0,
            room_head: 0,
            room_tail: 0,
            chunks: 0,
            has_chunks: false,
            announced: None,
            place_wanted: false,
            neighbour_over: false,
            last: 0,
            placing: Placing::default(),
        }
    }

    /// As if so many messages had gone by.
    #[cfg(test)]
    pub fn begin_at(&mut self, lane: &Lane, number: u32) {
        (self.next, self.done, self.other_done) = (number, number, number);
        lane.writer_done.0.store(number, Ordering::Release);
        lane.reader_done.0.store(number, Ordering::Release);
    }

    #[cfg(test)]
    pub fn is_read_visible(&self, lane: &Lane) -> bool {
        eager_count(lane, self.next, 0).is_some()
    }

    fn own(&mut self, number: u32) -> &mut OwnPost {
        &mut self.requests[number as usize % WINDOW]
    }

    /// The lane's post of the other side, and its progress.
    fn other_desc<'a>(&self, lane: &'a Lane, number: u32) -> &'a region::Descriptor {
        let cell = lane.cell(number);
        match self.role {
            Role::Writer => &cell.reader.0,
            Role::Reader => &cell.writer.0.desc,
        }
    }

    fn own_desc<'a>(&self, lane: &'a Lane, number: u32) -> &'a region::Descriptor {
        let cell = lane.cell(number);
        match self.role {
            Role::Writer => &cell.writer.0.desc,
            Role::Reader => &cell.reader.0,
        }
    }

    /// Whether the next message has a place; on both sides.
    fn check_room(&mut self, lane: &Lane) -> Result<(), NoRoom> {
        let next = self.next;
        let own = self.own(next);
        if own.state != State::Free {
            let uncollected = own.cookie && !own.waited;
            self.place_wanted |= !uncollected;
            return Err(if uncollected { NoRoom::Uncollected } else { NoRoom::InUse });
        }
        if self.is_far_ahead() {
            self.look_how_far(lane)?;
            if self.is_far_ahead() {
                let word = match self.role {
                    Role::Writer => &lane.reader_done.0,
                    Role::Reader => &lane.writer_done.0,
                };
                return Err(NoRoom::OtherIsBehind(Hint { word, seen: self.other_done }));
            }
        }
        Ok(())
    }

    /// Negative distances are usual: a writer of eager messages is ahead of its reader.
    fn is_far_ahead(&self) -> bool {
        self.next.wrapping_sub(self.other_done) as i32 >= WINDOW as i32
    }

    fn look_how_far(&mut self, lane: &Lane) -> Result<(), Broken> {
        let (done, most) = match self.role {
            Role::Writer => (&lane.reader_done.0, self.next),
            // A writer may be ahead, by eager messages.
            Role::Reader => (&lane.writer_done.0, self.next.wrapping_add(WINDOW as u32)),
        };
        let done = done.load(Ordering::Acquire);
        if done.wrapping_sub(self.other_done) > most.wrapping_sub(self.other_done) {
            return Err(Broken);
        }
        if done != self.other_done {
            self.other_done = done;
            if self.role == Role::Writer {
                self.room_tail = self.own(done.wrapping_sub(1)).room_end;
            }
        }
        Ok(())
    }

    /// Takes the room of an eager message, if it needs any; the answer: its place.
    fn take_room(&mut self, lane: &Lane, len: usize) -> Result<Option<usize>, Broken> {
        if len <= SHORT {
            return Ok(Some(0));
        }
        let (room, need) = (EAGER_ROOM as u64, region::room_of(len) as u64);
        let at = self.room_head % room;
        let skipped = if at + need > room { room - at } else { 0 };
        let head = self.room_head + skipped + need;
        if head - self.room_tail > room {
            self.look_how_far(lane)?;
            if head - self.room_tail > room {
                return Ok(None);
            }
        }
        self.room_head = head;
        Ok(Some(((head - need) % room) as usize))
    }

    /// Posts a write. The caller rings. An eager one is over at once, unless there is a cookie:
    /// that wants to know the count.
    ///
    /// # Safety
    /// The buffer is readable until the message is over.
    pub unsafe fn post_write(
        &mut self,
        lane: &Lane,
        Buffer { addr, len, pin, in_block, block }: Buffer,
        eager: usize,
        direct: bool,
        cookie: bool,
    ) -> Result<u32, NoRoom> {
        self.check_room(lane)?;
        let number = self.next;
        let place = if len <= eager { self.take_room(lane, len)? } else { None };
        let (kind, at) = match place {
            Some(place) => (kind::EAGER, place),
            None if direct => (kind::DIRECT, addr),
            None => (kind::STREAMED, addr),
        };
        if let Some(to) = place.and_then(|place| lane.eager(number, place, len)) {
            // SAFETY: the caller's promise; the room was taken for `len` bytes.
            unsafe { original::copy(to, addr, len) };
            tally::note_copied(Means::SharedMemory, len);
        }
        let room_end = self.room_head;
        *self.own(number) = OwnPost {
            number,
            state: State::Posted,
            cookie,
            kind,
            addr,
            len,
            pin,
            in_block,
            shown: block.is_some(),
            streamed: kind == kind::STREAMED,
            room_end,
            ..OwnPost::default()
        };
        self.next = number.wrapping_add(1);
        let written = self.own_desc(lane, number);
        written.pin.store(pin, Ordering::Relaxed);
        written.set_block(block);
        publish(written, number, kind, len, at);
        if kind == kind::EAGER && !cookie {
            let count = eager_count(lane, number, len).unwrap_or(len);
            self.end(lane, number, count as isize);
        }
        Ok(number)
    }

    /// Posts a read; it is over at once if an eager message is there.
    ///
    /// # Safety
    /// The buffer is writable until the message is over, and no Rust reference covers it.
    pub unsafe fn post_read(
        &mut self,
        lane: &Lane,
        Buffer { addr, len, pin, in_block, block }: Buffer,
        cookie: bool,
    ) -> Result<u32, NoRoom> {
        self.post_announced();
        self.check_room(lane)?;
        let number = self.next;
        let (state, shown) = (State::Posted, block.is_some());
        *self.own(number) = OwnPost {
            number,
            state,
            cookie,
            addr,
            len,
            pin,
            in_block,
            shown,
            ..OwnPost::default()
        };
        self.next = number.wrapping_add(1);
        lane.cell(number).reader.0.pin.store(pin, Ordering::Relaxed);
        lane.cell(number).reader.0.set_block(block);
        // Also for what is over at once: its writer wants to know the length.
        publish(&lane.cell(number).reader.0, number, 0, len, addr);
        if !self.is_matched(lane, number)? {
            // The writer looks for this after it has published, and we look for that next.
            full_fence();
        }
        Ok(number)
    }

    /// Looks whether the other side has posted its part. Eager messages are over with that.
    fn is_matched(&mut self, lane: &Lane, number: u32) -> Result<bool, Broken> {
        let (role, offload, shares) = (self.role, self.offload, self.shares);
        let theirs = self.other_desc(lane, number);
        let own = self.own(number);
        if own.matched {
            return Ok(true);
        }
        if theirs.number.load(Ordering::Acquire) != number.wrapping_add(1) {
            return Ok(false);
        }
        // Everything is checked before anything is believed: another thread may come back to a
        // post that was found bad.
        let len = usize::try_from(theirs.len.load(Ordering::Relaxed)).map_err(|_| Broken)?;
        let at = usize::try_from(theirs.at.load(Ordering::Relaxed)).map_err(|_| Broken)?;
        let (pin, block) = (theirs.pin.load(Ordering::Relaxed), theirs.block());
        let kind = match role {
            Role::Writer => own.kind,
            Role::Reader => theirs.kind.load(Ordering::Relaxed),
        };
        let count = own.len.min(len);
        match (kind, role) {
            (kind::EAGER, Role::Reader) => {
                let from = lane.eager(number, at, len).ok_or(Broken)?;
                // SAFETY: it lies there; the destination is the promise of `post_read`.
                unsafe { original::copy(own.addr, from, count) };
                tally::note_copied(Means::SharedMemory, count);
            }
            // An equal has written it into our buffer, which only such a one is shown.
            (kind::PLACED, Role::Reader) if own.shown => {}
            // Written before it was read; its writer has learnt the count now.
            (kind::EAGER, Role::Writer) => {}
            (kind::DIRECT | kind::STREAMED, _) => {
                at.checked_add(len).ok_or(Broken)?;
            }
            _ => return Err(Broken),
        }
        // Both sides know the same of both buffers, and cut alike.
        let shared = shares && !(own.shown && block.is_some());
        let source = if role == Role::Writer { own.addr } else { at };
        let layout = Layout::new(count, offload, shared.then_some(source));
        own.matched = true;
        own.kind = kind;
        own.streamed |= kind == kind::STREAMED;
        own.count = count;
        own.theirs = at;
        own.their_pin = pin;
        own.their_block = block.filter(|_| own.in_block);
        own.layout = layout;
        if matches!(kind, kind::EAGER | kind::PLACED) || count == 0 {
            self.end(lane, number, count as isize);
        }
        Ok(true)
    }

    /// A message is over.
    fn end(&mut self, lane: &Lane, number: u32, result: isize) {
        if tally::is_on() && result >= 0 {
            self.count(lane, number, result as usize);
        }
        let own = self.own(number);
        own.result = result;
        own.state = State::Over;
        while self.done != self.next {
            let oldest = self.done;
            if self.own(oldest).state == State::Posted {
                break;
            }
            self.done = oldest.wrapping_add(1);
        }
        let done = match self.role {
            Role::Writer => &lane.writer_done.0,
            Role::Reader => &lane.reader_done.0,
        };
        done.store(self.done, Ordering::Release);
    }

    fn count(&mut self, lane: &Lane, number: u32, bytes: usize) {
        let direction = match self.role {
            Role::Writer => Direction::Sent,
            Role::Reader => Direction::Received,
        };
        let own = self.own(number);
        let regime = match claims::cursors(&lane.cell(number).claims.0, number) {
            _ if own.kind == kind::EAGER => Regime::Eager,
            _ if own.streamed => Regime::Chunks,
            Cursors { front: 1.., back: 1.., .. } => Regime::TwoEnded,
            _ => Regime::OneCopy,
        };
        tally::note_message(direction, regime, bytes);
    }

    pub fn has_unfinished(&self) -> bool {
        self.done != self.next
    }

    /// The messages that are not over, oldest first.
    pub fn unfinished(&self) -> impl Iterator<Item = u32> + use<> {
        let posted: Vec<u32> = (0..self.next.wrapping_sub(self.done))
            .map(|offset| self.done.wrapping_add(offset))
            .filter(|&number| self.requests[number as usize % WINDOW].state == State::Posted)
            .collect();
        posted.into_iter()
    }

    /// Takes the result of a message that is over; its place is free then. With it comes what
    /// the helper knows the buffer by, to be taken back.
    pub fn collect(&mut self, number: u32) -> (isize, u64) {
        let own = self.own(number);
        own.state = State::Free;
        (own.result, core::mem::take(&mut own.pin))
    }

    /// Whether somebody is to be told that a place is free.
    pub fn take_place_wanted(&mut self) -> bool {
        core::mem::take(&mut self.place_wanted)
    }

    /// Whether others in this process are to be told that a message is over.
    pub fn take_neighbour_over(&mut self) -> bool {
        core::mem::take(&mut self.neighbour_over)
    }

    /// What the helper knows any of our buffers by.
    pub fn take_pins(&mut self) -> Vec<u64> {
        let pins = self.requests.iter_mut().map(|own| core::mem::take(&mut own.pin));
        pins.filter(|&pin| pin != 0).collect()
    }

    /// The message that a cookie stands for, for one thread to wait with; the number has lost
    /// its highest bit.
    pub fn begin_wait(&mut self, number: u32) -> Option<u32> {
        let own = self.own(number);
        let stands = own.state != State::Free
            && own.cookie
            && !own.waited
            && own.number & NUMBER_BITS == number;
        own.waited |= stands;
        stands.then_some(own.number)
    }

    pub fn end_wait(&mut self, number: u32) {
        self.own(number).waited = false;
    }

    /// The message has not met its other part.
    pub fn is_unmatched(&mut self, number: u32) -> bool {
        let own = self.own(number);
        own.state == State::Posted && !own.matched
    }
}

/// The part of a message's number that fits into a cookie.
pub const NUMBER_BITS: u32 = 0x7fff_ffff;

/// What an eager write learns at once: the count, if its read is there.
#[inline]
fn eager_count(lane: &Lane, number: u32, len: usize) -> Option<usize> {
    let read = &lane.cell(number).reader.0;
    let there = read.number.load(Ordering::Acquire) == number.wrapping_add(1);
    there.then(|| len.min(read.len.load(Ordering::Relaxed) as usize))
}

fn describe(desc: &region::Descriptor, kind: u32, len: usize, at: usize) {
    desc.kind.store(kind, Ordering::Relaxed);
    desc.len.store(len as u64, Ordering::Relaxed);
    desc.at.store(at as u64, Ordering::Relaxed);
}

fn publish(desc: &region::Descriptor, number: u32, kind: u32, len: usize, at: usize) {
    describe(desc, kind, len, at);
    desc.number.store(number.wrapping_add(1), Ordering::Release);
}
