//! Taking messages a step further: one's own, and those of others that need it.

use super::claims::Broken;
use super::endpoint::{Endpoint, Hint, Role, Step};
use super::kicks::NEEDY;
use super::link::{Link, other};
use super::lock::Held;
use super::table;
use core::sync::atomic::Ordering;

fn has_needy_others(link: &Link) -> bool {
    NEEDY.load(Ordering::Relaxed) > u32::from(link.must_help.load(Ordering::Relaxed))
}

/// Does something for any connection but this one. True: something was done.
pub fn help_others(link: &Link, limited: bool) -> bool {
    has_needy_others(link) && table::others(link).any(|other| other.help(limited))
}

pub fn others_need_help(link: &Link) -> bool {
    has_needy_others(link) && table::others(link).any(|other| other.wants_watching())
}

impl Link {
    /// Takes a message one step further, and does what that is. `None`: something was done.
    /// Otherwise what its waiter has to know, with the lock still held.
    fn go_on<'a>(
        &self,
        role: Role,
        number: u32,
        limited: bool,
        mut endpoint: Held<'a, Endpoint>,
    ) -> Option<(Held<'a, Endpoint>, Result<Step, Broken>)> {
        let (_, lane) = self.endpoint(role);
        match endpoint.advance(lane, &self.engine, self.other_may(role), limited, number) {
            Ok(Step::Moved) => self.let_go(endpoint),
            Ok(Step::Copy(piece)) => {
                drop(endpoint);
                self.copy_or_defer(role, number, piece, limited);
            }
            Ok(Step::Fetch(place)) => {
                drop(endpoint);
                // The other side must have sent it.
                self.take_in();
                self.engine.mappings.give_up(place);
            }
            step => return Some((endpoint, step)),
        }
        None
    }

    /// The same for who waits for it. `Err(None)`: something was done. `Err(Some)`: there is
    /// nothing to do until this word changes.
    pub fn step(&self, role: Role, number: u32, limited: bool) -> Result<isize, Option<Hint>> {
        // Before looking: what the other did before its end must be seen.
        let gone = self.end_of_other();
        let (endpoint, lane) = self.endpoint(role);
        let (mut endpoint, step) =
            self.go_on(role, number, limited, endpoint.lock()).ok_or(None)?;
        // Changes when our own pieces end.
        let own = Hint::of(&lane.desc(role, number).finished);
        let (alone, gone, hint) = match step {
            Ok(Step::Idle(hint)) => (gone >= other::CLOSED, gone, hint),
            // After looking: who cancels has said why before.
            Ok(Step::Cancelled) => match self.end_of_other() {
                other::CHANGED => (true, other::CHANGED, own),
                gone => (true, gone.max(other::CLOSED), own),
            },
            Ok(_) => return Ok(self.collected(endpoint, number)),
            Err(Broken) => {
                self.broken();
                (true, other::BROKEN, own)
            }
        };
        let over = gone != other::ALIVE || self.closing.load(Ordering::Acquire);
        if over && endpoint.abandon(lane, number, alone, self.failure(role, gone)) {
            return Ok(self.collected(endpoint, number));
        }
        Err(Some(hint))
    }

    /// Does what nobody may be waiting for here, but the other side cannot do alone. True:
    /// something was done.
    pub fn help(&self, limited: bool) -> bool {
        if !self.is_needy() {
            return false;
        }
        for role in [Role::Reader, Role::Writer] {
            let Some(mut endpoint) = self.endpoint(role).0.try_lock() else { continue };
            for number in endpoint.unfinished() {
                match self.go_on(role, number, limited, endpoint) {
                    None => {}
                    Some((held, Ok(Step::Over))) => self.let_go(held),
                    Some((held, Err(Broken))) => {
                        drop(held);
                        self.broken();
                    }
                    Some((held, _)) => {
                        endpoint = held;
                        continue;
                    }
                }
                self.ring_own();
                return true;
            }
        }
        false
    }
}
