//! Slots of messages, which grow with their number up to the window, here and in the region; and how far
//! one side may be ahead of the other.

use super::{Endpoint, Hint, NoRoom, OwnPost, Role, State};
use crate::ipc::claims::Broken;
use crate::ipc::memory::region::{Lane, WINDOW};
use core::sync::atomic::Ordering;

impl Endpoint {
    /// Returns an error where the next message has no slot, here or at the peer.
    #[inline(always)]
    pub(super) fn check_room(&mut self, lane: &Lane) -> Result<(), NoRoom> {
        if self.next < self.prepared
            && self.own(self.next).state == State::Free
            && self.withdrawn == 0
            && !self.is_far_ahead()
        {
            return Ok(());
        }
        self.find_room(lane)
    }

    /// Makes slots for the next message, and pages for its cell and the one after it, which is looked
    /// at before it is used.
    pub(super) fn prepare(&mut self, lane: &Lane) -> Result<(), NoRoom> {
        let wanted = (self.next as usize + 2).min(WINDOW);
        let count = lane.find_cells(wanted).map_err(|_| NoRoom::NoMemory)?;
        self.requests.resize(count, OwnPost::default());
        self.prepared = if count == WINDOW { u32::MAX } else { count as u32 - 1 };
        Ok(())
    }

    #[cold]
    fn find_room(&mut self, lane: &Lane) -> Result<(), NoRoom> {
        let next = self.next;
        if next >= self.prepared && self.requests.len() < WINDOW {
            self.prepare(lane)?;
        }
        if self.withdrawn != 0 {
            self.sweep_withdrawn(lane);
        }
        let own = self.own(next);
        if own.state != State::Free {
            if own.cookie && !own.waited {
                return Err(NoRoom::Uncollected);
            }
            self.others_wait = true;
            return Err(NoRoom::InUse(Hint::of(&lane.done[self.role as usize].0)));
        }
        if self.is_far_ahead() {
            self.look_how_far(lane)?;
            if self.is_far_ahead() {
                let word = &lane.done[self.role.other() as usize].0;
                self.wants_room = true;
                return Err(NoRoom::OtherIsBehind(Hint { word, seen: self.other_done }));
            }
        }
        Ok(())
    }

    /// Returns whether the window is full. The distance is negative where a writer is ahead.
    pub(super) fn is_far_ahead(&self) -> bool {
        self.next.wrapping_sub(self.other_done) as i32 >= WINDOW as i32
    }

    pub(super) fn look_how_far(&mut self, lane: &Lane) -> Result<(), Broken> {
        let most = match self.role {
            Role::Writer => self.next,
            // A writer may be ahead, by eager messages.
            Role::Reader => self.next.wrapping_add(WINDOW as u32),
        };
        let done = lane.done[self.role.other() as usize].0.load(Ordering::Acquire);
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
}
