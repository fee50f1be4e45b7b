//! Taking messages a step further: the caller's own, and those of other connections.

use crate::ipc::claims::Broken;
use crate::ipc::handles;
use crate::ipc::link::{Link, other};
use crate::ipc::messages::{Endpoint, Hint, Role, Step};
use crate::ipc::os;
use crate::ipc::setup::accept::{self, GREETINGS};
use crate::ipc::wake::background::{self, AT_ONCE, CONNECTION, GREETING};
use crate::ipc::wake::doorbell::how;
use crate::ipc::wake::wakeups::{self, NEEDY};
use crate::os::lock::Held;
use crate::os::sys;
use core::sync::atomic::{AtomicU64, Ordering};

/// Ticks between two looks for peers that have lost a right: some tenths of a second.
const LOST_TICKS: u64 = 1_000_000_000;

/// Looks for peers that have lost a right, now and then: they cannot tell a process of which no thread
/// is in a call for their connection.
pub fn look_for_lost() {
    static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
    let now = sys::ticks();
    if now.wrapping_sub(LOOKED_AT.load(Ordering::Relaxed)) > LOST_TICKS {
        LOOKED_AT.store(now, Ordering::Relaxed);
        handles::all().for_each(|link| _ = link.is_needy());
    }
}

/// Returns whether there is anything in the background but this connection.
pub fn has_background(link: &Link) -> bool {
    let own = u32::from(link.must_help.load(Ordering::Relaxed));
    NEEDY.load(Ordering::Relaxed) > own || GREETINGS.load(Ordering::Relaxed) != 0
}

/// Serves connections and greetings that are ready. True: something was done.
pub fn serve_background(limited: bool) -> bool {
    let mut keys = [0; AT_ONCE];
    let count = background::ready(&mut keys);
    let mut done = false;
    for key in &keys[..count] {
        if key & GREETING != 0 {
            accept::go_on(*key as u32);
            done = true;
        } else if key & CONNECTION != 0 {
            // A connection that is being closed has left the set, or will.
            done |= handles::find(*key as i32).is_ok_and(|link| link.serve(limited));
        }
    }
    done
}

impl Link {
    /// Does everything there is to do for a connection whose peer has rung.
    fn serve(&self, limited: bool) -> bool {
        let events = os::poll(self.descriptors(), 0).unwrap_or_default();
        let is_alive = self.note_events(events);
        self.drain();
        if !is_alive || self.end_of_other() == other::BROKEN {
            background::forget(self.socket.raw()); // it would be ready for ever
        }
        // The byte may have been meant for threads that poll the socket.
        self.mine().doorbell.0.ring();
        wakeups::wake_all();
        let mut done = false;
        loop {
            self.mine().doorbell.0.announce(how::BYTE);
            if !self.help(limited) {
                return done;
            }
            done = true;
        }
    }

    /// Takes a message one step further, and does what that asks for. `None`: something was done.
    /// Otherwise the result for its waiter, with the lock still held.
    fn go_on<'a>(
        &self,
        role: Role,
        number: u32,
        limited: bool,
        mut endpoint: Held<'a, Endpoint>,
    ) -> Option<(Held<'a, Endpoint>, Result<Step, Broken>)> {
        let (_, lane) = self.endpoint(role);
        let (proven, peer_calls) = (self.proven(), self.peer_calls());
        match endpoint.advance(lane, proven, peer_calls, limited, number) {
            Ok(Step::Moved) => self.let_go(endpoint),
            Ok(Step::Copy(piece)) => {
                drop(endpoint);
                if let Some(proven) = proven {
                    self.copy_or_defer(proven, role, number, piece, limited);
                }
            }
            step => return Some((endpoint, step)),
        }
        None
    }

    /// Takes the caller's message a step further. `Err(None)`: something was done. `Err(Some)`: there
    /// is nothing to do until this word changes.
    pub fn step(&self, role: Role, number: u32, limited: bool) -> Result<isize, Option<Hint>> {
        // Before looking: what the peer did before its end must be seen.
        let gone = self.end_of_other();
        let (endpoint, lane) = self.endpoint(role);
        let (mut endpoint, step) =
            self.go_on(role, number, limited, endpoint.lock()).ok_or(None)?;
        // Changes when our own pieces end.
        let own = Hint::of(&lane.desc(role, number).finished);
        let (alone, gone, hint) = match step {
            Ok(Step::Idle(hint)) => (gone >= other::CLOSED, gone, hint),
            // After looking: a side that closes says so before it cancels.
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
        let over = gone != other::ALIVE || self.tells_closing();
        if over && endpoint.abandon(lane, number, alone, self.failure(gone)) {
            return Ok(self.collected(endpoint, number));
        }
        Err(Some(hint))
    }

    /// Does what the peer cannot do alone, for any message of this connection. True: something was
    /// done.
    pub fn help(&self, limited: bool) -> bool {
        // Messages of a peer that broke the protocol are ended by their own waits: helping them would
        // find the same wrong word for ever.
        if self.end_of_other() == other::BROKEN || !self.is_needy() {
            return false;
        }
        for role in [Role::Reader, Role::Writer] {
            let Some(mut endpoint) = self.endpoint(role).0.try_lock() else {
                background::skip(self.key());
                continue;
            };
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
