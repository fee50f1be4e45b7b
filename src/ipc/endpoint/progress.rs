//! What is done next for a message that has been posted: who copies which piece, chunks
//! through the region, and giving up.
//!
//! The lock is let go while a piece is copied: `advance` hands the piece out and `copied`
//! takes the answer. How a message is cut is in `layout`.

use super::{Endpoint, Hint, OwnPost, Role, State};
use crate::backend::libc as original;
use crate::ipc::blocks::BlockAddress;
use crate::ipc::claims::{self, Broken, Cursors, flag};
use crate::ipc::engine::{MessagePiece, Outcome, Remote, Transport};
use crate::ipc::mappings::Arrival;
use crate::ipc::region::{CHUNK, CHUNKS, Lane, kind};
use crate::ipc::tally::{self, Means};
use core::sync::atomic::Ordering;

/// What `advance` has found.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The message is over; its result waits to be collected.
    Over,
    /// Copy this, then call `copied`.
    Copy(MessagePiece),
    /// Something has changed that the other side may wait for: a chunk went by.
    Moved,
    /// The other's buffer lies in a block that has not come in yet: fetch it.
    Fetch(BlockAddress),
    /// The other side has closed; nobody touches the buffers any more.
    Cancelled,
    Idle(Hint),
}

impl Endpoint {
    /// Takes one message a step further. `other_may`: the other side may reach our buffer.
    /// `limited`: the caller cannot wait, so one piece at a time is enough.
    pub fn advance(
        &mut self,
        lane: &Lane,
        engine: &Transport,
        other_may: bool,
        limited: bool,
        number: u32,
    ) -> Result<Step, Broken> {
        let is_over = |own: &OwnPost| own.state == State::Over;
        let hint = Hint::of(&self.other_desc(lane, number).number);
        if !is_over(self.own(number)) && !self.is_matched(lane, number)? {
            return Ok(Step::Idle(hint));
        }
        if is_over(self.own(number)) {
            return Ok(Step::Over);
        }
        let (claims, role) = (lane.claims(number), self.role);
        let own_finished = &self.own_desc(lane, number).finished;
        let own = self.own(number);
        if own.is_streamed() {
            return self.judge(lane, number, true);
        }
        if let Some(place) = own.theirs.block {
            match engine.mappings.knows(place) {
                Arrival::Settled => {}
                Arrival::Missing => return Ok(Step::Fetch(place)),
                Arrival::Soon => return self.judge(lane, number, true),
            }
        }
        let busy = limited && own.claimed > own.finished;
        if !busy && engine.reaches(role, own.theirs) {
            if own.claimed == 0 {
                // What is left there may look like ours, of a message 65536 before.
                claims::note_finished(own_finished, number, 0);
            }
            let pieces = own.layout.pieces();
            if let Some(index) = claims::claim(claims, number, role, own.claimed, pieces)? {
                return Ok(Step::Copy(own.take_piece(index)));
            }
        } else if !busy && !other_may && own.ours.pin == 0 {
            // What lies in a block can be fetched from there, if its reader knows how.
            let shown = own.ours.block.is_some() && role == Role::Writer;
            if !shown {
                // Nobody can carry it directly; somebody could when it was posted, perhaps. The
                // other side has to hear of it.
                claims::raise(claims, number, flag::REFUSED);
                own.heed(flag::REFUSED);
                return Ok(Step::Moved);
            }
        }
        self.judge(lane, number, true)
    }

    /// How far a message is that there is nothing to claim of; who `streams` moves a chunk.
    fn judge(&mut self, lane: &Lane, number: u32, streams: bool) -> Result<Step, Broken> {
        let hint = Hint::of(&self.other_desc(lane, number).finished);
        let view = claims::cursors(lane.claims(number), number);
        if !self.believes(number, view) {
            return Err(Broken);
        }
        let settled = self.is_settled(lane, number, view);
        let own = self.own(number);
        own.heed(view.flags);
        let result = match view.flags {
            flags if flags & flag::CANCELLED != 0 => {
                return Ok(if settled { Step::Cancelled } else { Step::Idle(hint) });
            }
            flags if flags & flag::FAULT != 0 => -libc::EFAULT as isize,
            _ if own.is_streamed() && streams => {
                return self.stream(lane, number, settled, hint);
            }
            _ if own.is_streamed() => return Ok(Step::Idle(hint)),
            _ if view.front + view.back < own.layout.pieces() => return Ok(Step::Idle(hint)),
            _ => own.layout.count as isize,
        };
        if !settled {
            return Ok(Step::Idle(hint));
        }
        self.end(lane, number, result);
        Ok(Step::Over)
    }

    /// Another piece of a message that is copied from buffer to buffer, as `advance` has found.
    pub fn claim_next(&mut self, lane: &Lane, number: u32) -> Option<MessagePiece> {
        let role = self.role;
        let own = self.own(number);
        if own.state != State::Posted || !own.matched || own.is_streamed() {
            return None;
        }
        let (word, pieces) = (lane.claims(number), own.layout.pieces());
        // What is wrong will be found by who waits.
        let index = claims::claim(word, number, role, own.claimed, pieces).ok()??;
        Some(own.take_piece(index))
    }

    /// Who is not our equal and says that it has copied into our memory, or that we have, is not to
    /// be believed, but where that was lent to it: then it could have done so, and can still.
    fn believes(&mut self, number: u32, view: Cursors) -> bool {
        let trusted = self.role == Role::Writer || self.terms.equal;
        let own = self.own(number);
        trusted || own.ours.block.is_some() || (view.back == 0 && view.front == own.claimed)
    }

    /// Whether everything that was begun is finished.
    fn is_settled(&mut self, lane: &Lane, number: u32, view: Cursors) -> bool {
        let theirs = claims::finished(&self.other_desc(lane, number).finished, number);
        let begun = view.begun(self.role.other());
        let own = self.own(number);
        own.finished == own.claimed && theirs >= begun
    }

    /// What became of a piece. The answer: whether the other side may be waiting for this.
    pub fn copied(&mut self, lane: &Lane, number: u32, outcome: Outcome) -> bool {
        let claims = lane.claims(number);
        match outcome {
            Outcome::Whole => {}
            Outcome::Fault => claims::raise(claims, number, flag::FAULT),
            Outcome::Refused => claims::raise(claims, number, flag::REFUSED),
            Outcome::Gone => claims::raise(claims, number, flag::CANCELLED),
        }
        let desc = self.own_desc(lane, number);
        let own = self.own(number);
        own.finished += 1;
        // A piece that failed is finished too: nobody touches the buffers for it any more.
        claims::note_finished(&desc.finished, number, own.finished);
        let view = claims::cursors(claims, number);
        view.flags != 0
            || (own.finished == own.claimed && view.front + view.back >= own.layout.pieces())
    }

    /// One chunk of a message that goes through the region.
    fn stream(
        &mut self,
        lane: &Lane,
        number: u32,
        settled: bool,
        hint: Hint,
    ) -> Result<Step, Broken> {
        if self.chunks == 0 {
            // As good as broken: there is no way left.
            lane.find_chunks().map_err(|_| Broken)?;
        }
        let moved = match self.role {
            Role::Reader => self.consume(lane, number)?,
            Role::Writer => self.produce(lane, number)?,
        };
        let own = self.own(number);
        if own.stream_at == own.layout.count && settled {
            let count = own.layout.count as isize;
            self.end(lane, number, count);
            return Ok(Step::Over);
        }
        let waits_for = match self.role {
            _ if own.stream_at == own.layout.count => hint,
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
        let len = own.next_chunk();
        if lying as usize > CHUNKS {
            return Err(Broken);
        }
        if lying as usize == CHUNKS || len == 0 {
            return Ok(false);
        }
        // SAFETY: inside the buffer that was posted; the chunk is free for us to write.
        unsafe { original::copy(lane.chunk_bytes(index), own.ours.addr + own.stream_at, len) };
        tally::note_copied(Means::SharedMemory, len);
        lane.chunks[index as usize % CHUNKS].0.store(number, Ordering::Relaxed);
        own.stream_at += len;
        self.chunks = index.wrapping_add(1);
        lane.produced.0.store(self.chunks, Ordering::Release);
        Ok(true)
    }

    /// Takes the next chunk, whichever message it belongs to; the caller has come for `wanted`.
    fn consume(&mut self, lane: &Lane, wanted: u32) -> Result<bool, Broken> {
        let index = self.chunks;
        let lying = lane.produced.0.load(Ordering::Acquire).wrapping_sub(index);
        if lying as usize > CHUNKS {
            return Err(Broken);
        }
        if lying == 0 {
            return Ok(false);
        }
        let number = lane.chunks[index as usize % CHUNKS].0.load(Ordering::Relaxed);
        let own = self.own(number);
        if own.number != number || own.state != State::Posted {
            return Err(Broken);
        }
        self.is_matched(lane, number)?;
        let view = claims::cursors(lane.claims(number), number);
        let own = self.own(number);
        own.heed(view.flags);
        let len = own.next_chunk();
        if !own.matched || own.state != State::Posted || !own.is_streamed() || len == 0 {
            return Err(Broken);
        }
        // SAFETY: inside the buffer that was posted.
        unsafe { original::copy(own.ours.addr + own.stream_at, lane.chunk_bytes(index), len) };
        tally::note_copied(Means::SharedMemory, len);
        own.stream_at += len;
        let over = own.stream_at == own.layout.count;
        self.others_wait |= over && number != wanted;
        self.chunks = index.wrapping_add(1);
        lane.consumed.0.store(self.chunks, Ordering::Release);
        Ok(true)
    }

    /// Nobody shall claim a piece of it any more.
    pub fn cancel(&mut self, lane: &Lane, number: u32) {
        claims::raise(lane.claims(number), number, flag::CANCELLED);
    }

    /// Whether a message is over, without doing anything for it, but for taking what is eager.
    #[inline]
    pub fn is_over(&mut self, lane: &Lane, number: u32) -> bool {
        let under_way = |own: &OwnPost| own.state == State::Posted;
        // What is wrong will be found by who waits.
        if under_way(self.own(number))
            && self.is_matched(lane, number) == Ok(true)
            && under_way(self.own(number))
        {
            let _ = self.judge(lane, number, false);
        }
        self.own(number).state == State::Over
    }

    /// Gives a message up. True: nobody touches its buffers any more, and it is over with
    /// `result`. `alone`: the other process is gone and need not be waited for.
    pub fn abandon(&mut self, lane: &Lane, number: u32, alone: bool, result: isize) -> bool {
        if self.own(number).state == State::Over {
            return true;
        }
        self.cancel(lane, number);
        // Who is not our equal, and has not borrowed it, changes nothing in the buffer, whatever
        // it says that it has begun.
        let lent = self.role == Role::Reader && self.own(number).ours.block.is_some();
        let waited_for = !alone && (self.terms.equal || lent);
        let view = claims::cursors(lane.claims(number), number);
        let view = if waited_for { view } else { Cursors::default() };
        let settled = self.is_settled(lane, number, view);
        if settled {
            self.end(lane, number, result);
        }
        settled
    }
}

impl OwnPost {
    pub(super) fn is_streamed(&self) -> bool {
        self.kind == kind::STREAMED
    }

    /// The length of the next chunk, as both sides count.
    fn next_chunk(&self) -> usize {
        CHUNK.min(self.layout.count - self.stream_at)
    }

    /// What a side has said that may no longer touch the other's memory.
    fn heed(&mut self, flags: u32) {
        if flags & flag::REFUSED != 0 {
            self.kind = kind::STREAMED;
        }
    }

    /// A piece that was just claimed.
    fn take_piece(&mut self, index: usize) -> MessagePiece {
        self.claimed += 1;
        let (at, len) = self.layout.piece(index);
        let block = self.theirs.block.map(|place| place.plus(at));
        let theirs = Remote { addr: self.theirs.addr + at, offset: at, block, ..self.theirs };
        MessagePiece { ours: self.ours.addr + at, theirs, len, alone: self.layout.is_alone() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Buffer, publish};
    use super::*;
    use crate::ipc::engine::Terms;
    use crate::ipc::os;
    use crate::ipc::region::{MappedRegion, SIZE};

    /// Also where the claims come after the last look that would have said that they are lies.
    #[test]
    fn claims_of_who_is_not_an_equal_end_only_what_was_lent_to_it() {
        for (equal, lent, over) in [(true, false, true), (false, true, true), (false, false, false)]
        {
            let memory = os::sealed_memory(c"test", SIZE, os::SIZE_SEALS).unwrap();
            let region = MappedRegion::new(&memory).unwrap();
            let lane = &region.lanes[0];
            let terms = Terms { equal, ..Terms::default() };
            let mut reader = Endpoint::new(Role::Reader, terms);
            let block = lent.then_some(BlockAddress { serial: 1, offset: 0 });
            let buffer = Buffer { addr: 4096, len: 40_000, block, ..Buffer::default() };
            // SAFETY: nobody copies.
            unsafe { reader.post_read(lane, buffer, true) }.unwrap();
            let number = 0;
            publish(lane.desc(Role::Writer, number), number, kind::DIRECT, 40_000, 1);
            assert_eq!(reader.is_matched(lane, number), Ok(true));
            // Of either side: all is claimed, and all that the writer has claimed is finished.
            let mut lie = |liar| {
                let word = lane.claims(number);
                word.store(0, Ordering::Relaxed);
                assert!((0..2).all(|own| {
                    matches!(claims::claim(word, number, liar, own, 2), Ok(Some(_)))
                }));
                claims::note_finished(&lane.desc(Role::Writer, number).finished, number, 2);
                reader.is_over(lane, number)
            };
            assert!(over || !lie(Role::Reader));
            assert_eq!(lie(Role::Writer), over, "{equal} {lent}");
            // Nor is a piece waited for that it says it has begun.
            for role in Role::BOTH {
                let mut ours = Endpoint::new(role, terms);
                // SAFETY: as above.
                unsafe {
                    match role {
                        Role::Reader => ours.post_read(lane, buffer, true),
                        Role::Writer => ours.post_write(lane, buffer, || true, true),
                    }
                }
                .unwrap();
                lane.claims(number).store(0, Ordering::Relaxed);
                claims::claim(lane.claims(number), number, role.other(), 0, 2).unwrap();
                claims::note_finished(&lane.desc(role.other(), number).finished, number, 0);
                let waited_for = equal || (lent && role == Role::Reader);
                assert_eq!(ours.abandon(lane, number, false, 0), !waited_for, "{equal} {lent}");
                assert!(ours.abandon(lane, number, true, 0), "it is gone");
            }
        }
    }
}
