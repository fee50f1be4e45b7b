//! One direction as one process sees it: what it has posted, how that meets the other's
//! posts, and what is to be done next.
//!
//! Nothing here waits. The lock of a half is held during every call, and let go while a
//! piece is copied: `advance` hands the piece out and `copied` takes the answer.

use super::engine::{Copied, Engine, There};
use super::os::Way;
use super::region::{self, CHUNK, CHUNKS, EAGER_ROOM, Lane, WINDOW, kind};
use super::tally::{self, Direction, Means, Regime};
use super::ticket::{self, Claim, End, MOST_PIECES, View, flag};
use crate::backend::libc as original;
use crate::plan::PAGE;
use crate::sync::full_fence;
use core::sync::atomic::{AtomicU32, Ordering};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Writer,
    Reader,
}

impl Role {
    fn end(self) -> End {
        match self {
            Role::Writer => End::Back,
            Role::Reader => End::Front,
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
    /// The other side has not come so far; look at this word.
    OtherIsBehind(Hint),
    Broken,
}

impl From<Broken> for NoRoom {
    fn from(_: Broken) -> Self {
        NoRoom::Broken
    }
}

/// What the short way of a message has led to.
pub enum Short {
    /// It is over, with this count.
    Done(usize),
    /// A read without a message yet; see `Half::announced`.
    Announced(u32, Hint),
    /// It has become a post, with this number.
    Posted(u32),
    UsualWay,
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
    pub post: u64,
}

/// What `advance` has found.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The message is over; its result waits to be collected.
    Over,
    /// Copy this, then call `copied`.
    Copy(Piece),
    /// A chunk went by.
    Moved,
    /// The other side has closed; nobody touches the buffers any more.
    Cancelled,
    Idle(Hint),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    pub ours: usize,
    pub theirs: There,
    pub len: usize,
    /// The message has no other piece.
    pub only: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    Posted,
    Over,
}

/// A post of our own, in our own memory.
#[derive(Clone, Copy, Debug)]
struct Own {
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
    post: u64,
    /// From here on valid once it is matched.
    theirs: usize,
    their_post: u64,
    count: usize,
    piece: usize,
    pieces: usize,
    claimed: usize,
    finished: usize,
    stream_at: usize,
    result: isize,
    /// How far the eager room was used after this message.
    room_end: u64,
}

const NOTHING: Own = Own {
    number: 0,
    state: State::Free,
    cookie: false,
    waited: false,
    matched: false,
    streamed: false,
    kind: 0,
    addr: 0,
    len: 0,
    post: 0,
    theirs: 0,
    their_post: 0,
    count: 0,
    piece: 0,
    pieces: 0,
    claimed: 0,
    finished: 0,
    stream_at: 0,
    result: 0,
    room_end: 0,
};

pub struct Half {
    role: Role,
    offload: usize,
    posts: Box<[Own; WINDOW]>,
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
    /// The next read, which its thread spins for: the other side sees it as a post, but
    /// nothing of it is remembered yet. Whoever wants to post makes a post of it first.
    announced: Option<(usize, usize)>,
}

impl Half {
    pub fn new(role: Role, offload: usize) -> Self {
        Self {
            role,
            offload,
            posts: Box::new([NOTHING; WINDOW]),
            next: 0,
            done: 0,
            other_done: 0,
            room_head: 0,
            room_tail: 0,
            chunks: 0,
            announced: None,
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

    fn own(&mut self, number: u32) -> &mut Own {
        &mut self.posts[number as usize % WINDOW]
    }

    /// The lane's post of the other side, and its progress.
    fn other_post<'a>(&self, lane: &'a Lane, number: u32) -> &'a region::Post {
        let cell = lane.cell(number);
        match self.role {
            Role::Writer => &cell.reader.0,
            Role::Reader => &cell.writer.0,
        }
    }

    fn own_post<'a>(&self, lane: &'a Lane, number: u32) -> &'a region::Post {
        let cell = lane.cell(number);
        match self.role {
            Role::Writer => &cell.writer.0,
            Role::Reader => &cell.reader.0,
        }
    }

    /// Whether the next message has a place; on both sides.
    fn check_room(&mut self, lane: &Lane) -> Result<(), NoRoom> {
        let next = self.next;
        if self.own(next).state != State::Free {
            return Err(NoRoom::Uncollected);
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

    /// Place for an eager message.
    fn take_room(&mut self, lane: &Lane, len: usize) -> Result<Option<usize>, Broken> {
        let need = len.max(1).next_multiple_of(64) as u64;
        let room = EAGER_ROOM as u64;
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

    /// The short way of a blocking write that is eager: nothing of it has to be remembered.
    /// Answers the count as `eager_count`; `None`: it has to go the usual way.
    ///
    /// # Safety
    /// `addr` is readable for `len` bytes.
    #[inline]
    pub unsafe fn write_eagerly(
        &mut self,
        lane: &Lane,
        addr: usize,
        len: usize,
    ) -> Result<Option<usize>, NoRoom> {
        self.check_room(lane)?;
        let Some(place) = self.take_room(lane, len)? else { return Ok(None) };
        // SAFETY: the caller's promise; the room was taken for `len` bytes.
        unsafe { original::copy(lane.eager() + place, addr, len) };
        tally::note_copied(Means::SharedMemory, len);
        let (number, room_end) = (self.next, self.room_head);
        self.own(number).room_end = room_end;
        self.next = number.wrapping_add(1);
        publish(&lane.cell(number).writer.0, number, kind::EAGER, len, place);
        // Before we are done with it: then the reader's place may be used again.
        let count = eager_count(lane, number, len);
        if self.done == number {
            self.done = self.next;
            lane.writer_done.0.store(self.done, Ordering::Release);
        }
        let count = count.unwrap_or(len);
        tally::note_message(Direction::Sent, Regime::Eager, count);
        Ok(Some(count))
    }

    /// The short way of a blocking read: takes an eager message that is there already, and
    /// announces the read if there is none. Who gets `Announced` asks with `read_announced`,
    /// and gives it up with `post_announced`.
    ///
    /// # Safety
    /// As `post_read`.
    #[inline]
    pub unsafe fn read_eagerly(&mut self, lane: &Lane, addr: usize, len: usize) -> Short {
        let number = self.next;
        if self.done != number || self.announced.is_some() || self.check_room(lane).is_err() {
            return Short::UsualWay;
        }
        // SAFETY: the caller's promise.
        let short = unsafe { self.read_next(lane, addr, len) };
        if let Short::Announced(..) = short {
            self.announced = Some((addr, len));
            lane.cell(number).reader.0.post.store(0, Ordering::Relaxed);
            publish(&lane.cell(number).reader.0, number, 0, len, addr);
        }
        short
    }

    /// Looks once more for the message of an announced read.
    #[inline]
    pub fn read_announced(&mut self, lane: &Lane, number: u32) -> Short {
        let Some((addr, len)) = self.announced.filter(|_| self.next == number) else {
            return Short::Posted(number);
        };
        // SAFETY: the promise of `read_eagerly`, which has not returned to the program yet.
        let short = unsafe { self.read_next(lane, addr, len) };
        match short {
            Short::Done(_) => self.announced = None,
            Short::UsualWay => {
                self.post_announced();
                return Short::Posted(number);
            }
            _ => {}
        }
        short
    }

    /// Makes a post of an announced read.
    pub fn post_announced(&mut self) {
        if let Some((addr, len)) = self.announced.take() {
            let number = self.next;
            *self.own(number) = Own { number, state: State::Posted, addr, len, ..NOTHING };
            self.next = number.wrapping_add(1);
            // As in `post_read`.
            full_fence();
        }
    }

    #[inline]
    unsafe fn read_next(&mut self, lane: &Lane, addr: usize, len: usize) -> Short {
        let number = self.next;
        let post = &lane.cell(number).writer.0;
        let seen = post.number.load(Ordering::Acquire);
        if seen != number.wrapping_add(1) {
            return Short::Announced(number, Hint { word: &post.number, seen });
        }
        let sent = post.len.load(Ordering::Relaxed);
        let place = post.at.load(Ordering::Relaxed);
        let inside = sent <= EAGER_ROOM as u64 && place <= EAGER_ROOM as u64 - sent;
        if post.kind.load(Ordering::Relaxed) != kind::EAGER || !inside {
            return Short::UsualWay;
        }
        let count = len.min(sent as usize);
        // SAFETY: just checked; the destination is the caller's promise.
        unsafe { original::copy(addr, lane.eager() + place as usize, count) };
        if self.announced.is_none() {
            publish(&lane.cell(number).reader.0, number, 0, len, addr);
        }
        self.next = number.wrapping_add(1);
        self.done = self.next;
        lane.reader_done.0.store(self.done, Ordering::Release);
        tally::note_copied(Means::SharedMemory, count);
        tally::note_message(Direction::Received, Regime::Eager, count);
        Short::Done(count)
    }

    /// Posts a write. The caller rings. An eager one is over at once, unless there is a cookie:
    /// that wants to know the count.
    ///
    /// # Safety
    /// The buffer is readable until the message is over.
    pub unsafe fn post_write(
        &mut self,
        lane: &Lane,
        Buffer { addr, len, post }: Buffer,
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
        if let Some(place) = place {
            // SAFETY: the caller's promise; the room was taken for `len` bytes.
            unsafe { original::copy(lane.eager() + place, addr, len) };
            tally::note_copied(Means::SharedMemory, len);
        }
        let room_end = self.room_head;
        *self.own(number) = Own {
            number,
            state: State::Posted,
            cookie,
            kind,
            addr,
            len,
            post,
            streamed: kind == kind::STREAMED,
            room_end,
            ..NOTHING
        };
        self.next = number.wrapping_add(1);
        lane.cell(number).writer.0.post.store(post, Ordering::Relaxed);
        publish(&lane.cell(number).writer.0, number, kind, len, at);
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
        Buffer { addr, len, post }: Buffer,
        cookie: bool,
    ) -> Result<u32, NoRoom> {
        self.post_announced();
        self.check_room(lane)?;
        let number = self.next;
        let posted = State::Posted;
        *self.own(number) = Own { number, state: posted, cookie, addr, len, post, ..NOTHING };
        self.next = number.wrapping_add(1);
        lane.cell(number).reader.0.post.store(post, Ordering::Relaxed);
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
        let (role, offload) = (self.role, self.offload);
        let theirs = self.other_post(lane, number);
        let own = self.own(number);
        if own.matched {
            return Ok(true);
        }
        if theirs.number.load(Ordering::Acquire) != number.wrapping_add(1) {
            return Ok(false);
        }
        let len = usize::try_from(theirs.len.load(Ordering::Relaxed)).map_err(|_| Broken)?;
        let at = usize::try_from(theirs.at.load(Ordering::Relaxed)).map_err(|_| Broken)?;
        own.matched = true;
        own.count = own.len.min(len);
        if role == Role::Reader {
            own.kind = theirs.kind.load(Ordering::Relaxed);
            match own.kind {
                kind::EAGER => {
                    if len > EAGER_ROOM || at > EAGER_ROOM - len {
                        return Err(Broken);
                    }
                    let (addr, count) = (own.addr, own.count);
                    // SAFETY: just checked; the destination is the promise of `post_read`.
                    unsafe { original::copy(addr, lane.eager() + at, count) };
                    tally::note_copied(Means::SharedMemory, count);
                    self.end(lane, number, count as isize);
                    return Ok(true);
                }
                kind::DIRECT => {}
                kind::STREAMED => own.streamed = true,
                _ => return Err(Broken),
            }
        }
        if own.kind == kind::EAGER {
            // Written before it was read; its writer has learnt the count now.
            let count = own.count as isize;
            self.end(lane, number, count);
            return Ok(true);
        }
        at.checked_add(len).ok_or(Broken)?;
        own.theirs = at;
        own.their_post = theirs.post.load(Ordering::Relaxed);
        own.piece = piece_size(own.count, offload);
        own.pieces = own.count.div_ceil(own.piece);
        if own.count == 0 {
            self.end(lane, number, 0);
        }
        Ok(true)
    }

    /// Takes one message a step further.
    pub fn advance(&mut self, lane: &Lane, engine: &Engine, number: u32) -> Result<Step, Broken> {
        if self.own(number).state == State::Over {
            return Ok(Step::Over);
        }
        if !self.is_matched(lane, number)? {
            return Ok(Step::Idle(Hint::of(&self.other_post(lane, number).number)));
        }
        if self.own(number).state == State::Over {
            return Ok(Step::Over);
        }
        let (ticket, role) = (&lane.cell(number).ticket.0, self.role);
        let hint = Hint::of(&self.other_post(lane, number).finished);
        let own = self.own(number);
        let view = if own.streamed || !engine.reaches(role.way(), own.their_post) {
            ticket::view(ticket, number)
        } else {
            match ticket::claim(ticket, number, role.end(), own.claimed, own.pieces) {
                Claim::Piece(index) => {
                    own.claimed += 1;
                    let at = index * own.piece;
                    let len = own.piece.min(own.count - at);
                    let (ours, addr) = (own.addr + at, own.theirs + at);
                    let theirs = There { addr, post: own.their_post, offset: at };
                    return Ok(Step::Copy(Piece { ours, theirs, len, only: own.pieces == 1 }));
                }
                Claim::NoMore(view) => view,
                Claim::Broken => return Err(Broken),
            }
        };
        let (flags, pieces, count) = (view.flags, own.pieces, own.count);
        own.streamed |= flags & flag::REFUSED != 0;
        let streamed = own.streamed;
        let settled = self.is_settled(lane, number, view);
        if flags & (flag::FAULT | flag::CANCELLED) != 0 {
            return Ok(match settled {
                false => Step::Idle(hint),
                true if flags & flag::CANCELLED != 0 => Step::Cancelled,
                true => {
                    self.end(lane, number, -libc::EFAULT as isize);
                    Step::Over
                }
            });
        }
        if streamed {
            return self.stream(lane, number, settled, hint);
        }
        if view.front + view.back >= pieces && settled {
            self.end(lane, number, count as isize);
            return Ok(Step::Over);
        }
        Ok(Step::Idle(hint))
    }

    /// Whether everything that was begun is finished.
    fn is_settled(&mut self, lane: &Lane, number: u32, view: View) -> bool {
        let theirs = ticket::finished(&self.other_post(lane, number).finished, number);
        let begun = match self.role {
            Role::Writer => view.front,
            Role::Reader => view.back,
        };
        let own = self.own(number);
        own.finished == own.claimed && theirs >= begun
    }

    /// What became of a piece. The answer: whether the other side may be waiting for this.
    pub fn copied(&mut self, lane: &Lane, number: u32, outcome: Copied) -> bool {
        let ticket = &lane.cell(number).ticket.0;
        match outcome {
            Copied::Whole => {}
            Copied::Fault => ticket::raise(ticket, number, flag::FAULT),
            Copied::Refused | Copied::NotThisTime => {
                ticket::raise(ticket, number, flag::REFUSED);
            }
            Copied::Gone => ticket::raise(ticket, number, flag::CANCELLED),
        }
        let post = self.own_post(lane, number);
        let own = self.own(number);
        own.finished += 1;
        // A piece that failed is finished too: nobody touches the buffers for it any more.
        ticket::note_finished(&post.finished, number, own.finished);
        let view = ticket::view(ticket, number);
        view.flags != 0 || (own.finished == own.claimed && view.front + view.back >= own.pieces)
    }

    /// One chunk of a message that goes through the region.
    fn stream(
        &mut self,
        lane: &Lane,
        number: u32,
        settled: bool,
        hint: Hint,
    ) -> Result<Step, Broken> {
        let moved = match self.role {
            Role::Reader => self.consume(lane)?,
            Role::Writer => self.produce(lane, number)?,
        };
        let own = self.own(number);
        if own.stream_at == own.count && settled {
            let count = own.count as isize;
            self.end(lane, number, count);
            return Ok(Step::Over);
        }
        let waits_for = match self.role {
            _ if own.stream_at == own.count => hint,
            Role::Reader => Hint { word: &lane.produced.0, seen: self.chunks },
            Role::Writer => {
                Hint { word: &lane.consumed.0, seen: self.chunks.wrapping_sub(CHUNKS as u32) }
            }
        };
        Ok(if moved { Step::Moved } else { Step::Idle(waits_for) })
    }

    fn produce(&mut self, lane: &Lane, number: u32) -> Result<bool, Broken> {
        let index = self.chunks;
        let lying = index.wrapping_sub(lane.consumed.0.load(Ordering::Acquire));
        let own = self.own(number);
        let len = CHUNK.min(own.count - own.stream_at);
        if lying as usize > CHUNKS {
            return Err(Broken);
        }
        if lying as usize == CHUNKS || len == 0 {
            return Ok(false);
        }
        let chunk = &lane.chunks[index as usize % CHUNKS].0;
        // SAFETY: inside the buffer that was posted; the chunk is free for us to write.
        unsafe { original::copy(lane.chunk_bytes(index), own.addr + own.stream_at, len) };
        tally::note_copied(Means::SharedMemory, len);
        chunk.number.store(number, Ordering::Relaxed);
        chunk.len.store(len as u32, Ordering::Relaxed);
        chunk.offset.store(own.stream_at as u64, Ordering::Relaxed);
        own.stream_at += len;
        self.chunks = index.wrapping_add(1);
        lane.produced.0.store(self.chunks, Ordering::Release);
        Ok(true)
    }

    /// Takes the next chunk, whichever message it belongs to.
    fn consume(&mut self, lane: &Lane) -> Result<bool, Broken> {
        let index = self.chunks;
        let lying = lane.produced.0.load(Ordering::Acquire).wrapping_sub(index);
        if lying as usize > CHUNKS {
            return Err(Broken);
        }
        if lying == 0 {
            return Ok(false);
        }
        let chunk = &lane.chunks[index as usize % CHUNKS].0;
        let number = chunk.number.load(Ordering::Relaxed);
        let len = chunk.len.load(Ordering::Relaxed) as usize;
        let offset = chunk.offset.load(Ordering::Relaxed);
        let own = self.own(number);
        if own.number != number || own.state != State::Posted {
            return Err(Broken);
        }
        self.is_matched(lane, number)?;
        let view = ticket::view(&lane.cell(number).ticket.0, number);
        let own = self.own(number);
        own.streamed |= view.flags & flag::REFUSED != 0;
        let right = own.matched
            && own.state == State::Posted
            && own.streamed
            && offset == own.stream_at as u64
            && (1..=CHUNK).contains(&len)
            && len <= own.count - own.stream_at;
        if !right {
            return Err(Broken);
        }
        // SAFETY: just checked to lie inside the buffer that was posted.
        unsafe { original::copy(own.addr + own.stream_at, lane.chunk_bytes(index), len) };
        tally::note_copied(Means::SharedMemory, len);
        own.stream_at += len;
        self.chunks = index.wrapping_add(1);
        lane.consumed.0.store(self.chunks, Ordering::Release);
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
        let regime = if own.kind == kind::EAGER {
            Regime::Eager
        } else if own.streamed {
            Regime::Chunks
        } else {
            match ticket::view(&lane.cell(number).ticket.0, number) {
                View { front: 1.., back: 1.., .. } => Regime::TwoEnded,
                _ => Regime::OneCopy,
            }
        };
        tally::note_message(direction, regime, bytes);
    }

    /// Nobody shall claim a piece of it any more.
    pub fn cancel(&mut self, lane: &Lane, number: u32) {
        ticket::raise(&lane.cell(number).ticket.0, number, flag::CANCELLED);
    }

    /// Whether a message is over, without doing anything for it.
    pub fn is_over(&mut self, lane: &Lane, number: u32) -> bool {
        let own = *self.own(number);
        if own.state == State::Posted && own.matched && !own.streamed {
            let view = ticket::view(&lane.cell(number).ticket.0, number);
            let copied = view.flags == 0 && view.front + view.back >= own.pieces;
            if copied && self.is_settled(lane, number, view) {
                self.end(lane, number, own.count as isize);
            }
        }
        self.own(number).state == State::Over
    }

    /// Gives a message up. True: nobody touches its buffers any more, and it is over with
    /// `result`. `alone`: the other process is gone and need not be waited for.
    pub fn abandon(&mut self, lane: &Lane, number: u32, alone: bool, result: isize) -> bool {
        let ticket = &lane.cell(number).ticket.0;
        if self.own(number).state == State::Over {
            return true;
        }
        self.cancel(lane, number);
        let view = ticket::view(ticket, number);
        let view = if alone { View { front: 0, back: 0, ..view } } else { view };
        let settled = self.is_settled(lane, number, view);
        if settled {
            self.end(lane, number, result);
        }
        settled
    }

    pub fn has_unfinished(&self) -> bool {
        self.done != self.next
    }

    /// The messages that are not over, oldest first.
    pub fn unfinished(&self) -> impl Iterator<Item = u32> + use<> {
        let posted: Vec<u32> = (0..self.next.wrapping_sub(self.done))
            .map(|offset| self.done.wrapping_add(offset))
            .filter(|&number| self.posts[number as usize % WINDOW].state == State::Posted)
            .collect();
        posted.into_iter()
    }

    /// Takes the result of a message that is over; its place is free then. With it comes what
    /// the helper knows the buffer by, to be taken back.
    pub fn collect(&mut self, number: u32) -> (isize, u64) {
        let own = self.own(number);
        own.state = State::Free;
        (own.result, core::mem::take(&mut own.post))
    }

    /// What the helper knows any of our buffers by.
    pub fn take_posts(&mut self) -> Vec<u64> {
        let posts = self.posts.iter_mut().map(|own| core::mem::take(&mut own.post));
        posts.filter(|&post| post != 0).collect()
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

fn publish(post: &region::Post, number: u32, kind: u32, len: usize, at: usize) {
    post.kind.store(kind, Ordering::Relaxed);
    post.len.store(len as u64, Ordering::Relaxed);
    post.at.store(at as u64, Ordering::Relaxed);
    post.number.store(number.wrapping_add(1), Ordering::Release);
}

/// How large the pieces of a message are; both sides get the same answer.
///
/// Two while they are short: each costs a system call on either side, and halves are done at
/// about the same time. Then four, and more of at most 512 KiB or a 64th: who comes late, or
/// is slower, takes fewer, and nobody waits long for the other's last one. (Measured with two
/// CPUs: 256 KiB as two pieces takes 0.88 of the time of four, 16 MiB in pieces of 512 KiB 0.93
/// of 128 KiB and 0.96 of 1 MiB, 64 MiB in pieces of 1 MiB 0.88 of 128 KiB.)
fn piece_size(count: usize, offload: usize) -> usize {
    const HALVES: usize = 512 << 10;
    const LARGEST: usize = 512 << 10;
    let piece = match count {
        _ if count < offload => return count.max(1),
        ..=HALVES => count.div_ceil(2),
        _ => (count / 4).min(LARGEST.max(count / 64)),
    };
    piece.max(count.div_ceil(MOST_PIECES)).next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_every_message_and_are_never_too_many() {
        for offload in [1, 32 << 10, usize::MAX] {
            for shift in 0..63 {
                for count in [1usize << shift, (1 << shift) + 1, (1 << shift) * 2 - 1] {
                    let piece = piece_size(count, offload);
                    let pieces = count.div_ceil(piece);
                    assert!((1..=MOST_PIECES).contains(&pieces), "{count}");
                    assert!(pieces == 1 || piece.is_multiple_of(PAGE), "{count}");
                    assert!(count >= offload || pieces == 1, "{count}");
                }
            }
        }
    }
}
