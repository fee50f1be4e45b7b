//! Progress of a posted message: claiming pieces, and moving chunks through the region.
//!
//! The lock is released while a piece is copied: `advance` hands the piece out and `copied` takes
//! the outcome.

use super::{Endpoint, Hint, OwnPost, Role, State};
use crate::backend::libc as original;
use crate::ipc::claims::{self, Broken, Cursors, flag};
use crate::ipc::copy::proof::Failed;
use crate::ipc::copy::{MessagePiece, Proven};
use crate::ipc::memory::region::{CHUNK, CHUNKS, Lane, kind};
use crate::ipc::tally::{self, Means};
use core::sync::atomic::Ordering;

/// Result of `advance`.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The message is over; its result waits to be collected.
    Over,
    /// Copy this, then call `copied`.
    Copy(MessagePiece),
    /// A chunk was moved, for which the peer may wait.
    Moved,
    /// Either side has cancelled it, or closes; no process touches the buffers any more.
    Cancelled,
    Idle(Hint),
}

impl Endpoint {
    /// Takes one message a step further. `peer_calls`: the peer may reach our buffer. `limited`: the
    /// caller has a time limit and copies one piece at a time.
    pub fn advance(
        &mut self,
        lane: &Lane,
        proven: Option<&Proven>,
        peer_calls: bool,
        limited: bool,
        number: u32,
    ) -> Result<Step, Broken> {
        let is_over = |own: &OwnPost| own.state == State::Over;
        if self.withdrawn != 0 {
            self.sweep_withdrawn(lane);
        }
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
            return self.conclude(lane, number, true);
        }
        let busy = limited && !own.is_settled();
        if !busy && proven.is_some_and(|proven| proven.reaches(own.whole)) {
            if own.claimed == 0 {
                // The word may hold the count of a message 65536 before, with equal bits.
                claims::note_finished(own_finished, number, 0);
            }
            let pieces = own.layout.pieces();
            if let Some(index) = claims::claim(claims, number, role, own.claimed, pieces)? {
                return Ok(Step::Copy(own.take_piece(index)));
            }
        } else if !busy && !peer_calls && own.ours.pin == 0 {
            // A reader can fetch it from a block that it has mapped.
            let shown = own.ours.block.is_some() && role == Role::Writer;
            if !shown {
                // Neither side can copy it any more; the peer must learn of that.
                claims::raise(claims, number, flag::REFUSED);
                own.heed(flag::REFUSED);
                return Ok(Step::Moved);
            }
        }
        self.conclude(lane, number, true)
    }

    /// Like `advance`, without any progress but taking an eager message.
    pub(super) fn look(&mut self, lane: &Lane, number: u32) -> Result<Step, Broken> {
        let is_posted = |own: &OwnPost| own.state == State::Posted;
        if is_posted(self.own(number))
            && self.is_matched(lane, number)?
            && is_posted(self.own(number))
        {
            return self.conclude(lane, number, false);
        }
        match self.own(number).state {
            State::Over => Ok(Step::Over),
            _ => Ok(Step::Idle(Hint::of(&self.other_desc(lane, number).number))),
        }
    }

    /// Returns whether a message is over. A bad post is found by the wait.
    pub fn is_over(&mut self, lane: &Lane, number: u32) -> bool {
        self.look(lane, number) == Ok(Step::Over)
    }

    /// Returns the shared cursors of a message, and whether all pieces that were begun are finished; of a
    /// peer without proof only the flags count.
    pub(super) fn view(&mut self, lane: &Lane, number: u32) -> (Cursors, bool) {
        let theirs = &self.other_desc(lane, number).finished;
        let (mut view, mut settled) = claims::view(lane.claims(number), theirs, number, self.role);
        if self.terms.is_none() {
            (view.front, view.back, settled) = (0, 0, true);
        }
        (view, settled && self.own(number).is_settled())
    }

    /// Ends a message of which no piece can be claimed, if all of it is there or it was given up.
    /// `streams`: moves a chunk otherwise.
    pub(super) fn conclude(
        &mut self,
        lane: &Lane,
        number: u32,
        streams: bool,
    ) -> Result<Step, Broken> {
        let hint = Hint::of(&self.other_desc(lane, number).finished);
        let (view, settled) = self.view(lane, number);
        let own = self.own(number);
        own.heed(view.flags);
        let all_claimed = !own.is_streamed() && view.front + view.back >= own.layout.pieces();
        let result = match view.flags {
            // Cancelled too late: every piece was copied.
            flag::CANCELLED if all_claimed && settled => own.layout.count as isize,
            flags if flags & flag::CANCELLED != 0 => {
                return Ok(if settled { Step::Cancelled } else { Step::Idle(hint) });
            }
            flags if flags & flag::FAULT != 0 => -libc::EFAULT as isize,
            _ if own.is_streamed() && streams => {
                return self.stream(lane, number, settled, hint);
            }
            _ if !all_claimed => return Ok(Step::Idle(hint)),
            _ => own.layout.count as isize,
        };
        if !settled {
            return Ok(Step::Idle(hint));
        }
        self.end(lane, number, result);
        Ok(Step::Over)
    }

    /// Claims another piece of a message that `advance` has begun.
    pub fn claim_next(&mut self, lane: &Lane, number: u32) -> Option<MessagePiece> {
        let role = self.role;
        let own = self.own(number);
        if own.state != State::Posted || !own.matched || own.is_streamed() {
            return None;
        }
        let (word, pieces) = (lane.claims(number), own.layout.pieces());
        // The wait will find a bad word.
        let index = claims::claim(word, number, role, own.claimed, pieces).ok()??;
        Some(own.take_piece(index))
    }

    /// Notes the end of a piece. Returns whether the peer may be waiting for it.
    pub fn note_end_of_piece(
        &mut self,
        lane: &Lane,
        number: u32,
        copied: Result<(), Failed>,
    ) -> bool {
        let claims = lane.claims(number);
        match copied {
            Ok(()) => {}
            Err(Failed::Fault) => claims::raise(claims, number, flag::FAULT),
            Err(Failed::System(_)) => claims::raise(claims, number, flag::REFUSED),
            Err(Failed::Gone) => claims::raise(claims, number, flag::CANCELLED),
        }
        let desc = self.own_desc(lane, number);
        let own = self.own(number);
        own.finished += 1;
        // A piece that failed is finished too: no thread touches the buffers for it any more.
        claims::note_finished(&desc.finished, number, own.finished);
        let view = claims::cursors(claims, number);
        view.flags != 0 || (own.is_settled() && view.front + view.back >= own.layout.pieces())
    }

    /// Moves one chunk of a message that goes through the region.
    fn stream(
        &mut self,
        lane: &Lane,
        number: u32,
        settled: bool,
        hint: Hint,
    ) -> Result<Step, Broken> {
        if self.chunks == 0 {
            // Without memory there is no way left.
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

    /// Takes the next chunk, of any message; the caller waits for `wanted`.
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
        let is_past = (number.wrapping_sub(self.done) as i32) < 0;
        let own = self.any_own(number);
        if is_past || own.as_ref().is_some_and(|own| own.number == number && own.cancelled) {
            // Left over from a message that was cancelled.
            self.chunks = index.wrapping_add(1);
            lane.consumed.0.store(self.chunks, Ordering::Release);
            return Ok(true);
        }
        if own.is_none_or(|own| own.number != number || own.state != State::Posted) {
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
}

impl OwnPost {
    pub(super) fn is_streamed(&self) -> bool {
        self.kind == kind::STREAMED
    }

    /// Returns whether all pieces that this side has begun are finished.
    pub(super) fn is_settled(&self) -> bool {
        self.finished == self.claimed
    }

    /// Returns the length of the next chunk, as both sides count.
    fn next_chunk(&self) -> usize {
        CHUNK.min(self.layout.count - self.stream_at)
    }

    /// Notes flags: a side may no longer touch the other's memory.
    pub(super) fn heed(&mut self, flags: u32) {
        if flags & flag::REFUSED != 0 {
            self.kind = kind::STREAMED;
        }
    }

    /// Describes a piece that was just claimed.
    fn take_piece(&mut self, index: usize) -> MessagePiece {
        self.claimed += 1;
        let (at, len) = self.layout.piece(index);
        let MessagePiece { ours, theirs, block, .. } = self.whole;
        let block = block.map(|place| place.plus(at));
        MessagePiece { ours: ours + at, theirs: theirs + at, len, offset: at, block, ..self.whole }
    }
}
