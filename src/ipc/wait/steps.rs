//! Taking the caller's own message a step further.

use crate::ipc::claims::Broken;
use crate::ipc::link::{Link, other};
use crate::ipc::messages::{Endpoint, Hint, Role, Step};
use crate::os::lock::Held;
use core::sync::atomic::Ordering;

impl Link {
    /// Takes the caller's message a step further. `Err(None)`: something was done. `Err(Some)`: there
    /// is nothing to do until this word changes.
    pub fn advance(&self, role: Role, number: u32, limited: bool) -> Result<isize, Option<Hint>> {
        // Before looking: what the peer did before its end must be seen.
        let gone = self.end_of_other();
        let (endpoint, lane) = self.endpoint(role);
        let step = self.step(role, number, limited, endpoint.lock());
        let Some((mut endpoint, step)) = step else { return Err(None) };
        // Changes when our own pieces end.
        let own = Hint::of(&lane.desc(role, number).finished);
        let (alone, gone, hint) = match step {
            Ok(Step::Idle(hint)) => (gone >= other::CLOSED, gone, hint),
            // Looked at afterwards: a side that closes shows that before it cancels.
            Ok(Step::Cancelled) => match self.end_of_other() {
                other::ALIVE if !self.closing.load(Ordering::Acquire) => {
                    if endpoint.abandon(lane, number, true, -libc::ECANCELED as isize) {
                        return Ok(self.collected(endpoint, number));
                    }
                    return Err(Some(own));
                }
                other::CHANGED => (true, other::CHANGED, own),
                gone => (true, gone.max(other::CLOSED), own),
            },
            Ok(_) => return Ok(self.collected(endpoint, number)),
            Err(Broken) => {
                self.broken();
                (true, other::BROKEN, own)
            }
        };
        let over = gone != other::ALIVE || self.shows_closing();
        if over && endpoint.abandon(lane, number, alone, self.failure(gone)) {
            return Ok(self.collected(endpoint, number));
        }
        Err(Some(hint))
    }

    /// Takes a message a step further. `None`: something was done, and the endpoint is unlocked.
    pub fn step<'a>(
        &'a self,
        role: Role,
        number: u32,
        limited: bool,
        mut endpoint: Held<'a, Endpoint>,
    ) -> Option<(Held<'a, Endpoint>, Result<Step, Broken>)> {
        let ((_, lane), proven) = (self.endpoint(role), self.proven());
        match endpoint.advance(lane, proven, self.peer_calls(), limited, number) {
            Ok(Step::Moved) => self.let_go(endpoint),
            Ok(Step::Copy(piece)) => {
                drop(endpoint);
                self.copy_or_defer(proven?, role, number, piece, limited);
            }
            step => return Some((endpoint, step)),
        }
        None
    }
}
