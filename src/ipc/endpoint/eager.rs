//! The short way of blocking messages that are eager, or turn out to be: nothing of them has
//! to be remembered, so nothing is.

use super::{Buffer, Endpoint, Hint, NoRoom, Role, describe, eager_count, publish, publish_buffer};
use crate::backend::libc as original;
use crate::ipc::blocks::BlockAddress;
use crate::ipc::claims::{self, Claim};
use crate::ipc::region::{Descriptor, EAGER_ROOM, Lane, SHORT, kind, room_of};
use crate::ipc::tally::{self, Direction, Means, Regime};
use crate::os::sync::full_fence;
use crate::os::sys;
use core::ops::Range;
use core::sync::atomic::Ordering;

/// From here on a write that is eager by its size goes straight into a block whose read waits.
/// Below, the second copy is cheaper than to find the block.
pub const PLACED_FROM: usize = 8 << 10;

/// Whether it pays to write there. It does while the lines of the reader's buffer are still ours
/// from the last time, because nobody has read them. Those that somebody has read are fetched
/// back one by one, while those of the room were asked for before: one copy takes 1.3 times as
/// long then as two, and 0.5 otherwise (measured, 6 to 32 KiB). The copy itself tells which it is.
#[derive(Default)]
pub struct Placing {
    /// Ticks for a KiB of the last copies into the room; 0: not known.
    room_cost: u64,
    writes: u32,
    /// So many writes were placed one after the other.
    in_a_row: u32,
    /// So many are not to be, now and next time.
    skip: u32,
    pause: u32,
}

impl Placing {
    const PAUSES: core::ops::RangeInclusive<u32> = 8..=256;

    fn cost(begun: u64, len: usize) -> u64 {
        (sys::ticks().wrapping_sub(begun) << 10) / len as u64
    }

    /// Now and then it is not, to see what the room costs.
    pub fn pays(&mut self) -> bool {
        self.writes = self.writes.wrapping_add(1);
        self.skip = self.skip.saturating_sub(1);
        self.skip == 0 && self.room_cost != 0 && !self.writes.is_multiple_of(64)
    }

    fn note_room(&mut self, begun: u64, len: usize) {
        // A copy that was interrupted says nothing.
        let cost = Self::cost(begun, len).max(1);
        let most = if self.room_cost == 0 { u64::MAX } else { self.room_cost * 9 / 8 + 1 };
        self.room_cost = cost.min(most);
        self.in_a_row = 0;
    }

    fn note_placed(&mut self, begun: u64, len: usize) {
        self.in_a_row = self.in_a_row.saturating_add(1);
        // The first ones take the lines away from whoever has them, in any case.
        if self.in_a_row < 3 {
            return;
        }
        let slow = Self::cost(begun, len) > 2 * self.room_cost;
        let (least, most) = (*Self::PAUSES.start(), *Self::PAUSES.end());
        self.pause = if slow { (2 * self.pause).clamp(least, most) } else { 0 };
        self.skip = self.pause;
    }
}

/// What the short way of a message has led to.
pub enum Short {
    /// It is over, with this count.
    Done(usize),
    /// A read without a message yet; see `Endpoint::announced`.
    Announced(u32, Hint),
    /// It has become a post, with this number.
    Posted(u32),
    UsualWay,
}

/// Publishes an eager write whose bytes have just been written.
#[inline]
fn publish_written(desc: &Descriptor, number: u32, len: usize, place: usize) {
    if len <= SHORT {
        return publish(desc, number, kind::EAGER, len, place);
    }
    describe(desc, kind::EAGER, len, place);
    // A locked instruction waits until the bytes are out before it asks for the line. Asked for
    // earlier, it would be taken away again by the reader, which looks all the time. (Measured:
    // 0.92 of the time of 1 KiB and 4 KiB.)
    desc.number.swap(number.wrapping_add(1), Ordering::AcqRel);
}

impl Endpoint {
    /// The room that the next write will fill if it is as long as the last: for a thread that
    /// waits, to make the lines its own. Told once after every write. (Measured: 0.86 of the
    /// time of 1 KiB and 0.89 of 4 KiB.)
    pub fn room_ahead(&mut self, lane: &Lane) -> Range<usize> {
        let (len, at) = (core::mem::take(&mut self.last), self.room_head as usize % EAGER_ROOM);
        let at = if at + room_of(len) <= EAGER_ROOM { at } else { 0 };
        let room = lane.eager(self.next, at, len).filter(|_| len > SHORT);
        room.map_or(0..0, |start| start..start + room_of(len))
    }

    /// The short way of a blocking write that is eager: nothing of it has to be remembered.
    /// Answers the count as `eager_count`; `None`: it has to go the usual way. `timed`: for
    /// `Placing`.
    ///
    /// # Safety
    /// `addr` is readable for `len` bytes.
    #[inline]
    pub unsafe fn write_eagerly(
        &mut self,
        lane: &Lane,
        addr: usize,
        len: usize,
        timed: bool,
    ) -> Result<Option<usize>, NoRoom> {
        self.check_room(lane)?;
        let Some(place) = self.take_room(lane, len)? else { return Ok(None) };
        let (number, room_end) = (self.next, self.room_head);
        let Some(to) = lane.eager(number, place, len) else { return Ok(None) };
        let begun = if timed { sys::ticks() } else { 0 };
        // SAFETY: the caller's promise; the room was taken for `len` bytes.
        unsafe { original::copy(to, addr, len) };
        if timed {
            self.placing.note_room(begun, len);
        }
        tally::note_copied(Means::SharedMemory, len);
        self.last = len;
        publish_written(self.own_desc(lane, number), number, len, place);
        // Before we are done with it: then the reader's place may be used again.
        let count = eager_count(lane, number, len).unwrap_or(len);
        self.note_written(lane, number, room_end);
        tally::note_message(Direction::Sent, Regime::Eager, count);
        Ok(Some(count))
    }

    /// A write that nothing has to be remembered of is over.
    #[inline]
    fn note_written(&mut self, lane: &Lane, number: u32, room_end: u64) {
        self.own(number).room_end = room_end;
        self.next = number.wrapping_add(1);
        if self.done == number {
            self.done = self.next;
            lane.done[Role::Writer as usize].0.store(self.done, Ordering::Release);
        }
    }

    /// Where the next write of `len` bytes goes, if its read is there already and lies in a
    /// block; and the count.
    pub fn waiting_block(&self, lane: &Lane, len: usize) -> Option<(BlockAddress, usize)> {
        let count = eager_count(lane, self.next, len)?;
        Some((lane.desc(Role::Reader, self.next).block()?, count))
    }

    /// The short way of a blocking write whose read is there: one copy, straight into that
    /// buffer, whose first `count` bytes lie `at` here. The claim tells a reader that closes
    /// that somebody is at its buffer. Answers the count; `None`: as above.
    ///
    /// # Safety
    /// As above; `at` is writable for `count` bytes, no more than `len`.
    pub unsafe fn write_in_place(
        &mut self,
        lane: &Lane,
        addr: usize,
        len: usize,
        at: usize,
        count: usize,
    ) -> Result<Option<usize>, NoRoom> {
        self.check_room(lane)?;
        let (number, room_end) = (self.next, self.room_head);
        let (desc, claims) = (self.own_desc(lane, number), lane.claims(number));
        claims::note_finished(&desc.finished, number, 0);
        if claims::claim(claims, number, Role::Writer, 0, 1) != Claim::Piece(0) {
            return Ok(None);
        }
        let begun = sys::ticks();
        // SAFETY: the caller's promise; the read lets us, and will not end before we say so.
        unsafe { original::copy(at, addr, count) };
        self.placing.note_placed(begun, count.max(1));
        claims::note_finished(&desc.finished, number, 1);
        tally::note_copied(Means::Mapped, count);
        publish(desc, number, kind::PLACED, len, 0);
        self.note_written(lane, number, room_end);
        tally::note_message(Direction::Sent, Regime::OneCopy, count);
        Ok(Some(count))
    }

    /// The short way of a blocking read: takes an eager message that is there already, and
    /// announces the read if there is none. Who gets `Announced` asks with `read_announced`,
    /// and gives it up with `post_announced`.
    ///
    /// # Safety
    /// As `post_read`.
    #[inline]
    pub unsafe fn read_eagerly(&mut self, lane: &Lane, buffer: Buffer) -> Short {
        let number = self.next;
        if self.done != number || self.announced.is_some() || self.check_room(lane).is_err() {
            return Short::UsualWay;
        }
        // SAFETY: the caller's promise.
        let short = unsafe { self.read_next(lane, buffer.addr, buffer.len) };
        if let Short::Announced(..) = short {
            self.announced = Some(buffer);
            publish_buffer(self.own_desc(lane, number), number, 0, buffer.addr, buffer);
        }
        short
    }

    /// Looks once more for the message of an announced read.
    #[inline]
    pub fn read_announced(&mut self, lane: &Lane, number: u32) -> Short {
        let Some(Buffer { addr, len, .. }) = self.announced.filter(|_| self.next == number) else {
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
        if let Some(buffer) = self.announced.take() {
            self.remember(buffer, 0, false);
            // As in `post_read`.
            full_fence();
        }
    }

    #[inline]
    unsafe fn read_next(&mut self, lane: &Lane, addr: usize, len: usize) -> Short {
        let number = self.next;
        let desc = self.other_desc(lane, number);
        let seen = desc.number.load(Ordering::Acquire);
        if seen != number.wrapping_add(1) {
            return Short::Announced(number, Hint { word: &desc.number, seen });
        }
        let (kind, sent) = (desc.kind.load(Ordering::Relaxed), desc.len.load(Ordering::Relaxed));
        let sent = sent as usize;
        if kind == kind::PLACED && self.announced.is_some_and(|read| read.block.is_some()) {
            return self.note_read(lane, number, len.min(sent), Regime::OneCopy);
        }
        if kind != kind::EAGER {
            return Short::UsualWay;
        }
        let place = desc.at.load(Ordering::Relaxed) as usize;
        // The usual way will find what is wrong.
        let Some(from) = lane.eager(number, place, sent) else { return Short::UsualWay };
        let count = len.min(sent);
        // SAFETY: it lies there; the destination is the caller's promise.
        unsafe { original::copy(addr, from, count) };
        if self.announced.is_none() {
            publish(self.own_desc(lane, number), number, 0, len, addr);
        }
        tally::note_copied(Means::SharedMemory, count);
        self.note_read(lane, number, count, Regime::Eager)
    }

    #[inline]
    fn note_read(&mut self, lane: &Lane, number: u32, count: usize, regime: Regime) -> Short {
        self.next = number.wrapping_add(1);
        self.done = self.next;
        lane.done[Role::Reader as usize].0.store(self.done, Ordering::Release);
        tally::note_message(Direction::Received, regime, count);
        Short::Done(count)
    }
}
