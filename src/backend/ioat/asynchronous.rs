//! Asynchronous requests.
//!
//! The engine's law does not apply here: the caller has promised to leave its memory alone until
//! the end is reported. The state of a request is in the table of pending copies, and the thread
//! that finds it over finishes it.

use super::*;
use crate::backend::engine::Requests;
use crate::backend::engine::request::Request;
use crate::os::sync::pause;
use crate::plan::Piece;

/// Value of `Request::words` for a request without words.
const SILENT: u64 = u64::MAX;

/// Interval at which the kernel is asked for an overdue request, in ticks: about 1 ms.
pub const ASK_AGAIN: u64 = 2_500_000;

/// State of the words of a request.
#[derive(PartialEq, Eq)]
enum WordState {
    Missing,
    /// The request is over, and nothing has failed.
    Come,
    /// Later requests have used these words, so it is over. Another thread may have asked the kernel
    /// and not yet stored which pieces failed.
    Passed,
}

impl Requests for Engine {
    fn part_of(&self, len: usize) -> usize {
        self.limit.part_of(len)
    }

    fn is_asked_for(&self, request: &Request) -> bool {
        request.asking.load(Relaxed) == process::pid()
    }

    /// Starts a request for the aligned body of a copy; the edges are copied at once. Returns
    /// the body, or `None` when there is none or a page of it is bad. Then, and after a
    /// refusal, nothing is under way and every byte is still to be copied.
    unsafe fn begin(
        &self,
        request: &Request,
        whole: Stretch,
        how: &CopyOptions,
    ) -> Result<Option<Piece>, Refused> {
        let Stretch { dst, src, len } = whole;
        let align = self.src_align.load(Relaxed).max(abi::ALIGN);
        let split = Split::new(dst, len, align);
        if split.body == 0 || !self.suits(dst, src) {
            return Ok(None);
        }
        let (body, end) = (split.head, split.head + split.body);
        // SAFETY: parts of ranges that the caller lets us copy. Nothing is under way yet, so a bad page faults
        // here.
        unsafe {
            whole.by_libc(0, body);
            whole.by_libc(end, len);
        }
        let turn = self.turn_for(dst, how);
        let cut = Cut::for_channels(abi::MAX_PIECES, dst + body, split.body, turn.used);
        // A handler that jumped out would leave a request unknown to the table.
        let held = self.hold_signals(false)?;
        let list = self.lists.take().ok_or(Refused::Busy)?;
        let mut submit = list.fill(cut, dst + body, src + body, turn);
        let errno = match self.submit(&mut submit) {
            Ok(errno) => errno,
            Err(errno) => {
                drop(list);
                drop(held);
                return self.refused(errno).map(|()| None);
            }
        };
        let (accepted, taken) = accepted(&submit, cut);
        let words = match self.words_of(&submit) {
            Some(_) => u64::from(submit.slot) << 32 | u64::from(submit.channels),
            None => SILENT,
        };
        let (_, head, piece) = cut.parts();
        request.words.store(words, Release);
        request.failed.store(0, Relaxed);
        request.over.store(0, Relaxed);
        request.head.store(head, Relaxed);
        request.piece.store(piece, Relaxed);
        request.taken.store(taken, Relaxed);
        request.since.store(sys::ticks(), Relaxed);
        request.id.store(submit.id, Release);
        self.account(&list, &submit, accepted, 0, len);
        drop(list);
        drop(held);
        self.note_errno(errno, len, taken);
        Ok(Some(Piece { offset: body, len: split.body }))
    }

    /// Returns whether a request is over. Its words show that, without a system call. The kernel is
    /// asked when there are no words, when they are overdue, and to wait. A thread that has not
    /// claimed the part may see the result of a later request that reuses the entry.
    fn is_over(&self, request: &Request, nanos: u64) -> bool {
        let id = request.id.load(Acquire);
        if request.over.load(Acquire) == id {
            return true;
        }
        match self.look_at_words(request, id) {
            WordState::Come => return true,
            WordState::Passed => return self.ask_once(request, id, nanos, |_| 0),
            WordState::Missing => {}
        }
        let (now, since) = (sys::ticks(), request.since.load(Relaxed));
        let expected = self.times.expected(request.taken.load(Relaxed));
        let silent = request.words.load(Relaxed) == SILENT;
        let patience = if silent { ASK_AGAIN } else { LOST_AFTER.saturating_add(8 * expected) };
        if nanos == 0 {
            if now.wrapping_sub(since) < patience {
                return false;
            }
            // Ask again after `ASK_AGAIN`, not at once.
            let recently = now.wrapping_sub(patience.saturating_sub(ASK_AGAIN));
            request.since.store(recently, Relaxed);
        } else if !silent {
            while sys::ticks().wrapping_sub(now) < workers::SPIN_TICKS {
                if self.look_at_words(request, id) == WordState::Come {
                    return true;
                }
                pause();
            }
        }
        self.ask_once(request, id, nanos, |wait| {
            self.counts.waits.fetch_add(1, Relaxed);
            self.helper.wait(wait)
        })
    }

    /// Calls `copy` with the stretches that the engine has not copied, once a request is over;
    /// `len` is that of the whole body.
    fn left_over(&self, request: &Request, len: usize, copy: &mut dyn FnMut(usize, usize)) {
        let (head, piece) = (request.head.load(Relaxed), request.piece.load(Relaxed));
        let cut = Cut::from_parts(len, head, piece);
        let taken = request.taken.load(Relaxed);
        // If the words showed the end, nothing has failed.
        let known = request.over.load(Acquire) == request.id.load(Relaxed);
        let failed = if known { request.failed.load(Relaxed) } else { 0 };
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

impl Engine {
    fn look_at_words(&self, request: &Request, id: u64) -> WordState {
        let words = request.words.load(Acquire);
        // `id` is cleared before the words are changed.
        if words == SILENT || request.id.load(Relaxed) != id {
            return WordState::Missing;
        }
        let offset = (words >> 32) as usize * abi::WORD_STRIDE;
        let words = Words { pages: &self.words, channels: words as u32, offset, id };
        match words.missing() {
            None => WordState::Come,
            Some(_) if words.have_passed() => WordState::Passed,
            Some(_) => WordState::Missing,
        }
    }

    /// Asks the kernel, which reports failed pieces only once. So one thread asks at a time, and stores the
    /// answer before the next one may ask.
    fn ask_once(
        &self,
        request: &Request,
        id: u64,
        nanos: u64,
        ask: impl FnOnce(&mut abi::Wait) -> i32,
    ) -> bool {
        let _held = SignalsHeld::all(); // a handler would find it taken for ever
        let (taken, us) = (request.asking.load(Relaxed), process::pid());
        if taken == us || request.asking.compare_exchange(taken, us, Acquire, Relaxed).is_err() {
            if nanos > 0 {
                sys::yield_now();
            }
            return false;
        }
        let mut over = request.over.load(Relaxed) == id;
        if !over && request.id.load(Acquire) == id {
            let size = size_of::<abi::Wait>() as u32;
            let mut wait = abi::Wait { size, id, timeout_ns: nanos, ..Default::default() };
            match ask(&mut wait) {
                0 => {
                    request.failed.store(wait.failed, Relaxed);
                    request.over.store(id, Release);
                    over = true;
                }
                libc::EINTR | libc::ETIMEDOUT | libc::EAGAIN => {}
                // The descriptor is not ours any more: only the words show the end.
                _ if nanos > 0 => sys::sleep(nanos),
                _ => {}
            }
        }
        request.asking.store(0, Release);
        over
    }
}
