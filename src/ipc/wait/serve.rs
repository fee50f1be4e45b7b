//! Serving connections: what the service thread does with messages that no thread waits for.

use crate::ipc::handles;
use crate::ipc::link::{Link, other};
use crate::ipc::messages::{Role, Step};
use crate::ipc::os;
use crate::ipc::setup::accept;
use crate::ipc::wake::doorbell::how;
use crate::ipc::wake::service::{self, CONNECTION, GREETING, Work};

/// Rounds over the messages of one connection before the others have their turn: a peer that always
/// has something to do cannot keep the thread.
const ROUNDS: usize = 16;

/// Hands this module's work to the service thread.
pub fn begin() {
    service::set_work(Work { serve, look, join_all });
}

fn serve(keys: &[u64]) {
    for &key in keys {
        if key & GREETING != 0 && key & CONNECTION == 0 {
            accept::advance(key as u32);
        } else if key & GREETING == 0
            && key & CONNECTION != 0
            && let Ok(link) = handles::find(key as i32)
        {
            link.serve();
        }
    }
}

fn look() {
    accept::drop_late();
    for link in handles::all() {
        if !link.look_for_end() {
            link.leave_service();
        }
    }
}

fn join_all() {
    accept::join_all();
    handles::all().for_each(|link| link.join_service());
}

impl Link {
    /// Does everything there is to do for a connection whose peer has rung, or that a thread of this
    /// process has called for.
    pub fn serve(&self) {
        let is_alive = self.note_events(os::poll(self.descriptors(), 0).unwrap_or_default());
        self.drain();
        if !is_alive || self.end_of_other() == other::BROKEN {
            self.leave_service(); // it would be ready for ever
        }
        for _ in 0..ROUNDS {
            if self.needs_service() {
                self.mine().doorbell.0.announce(how::BYTE); // before the look
            }
            if !self.move_unattended() {
                return self.ring_if_news();
            }
        }
        service::call(self.key());
        self.ring_if_news();
    }

    /// Takes every message that no thread waits for a step further. True: something was done.
    fn move_unattended(&self) -> bool {
        let mut any = false;
        for role in Role::BOTH {
            let (lock, lane) = self.endpoint(role);
            let mut endpoint = lock.lock();
            for number in endpoint.under_way() {
                if self.end_of_other() == other::BROKEN {
                    return false; // its cookies find out
                }
                if !endpoint.is_unattended(number) {
                    continue;
                }
                let (proven, peer_calls) = (self.proven(), self.peer_calls());
                match endpoint.advance(lane, proven, peer_calls, true, number) {
                    Ok(Step::Idle(_) | Step::Cancelled) => continue,
                    Ok(Step::Moved | Step::Over) => self.let_go(endpoint),
                    Ok(Step::Copy(piece)) => {
                        drop(endpoint);
                        if let Some(proven) = proven {
                            self.copy_or_defer(proven, role, number, piece, true);
                        }
                    }
                    Err(_) => {
                        drop(endpoint);
                        self.broken();
                        return false;
                    }
                }
                any = true;
                endpoint = lock.lock();
            }
            drop(endpoint);
        }
        any
    }

    /// Makes the event descriptor readable if the program waits and has something to look at.
    fn ring_if_news(&self) {
        if let Some(events) = self.armed_events()
            && self.has_news()
        {
            events.ring();
        }
    }
}
