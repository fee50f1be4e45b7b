//! Eager messages: short enough to lie in the region until they are read.

use super::{AfterPost, Buffer, Endpoint, NoRoom, Role, State};
use crate::backend::libc as original;
use crate::ipc::claims::Broken;
use crate::ipc::memory::region::{self, EAGER_ROOM, Lane, SHORT, kind};
use crate::ipc::tally::{self, Means, Regime};
use core::ops::Range;
use core::sync::atomic::Ordering;

impl Endpoint {
    /// Takes room for an eager message that is not short; returns its place.
    pub(super) fn take_room(&mut self, lane: &Lane, len: usize) -> Result<Option<usize>, NoRoom> {
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
        let place = ((head - need) % room) as usize;
        if place + len > self.room_pages {
            self.find_room_pages(lane, place + len)?;
        }
        self.room_head = head;
        Ok(Some(place))
    }

    /// Allocates pages of the room up to a place that is used for the first time.
    #[cold]
    fn find_room_pages(&mut self, lane: &Lane, end: usize) -> Result<(), NoRoom> {
        let found = lane.find_eager(self.room_pages..end);
        self.room_pages = found.map_err(|_| NoRoom::NoMemory)?.min(EAGER_ROOM);
        Ok(())
    }

    /// Ends a message with its post, which has no cookie and is not remembered.
    #[inline(always)]
    pub(super) fn pass(&mut self, lane: &Lane, role: Role, count: usize) -> AfterPost {
        let (number, room_end) = (self.next, self.room_head);
        if role == Role::Writer {
            self.own(number).room_end = room_end;
        }
        self.next = number.wrapping_add(1);
        self.note_done(lane, role);
        tally::note_message(role == Role::Reader, Regime::Eager, count);
        AfterPost::Over(count)
    }

    /// Returns the room of the next write if it is as long as the last, once after every write: a
    /// waiting thread prefetches its lines. (Measured: 0.86 of the time of 1 KiB and 0.89 of 4
    /// KiB.)
    pub fn room_ahead(&mut self, lane: &Lane) -> Range<usize> {
        let (len, at) = (core::mem::take(&mut self.last), self.room_head as usize % EAGER_ROOM);
        let at = if at + region::room_of(len) <= EAGER_ROOM { at } else { 0 };
        let room = lane.eager(self.next, at, len).filter(|_| len > SHORT);
        room.map_or(0..0, |start| start..start + region::room_of(len))
    }

    /// Ends a blocking read with an eager message, if that has come; returns its result. Most of a
    /// short message's time is spent here, so it does as little as possible.
    #[inline(always)]
    pub fn take_short(&mut self, lane: &Lane, number: u32) -> Option<isize> {
        let own = self.own(number);
        if own.state != State::Posted || own.matched {
            return None; // another thread was faster
        }
        // SAFETY: the promise of `post_read`. A bad post is found by the wait.
        let (count, too_long) = unsafe { take_eager(lane, number, own.ours) }.ok()??;
        own.state = State::Free;
        self.note_done(lane, Role::Reader);
        tally::note_message(true, Regime::Eager, count);
        Some(if too_long { -libc::EMSGSIZE as isize } else { count as isize })
    }
}

/// Returns the count of an eager write if its read is there.
#[inline]
pub(super) fn eager_count(lane: &Lane, number: u32, len: usize) -> Option<usize> {
    let read = lane.desc(Role::Reader, number);
    let there = read.number.load(Ordering::Acquire) == number.wrapping_add(1);
    there.then(|| len.min(read.len.load(Ordering::Relaxed) as usize))
}

/// Takes the bytes of an eager message, if there is one. Returns the count, and whether it was cut.
///
/// # Safety
/// As `post_read`.
#[inline(always)]
pub(super) unsafe fn take_eager(
    lane: &Lane,
    number: u32,
    ours: Buffer,
) -> Result<Option<(usize, bool)>, Broken> {
    let desc = lane.desc(Role::Writer, number);
    if desc.number.load(Ordering::Acquire) != number.wrapping_add(1)
        || desc.kind.load(Ordering::Relaxed) != kind::EAGER
    {
        return Ok(None);
    }
    let (at, len) = (desc.at.load(Ordering::Relaxed), desc.len.load(Ordering::Relaxed));
    let from = lane.eager(number, at as usize, len as usize).ok_or(Broken)?;
    let count = ours.len.min(len as usize);
    // SAFETY: it lies there; the destination is a buffer of the caller's with room for `count` bytes.
    unsafe { original::copy(ours.addr, from, count) };
    tally::note_copied(Means::SharedMemory, count);
    Ok(Some((count, len as usize > count)))
}
