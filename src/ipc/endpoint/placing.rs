//! Small messages whose read waits in a block already: written straight into it, and nothing of
//! them is remembered.

use super::{Endpoint, NoRoom, Role, eager_count, publish};
use crate::backend::libc as original;
use crate::ipc::blocks::BlockAddress;
use crate::ipc::claims;
use crate::ipc::region::{Lane, kind};
use crate::ipc::tally::{self, Means, Regime};
use crate::os::sys;

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

    pub fn note_room(&mut self, begun: u64, len: usize) {
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

impl Endpoint {
    /// Where the next write of `len` bytes goes, if its read is there already and lies in a
    /// block; and the count.
    pub fn waiting_block(&self, lane: &Lane, len: usize) -> Option<(BlockAddress, usize)> {
        let count = eager_count(lane, self.next, len)?;
        Some((lane.desc(Role::Reader, self.next).block()?, count))
    }

    /// A blocking write whose read is there: one copy, straight into that buffer, whose first
    /// `count` bytes lie `at` here. The claim tells a reader that closes that somebody is at its
    /// buffer. False: it has to go the usual way.
    ///
    /// # Safety
    /// `addr` is readable, and `at` writable, for `count` bytes, no more than `len`.
    pub unsafe fn write_in_place(
        &mut self,
        lane: &Lane,
        addr: usize,
        len: usize,
        at: usize,
        count: usize,
    ) -> Result<bool, NoRoom> {
        self.check_room(lane)?;
        let number = self.next;
        let (desc, claims) = (self.own_desc(lane, number), lane.claims(number));
        claims::note_finished(&desc.finished, number, 0);
        if claims::claim(claims, number, Role::Writer, 0, 1) != Ok(Some(0)) {
            return Ok(false);
        }
        let begun = sys::ticks();
        // SAFETY: the caller's promise; the read lets us, and will not end before we say so.
        unsafe { original::copy(at, addr, count) };
        self.placing.note_placed(begun, count.max(1));
        claims::note_finished(&desc.finished, number, 1);
        tally::note_copied(Means::Mapped, count);
        publish(desc, number, kind::PLACED, len, 0);
        self.pass(lane, Role::Writer, Regime::OneCopy, count);
        Ok(true)
    }
}
