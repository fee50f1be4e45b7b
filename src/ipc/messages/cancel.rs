//! Cancelling messages: at the program's request, or because a side closes or is gone.

use super::{Endpoint, Role, State};
use crate::ipc::claims::{self, flag};
use crate::ipc::memory::region::{Lane, kind};
use crate::os::sync::full_fence;
use core::sync::atomic::Ordering;

/// Result of `withdraw`.
#[derive(Debug, PartialEq, Eq)]
pub enum Withdrawal {
    /// The message is over, and its result is to be collected.
    Over,
    /// The message is withdrawn, its slot free or kept for the peer; the export of its buffer.
    Withdrawn(u64),
    /// Pieces are in flight: the message is over when they have ended.
    Wait,
}

impl Endpoint {
    /// Keeps both sides from claiming another piece, unless the message is over.
    pub fn cancel(&mut self, lane: &Lane, number: u32) {
        if self.own(number).state == State::Posted {
            claims::raise(lane.claims(number), number, flag::CANCELLED);
        }
    }

    /// Withdraws a message. An unmatched post that is this side's latest is undone: no message is
    /// lost. One with later posts behind it keeps its number: the peer's post for that is
    /// cancelled.
    pub fn withdraw(&mut self, lane: &Lane, number: u32) -> Withdrawal {
        if self.is_over(lane, number) {
            return Withdrawal::Over;
        }
        if self.own(number).kind == kind::EAGER {
            // The bytes are in the region already, and the peer will read them.
            let taken = self.own(number).ours.len as isize;
            self.end(lane, number, taken);
            return Withdrawal::Over;
        }
        self.cancel(lane, number);
        // A peer that posts from here on claims nothing; one that has posted before is seen.
        full_fence();
        if let Some(pin) = self.undo(lane, number) {
            lane.claims(number).store(0, Ordering::Release);
            return Withdrawal::Withdrawn(pin);
        }
        if let Some(given_up) = self.give_up_matched(lane, number) {
            return given_up;
        }
        if self.role == Role::Reader {
            self.own_desc(lane, number).len.store(0, Ordering::Release);
            self.own(number).ours.len = 0;
        }
        self.withdrawn += 1;
        let own = self.own(number);
        (own.cancelled, own.withdrawn) = (true, true);
        (own.cookie, own.waited) = (false, false);
        Withdrawal::Withdrawn(core::mem::take(&mut own.ours.pin))
    }

    /// Undoes a post that the peer has not matched, so that no message is lost; returns the export of
    /// its buffer. `None`: the peer has, or there are later posts.
    pub fn undo(&mut self, lane: &Lane, number: u32) -> Option<u64> {
        if number.wrapping_add(1) != self.next || self.is_matched(lane, number) != Ok(false) {
            return None;
        }
        let desc = self.own_desc(lane, number);
        desc.number.store(number, Ordering::SeqCst); // a number that this slot never has: none
        full_fence();
        let theirs = self.other_desc(lane, number).number.load(Ordering::SeqCst);
        if theirs == number.wrapping_add(1) {
            desc.number.store(number.wrapping_add(1), Ordering::SeqCst);
            return None;
        }
        // The peer looks for our post after it has published its own, and finds none.
        self.next = number;
        let own = self.own(number);
        own.state = State::Free;
        Some(core::mem::take(&mut own.ours.pin))
    }

    /// Cancels a message that the peer has matched. `None`: it has not.
    fn give_up_matched(&mut self, lane: &Lane, number: u32) -> Option<Withdrawal> {
        if self.is_matched(lane, number) == Ok(false) {
            return None;
        }
        let over = self.abandon(lane, number, false, -libc::ECANCELED as isize);
        Some(if over { Withdrawal::Over } else { Withdrawal::Wait })
    }

    /// Ends withdrawn messages that the peer has matched by now.
    #[cold]
    pub(super) fn sweep_withdrawn(&mut self, lane: &Lane) {
        for number in self.under_way() {
            if self.own(number).withdrawn {
                self.give_up_matched(lane, number);
            }
        }
    }

    /// Abandons a message. True: no process touches its buffers any more, and it is over with
    /// `result`. `alone`: the peer is gone and need not be waited for.
    pub fn abandon(&mut self, lane: &Lane, number: u32, alone: bool, result: isize) -> bool {
        if self.own(number).state != State::Posted {
            return true;
        }
        self.cancel(lane, number);
        let settled = if alone { self.own(number).is_settled() } else { self.view(lane, number).1 };
        if settled {
            self.own(number).cancelled = true;
            self.end(lane, number, result);
        }
        settled
    }
}
