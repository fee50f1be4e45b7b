//! Requests that go on while their caller does something else.
//!
//! The engine's law does not bind here: the caller has promised to leave its memory alone
//! until it is told of the end. What is known of a request lies in the table of pending
//! copies, and whoever finds it over finishes it.

use super::super::pending::Request;
use super::*;
use crate::plan::Piece;

/// `Request::words` of a request that only the kernel tells about.
const SILENT: u64 = u64::MAX;

/// How often an overdue request is asked for, in ticks: about 1 ms.
pub const ASK_AGAIN: u64 = 2_500_000;

impl Engine {
    /// How much of a copy one request takes.
    pub fn part_of(&self, len: usize) -> usize {
        self.limit.part_of(len)
    }

    /// Starts a request for the aligned body of a copy; the edges are copied at once. Answers
    /// the body, or `None` when there is none left: then all is done. After a refusal nothing
    /// is under way and all is to be copied.
    ///
    /// # Safety
    /// As memcpy, until the request is over.
    pub unsafe fn begin(
        &self,
        request: &Request,
        dst: usize,
        src: usize,
        len: usize,
        how: &How,
    ) -> Result<Option<Piece>, Refused> {
        let whole = Stretch { dst, src, len };
        let align = self.src_align.load(Relaxed).max(abi::ALIGN);
        let split = Split::new(dst, len, align);
        if split.body == 0 || !self.suits(dst, src) {
            // SAFETY: the caller's ranges.
            unsafe { whole.copy(0, len) };
            return Ok(None);
        }
        let (body, end) = (split.head, split.head + split.body);
        let turn = self.next_turn(how);
        let cut = Cut::for_channels(abi::MAX_PIECES, dst + body, split.body, turn.used);
        // A handler that jumped out would leave a request nobody knows of.
        let held = self.hold_signals()?;
        let room = self.rooms.take().ok_or(Refused::Busy)?;
        let mut submit = room.fill(cut, dst + body, src + body, turn);
        self.counts.submits.fetch_add(1, Relaxed);
        let errno = self.helper.submit(&mut submit);
        if submit.id == 0 {
            drop(room);
            drop(held);
            return match errno {
                libc::EFAULT => {
                    self.counts.faults.fetch_add(1, Relaxed);
                    // SAFETY: the caller's ranges; a bad page faults now, as in memcpy.
                    unsafe { whole.copy(0, len) };
                    Ok(None)
                }
                _ => {
                    if errno == libc::ENOMEM {
                        self.limit.lower(0);
                    }
                    Err(refusal(errno))
                }
            };
        }
        let count = cut.count();
        let accepted = (submit.accepted as usize).min(count);
        let taken = if accepted < count { cut.piece(accepted).offset } else { split.body };
        let words = match self.words_of(&submit) {
            Some(_) => u64::from(submit.slot) << 32 | u64::from(submit.channels),
            None => SILENT,
        };
        let (_, head, piece) = cut.parts();
        request.words.store(words, Relaxed);
        request.failed.store(0, Relaxed);
        request.over.store(0, Relaxed);
        request.asking.store(0, Relaxed);
        request.head.store(head, Relaxed);
        request.piece.store(piece, Relaxed);
        request.taken.store(taken, Relaxed);
        request.since.store(sys::ticks(), Relaxed);
        request.id.store(submit.id, Relaxed);
        self.account(&room, &submit, accepted, 0, len);
        drop(room);
        drop(held);
        match errno {
            0 => self.limit.note_taken(len),
            libc::ENOMEM => self.limit.lower(taken),
            _ => {}
        }
        // SAFETY: the caller's ranges, outside of what the engine writes.
        unsafe {
            whole.copy(0, body);
            whole.copy(end, len);
        }
        Ok(Some(Piece { offset: body, len: split.body }))
    }

    /// Whether a request is over: its words say so, which costs nothing. The kernel is asked
    /// when there are no words, when they are overdue, and by those who want to wait.
    pub fn is_over(&self, request: &Request, nanos: u64) -> bool {
        if request.over.load(Acquire) != 0 || self.words_have_come(request) {
            return true;
        }
        let (now, since) = (sys::ticks(), request.since.load(Relaxed));
        let expected = self.pace.expected(request.taken.load(Relaxed));
        let silent = request.words.load(Relaxed) == SILENT;
        let patience = if silent { ASK_AGAIN } else { LOST_AFTER.saturating_add(8 * expected) };
        if nanos == 0 {
            if now.wrapping_sub(since) < patience {
                return false;
            }
            // Not again at once.
            let recently = now.wrapping_sub(patience.saturating_sub(ASK_AGAIN));
            request.since.store(recently, Relaxed);
        } else if !silent {
            while sys::ticks().wrapping_sub(now) < crew::SPIN_TICKS {
                if self.words_have_come(request) {
                    return true;
                }
                pause();
            }
        }
        self.ask_once(request, nanos)
    }

    /// Later requests may have used the same words: their numbers are larger.
    fn words_have_come(&self, request: &Request) -> bool {
        let words = request.words.load(Relaxed);
        if words == SILENT {
            return false;
        }
        let id = request.id.load(Relaxed);
        let offset = (words >> 32) as usize * abi::WORD_STRIDE;
        Words { pages: &self.words, channels: words as u32, offset, id }.have_passed()
    }

    /// Asks the kernel, which tells of failed pieces once only: one at a time.
    fn ask_once(&self, request: &Request, nanos: u64) -> bool {
        let _held = SignalsHeld::all(); // a handler would find it taken for ever
        if request.asking.swap(1, Acquire) != 0 {
            if nanos > 0 {
                sys::yield_now();
            }
            return false;
        }
        let mut over = request.over.load(Acquire) != 0;
        if !over {
            let (size, id) = (size_of::<abi::Wait>() as u32, request.id.load(Relaxed));
            let mut wait = abi::Wait { size, id, timeout_ns: nanos, ..Default::default() };
            self.counts.waits.fetch_add(1, Relaxed);
            match self.helper.wait(&mut wait) {
                0 => {
                    request.failed.store(wait.failed, Relaxed);
                    request.over.store(1, Release);
                    over = true;
                }
                libc::EINTR | libc::ETIMEDOUT | libc::EAGAIN => {}
                // The descriptor is not ours any more: only the words can tell now.
                _ if nanos > 0 => sys::sleep(nanos),
                _ => {}
            }
        }
        request.asking.store(0, Release);
        over
    }

    /// Calls `copy` with the stretches of a request that is over which the engine has not
    /// copied; `len` is that of the whole body.
    pub fn left_over(&self, request: &Request, len: usize, mut copy: impl FnMut(usize, usize)) {
        let (head, piece) = (request.head.load(Relaxed), request.piece.load(Relaxed));
        let cut = Cut::from_parts(len, head, piece);
        let (failed, taken) = (request.failed.load(Relaxed), request.taken.load(Relaxed));
        for index in (0..cut.count().min(64)).filter(|index| failed >> index & 1 == 1) {
            let piece = cut.piece(index);
            if piece.offset < taken {
                self.counts.redone.fetch_add(1, Relaxed);
                copy(piece.offset, piece.offset + piece.len);
            }
        }
        if taken < len {
            copy(taken, len);
        }
    }
}
